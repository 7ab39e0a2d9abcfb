"""Verdict on scalars that follow from rows of validations, from groups of asynchronous rollouts, and from verifiers.

It lists the logged series that no check of a trial computes again, so that none of them counts as checked.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.laws.rewards import REWARDS
from seatrial.trials.outputs import covered
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import (
    loop_of,
    mask_of,
    options_of,
    steps_of,
    updates_of,
    verified_reward,
)
from seatrial.trials.sensors.paths import by_step, sensor
from seatrial.trials.sensors.prompts import validation_rows

ROUNDING = 1e-5
"""Difference of a mean in float64 that is logged in float32, relative above 1."""
OF_RATIO = 1e-4
"""Difference of a mean of ratios, whose logarithms are differences in float32."""
OWN_VERIFIER: Mapping[str, str] = {
    "reverse": "character_match",
    "add": "exact_match",
    "count_letters": "exact_match",
    "lookup": "integer_match",
}
"""Verifier of a made task where no other one is named."""
Row = Mapping[str, Any]


def scalars_are_defined(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Scalars of validations, of groups and of single verifiers are those of what the run recorded.

    Raises:
        NotGivenError: the target gives no rows, or does not say how the run is configured.
        BlockedError: the log is damaged, or a file cannot be read.
    """
    options = options_of(evidence)
    evidence.need_whole_log()
    wrong, number = [], 0
    for tag, step, value in (
        *_of_validations(evidence, options),
        *_of_groups(evidence, options),
        *_of_rows(evidence, options),
    ):
        logged = by_step(evidence, tag).get(step, math.nan)
        allowed = OF_RATIO if tag.endswith("_ratio") else ROUNDING
        number += 1
        if not abs(logged - value) <= allowed * max(1.0, abs(value)):
            wrong.append(f"step {step}: {tag} is logged as {logged:.7g}, what it recorded gives {value:.7g}")
    wrong += _judged_otherwise(evidence, options)
    unchecked = sorted(
        tag for tag in evidence.log.series if not any(fnmatch(tag, pattern) for pattern in covered("series"))
    )
    seen = f"{number} values; no check computes again {', '.join(unchecked) or 'none'}"
    return wrong[:3], seen, number


DEFINED = sensor(
    "scalars of validations, groups and verifiers follow from what is recorded",
    "computed from rows and groups; the others are listed",
    scalars_are_defined,
)


