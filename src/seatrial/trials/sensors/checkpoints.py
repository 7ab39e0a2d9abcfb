"""Verdicts on what a run saved: checkpoints by step, adapters, and the frozen model under them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.paths import by_step, run_facts
from seatrial.trials.sensors.run import Sensor
from seatrial.trials.sensors.saved import saved_steps, tensors_at
from seatrial.verdict import Outcome, Verdict

WEIGHT, MOMENT = "model.", ".exp_avg_sq"
"""How a checkpoint names the model's tensors (before their own names) and Adam's second moments (after them)."""
PREFIX = "base_model.model."
"""What PEFT puts before the name of every tensor."""
ROUNDING = {"float32": 1e-6, "bfloat16": 0.01}
"""Largest difference of a merged weight from base plus adapter, absolute, by precision: weights here are below 1."""


def kept_steps(evidence: RunEvidence) -> list[int]:
    """Return the steps whose checkpoints should be there: the best by the logged metric, and the latest.

    Where the run names no metric, they are those that its job states.
    """
    options = run_facts(evidence).get("config", {}).get("checkpointing", {})
    metric, number, period = (options.get(key) for key in ("metric_name", "keep_top_k", "save_period"))
    if not (metric and number and period):
        return sorted(evidence.job.checkpoint_steps)
    last = evidence.job.num_steps
    loop, _, tag = metric.partition(":")
    values = by_step(evidence, f"{'validation' if loop == 'val' else loop}/{tag}")
    sign = 1.0 if options.get("higher_is_better", True) else -1.0
    saved = {*range(period, last, period), last}
    ranked = sorted(saved, key=lambda step: (sign * values.get(step, -sign * np.inf), step), reverse=True)
    return sorted({*ranked[:number], last})


def checkpoints_whole(evidence: RunEvidence) -> Verdict:
    """The checkpoints that were to be kept are there and no others, and each holds finite tensors, whole."""
    name, wanted = CHECKPOINTS_WHOLE.name, kept_steps(evidence)
    found = saved_steps(_root(evidence), evidence.job.checkpoint_form)
    wrong, num_tensors = [], 0
    for step in found:
        try:
            tensors = _tensors_of(evidence, step)
            bad = [key for key, tensor in tensors.items() if not np.isfinite(tensor.read()).all()]
        except BlockedError as error:
            wrong.append(f"step {step}: {error}")
            continue
        num_tensors += len(tensors)
        wrong += [f"step {step}: {key} is not finite" for key in bad[:1]]
    if found != wanted:
        wrong.insert(0, f"there are checkpoints of the steps {found}")
    return _verdict(
        name,
        wrong,
        f"{len(found)} checkpoints of {num_tensors} tensors",
        bound=f"those of the steps {wanted}, whole and finite",
        num_samples=num_tensors,
    )


def checkpoints_differ(evidence: RunEvidence) -> Verdict:
    """Each checkpoint's model, or its adapters, is another than that of the checkpoint before."""
    steps = kept_steps(evidence)
    if len(steps) < 2:
        raise NotGivenError("the run keeps one checkpoint, so there are no two to compare")
    models = {step: _part(_tensors_of(evidence, step), WEIGHT) for step in steps}
    wrong = [
        f"the weights of step {later} are those of step {earlier}"
        for earlier, later in pairwise(steps)
        if models[earlier].keys() == models[later].keys()
        and all(_same(tensor, models[later][key]) for key, tensor in models[earlier].items())
    ]
    return _verdict(
        CHECKPOINTS_DIFFER.name,
        wrong,
        f"the checkpoints of the steps {steps} hold different weights",
        bound="no two in a row hold the same weights",
        num_samples=sum(map(len, models.values())),
    )


def last_is_the_export(evidence: RunEvidence) -> Verdict:
    """The model of the last checkpoint, or its adapters, are what was exported, to the bit."""
    name, job = LAST_IS_THE_EXPORT.name, evidence.job
    last = _root(evidence) / job.checkpoint_form.format(step=job.num_steps)
    export = job.adapter_dir or job.final_model
    if last.exists() and export.exists() and last.samefile(export):
        raise NotGivenError("the last checkpoint is the export itself, so the two cannot differ")
    exported = _trained(evidence)
    saved = _part(_tensors_of(evidence, evidence.job.num_steps), WEIGHT)
    wrong = [f"{key} was not saved" for key in sorted(exported.keys() - saved.keys())]
    wrong += [
        f"{key} differs"
        for key in sorted(exported.keys() & saved.keys())
        if not _same(exported[key], saved[key])
    ]
    return _verdict(
        name,
        wrong,
        f"{len(exported)} tensors are equal",
        bound="every exported tensor bitwise in the checkpoint",
        num_samples=len(exported),
    )


