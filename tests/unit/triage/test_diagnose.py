# ruff: noqa: E501 (what logs say stands on one line)
"""Failures that were provoked for real (`provoke.py`), the rows of the seed's table, and stand-ins for a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from seatrial.cli import main
from seatrial.triage.diagnose import diagnose, diagnose_file
from seatrial.triage.first_error import console_lines
from seatrial.triage.patterns import BOUNDARIES, environment_cause, patterns
from seatrial.verdict import Outcome

LOGS = Path(__file__).with_name("logs")
PROVOKED: dict[str, tuple[str, str, str]] = {
    "arguments": ("configuration", "environment", "unrecognized arguments: --step-size"),
    "checkpoint-damaged": ("checkpoint-load", "loader", "SafetensorError"),
    "checkpoint-shape": ("checkpoint-load", "loader", "loading state_dict for Linear"),
    "command-missing": ("command-missing", "environment", "command not found"),
    "disk-full": ("disk-full", "environment", "No space left on device"),
    "host-memory": ("host-memory", "environment", "DefaultCPUAllocator"),
    "hub-unreachable": ("hub-unreachable", "environment", "LocalEntryNotFoundError"),
    "import-missing": ("missing-package", "environment", "flash_attn"),
    "import-name": ("wrong-package-version", "environment", "AutoModelForNothing"),
    "interrupted": ("interrupted", "environment", "KeyboardInterrupt"),
    "json-damaged": ("data-missing", "environment", "JSONDecodeError"),
    "make-failed": ("compile-failed", "environment", "make"),
    "no-chat-template": ("no-chat-template", "producer", "chat_template is not set"),
    "no-cuda": ("no-gpu", "environment", "not compiled with CUDA"),
    "no-model-there": ("no-model-there", "environment", "Repo id must be"),
    "port-in-use": ("port-in-use", "environment", "failed to listen"),
    "ray-actor": ("ray-actor-died", "environment", "ActorDiedError"),
    "ray-killed": ("ray-actor-died", "environment", "ActorDiedError"),
    "ray-resources": ("ray-resources", "environment", "No available node types"),
    "ray-task": ("data-column", "producer", "KeyError: 'prompt'"),
    "sampling-nan": ("sampling-nan", "metric", "probability tensor"),
    "script-missing": ("command-missing", "environment", "can't open file"),
    "segfault": ("native-crash", "consumer", "Segmentation fault"),
    "shapes": ("shapes", "producer", "mat1 and mat2"),
    "shell-killed": ("killed", "environment", "Killed"),
    "shutdown-noise": ("shapes", "producer", "mat1 and mat2"),
    "token-range": ("token-range", "producer", "index out of range in self"),
    "torchrun-killed": ("killed", "environment", "gloo"),
    "torchrun-raises": ("batch-arithmetic", "environment", "Total number of rows"),
    "torchrun-segfault": ("rank-crashed", "consumer", "gloo"),
    "trl-batch": ("batch-arithmetic", "environment", "must be divisible by num_generations"),
    "trl-column": ("data-column", "producer", "KeyError: 'prompt'"),
    "trl-reward": ("verifier", "producer", "KeyError: 'answer'"),
}
"""By the name of a log: the row, the boundary, and what the first error says."""

SAID: dict[str, tuple[str, str]] = {
    "mult-prob-error": (
        "metric",
        'FAIL  max(data["train/token_mult_prob_error"]) < 1.05  value 37.2\n',
    ),
    "cuda-graph-warmup": (
        "consumer",
        "Capturing CUDA graphs: 3/8\nRuntimeError: CUDA error: an illegal memory access was encountered\n",
    ),
    "tp-accuracy-guard": (
        "environment",
        "AssertionError: batch-variant accuracy issue with tensor_parallel_size >= 4; set NRL_IGNORE_TP_ACCURACY_CHECK=1\n",
    ),
    "wrong-policy-backend": (
        "environment",
        "+ policy.megatron_cfg.enabled=true\n(DTensorPolicyWorker pid=12) ValueError: no such layer\n",
    ),
    "bridge-import": (
        "environment",
        "ImportError: cannot load megatron.bridge.models.qwen: no attribute AutoBridge\n",
    ),
    "lora-targets": (
        "loader",
        "ValueError: Target modules {'q_projection'} not found in the base model. Please check the target modules.\n",
    ),
    "refit-producer": (
        "producer",
        "(PolicyWorker pid=9) RuntimeError: prepare_refit_info failed on rank 3\n",
    ),
    "nccl-error": (
        "transport",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77\n",
    ),
    "refit-consumer": (
        "consumer",
        '  File "/opt/w.py", line 3, in update_weights_from_collective\nRuntimeError: cannot reshape the buffer\n',
    ),
    "refit-loader": ("loader", "AttributeError: 'Parameter' object has no attribute 'weight_loader'\n"),
    "checkpoint-load": ("loader", "RuntimeError: Error(s) in loading state_dict for Qwen3ForCausalLM:\n"),
    "hub-unreachable": (
        "environment",
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files\n",
    ),
    "hub-rate-limit": (
        "environment",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x\n",
    ),
    "helpers-cpp": (
        "environment",
        "make: python3-config: No such file or directory\nmake: *** [helpers_cpp] Error 1\n",
    ),
    "disk-full": (
        "environment",
        "/usr/bin/ld: final link failed: No space left on device\nRuntimeError: ld\n",
    ),
    "missing-package": ("environment", "ModuleNotFoundError: No module named 'vllm'\n"),
    "slurm-time-limit": (
        "environment",
        "0: step 40\nslurmstepd: error: *** JOB 71 ON n1 CANCELLED AT 2026-11-01T10:00:00 DUE TO TIME LIMIT ***\n",
    ),
    "oom-kill": (
        "environment",
        "1: ConnectionResetError: Connection reset by peer\nslurmstepd: error: Detected 1 oom_kill event in StepId=71.0.\n",
    ),
    "slurm-preempted": (
        "environment",
        "slurmstepd: error: *** STEP 71.0 ON n1 CANCELLED AT 2026-11-01 DUE TO PREEMPTION ***\n",
    ),
    "slurm-refused": ("environment", "sbatch: error: invalid partition specified: gpu\n"),
    "gpu-memory": (
        "environment",
        "(EngineCore pid=5) ValueError: No available memory for the cache blocks. Increase gpu_memory_utilization\n"
        "RuntimeError: Engine core initialization failed. See root cause above.\n",
    ),
    "binary-mismatch": ("environment", "RuntimeError: operator torchvision::nms does not exist\n"),
    "nccl-timeout": (
        "transport",
        "[rank3]: RuntimeError: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9)\n",
    ),
    "rendezvous": (
        "transport",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: Timed out waiting for clients\n",
    ),
}
"""Texts of the seed's table and of what is not on this machine (vLLM, Slurm, NCCL), by the row and its boundary."""


