"""Worked examples of what refrl logs: scalars of steps, of several verifiers and validations, rates, console lines."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from refrl.algorithms.metrics import (
    approx_entropy,
    importance_metrics,
    merge_metrics,
    mismatch_metrics,
    num_valid_samples,
    ratio_metrics,
)
from refrl.config import LoggerConfig
from refrl.distributed import ALONE
from refrl.logging import EventWriter, RunLogger, console_line
from refrl.rewards.weighted import WeightedVerifier
from refrl.rollout.collect import Collected
from refrl.training.step_records import (
    advantage_metrics,
    baseline_metrics,
    check_rewards,
    check_update,
    verifier_metrics,
)
from refrl.training.validation import is_validation_step, validation_rows
from seatrial.evidence.read import read_logs
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import logs
from seatrial.targets.reference.worked.made import batch, example, refused, rollouts
from seatrial.targets.reference.worked.rewards import several
from seatrial.targets.reference.worked.routers import of_routers

HERE = Path("log")
MASK = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
"""Three valid tokens; functions get 6 as the number of the whole batch."""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from of_routers()
    yield from _of_losses()
    yield from _of_rows()
    yield from _of_validations()
    yield from _of_logs()
    yield from logs.examples()


def _of_losses() -> Iterator[WorkedExample]:
    old = torch.tensor([[0.0, 50.0], [math.log(2), 0.0]])
    sampler = torch.tensor([[0.0, -50.0], [0.0, math.log(4)]])
    js = (4 / 3 - 1 - math.log(4 / 3)) + (2 / 3 - 1 + math.log(1.5))
    js += (0.4 - 1 + math.log(2.5)) + (1.6 - 1 - math.log(1.6))
    yield example(
        "mismatch of sampler and trainer",
        {
            "token_mult_prob_error": (1 + 2 + 4) / 6,
            "gen_kl_error": ((1 - math.log(2)) + (0.25 - 1 + math.log(4))) / 6,
            "policy_kl_error": ((0.5 - 1 + math.log(2)) + (3 - math.log(4))) / 6,
            "js_divergence_error": js / 2 / 6,
        },
        lambda: {name: float(of) for name, of in mismatch_metrics(old, sampler, MASK, 6).items()},
    )
    ratio = torch.tensor([[0.5, 99.0], [2.0, 4.0]])
    yield example(
        "ratios of a micro-batch",
        {
            "probs_ratio": 6.5 / 6,
            "probs_ratio_min": 0.5,
            "probs_ratio_max": 4.0,
            "probs_ratio_clamped": 5.0 / 6,
            "probs_ratio_clamped_min": 1.0,
            "probs_ratio_clamped_max": 2.0,
        },
        lambda: {name: float(of) for name, of in ratio_metrics(ratio, ratio.clamp(1, 2), MASK, 6).items()},
    )
    outside = torch.tensor([[0.0, 1.0], [1.0, 1.0]])
    endless = torch.tensor([[0.5, 3.0], [math.inf, 4.0]])
    yield example(
        "importance ratios, one of them infinite",
        {"sampling_importance_ratio": 4.5 / 6, "is_oob_ratio": 2 / 6},
        lambda: {name: float(of) for name, of in importance_metrics(endless, outside, MASK, 6).items()},
    )
    now = torch.tensor([[math.log(0.5), -9.0], [math.log(0.25), math.log(0.5)]])
    then = torch.tensor([[math.log(0.5), -9.0], [math.log(0.5), math.log(0.25)]])
    yield example(
        "entropy from ratios",
        (math.log(2) + 0.5 * math.log(4) + 2 * math.log(2)) / 6,
        lambda: float(approx_entropy(now, then, MASK, 6)),
    )
    yield example("rows with a valid token", 1, lambda: int(num_valid_samples(MASK * MASK[:1].flip(1))))
    parts = [
        {"loss": 0.5, "r_min": math.inf, "r_max": -math.inf, "global_valid_toks": 6, "global_valid_seqs": 2},
        {"loss": 0.25, "r_min": 0.5, "r_max": 3.0, "global_valid_toks": 6, "global_valid_seqs": 2},
        {"loss": 1.0, "r_min": 2.0, "r_max": 2.5, "global_valid_toks": 9, "global_valid_seqs": 5},
    ]
    merged = {"loss": 1.75, "r_min": 0.5, "r_max": 3.0, "global_valid_toks": 7.0, "global_valid_seqs": 3.0}
    yield example("parts of an update", merged, merge_metrics, parts)
    yield example("parts of two updates", {**merged, "loss": 0.875}, merge_metrics, parts, num_updates=2)
    nothing = {"loss": 0.5, "r_min": -1.0, "r_max": -1.0, "global_valid_toks": 6.0, "global_valid_seqs": 2.0}
    yield example("a part without valid tokens", nothing, merge_metrics, parts[:1])
    yield refused("different metrics", "parts with other names", merge_metrics, [{"a": 1.0}, {"b": 1.0}])


def _of_rows() -> Iterator[WorkedExample]:
    made = replace(batch(), advantages_B=torch.tensor([1.0, -2.0, 0.5]))
    yield example(  # 2, 2 and 1 sampled tokens
        "advantages by token",
        {"advantages/mean": (2 - 4 + 0.5) / 5, "advantages/min": -2.0, "advantages/max": 1.0},
        advantage_metrics,
        made,
    )
    rewards = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5, 0.0, 1.0])
    yield example(
        "groups by their mean reward",
        {"baseline_reward/pct_0": 2 / 7, "baseline_reward/pct_1": 3 / 7, "baseline_reward/pct_mixed": 2 / 7},
        baseline_metrics,
        rewards,
        torch.tensor([7, 2, 7, 2, 9, 9, 7]),
    )
    yield example(
        "metrics of rollouts",
        {
            "reward": 0.1875,
            "mean_prompt_length": 1.5,
            "mean_gen_tokens_per_sample": 9 / 4,
            "max_gen_tokens_per_sample": 3.0,
            "mean_total_tokens_per_sample": 15 / 4,
            "total_num_tokens": 15.0,
            "truncation_rate": 0.5,
            "natural_termination_rate": 0.5,
            "num_verifier_errors": 1.0,
            "length_penalty/mean": -0.1875,
            "length_penalty/pct_penalised": 0.5,
            "length_penalty/reward_before": 0.375,
        },
        lambda: rollouts().metrics(),
    )
    rows = rollouts()
    collected = Collected(rows.rows([0, 1]), rows.examples, discarded=rows.rows([2, 3, 2]))
    yield example(
        "errors of rows that were left out",
        (2.0, 0.625, 0.4, "row 2: no"),
        lambda: (
            collected.metrics()["num_verifier_errors"],
            collected.metrics()["reward"],
            collected.verifier_error_share,
            collected.first_error,
        ),
    )
    yield example("a share of errors at its limit", None, check_rewards, collected, 0.4, 3, HERE)
    yield refused("step 3", "a share of errors beyond its limit", check_rewards, collected, 0.39, 3, HERE)
    yield example("a finite gradient", None, check_update, {"grad_norm": 2.0, "loss": math.nan}, 3, HERE)
    for norm in (math.nan, math.inf):
        yield refused(
            "step 3", f"a gradient of {norm}", check_update, {"grad_norm": norm, "loss": 1.0}, 3, HERE
        )


def _of_validations() -> Iterator[WorkedExample]:
    def due(**options: Any) -> list[int]:
        chosen = {"val_at_start": False, "val_at_end": False, "val_period": 0, "max_num_steps": 5, **options}
        return [step for step in range(6) if is_validation_step(SimpleNamespace(**chosen), step)]  # type: ignore[arg-type]

    yield example("no validation", [], due)
    yield example("validations every second step", [2, 4], due, val_period=2)
    yield example("validations at both ends", [0, 5], due, val_at_start=True, val_at_end=True)
    yield example("validations at the start and at steps", [0, 3], due, val_at_start=True, val_period=3)
    row = {"step": 7, "index": 1, "prompt_id": 5, "prompt": "p", "completion": "y", "answer": "a"}
    row |= {"task": "made", "token_ids": [1, 2, 3, 8, 8, 5, 6], "prompt_length": 2, "reward": 0.25}
    yield example(
        "a row of a validation",
        {**row, "finish_reason": "length"},
        lambda: list(validation_rows(rollouts(), 7))[1],
    )
    yield example("parts of a verifier", _PARTS, lambda: _judged(several()))
    same = {name for name in _PARTS[0] if name.endswith("reward")}
    doubled = {name: value if name in same else 2 * value for name, value in _PARTS[0].items()}
    yield example("parts of a verifier of two ranks", doubled, lambda: _judged_twice(several()))
    yield example("one verifier has no parts", ({}, {}), verifier_metrics, lambda one, other: 1.0, ALONE)


_PARTS = (
    {
        "verifier/exact/reward": 0.5,
        "verifier/exact/num_errors": 0.0,
        "verifier/exact/num_timeouts": 0.0,
        "verifier/fails/reward": 0.75,
        "verifier/fails/num_errors": 2.0,
        "verifier/fails/num_timeouts": 1.0,
        "verifier/never/num_errors": 4.0,
        "verifier/never/num_timeouts": 0.0,
    },
    ["reward_calculation/exact", "reward_calculation/fails", "reward_calculation/never"],
    [0.0, 0.0, 0.0],
)
"""What four completions give (`rewards.several`); after that, no call and no error."""


def _judged(verifier: WeightedVerifier) -> Any:
    from refrl.rewards import score_completions

    score_completions(["a", "b", "slow", "broken"], ["a", "a", "slow", "a"], verifier)
    metrics, seconds = verifier_metrics(verifier, ALONE)
    again, _ = verifier_metrics(verifier, ALONE)
    return (
        metrics,
        list(seconds),
        [again[f"verifier/{name}/num_errors"] for name in ("exact", "fails", "never")],
    )


def _judged_twice(verifier: WeightedVerifier) -> Any:
    """Return the metrics of two ranks that judged the same."""
    from refrl.rewards import score_completions

    score_completions(["a", "b", "slow", "broken"], ["a", "a", "slow", "a"], verifier)
    world: Any = SimpleNamespace(gather=lambda own: [*own, *own])
    return verifier_metrics(verifier, world)[0]


def _of_logs() -> Iterator[WorkedExample]:
    values = {"loss": 0.01234567, "reward": 12345.678, "other": 1.0, "seconds": 3.0}
    yield example(
        "a console line",
        "step  3/60  reward 1.235e+04  loss 0.01235  seconds 3",
        console_line,
        3,
        60,
        values,
        ("reward", "loss", "grad_norm", "seconds"),
    )
    yield example("zeros on a console line", "step 1/2  loss 0", console_line, 1, 2, {"loss": 0.0}, ("loss",))
    yield example(
        "values by step",
        {
            "at its step": 0.5,
            "at an earlier step": None,
            "zero": 0.0,
            "of another prefix": 3.0,
            "never": None,
            "names": ["loss", "late"],
            "names of validations": ["loss"],
            "on disk": {
                "train/loss": [(1, 0.25), (2, 0.5)],
                "train/late": [(2, 0.0)],
                "validation/loss": [(1, 3.0)],
            },
            "parts": ["{", ' "trainer": 7,', ' "generation/0": 3', "}", ""],
            "rows": '{"text": "\\u2028", "n": 1}\n{"n": 2}\n',
        },
        _logged,
    )
    yield example("scalars that are not finite", UNUSUAL, _written)
    yield example("a NaN at its step", (True, ["loss"]), _not_a_number)
    yield refused("another run", "a log of another run", lambda: _opened_twice(continues=False))
    yield example("a log that continues", True, lambda: _opened_twice(continues=True))
    yield example("a process that leaves the log to another", [], _not_writing)


def _logged() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        with RunLogger(LoggerConfig(log_dir=f"{folder}/log")) as logger:
            logger.log({"loss": 0.25}, 1, "train")
            logger.log({"loss": 3.0}, 1, "validation")
            logger.log({"loss": 0.5, "late": 0.0}, 2, "train")
            logger.log_rows([{"text": "\u2028", "n": 1}, {"n": 2}], "made", 2)
            found: dict[str, Any] = {
                "at its step": logger.value_at("train/loss", 2),
                "at an earlier step": logger.value_at("train/loss", 1),
                "zero": logger.value_at("train/late", 2),
                "of another prefix": logger.value_at("validation/loss", 1),
                "never": logger.value_at("train/never", 2),
                "names": logger.names("train"),
                "names of validations": logger.names("validation"),
            }
        series = read_logs(Path(folder) / "log" / "tensorboard").series
        found["on disk"] = {
            tag: list(zip(of.steps.tolist(), of.values.tolist(), strict=True)) for tag, of in series.items()
        }
        with RunLogger(LoggerConfig(log_dir=f"{folder}/log"), continues=True) as logger:
            logger.log_parts({"trainer": 7, "generation/0": 3})
        found["parts"] = (Path(folder) / "log" / "parts.json").read_text(encoding="utf-8").split("\n")
        found["rows"] = (Path(folder) / "log" / "made_step2.jsonl").read_text(encoding="utf-8")
    return found


UNUSUAL: dict[str, list[tuple[int, float]]] = {
    "loss": [(1, math.nan), (2, 0.0), (3, math.inf), (4, -math.inf)],
    "reward": [(1, -0.5), (2, math.nan), (4, 2.0**-126)],
    "grad_norm": [(0, math.inf), (3, 0.0)],
}
"""Steps and values by tag; float32 holds each exactly."""


def _written() -> Any:
    """Return what a log holds of `UNUSUAL`, all tags of a step at once."""
    with tempfile.TemporaryDirectory() as folder:
        writer = EventWriter(Path(folder))
        for step in range(5):
            writer.write({tag: dict(of)[step] for tag, of in UNUSUAL.items() if step in dict(of)}, step)
        writer.close()
        series = read_logs(Path(folder)).series
        return {
            tag: list(zip(of.steps.tolist(), of.values.tolist(), strict=True)) for tag, of in series.items()
        }


def _not_a_number() -> Any:
    with tempfile.TemporaryDirectory() as folder, RunLogger(LoggerConfig(log_dir=f"{folder}/log")) as logger:
        logger.log({"loss": math.nan}, 1, "train")
        return math.isnan(logger.value_at("train/loss", 1) or 0.0), logger.names("train")


def _opened_twice(*, continues: bool) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        config = LoggerConfig(log_dir=folder, tensorboard_enabled=False)
        with RunLogger(config) as logger:
            logger.log_run_info(config, 3, "cpu")
        with RunLogger(config, continues=continues):
            return True


def _not_writing() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        config = LoggerConfig(log_dir=f"{folder}/log")
        with RunLogger(config, writes=False) as logger:
            logger.log({"loss": 1.0}, 1, "train")
            logger.log_rows([{"n": 1}], "made", 1)
            logger.log_run_info(config, 3, "cpu")
            logger.log_parts({"trainer": 1})
        return [path.name for path in Path(folder).iterdir()]
