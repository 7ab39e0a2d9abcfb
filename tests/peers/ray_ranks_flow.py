"""Ranks in actors of a real Ray cluster of two nodes; test_ray_ranks.py runs this where Ray is."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from tests.faulty_trials import failed_checks

from refrl.config import ClusterConfig, ConfigError, PolicyConfig, validate_config
from refrl.generation.base import Generator, SamplingParams
from refrl.generation.process import GeneratorLostError, ProcessGenerator
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.runtime import launcher
from refrl.runtime.launcher import RankError, launch
from refrl.training.build_generation import build_generator
from seatrial.evidence.read import read_logs
from seatrial.faults.claims import FaultyRun, faulty_runs
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.targets.reference.components import ReferenceComponents
from seatrial.verdict import Outcome

NIGHTLY = pytest.mark.skipif("NIGHTLY" not in os.environ, reason="takes a minute: for the night")
PATIENCE = 900
"""Seconds: on a busy machine a cluster alone takes minutes to start."""
WITHIN = 10
"""Seconds in which nothing is left of a run whose rank, or whose command, was killed."""
TWO = ClusterConfig(num_processes=2, placement="ray", device="cpu")
RANK = """
import json, os, signal, sys
from pathlib import Path
from refrl.lifeline import watch_lifeline
folder, how = Path(sys.argv[1]), sys.argv[2]
rank = os.environ["RANK"]
(folder / "tmp").mkdir(exist_ok=True)
written = folder / "tmp" / rank
written.write_text(json.dumps({"pid": os.getpid(), "cwd": os.getcwd(), **os.environ}))
written.rename(folder / rank)
watch_lifeline()
if how == "well":
    print("rank", rank, os.environ["LOCAL_RANK"], "of", os.environ["WORLD_SIZE"])
    print("a warning", file=sys.stderr)
elif rank == "1" and how != "waits":
    print("refrl grpo: the words of rank 1", file=sys.stderr, flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(how))
else:
    signal.pause()
"""
DRIVER = """
import sys
import ray
from refrl.config import ClusterConfig
from refrl.runtime import launcher
ray.init(address=sys.argv[1], log_to_driver=False)
launcher.COMMAND = (sys.executable, sys.argv[2])
launcher.launch([sys.argv[3], "waits"], ClusterConfig(num_processes=2, placement="ray", device="cpu"))
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the head of a cluster of two nodes with two CPUs each, which this process has joined."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    try:
        cluster.add_node(num_cpus=2)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> Path:
    """Replace what a rank runs; each leaves its variables in the folder `ranks` beside it."""
    path = tmp_path / "rank.py"
    path.write_text(RANK)
    (tmp_path / "ranks").mkdir()
    monkeypatch.setattr(launcher, "COMMAND", (sys.executable, str(path), str(tmp_path / "ranks")))
    return path


def said(folder: Path) -> list[dict[str, Any]]:
    """Return what the ranks wrote down so far."""
    return [json.loads((folder / rank).read_text()) for rank in ("0", "1") if (folder / rank).exists()]


def until(there: Callable[[], Any], process: "subprocess.Popen[Any] | None" = None) -> Any:
    """Wait until something is there; a process that should bring it must go on."""
    while not (found := there()):
        assert process is None or process.poll() is None, "it ended first"
        time.sleep(0.02)
    return found