def _of_validations(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    for step, rows in validation_rows(evidence).items():
        rewards = [float(row["reward"]) for row in rows]
        found = {
            "reward": _mean(rewards),
            "accuracy": _mean(reward == 1.0 for reward in rewards),
            "truncation_rate": _mean(row["finish_reason"] == "length" for row in rows),
        }
        weights = _weights_of(options) or {verifier_of(options): 1.0}
        if weights.keys() <= REWARDS.keys():
            found["num_verifier_errors"] = float(sum(math.isnan(_earned(row, weights)) for row in rows))
        if not options.get("data.environment"):
            found["avg_length"] = _mean(len(row["token_ids"]) - row["prompt_length"] for row in rows)
        found |= _parts(rows, options)
        for name, value in found.items():
            yield f"validation/{name}", step, value


def _of_groups(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    if not options.get("grpo.async_grpo.enabled"):
        return
    for step in range(1, evidence.job.num_steps + 1):
        path = evidence.job.ledger_dir / f"group_data_step{step}.jsonl"
        try:
            groups = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            raise BlockedError(f"{path} cannot be read: {error}") from error
        ages = [step - 1 - group["weight_step"] for group in groups if group["fate"] == "trained"]
        if ages:
            yield "train/avg_trajectory_age", step, _mean(ages)
            yield "train/max_trajectory_age", step, float(max(ages))
        fates = Counter(group["fate"] for group in groups)
        for tag in evidence.log.series:
            name = tag.removeprefix("train/num_").removesuffix("_groups")
            if tag == f"train/num_{name}_groups":
                yield tag, step, float(fates[name.replace("_", " ")])


def _of_rows(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[tuple[str, int, float]]:
    """Yield the weights of sampler against trainer, and means of verifiers' parts."""
    kind = options.get("loss_fn.importance_sampling")
    if kind is None:
        return  # fine-tuning
    judged_here = not (options["grpo.use_dynamic_sampling"] or options["grpo.async_grpo.enabled"])
    for step, rows in steps_of(evidence).items():
        weights, outside = [], []
        for update in updates_of(rows, options):
            pairs = [
                _weight(old - sampling, options)
                for row in update
                for old, sampling, on in zip(
                    row.prev_logprobs or (), row.generation_logprobs or (), mask_of(row), strict=False
                )
                if on
            ]
            weights.append(_mean(weight for weight, _ in pairs))
            outside.append(_mean(is_outside for _, is_outside in pairs))
        if weights:
            yield "train/sampling_importance_ratio", step, _mean(weights)
            yield "train/is_oob_ratio", step, _mean(outside)
        if judged_here:
            texts = [{"completion": row.completion, "answer": row.answer} for row in rows]
            for name, value in _parts(texts, options).items():
                yield f"train/{name}", step, value


def _weight(log_ratio: float, options: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the importance weight of a token, and whether it is out of bounds."""
    kind, ratio = options["loss_fn.importance_sampling"], math.exp(log_ratio)
    most, least = options["loss_fn.importance_sampling_max"], options["loss_fn.importance_sampling_min"]
    if kind == "truncated":
        return min(ratio, most), ratio > most
    if kind == "masked":
        is_outside = not least <= ratio <= most
        return 0.0 if is_outside else ratio, is_outside
    return ratio, False


def _weights_of(options: Mapping[str, Any]) -> dict[str, float]:
    """Return the weight of each part of a verifier by its name."""
    prefix = "data.verifiers."
    return {name.removeprefix(prefix): of for name, of in options.items() if name.startswith(prefix)}


def _parts(rows: Sequence[Row], options: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean reward of each part of a verifier over the rows that it could judge, where its rule is known."""
    found = {}
    for name in _weights_of(options):
        rule = REWARDS.get(name)
        if rule is None:
            continue
        judged = [rule(row["completion"] or "", row["answer"] or "") for row in rows]
        judged = [reward for reward in judged if not math.isnan(reward)]
        if judged:
            found[f"verifier/{name}/reward"] = _mean(judged)
    return found


def _judged_otherwise(evidence: RunEvidence, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield rows of validations and, of several verifiers, of steps, whose reward is not that of their completion."""
    weights = _weights_of(options) or {verifier_of(options): 1.0}
    if not weights.keys() <= REWARDS.keys():
        return
    for step, rows in validation_rows(evidence).items():
        for row in rows:
            reward = _earned(row, weights)
            if not math.isnan(reward) and not abs(row["reward"] - reward) <= ROUNDING:
                yield (
                    f"validation of step {step} row {row['index']}: {row['completion']!r} earns {reward:.6g}, logged "
                    f"is {row['reward']:.6g}"
                )
    if len(weights) < 2 or loop_of(options) != "grpo":
        return  # a law of the ledger judges the rows of one verifier
    for trained in (one for of_step in steps_of(evidence).values() for one in of_step):
        reward = _earned({"completion": trained.completion, "answer": trained.answer}, weights)
        logged = verified_reward(trained)
        if not (math.isnan(reward) or trained.verifier_error) and not abs(logged - reward) <= ROUNDING:
            yield f"{trained.where()}: {trained.completion!r} earns {reward:.6g}, logged is {logged:.6g}"


def _earned(row: Row, weights: Mapping[str, float]) -> float:
    """Return the weighted mean of rules for a completion; NaN where one of them cannot judge it."""
    completion, answer = row["completion"] or "", row["answer"] or ""
    shares = [weight * REWARDS[name](completion, answer) for name, weight in weights.items()]
    return math.fsum(shares) / math.fsum(weights.values())


def verifier_of(options: Mapping[str, Any]) -> str:
    """Return the name of the one verifier: the configured one, or that of a made task; empty where it is not known."""
    return str(options["data.verifier"] or OWN_VERIFIER.get(options["data.task"] or "", ""))


def _mean(values: Iterable[float]) -> float:
    held = [float(value) for value in values]
    return math.fsum(held) / len(held) if held else math.nan
