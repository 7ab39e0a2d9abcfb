"""Nightly scripts on the Slurm stand-in: their size, their chains, their nodes, and what is said while they wait."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SLURM = ("--launcher", "slurm", "--poll", "0.3", "--noise", "none")
SITE = {"ACCOUNT": "a", "PARTITION": "p"}


def _script(config: str, body: str) -> str:
    return f"# ===== BEGIN CONFIG =====\n{config}\n# ===== END CONFIG =====\n{body}\n"


def _line(make_repository: Callable[..., Any], config: str, body: str, culprit: int, count: int) -> Any:
    repository = make_repository()
    hashes = [
        repository.commit(
            {"t.sh": _script(config, body), "n": f"{n}\n", "bad": str(int(n >= culprit))}, str(n)
        )
        for n in range(count)
    ]
    return repository, hashes


def _options(stand_ins: dict[str, str]) -> list[list[str]]:
    jobs = sorted(Path(stand_ins["STAND_IN_DIR"]).glob("1*.json"))
    return [json.loads(path.read_text())["options"] for path in jobs]


@pytest.mark.nightly
def test_an_edited_time_limit_reaches_the_scheduler(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """SED_CLAUSES edits NUM_MINUTES; the size of each job is that of the script as it runs at that commit."""
    repository = make_repository()
    hashes = [
        repository.commit({"t.sh": _script(f"NUM_MINUTES={100 + n}", f"exit {int(n > 1)}")}, str(n))
        for n in range(3)
    ]
    words = (*SLURM, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(
        repository, *words, **stand_ins, **SITE, SED_CLAUSES=r"s/^NUM_MINUTES=1\(.*\)/NUM_MINUTES=2\1/"
    )
    assert called.suspects() == [hashes[2]], called.out + called.err
    limits = [[word for word in options if word.startswith("--time=")][-1] for options in _options(stand_ins)]
    assert sorted(limits) == ["--time=200", "--time=201", "--time=202"]


@pytest.mark.parametrize("container", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_a_script_of_several_nodes_runs_once_on_a_ray_cluster_over_all_of_them(
    container: bool,
    make_repository: Callable[..., Any],
    bisect: Callable[..., Any],
    stand_ins: dict[str, str],
    tmp_path: Path,
) -> None:
    log = tmp_path / "ran"
    body = f'echo "$SEATRIAL_RUN_NUMBER $RAY_ADDRESS" >> {log}; exit $(cat bad)'
    repository, hashes = _line(make_repository, "NUM_NODES=3", body, culprit=2, count=3)
    words = (*SLURM, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    site = {**SITE, **({"CONTAINER": "stack:1", "MOUNTS": str(tmp_path)} if container else {})}
    called = bisect(repository, *words, **stand_ins, **site)
    assert called.suspects() == [hashes[2]], called.out + called.err
    ran = [text.split() for text in log.read_text().splitlines()]
    assert set(Counter(number for number, _ in ran).values()) == {1}
    for _, address in ran:
        joined = Path(stand_ins["STAND_IN_DIR"], f"ray-{address.rpartition(':')[2]}").read_text().split("\n")
        assert sorted(filter(None, joined)) == ["node0 head", f"node1 {address}", f"node2 {address}"]


def test_nodes_without_ray_block_the_first_run_at_once_and_name_the_option(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """One job is submitted: it does not wait for nodes that cannot join, and no retry can help."""
    repository, hashes = _line(make_repository, "NUM_NODES=3", "exit $(cat bad)", culprit=2, count=3)
    Path(stand_ins["PATH"].partition(":")[0], "ray").unlink()
    words = (*SLURM, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(repository, *words, **stand_ins, **SITE)
    assert called.returncode == 3, called.out + called.err
    [run] = called.result()["runs"]
    assert run["reason"].startswith(
        "seatrial: no Ray cluster: a node has no ray; without --launch-option ray=no"
    )
    assert len(_options(stand_ins)) == 1
    called = bisect(repository, *words[:2], "--launch-option", "ray=no", *words[2:], **stand_ins, **SITE)
    assert called.suspects() == [hashes[2]], called.out + called.err


@pytest.mark.nightly
def test_a_script_that_calls_srun_itself_is_started_once_and_alone(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "ran"
    body = f"srun sh -c 'echo $SEATRIAL_RUN_NUMBER >> {log}'; exit $(cat bad)"
    repository, hashes = _line(make_repository, "NUM_NODES=2", body, culprit=1, count=2)
    words = (*SLURM, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(repository, *words, **stand_ins, **SITE)
    assert called.returncode == 0, called.out + called.err
    assert set(Counter(log.read_text().split()).values()) == {2}
    assert not list(Path(stand_ins["STAND_IN_DIR"]).glob("ray-*"))


@pytest.mark.parametrize(
    "ending",
    [
        "exit 0",
        pytest.param('touch "$SEATRIAL_RUN_DIR/over-time"; kill -KILL $PPID $$', marks=pytest.mark.nightly),
    ],
)
def test_a_chain_of_jobs_goes_on_from_its_checkpoints(
    ending: str,
    make_repository: Callable[..., Any],
    bisect: Callable[..., Any],
    stand_ins: dict[str, str],
) -> None:
    """Each job does a third of the steps, and ends or is ended at its limit; the last one judges."""
    body = (
        'mkdir -p ckpts; echo x >> ckpts/steps; echo "at $(wc -l < ckpts/steps)"\n'
        f'if [ "$(wc -l < ckpts/steps)" -lt 3 ]; then {ending}; fi\nexit $(cat bad)'
    )
    config = "MAX_STEPS=3\nSTEPS_PER_RUN=1\nNUM_RUNS=$(( (MAX_STEPS + STEPS_PER_RUN - 1) / STEPS_PER_RUN ))"
    repository, hashes = _line(make_repository, config, body, culprit=2, count=4)
    words = (*SLURM, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(repository, *words, **stand_ins, **SITE)
    assert called.suspects() == [hashes[2]], called.out + called.err
    assert len(_options(stand_ins)) == 3 * len(called.runs())
    for run in called.result()["runs"]:
        assert Path(run["evidence"], "run.log").read_text().split("\n")[:3] == ["at 1", "at 2", "at 3"]


@pytest.mark.nightly
def test_a_chain_ends_with_the_job_that_failed(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """A script whose gate failed ends well when it is run again: its target is reached."""
    body = "if [ -e done ]; then exit 0; fi; touch done; exit $(cat bad)"
    repository, hashes = _line(make_repository, "NUM_RUNS=2", body, culprit=2, count=4)
    words = (*SLURM, "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(repository, *words, **stand_ins, **SITE)
    assert called.suspects() == [hashes[2]], called.out + called.err


@pytest.mark.nightly
def test_a_container_can_ask_git_for_its_commit(
    make_repository: Callable[..., Any], bisect: Callable[..., Any], stand_ins: dict[str, str]
) -> None:
    """Everything that the tree's `.git` leads to is mounted; the user's objects read-only."""
    repository, hashes = _line(make_repository, "NUM_NODES=1", "exit $(cat bad)", culprit=1, count=2)
    words = (*SLURM, "--keep-state", "--good", hashes[0], "--bad", "HEAD", "--", "sh", "t.sh")
    called = bisect(repository, *words, **stand_ins, **SITE, CONTAINER="stack:1")
    assert called.returncode == 0, called.out + called.err
    mounts = next(Path(stand_ins["STAND_IN_DIR"]).glob("mounts-*")).read_text().split()[0].split(",")
    private = called.journals[-1].parent / "repo.git"
    assert f"{private}:{private}" in mounts
    objects = repository.path / ".git" / "objects"
    assert f"{objects}:{objects}:ro" in mounts
