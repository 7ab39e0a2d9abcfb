"""What trials ask of the seconds, the processes and the resume that a run records."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.runlog import Series
from seatrial.trials.sensors.async_state import _wrong_state
from seatrial.trials.sensors.phases import WHOLE, phases_are_measured
from seatrial.trials.sensors.processes import processes_are_recorded
from seatrial.trials.sensors.resumed import resume_is_said
from seatrial.trials.sensors.same_runs import compare_other_series, compare_rows
from seatrial.verdict import Outcome

ROW = LedgerRow(step=1, index=0, prompt_id=0, token_ids=(1, 2), prompt_length=1, loss_mask=(0, 1))
CONFIG: dict[str, Any] = {
    "policy": {
        "precision": "float32",
        "train_global_batch_size": 1,
        "lora_cfg": {"enabled": False},
        "dtensor_cfg": {"tensor_parallel_size": 2, "sequence_parallel": True},
        "generation": {"backend": "torch", "quantization": None, "placement": "process"},
    },
    "grpo": {"seed": 0, "async_grpo": {"enabled": True, "num_replicas": 2}},
}


def log_of(values: Mapping[str, Mapping[int, float]]) -> Any:
    """Return a log of these values by step."""
    series = {
        tag: Series(tag=tag, steps=np.array(list(of)), values=np.array(list(of.values())))
        for tag, of in values.items()
    }
    return SimpleNamespace(series=series)


def run_of(
    folder: Path, values: Mapping[str, Mapping[int, float]], rows: list[LedgerRow] | None = None, **job: Any
) -> Any:
    """Return the evidence of a run of two steps."""
    log = log_of(values)
    facts = {"num_steps": 2, "first_step": 1, "ledger_dir": folder, "configuration": CONFIG, **job}
    return SimpleNamespace(
        job=SimpleNamespace(**facts),
        log=log,
        series=log.series.get,
        ledger=[ROW, LedgerRow(**{**ROW.__dict__, "step": 2})] if rows is None else rows,
        need_whole_log=lambda: None,
        launched=SimpleNamespace(seconds=5.0, log_path=folder / "run.log"),
    )


SECONDS = {"timing/train/a": {1: 0.5, 2: 0.4}, "timing/train/b": {1: 0.25, 2: 0.3}}


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({}, ""),
        ({"timing/train/b": {1: 0.25}}, "timing/train/b is not logged at the steps [2]"),
        ({"timing/train/b": {1: 0.5, 2: 0.3}}, ""),
        ({"timing/train/b": {1: 0.5, 2: 0.4}}, "take exactly as long at the steps [1, 2]"),
        ({"timing/train/checkpointing": {2: 0.1}}, ""),
        ({"timing/train/total_step_time": {1: 0.76, 2: 0.71}}, ""),
        ({"timing/train/total_step_time": {1: 0.76, 2: 0.6}}, "step 2: the trainer's phases take 0.7 s"),
        ({f"timing/train/{WHOLE}": {2: 0.1}}, ""),
        (
            {
                f"timing/train/{WHOLE}": {2: 0.1},
                "timing/train/prepare_for_generation/weight_transfer/producer/collect": {2: 0.2},
            },
            "the parts of a transfer take 0.2 s",
        ),
    ],
)
def test_phases(tmp_path: Path, change: Mapping[str, Mapping[int, float]], wrong: str) -> None:
    """Each step logs the same ones, each is measured by itself, and parts fit their whole."""
    found = phases_are_measured(run_of(tmp_path, {**SECONDS, **change}))[0]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)


PARTS = {"trainer": 7, "generation/0": 8, "generation/1": 9}
FORMS = {"DTensor[Shard(dim=0), Shard(dim=1)]": 2, "DTensor[Shard(dim=0), Replicate()]": 1}
FACTS: dict[str, Any] = {
    "pid": 7,
    "host": "here",
    "device": "cpu",
    "started_at": 100.0,
    "attempts": [{"started_at": 99.0, "resumed_from": None}],
    "versions": {"torch": "2.1"},
    "placement": {"by": "process", "ranks": [{"node": "here", "pid": 7}, {"node": "here", "pid": 10}]},
    "policy": {
        "name": "dtensor",
        "mesh": {"data": 1, "tensor": 2},
        "kernels": "the model's own",
        "weights": FORMS,
    },
    "generator": "torch 2.1",
}


@pytest.mark.parametrize(
    ("facts", "parts", "wrong"),
    [
        ({}, {}, ""),
        ({}, {"generation/1": 8}, "two parts have one process"),
        ({}, {"trainer": 11}, "trainer is recorded as 11"),
        ({}, {"generation/2": 12}, "the generation engines are recorded as"),
        ({"placement": {"ranks": [{"node": "here", "pid": 7}] * 2}}, {}, "two ranks have one process"),
        ({"host": "there"}, {}, "the first rank is recorded as"),
        (
            {"placement": {"by": "ray", "ranks": [{"node": "3f9c", "pid": 7}, {"node": "3f9c", "pid": 10}]}},
            {},
            "",
        ),
        (
            {"placement": {"by": "ray", "ranks": [{"node": "3f9c", "pid": 10}]}},
            {},
            "the first rank is recorded as",
        ),
        ({"generator": "vllm 1"}, {}, "the options ask for torch"),
        ({"generator": "torch 2.0"}, {}, "the run has torch 2.1"),
        ({"generator": "torch 2.1, 3 layers in int8"}, {}, "quantization is None"),
        ({"policy": {**FACTS["policy"], "mesh": {"data": 2}}}, {}, "the mesh is recorded as {'data': 2}"),
        ({"policy": {**FACTS["policy"], "name": "hf"}}, {}, "the policy is recorded as hf"),
        ({"policy": {**FACTS["policy"], "kernels": "fused"}}, {}, "the kernels are recorded as fused"),
        (
            {"policy": {**FACTS["policy"], "weights": {"DTensor[Shard(dim=0)]": 1, **FORMS}}},
            {},
            "sequence_parallel=true it is 0",
        ),
        ({"attempts": [{"started_at": 50.0, "resumed_from": None}]}, {}, "the last start is recorded at 50"),
        (
            {"attempts": [{"started_at": 99.0, "resumed_from": 1}]},
            {},
            "the first start is recorded to resume",
        ),
    ],
)
def test_processes(tmp_path: Path, facts: Mapping[str, Any], parts: Mapping[str, int], wrong: str) -> None:
    """Every process once; policy, layout and generator as the options ask for."""
    (tmp_path / "run_info.json").write_text(json.dumps({**FACTS, **facts}))
    (tmp_path / "parts.json").write_text(json.dumps({**PARTS, **parts}))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    tensors = {"a.weight": np.ones((2, 2)), "norm.weight": np.ones(2), "q_norm.weight": np.ones(2)}
    save_file(tensors, model / "model.safetensors")
    run = run_of(tmp_path, {}, initial_model=model, backend="dtensor", mesh={"tensor": 2})
    found = processes_are_recorded(run)[0]
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)


@pytest.mark.parametrize(
    ("lines", "outcome"),
    [
        (["resuming after step 1 from /x", "resuming with a changed option: a.b was 1, is 2"], Outcome.PASS),
        (["resuming after step 1 from /x"], Outcome.FAIL),
        (["resuming after step 2 from /x", "resuming with a changed option: a.b was 1, is 2"], Outcome.FAIL),
        (
            [
                "resuming after step 1 from /x",
                "resuming with a changed option: a.b was 1, is 2",
                "resuming with a changed option: a.c was 1, is 2",
            ],
            Outcome.FAIL,
        ),
    ],
)
def test_a_resume_is_said(tmp_path: Path, lines: list[str], outcome: Outcome) -> None:
    """One line of the checkpoint, and one of each option that is another."""
    (tmp_path / "run.log").write_text("\n".join(lines))
    (tmp_path / "run_info.json").write_text(json.dumps({"attempts": [{"resumed_from": 1}]}))
    first = run_of(tmp_path, {}, configuration={"a": {"b": 1, "c": {}}})
    second = run_of(tmp_path, {}, configuration={"a": {"b": 2}})
    assert resume_is_said(first, second).outcome is outcome


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ({}, Outcome.PASS),
        ({"reward": 0.5 + 1e-6}, Outcome.PASS),
        ({"reward": 0.6}, Outcome.FAIL),
        ({"prev_logprobs": (-1.0,)}, Outcome.FAIL),
        ({"token_ids": (1, 3)}, Outcome.FAIL),
        ({"completion": "b"}, Outcome.FAIL),
    ],
)
def test_rows_are_the_same(tmp_path: Path, change: Mapping[str, Any], outcome: Outcome) -> None:
    """Every column, numbers within the tolerance."""
    row = LedgerRow(**{**ROW.__dict__, "reward": 0.5, "completion": "a", "prev_logprobs": (-2.0,)})
    one, other = (run_of(tmp_path, {}, rows=[LedgerRow(**{**row.__dict__, **of})]) for of in ({}, change))
    assert compare_rows(one, other, 1e-4).outcome is outcome
    assert compare_rows(one, other, 1e-4, last_step=0).outcome is Outcome.FAIL  # nothing is compared


def test_rows_that_are_missing_are_not_the_same(tmp_path: Path) -> None:
    """Nothing compared is no evidence."""
    assert compare_rows(run_of(tmp_path, {}), run_of(tmp_path, {}, rows=[ROW]), 1.0).outcome is Outcome.FAIL
    empty = run_of(tmp_path, {}, rows=[])
    assert compare_rows(empty, empty, 1.0).outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        ({"train/x": {1: 1.0}, "timing/train/y": {1: 9.0}}, Outcome.PASS),
        ({"train/x": {1: 1.1}}, Outcome.FAIL),
        ({"train/x": {2: 1.0}}, Outcome.FAIL),
        ({"train/x": {1: 1.0}, "train/new": {1: 1.0}}, Outcome.FAIL),
    ],
)
def test_other_series_are_the_same(tmp_path: Path, other: Any, outcome: Outcome) -> None:
    """All but seconds and those that are compared elsewhere."""
    (tmp_path / "run_info.json").write_text('{"pid": 1}')
    one = run_of(tmp_path, {"train/x": {1: 1.0}, "train/loss": {1: 3.0}, "timing/train/y": {1: 1.0}})
    assert compare_other_series(one, run_of(tmp_path, other), ["train/loss"], 1e-4).outcome is outcome


def test_later_steps_may_be_left_out(tmp_path: Path) -> None:
    """Where another token may have been drawn."""
    (tmp_path / "run_info.json").write_text('{"pid": 1}')
    one, other = (run_of(tmp_path, {"train/x": {1: 1.0, 2: value}}) for value in (1.0, 2.0))
    assert compare_other_series(one, other, [], 1e-4).outcome is Outcome.FAIL
    assert compare_other_series(one, other, [], 1e-4, last_step=1).outcome is Outcome.PASS


GROUPS = [
    {"number": 0, "prompt_id": 5, "fate": "trained", "step": 1},
    {"number": 1, "prompt_id": 6, "fate": "stale", "step": 1},
    {"number": 2, "prompt_id": 7, "fate": "trained", "step": 2},
    {"number": 3, "prompt_id": 8, "fate": "unused", "step": 3},
]


@pytest.mark.parametrize(
    ("change", "held", "drawn", "wrong"),
    [
        ({}, {2: 7, 3: 8}, 4, ""),
        ({}, {2: 7, 3: 8}, 0, "0 prompts that were drawn"),
        ({}, {2: 7}, 4, "it holds the groups [2], [2, 3] wait"),
        ({}, {2: 7, 3: 9}, 4, "by number and prompt"),
        ({"trained_steps": 2}, {2: 7, 3: 8}, 4, "2 trained steps"),
        ({"num_dropped": 0}, {2: 7, 3: 8}, 4, "0 dropped groups"),
    ],
)
def test_the_state_of_rollouts(change: Any, held: dict[int, int], drawn: int, wrong: str) -> None:
    """After step 1 of two groups a batch: counts, and the groups of later steps."""
    groups = [{"number": number, "examples": [{"prompt_id": prompt}]} for number, prompt in held.items()]
    collector = {
        "trained_steps": 1,
        "num_batches": 2,
        "num_dropped": 1,
        "buffer": {"next_number": 4, "groups": groups},
        **change,
    }
    found = list(_wrong_state(1, {"collector": collector, "prompts": {"num_drawn": drawn}}, GROUPS, 2))
    assert wrong in "".join(found)
    assert bool(found) is bool(wrong)