@pytest.mark.parametrize("name", PROVOKED)
def test_a_provoked_failure_is_named(name: str) -> None:
    """The row, the boundary, and the first error of the first process that died."""
    row, boundary, said = PROVOKED[name]
    diagnosis = diagnose_file(LOGS / f"{name}.log")
    assert diagnosis.pattern is not None, diagnosis.error
    assert (diagnosis.pattern.id, diagnosis.pattern.boundary) == (row, boundary)
    assert diagnosis.error is not None
    assert said in diagnosis.error.text
    assert diagnosis.verdict.outcome.value == diagnosis.pattern.verdict


def test_every_provoked_log_is_judged() -> None:
    """None lies there unread."""
    assert {path.stem for path in LOGS.glob("*.log")} == set(PROVOKED)


@pytest.mark.parametrize("row", SAID)
def test_a_text_of_the_field_is_named(row: str) -> None:
    """Also behind the prefixes of Ray, torchrun and srun."""
    boundary, text = SAID[row]
    diagnosis = diagnose(text)
    assert diagnosis.pattern is not None
    assert (diagnosis.pattern.id, diagnosis.pattern.boundary) == (row, boundary)


def test_the_rank_that_died_first_speaks() -> None:
    """Rank 1 raised; rank 0 only noticed that it was gone."""
    error = diagnose_file(LOGS / "torchrun-raises.log").error
    assert error is not None
    assert error.who == "rank 1"
    assert any("train.py" in line for line in error.context)