def checkpoints_as_held(evidence: RunEvidence) -> Verdict:
    """Each checkpoint holds, bit by bit, what the policy and its optimizer held at its step."""
    path = evidence.job.ledger_dir / "saved_bits.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BlockedError(f"{path} cannot be read: {error}") from error
    wrong, num = [], 0
    for step in kept_steps(evidence):
        of_step = held.get(str(step), {})
        wrong += [] if of_step else [f"step {step}: the run did not record what it saved"]
        for key, tensor in _tensors_of(evidence, step).items():
            if key in of_step:
                num += 1
                size = tensor.end - tensor.start
                bits = np.fromfile(tensor.file, dtype=np.uint8, count=size, offset=tensor.start).tobytes()
                wrong += (
                    []
                    if hashlib.sha256(bits).hexdigest() == of_step[key]
                    else [f"step {step}: {key} is another"]
                )
    return _verdict(
        CHECKPOINTS_AS_HELD.name,
        wrong,
        f"{num} tensors have the bits of their step",
        bound="bitwise the policy's tensors at the step",
        num_samples=num,
    )


def moments_saved(evidence: RunEvidence) -> Verdict:
    """Every trained tensor has its moments in every checkpoint, and no second moment is all zero in the last."""
    name = MOMENTS_SAVED.name
    evidence.need("moments")
    wrong: list[str] = []
    num = 0
    trained = _trained(evidence)
    for step in kept_steps(evidence):
        tensors = _tensors_of(evidence, step)
        moments = {key: tensor for key, tensor in tensors.items() if key.endswith(MOMENT)}
        num += len(moments)
        wrong += [f"step {step}: no second moment of {key}" for key in _without_moment(trained, moments)[:2]]
        if step == evidence.job.num_steps:  # the first gradient of A is zero: B starts at zero
            wrong += [f"step {step}: {key} is zero" for key, of in moments.items() if not of.read().any()][:2]
    return _verdict(
        name, wrong, f"{num} second moments", bound="one of each trained tensor, not zero", num_samples=num
    )


def adapters_trained(evidence: RunEvidence) -> Verdict:
    """Every B left zero, where it starts, and every A left the value that it had after the first step."""
    name, adapters = ADAPTERS_TRAINED.name, _adapters(evidence)
    first = _part(_tensors_of(evidence, min(kept_steps(evidence))), WEIGHT)
    wrong = []
    smallest = np.inf
    for key, tensor in sorted(adapters.items()):
        start = first[key].read() if key.endswith("lora_A.weight") and key in first else 0.0
        moved = float(np.abs(tensor.read() - start).max())
        smallest = min(smallest, moved)
        if not (np.isfinite(moved) and moved > 0):
            wrong.append(f"{key} did not move")
    return _verdict(
        name,
        wrong,
        f"all {len(adapters)} adapter tensors moved, by {smallest:.2g} or more",
        bound="> 0 in every tensor",
        num_samples=len(adapters),
    )


def base_frozen(evidence: RunEvidence) -> Verdict:
    """Tensors without an adapter are bitwise the initial ones, in the run's precision; others are those plus B A."""
    name, job = BASE_FROZEN.name, evidence.job
    evidence.need("merged")
    before, after, adapters = (
        stored_tensors(job.initial_model),
        stored_tensors(job.final_model),
        _adapters(evidence),
    )
    scale = _scale(job.adapter_dir)
    wrong = [f"{key} is in one of the models only" for key in sorted(before.keys() ^ after.keys())]
    largest = 0.0
    for key in sorted(before.keys() & after.keys()):
        stem = key.removesuffix(".weight")
        low, high = adapters.get(f"{stem}.lora_A.weight"), adapters.get(f"{stem}.lora_B.weight")
        if low is None or high is None:
            wrong += [] if _same_rounded(before[key], after[key]) else [f"{key} has no adapter and changed"]
            continue
        wanted = before[key].read().astype(np.float64) + scale * (_double(high) @ _double(low))
        difference = float(np.abs(_double(after[key]) - wanted).max())
        largest = max(largest, difference)
        if not difference <= ROUNDING[job.precision]:
            wrong.append(f"{key} is {difference:.2g} from base plus adapter")
    return _verdict(
        name,
        wrong,
        f"{len(after)} tensors, {len(adapters) // 2} of them with an adapter; largest difference {largest:.2g}",
        bound=f"bitwise without an adapter, base + alpha / r B A to {ROUNDING[job.precision]:g} with one",
        num_samples=len(after) if adapters else 0,
    )


