"""`seatrial container run`: what reaches the engine, and what comes back.

No container engine runs here: STAND-IN programs of the engines' names record their arguments and environment.
"""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STAND_IN = """#!{python}
# STAND-IN for a container engine: records how it was called, and ends as it is told.
import json, os, sys
from pathlib import Path
if sys.argv[1:2] == ["version"]:
    sys.stderr.write("Cannot connect to the Docker daemon" if os.environ.get("STAND_IN_DEAD") else "")
    sys.exit(1 if os.environ.get("STAND_IN_DEAD") else 0)
record = {{"argv": [Path(sys.argv[0]).name, *sys.argv[1:]], "environment": dict(os.environ)}}
Path(os.environ["STAND_IN_RECORD"]).write_text(json.dumps(record))
if os.environ.get("STAND_IN_SIGNAL"):
    os.kill(os.getpid(), int(os.environ["STAND_IN_SIGNAL"]))
sys.exit(int(os.environ.get("STAND_IN_STATUS", "0")))
"""
COMMAND = ["pytest", "tests/unit", "-k", "a or b", "--", "", 'quote"s', "$HOME", "*", "-x"]
PROGRAMS = {
    "docker": "docker",
    "podman": "podman",
    "apptainer": "apptainer",
    "enroot": "enroot",
    "pyxis": "srun",
}