def test_ranks_are_on_both_nodes_and_only_rank_0_is_heard(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 beside the command, each with the first device of its own, in the command's folder."""
    monkeypatch.chdir(tmp_path)
    launch(["well"], TWO)
    first, second = said(tmp_path / "ranks")
    assert capfd.readouterr() == ("rank 0 0 of 2\n", "a warning\n")
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    assert {first["REFRL_RAY_NODE"], second["REFRL_RAY_NODE"]} == nodes
    assert first["REFRL_RAY_NODE"] == ray.get_runtime_context().get_node_id()
    assert first["cwd"] == second["cwd"] == str(tmp_path)
    assert first["LOCAL_RANK"] == second["LOCAL_RANK"] == "0"
    assert {psutil.Process(one["pid"]) for one in (first, second) if psutil.pid_exists(one["pid"])} == set()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("2", ConfigError, "^the words of rank 1$"),
        (
            "3",
            RankError,
            "rank 1 ended with exit status 3, and the others were stopped: .*the words of rank 1",
        ),
        ("killed", RankError, "rank 1 ended by signal 9, and the others were stopped: .*the words of rank 1"),
    ],
)
def test_a_rank_that_ends_badly_ends_the_others(
    script: Path,
    tmp_path: Path,
    how: str,
    error: type[Exception],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In its own words, as on one host; rank 0 waits for ever, as in a collective."""
    monkeypatch.setattr(launcher, "COMMAND", (*launcher.COMMAND, how))
    with pytest.raises(error, match=words):
        launch(["grpo"], TWO)
    assert not any(psutil.pid_exists(rank["pid"]) for rank in said(tmp_path / "ranks"))


def test_a_rank_whose_actor_is_killed_ends_the_others(script: Path, tmp_path: Path) -> None:
    """And goes with it."""
    ranks = tmp_path / "ranks"

    def kill() -> None:
        until(lambda: len(said(ranks)) == 2)
        psutil.Process(said(ranks)[1]["pid"]).parent().kill()

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(RankError, match="rank 1 was lost with its actor, and the others were stopped"):
        launch(["waits"], TWO)
    assert until(lambda: not any(psutil.pid_exists(rank["pid"]) for rank in said(ranks)))


def test_no_rank_outlives_a_command_that_is_killed(script: Path, tmp_path: Path, address: str) -> None:
    """Not even when it can end nothing any more."""
    ranks = tmp_path / "ranks"
    process = subprocess.Popen([sys.executable, "-c", DRIVER, address, str(script), str(ranks)])
    until(lambda: len(said(ranks)) == 2, process)
    left = [psutil.Process(rank["pid"]) for rank in said(ranks)]
    process.kill()
    process.wait()
    assert psutil.wait_procs(left, timeout=WITHIN)[1] == []


def test_too_many_ranks_are_refused_at_once(script: Path) -> None:
    """With what there is, and the remedy."""
    with pytest.raises(
        ConfigError, match="each rank takes a CPU, and the Ray cluster has 4 CPUs in all: lower it"
    ):
        launch(["well"], ClusterConfig(num_processes=5, placement="ray", device="cpu"))
    with pytest.raises(
        ConfigError, match=r"takes a CPU and a GPU .cluster.device=cpu: none.*has 0 GPUs in all"
    ):
        launch(["well"], ClusterConfig(num_processes=2, placement="ray", device="cuda"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a tiny model."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    make_model(TinyModelSpec(), folder)
    return folder


def command(loop: str, recipe: str, model: Path, folder: Path, *more: str) -> list[str]:
    """Return the command of a run of two ranks."""
    places = (f"logger.log_dir={folder}/logs", f"checkpointing.checkpoint_dir={folder}/checkpoints")
    words = (
        "--config",
        recipe,
        f"policy.model_name={model}",
        "cluster.num_processes=2",
        "cluster.device=cpu",
    )
    return [sys.executable, "-m", "refrl", loop, *words, *places, *more]


def run(*words: str) -> str:
    """Run a command that must end well, and return what it prints."""
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def left_by(folder: Path) -> dict[str, Any]:
    """Return what a run left that does not depend on the clock: rows, tensors of checkpoints and export, series."""
    files = [*(folder / "logs").glob("*.jsonl"), *folder.rglob("*.safetensors")]
    log = read_logs(folder / "logs")
    series = {
        tag: (one.steps.tolist(), one.values.tobytes())
        for tag, one in log.series.items()
        if not tag.startswith(("timing/", "performance/"))
    }
    return {**{str(file.relative_to(folder)): file.read_bytes() for file in files}, "log": series}


def same(one: Path, other: Path, but: Sequence[str] = ()) -> None:
    """Hold what two runs left against one another, but for some of it."""
    mine, theirs = left_by(one), left_by(other)
    assert mine.keys() == theirs.keys()
    assert len(mine["log"]) > 5
    assert [name for name in mine if name not in but and mine[name] != theirs[name]] == []


def test_an_engine_in_an_actor_samples_as_one_in_this_process(model: Path, address: str) -> None:
    """Bit for bit; an engine whose process is killed is lost."""
    params = SamplingParams(max_new_tokens=6, temperature=0.7, top_p=0.9, stop_token_ids=(0,))
    sizes = {"train_global_batch_size": 4, "train_micro_batch_size": 4, "max_total_sequence_length": 32}

    def engine(placement: str) -> Generator:
        generation = {"colocated": {"enabled": False}, "placement": placement}
        values = {"model_name": str(model), **sizes, "generation": generation}
        config = validate_config(PolicyConfig, values, source="test")
        return build_generator(config, make_byte_tokenizer(), device=torch.device("cpu"))

    def sample(generator: Generator) -> list[tuple[Any, ...]]:
        rows = generator.generate([[65, 66, 67], [68]], params, torch.Generator().manual_seed(3))
        return [(row.ids, row.logprobs, row.finish_reason) for row in rows]

    actor = engine("ray")
    assert isinstance(actor, ProcessGenerator)
    assert sample(actor) == sample(engine("inline"))
    os.kill(actor.link.pid, signal.SIGKILL)
    with pytest.raises(GeneratorLostError):
        sample(actor)


SFT, GRPO = ("sft", "sft-resume-diamond"), ("grpo", "grpo-smoke")
DTENSOR = ("policy.dtensor_cfg.enabled=true", "policy.dtensor_cfg.tensor_parallel_size=2")
MEGATRON = ("policy.megatron_cfg.enabled=true", "policy.megatron_cfg.tensor_model_parallel_size=2")


@pytest.mark.parametrize(
    ("loop", "more"),
    [
        pytest.param(GRPO, (), id="grpo", marks=NIGHTLY),
        pytest.param(SFT, (), id="sft", marks=NIGHTLY),
        pytest.param(GRPO, DTENSOR, id="dtensor", marks=NIGHTLY),
        pytest.param(GRPO, MEGATRON, id="megatron", marks=NIGHTLY),
    ],
)
def test_a_run_on_two_nodes_leaves_what_one_on_this_host_leaves(
    model: Path, address: str, tmp_path: Path, loop: tuple[str, str], more: tuple[str, ...]
) -> None:
    """Weights, rows and logs bit for bit; it states where its ranks were."""
    on_ray = ("cluster.placement=ray", f"cluster.ray_address={address}")
    for place, words in (("ray", on_ray), ("process", ())):
        run(*command(*loop, model, tmp_path / place, *more, *words))
    same(tmp_path / "ray", tmp_path / "process")
    info = json.loads((tmp_path / "ray" / "logs" / "run_info.json").read_text())
    assert info["placement"]["by"] == "ray"
    assert len({rank["node"] for rank in info["placement"]["ranks"]}) == 2


@NIGHTLY
def test_a_killed_run_goes_on_in_another_placement(model: Path, tmp_path: Path) -> None:
    """Killed on this host after its first checkpoint, it ends on Ray as the run that was not killed."""
    words = ("checkpointing.save_period=1", "checkpointing.keep_top_k=null", "grpo.max_num_steps=6")
    run(*command(*GRPO, model, tmp_path / "whole", *words))
    begun = command(*GRPO, model, tmp_path / "parts", *words)
    with (tmp_path / "console").open("w") as console:
        process = subprocess.Popen(begun, stdout=console)
        until(lambda: list((tmp_path / "parts" / "checkpoints").glob("step_[1-5]")), process)
        process.kill()
        process.wait()
    output = run(*begun, "cluster.placement=ray")
    assert "resuming after step" in output
    assert "cluster.placement was 'process', is 'ray'" in output
    same(tmp_path / "whole", tmp_path / "parts")


@NIGHTLY
def test_a_placement_changes_nothing(address: str) -> None:
    """The relation of it on refrl, on a cluster that this process is in."""
    (relation,) = select(["R2.placement"])
    verdict = run_relation(relation, ReferenceComponents())
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert len(verdict.details["laws"]) == 2


@NIGHTLY
def test_the_trial_of_ranks_on_ray_passes(tmp_path: Path) -> None:
    """With its claim that Ray started them."""
    trial = ("run", "--trial", "parallel-ray-dp2", "--output", str(tmp_path))
    assert "its processes were started by ray" in run(sys.executable, "-m", "seatrial", *trial)


@NIGHTLY
@pytest.mark.parametrize(
    "one", [one for one in faulty_runs() if one.trial == "parallel-ray-dp2"], ids=lambda one: one.fault
)
def test_the_trial_of_ranks_on_ray_fails_at_the_checks(one: FaultyRun, tmp_path: Path) -> None:
    """With the fault planted in the processes that Ray starts."""
    assert set(one.breaks.values()) <= failed_checks(one, tmp_path)


@NIGHTLY
def test_every_rank_has_a_generator_in_the_cluster(model: Path, address: str, tmp_path: Path) -> None:
    """Beside the ranks; rows and weights are those of generators within them, whose syncs log other figures."""
    apart = ("policy.generation.colocated.enabled=false", "cluster.placement=ray")
    for place, words in (
        ("ray", ("policy.generation.placement=ray", f"cluster.ray_address={address}")),
        ("inline", ()),
    ):
        run(*command(*GRPO, model, tmp_path / place, *apart, *words))
    same(tmp_path / "ray", tmp_path / "inline", but=("log",))


@NIGHTLY
@pytest.mark.parametrize(("word", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_run_that_is_told_to_end_leaves_nothing(
    model: Path, tmp_path: Path, word: signal.Signals, status: int
) -> None:
    """Neither a process nor the folder of its own cluster."""
    begun = command(*GRPO, model, tmp_path, "cluster.placement=ray", "grpo.max_num_steps=100000")
    process = subprocess.Popen(begun, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: (tmp_path / "logs" / "train_data_step1.jsonl").exists(), process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(word)
    words = {130: "interrupted", 143: "terminated"}[status]
    assert process.communicate(timeout=PATIENCE)[1] == f"refrl grpo: {words}\n"
    assert process.returncode == status
    assert psutil.wait_procs(children, timeout=WITHIN)[1] == []
    assert not list(Path(os.environ["TMPDIR"]).glob("ray-*"))