CHECKPOINTS_WHOLE = Sensor("checkpoints: those to be kept are there, whole and finite", checkpoints_whole)
CHECKPOINTS_DIFFER = Sensor("checkpoints: each holds other weights than the one before", checkpoints_differ)
LAST_IS_THE_EXPORT = Sensor("checkpoints: the last one holds the exported model", last_is_the_export)
CHECKPOINTS_AS_HELD = Sensor("checkpoints: each holds the tensors of its own step", checkpoints_as_held)
MOMENTS_SAVED = Sensor("checkpoints: every trained tensor has its moments", moments_saved)
ADAPTERS_TRAINED = Sensor("adapters: every one of them trained", adapters_trained)
BASE_FROZEN = Sensor(
    "adapters: the model under them is frozen, and merged with them in the export", base_frozen
)


def _verdict(name: str, wrong: Sequence[str], good: str, *, bound: str, num_samples: int) -> Verdict:
    reason = "; ".join(wrong[:4]) + (f"; {len(wrong) - 4} more" if len(wrong) > 4 else "")
    return Verdict(
        name=name,
        outcome=Outcome.PASS if num_samples and not wrong else Outcome.FAIL,
        reason=reason or good,
        value=float(len(wrong)),
        bound=bound,
        num_samples=num_samples,
    )


def _root(evidence: RunEvidence) -> Path:
    evidence.need("checkpoints")
    root = evidence.job.checkpoint_dir
    if root is None:
        raise BlockedError("the target does not say where the run saves its checkpoints")
    return root


def _tensors_of(evidence: RunEvidence, step: int) -> Mapping[str, StoredTensor]:
    evidence.need("checkpoints")
    return tensors_at(evidence, step)


def _adapters(evidence: RunEvidence) -> dict[str, StoredTensor]:
    if evidence.job.adapter_dir is None:
        raise BlockedError("the target does not say where the run exports its adapters")
    return _part(stored_tensors(evidence.job.adapter_dir), PREFIX)


def _trained(evidence: RunEvidence) -> dict[str, StoredTensor]:
    """Return the tensors that training changes."""
    if evidence.job.adapter_dir:
        return _adapters(evidence)
    evidence.need("export")
    return stored_tensors(evidence.job.final_model)


def _without_moment(trained: Mapping[str, StoredTensor], moments: Mapping[str, StoredTensor]) -> list[str]:
    """Return what has no second moment: names of tensors, or shapes where a checkpoint numbers its moments."""
    if moments and all(key.split(".")[1].isdecimal() for key in moments):
        missing = Counter(one.shape for one in trained.values())
        missing.subtract(Counter(one.shape for one in moments.values()))
        return [f"{abs(count)} tensors of shape {shape}" for shape, count in missing.items() if count]
    return [key for key in sorted(trained) if f"optimizer.{key}{MOMENT}" not in moments]


def _part(tensors: Mapping[str, StoredTensor], prefix: str) -> dict[str, StoredTensor]:
    return {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}


def _scale(adapter_dir: Path | None) -> float:
    try:
        config = json.loads(((adapter_dir or Path()) / "adapter_config.json").read_text(encoding="utf-8"))
        return float(config["lora_alpha"]) / float(config["r"])
    except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError) as error:
        raise BlockedError(f"{adapter_dir} holds no adapter_config.json that can be read: {error}") from error


def _same(one: StoredTensor, other: StoredTensor) -> bool:
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and one.read().tobytes() == other.read().tobytes()
    )


def _same_rounded(before: StoredTensor, after: StoredTensor) -> bool:
    """Whether bits are equal, the first tensor rounded (to nearest, ties to even) where the second is bfloat16."""
    if (before.dtype, after.dtype) != ("F32", "BF16"):
        return _same(before, after)
    bits = before.read().view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16
    return before.shape == after.shape and np.array_equal(rounded, after.read().view(np.uint32))


def _double(tensor: StoredTensor) -> npt.NDArray[np.float64]:
    return tensor.read().astype(np.float64)