Run = Callable[..., tuple[subprocess.CompletedProcess[str], dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(
        *arguments: str, programs: tuple[str, ...] = tuple(PROGRAMS.values()), **variables: str
    ) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in programs:
            program = folder / name
            program.write_text(STAND_IN.format(python=sys.executable))
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        record = tmp_path / "record.json"
        (tmp_path / "work").mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "seatrial", "container", "run", *arguments],
            cwd=tmp_path / "work",
            env={
                "PATH": str(folder),
                "HOME": str(tmp_path),
                "STAND_IN_RECORD": str(record),
                "SECRET_NOT_PASSED": "private",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        return done, json.loads(record.read_text()) if record.exists() else {}

    return start


@pytest.mark.parametrize("engine", PROGRAMS)
def test_every_argument_arrives_as_it_was_given(run: Run, engine: str) -> None:
    done, record = run("--engine", engine, "--image", "image.sqsh", "--", *COMMAND)
    assert done.returncode == 0, done.stderr
    assert record["argv"][0] == PROGRAMS[engine]
    assert record["argv"][-len(COMMAND) :] == COMMAND


@pytest.mark.parametrize("engine", PROGRAMS)
@pytest.mark.parametrize("status", [1, 3, 5, 125])
def test_the_exit_status_is_the_commands(run: Run, engine: str, status: int) -> None:
    done, _ = run("--engine", engine, "--image", "i.sqsh", "--", "true", STAND_IN_STATUS=str(status))
    assert done.returncode == status


def test_a_death_by_signal_is_told_as_shells_do(run: Run) -> None:
    done, _ = run("--engine", "podman", "--image", "i", "--", "x", STAND_IN_SIGNAL=str(int(signal.SIGTERM)))
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("engine", PROGRAMS)
def test_a_token_is_handed_over_and_never_shown(run: Run, engine: str) -> None:
    done, record = run("--engine", engine, "--image", "i.sqsh", "--", "true", HF_TOKEN="hf_secret", CI="1")
    assert "hf_secret" not in " ".join(record["argv"]) + done.stderr + done.stdout
    passed = {
        "docker": ["--env", "HF_TOKEN"],
        "podman": ["--env", "HF_TOKEN"],
        "enroot": ["--env", "HF_TOKEN"],
        "pyxis": ["--container-env=HF_TOKEN"],
        "apptainer": ["--cleanenv"],
    }[engine]
    words = record["argv"]
    assert any(words[place : place + len(passed)] == passed for place in range(len(words)))
    name = "APPTAINERENV_HF_TOKEN" if engine == "apptainer" else "HF_TOKEN"
    assert record["environment"][name] == "hf_secret"


@pytest.mark.parametrize("engine", PROGRAMS)
def test_what_is_not_on_the_list_is_not_passed(run: Run, engine: str) -> None:
    _, record = run("--engine", engine, "--image", "i.sqsh", "--", "true")
    assert "SECRET_NOT_PASSED" not in " ".join(record["argv"])
    if engine == "pyxis":  # Slurm would export everything
        assert "--export=NVIDIA_VISIBLE_DEVICES" in record["argv"]


@pytest.mark.parametrize(
    ("engine", "gpus", "words", "variables"),
    [
        ("docker", "all", ["--gpus", "all"], {}),
        ("docker", "0,1", ["--gpus", '"device=0,1"'], {}),
        ("podman", "0,1", ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=1"], {}),
        ("apptainer", "0,1", ["--nv"], {"APPTAINERENV_CUDA_VISIBLE_DEVICES": "0,1"}),
        ("enroot", "0,1", ["--env", "NVIDIA_VISIBLE_DEVICES"], {"NVIDIA_VISIBLE_DEVICES": "0,1"}),
        ("enroot", "none", ["--env", "NVIDIA_VISIBLE_DEVICES"], {"NVIDIA_VISIBLE_DEVICES": "void"}),
        ("pyxis", "all", ["--export=NVIDIA_VISIBLE_DEVICES"], {"NVIDIA_VISIBLE_DEVICES": "all"}),
    ],
)
def test_gpus_are_chosen_in_each_engines_own_way(
    run: Run, engine: str, gpus: str, words: list[str], variables: dict[str, str]
) -> None:
    _, record = run("--engine", engine, "--gpus", gpus, "--image", "i.sqsh", "--", "true")
    argv = record["argv"]
    assert any(argv[place : place + len(words)] == words for place in range(len(argv)))
    assert variables.items() <= record["environment"].items()


@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_without_gpus_none_is_asked_for(run: Run, engine: str) -> None:
    _, record = run("--engine", engine, "--gpus", "none", "--image", "i", "--", "true")
    assert not {"--gpus", "--device", "--nv"} & set(record["argv"])


@pytest.mark.parametrize(
    ("engine", "option", "joined"),
    [
        ("docker", "--volume", "{here}:/data:ro"),
        ("podman", "--volume", "{here}:/data:ro"),
        ("apptainer", "--bind", "{here}:/data:ro"),
        ("enroot", "--mount", "{here}:/data:none:x-create=auto,rbind,ro"),
    ],
)
def test_mounts_reach_the_engine(run: Run, tmp_path: Path, engine: str, option: str, joined: str) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    _, record = run("--engine", engine, "--image", "i.sqsh", "--mount", f"{folder}:/data:ro", "--", "true")
    argv = record["argv"]
    assert argv[argv.index(joined.format(here=folder)) - 1] == option
    work = str(tmp_path / "work")
    assert any(word.startswith(f"{work}:{work}") for word in argv)


def test_pyxis_takes_all_mounts_in_one_option(run: Run, tmp_path: Path) -> None:
    _, record = run("--engine", "pyxis", "--image", "i", "--mount", f"{tmp_path}:/data:ro", "--", "true")
    work = tmp_path / "work"
    assert f"--container-mounts={work}:{work},{tmp_path}:/data:ro" in record["argv"]
    assert f"--container-workdir={work}" in record["argv"]


def test_caches_are_made_mounted_and_named(run: Run, tmp_path: Path) -> None:
    hub = tmp_path / "hub"
    _, record = run("--engine", "docker", "--image", "i", "--", "true", HF_HOME=str(hub))
    assert hub.is_dir()
    assert f"{hub}:{hub}" in record["argv"]
    assert "HF_HOME" in record["argv"]


def test_the_command_line_is_shown(run: Run) -> None:
    done, record = run("--engine", "podman", "--image", "i", "--", "pytest", "-k", "a or b")
    shown = done.stderr.splitlines()[0]
    assert shown.startswith("+ podman run ")
    assert shown.endswith("i pytest -k 'a or b'")
    assert len(record["argv"]) > 3


def test_the_image_may_come_from_the_guides_variable(run: Run) -> None:
    _, record = run("--engine", "docker", "--", "true", CONTAINER="nvcr.io/x:1")
    assert record["argv"][-2:] == ["nvcr.io/x:1", "true"]


def test_an_image_of_a_registry_is_named_as_such_to_apptainer(run: Run) -> None:
    _, record = run("--engine", "apptainer", "--image", "nvcr.io/x:1", "--", "true")
    assert record["argv"][-2:] == ["docker://nvcr.io/x:1", "true"]


def test_the_first_engine_found_is_used(run: Run) -> None:
    _, record = run("--image", "i.sqsh", "--", "true", programs=("enroot", "srun"))
    assert record["argv"][0] == "enroot"


def test_without_an_engine_it_is_blocked_with_the_remedy(run: Run) -> None:
    done, _ = run("--image", "i", "--", "true", programs=())
    assert done.returncode == 3
    assert "Blocked: no container engine" in done.stderr
    assert "install one (Docker, Podman, Apptainer, enroot)" in done.stderr


def test_a_daemon_that_does_not_answer_is_blocked(run: Run) -> None:
    done, record = run("--engine", "docker", "--image", "i", "--", "true", STAND_IN_DEAD="1")
    assert (done.returncode, record) == (3, {})
    assert "the Docker daemon does not respond: Cannot connect" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--image", "i"], "no command: "),
        (["--", "true"], "no image: give --image, or set CONTAINER"),
        (["--image", "i", "--engine", "lxc", "--", "true"], "engine 'lxc' is unknown; known: docker, "),
        (["--image", "i", "--mount", "/no/such/place", "--", "true"], "/no/such/place does not exist"),
        (["--image", "i", "--mount", "/tmp:data", "--", "true"], "must be an absolute path"),
        (["--image", "i", "--mount", "/tmp:/x:rx", "--", "true"], "must be SOURCE, SOURCE:TARGET or"),
        (["--image", "i", "--env", "NOT_SET_HERE", "--", "true"], "--env NOT_SET_HERE: the variable is not"),
        (["--image", "a/b", "--engine", "enroot", "--", "true"], "enroot import -o image.sqsh docker://a/b"),
    ],
)
def test_wrong_usage_is_one_message(run: Run, arguments: list[str], message: str) -> None:
    done, record = run(*arguments)
    assert (done.returncode, record) == (2, {})
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_caller_does_not_become_root(run: Run) -> None:
    _, record = run("--engine", "docker", "--image", "i", "--", "true")
    argv = record["argv"]
    assert argv[argv.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