def test_ranks_that_torchrun_ended_are_no_cause() -> None:
    """Rank 0 raised, rank 1 did not end at SIGTERM and was killed."""
    text = (
        "[rank0]: ValueError: mat1 and mat2 shapes cannot be multiplied\nFailures:\n[1]:\n  exitcode  : -9 (pid: 4)\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 3)\n"
    )
    pattern = diagnose(text).pattern
    assert pattern is not None
    assert pattern.id == "shapes"


def test_an_unknown_failure_shows_its_first_error() -> None:
    """Under a wrapper, with the lines that lead to it; it is Fail."""
    text = (
        "\x1b[36m(Trainer pid=7, ip=10.0.0.2)\x1b[0m Traceback (most recent call last):\n"
        '\x1b[36m(Trainer pid=7, ip=10.0.0.2)\x1b[0m   File "/opt/x.py", line 3, in step\n'
        "\x1b[36m(Trainer pid=7, ip=10.0.0.2)\x1b[0m ZeroDivisionError: float division by zero\n"
        "ray.exceptions.RayTaskError(ZeroDivisionError): ray::Trainer.step()\nZeroDivisionError: float division by zero\n"
    )
    diagnosis = diagnose(text)
    assert diagnosis.pattern is None
    assert diagnosis.verdict.outcome is Outcome.FAIL
    assert diagnosis.error is not None
    assert (diagnosis.error.who, diagnosis.error.line) == ("Trainer 7", 3)
    assert diagnosis.error.context[-1] == '  File "/opt/x.py", line 3, in step'


def test_a_log_without_an_error_is_no_failure() -> None:
    """Metrics that mention an error are none."""
    text = "step 1 - train/token_mult_prob_error:1.01\nerror rate: 0.3\nKeyErrors seen: 0\n"
    assert diagnose(text).verdict.outcome is Outcome.SKIPPED


def test_wrappings_are_taken_off() -> None:
    """One inside another."""
    text = "(Worker pid=8) [rank1]: boom\n[default0]:x\n3: y\nplain (pid=1) z"
    assert [(line.who, line.text) for line in console_lines(text)] == [
        ("Worker 8", "boom"),
        ("default 0", "x"),
        ("process 3", "y"),
        ("", "plain (pid=1) z"),
    ]


def test_the_table_is_whole() -> None:
    """Ids once, known boundaries, verdicts, a next step and a source; expressions that compile and are not empty."""
    ids = [row.id for row in patterns()]
    assert len(set(ids)) == len(ids)
    for row in patterns():
        assert row.boundary in BOUNDARIES
        assert row.outcome in (Outcome.FAIL, Outcome.BLOCKED)
        assert row.meaning and row.next and row.source
        assert not row.expression.search("")
        assert not row.expression.search("step 3 - loss 0.2 - reward 0.5")
        re.compile(row.also)


def test_the_command_explains_and_exits_by_the_verdict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """1 for the stack, 3 for the environment and for a log that is not there, 5 where there is no error."""
    assert main(["triage", str(LOGS / "shapes.log")]) == 1
    assert "boundary     producer: the code that makes data" in capsys.readouterr().out
    main(["triage", str(LOGS / "trl-reward.log")])
    shown = capsys.readouterr().out
    assert "raised in    reward, /run/train.py line 8\n" in shown
    assert "process      the log does not name it\n" in shown
    main(["triage", str(LOGS / "ray-task.log")])
    assert "process      Ray task collate(), pid 14080\n" in capsys.readouterr().out
    assert main(["triage", str(LOGS / "disk-full.log")]) == 3
    assert main(["triage", "--json", str(LOGS / "ray-task.log")]) == 1
    capsys.readouterr()
    assert main(["triage", "--json", str(LOGS / "ray-task.log")]) == 1
    assert json.loads(capsys.readouterr().out)["first_error"]["text"] == "KeyError: 'prompt'"
    quiet = tmp_path / "quiet.log"
    quiet.write_text("step 1\n")
    assert main(["triage", str(quiet)]) == 5
    assert main(["triage", str(tmp_path / "none.log")]) == 3


def test_a_trial_is_blocked_by_the_environment_alone(tmp_path: Path) -> None:
    """A full disk blocks a trial; a missing key does not."""
    log = tmp_path / "run.log"
    log.write_text((LOGS / "disk-full.log").read_text())
    cause = environment_cause(log)
    assert cause is not None
    assert "free space" in cause.remedy
    log.write_text((LOGS / "trl-column.log").read_text())
    assert environment_cause(log) is None
