"""Verdict on the optimizer: each update between two saved steps, done again in float64 from what was saved.

The first moments of two steps give the gradient of the second, as it was after clipping. From it follow the second
moments, and from both the weights: AdamW (arXiv 1711.05101), which decays matrices alone, at the schedule's rate.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.weights import StoredTensor, stored_tensors
from seatrial.relations.oracles.options import learning_rate
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.options import options_of, steps_of, updates_of
from seatrial.trials.sensors.paths import by_step
from seatrial.trials.sensors.saved import MOMENTS, OPTIMIZER, WEIGHT, saved_steps, tensors_at

Array = npt.NDArray[np.float64]
EPSILON = 2.0**-23
"""Relative rounding of float32."""
ROUNDED = 16 * EPSILON
"""Of a few operations in float32, relative to their largest operand."""
OF_STEP = 1e-4
"""Relative difference of how far a weight moves: a quotient of two roundings."""
OF_NORM = 2e-3
"""Relative difference of a gradient's norm, which is a difference of moments; and absolute, of a norm of rounding."""
ROUTED = ".experts."
"""In the name of a weight without a gradient where no token is routed to it: its updates are not counted."""
MASTER = ".master"
"""After the name of a weight that is kept in float32 while the model's is rounded."""


class _Owner(NamedTuple):
    """What has an optimizer of its own in a checkpoint."""

    weight: str
    """Before the names of its weights."""
    moments: str
    """Before the names of its moments."""
    folder: str
    """Of its initial weights, in the model's."""
    norm: str
    """Series of its gradient's norm."""


OWNERS = (
    _Owner(WEIGHT, OPTIMIZER, ".", "train/grad_norm"),
    _Owner("draft.", "draft.optimizer.", "draft", "train/draft/grad_norm"),
)


class _State:
    """Weights and moments after a step, in float64."""

    def __init__(self, tensors: Mapping[str, StoredTensor], owner: _Owner) -> None:
        self._tensors, self._owner = tensors, owner

    def names(self) -> Iterator[str]:
        """Yield the weights that have both moments, and a gradient at every update."""
        for key in self._tensors:
            name = key.removeprefix(self._owner.weight)
            has_moments = all(f"{self._owner.moments}{name}.{moment}" in self._tensors for moment in MOMENTS)
            if key.startswith(self._owner.weight) and has_moments and ROUTED not in name:
                yield name

    def moment(self, name: str, moment: str) -> Array:
        """Return a moment of a weight."""
        return self._tensors[f"{self._owner.moments}{name}.{moment}"].read().astype(np.float64)

    def weight(self, name: str) -> Array:
        """Return a weight as the optimizer has it."""
        master = self._tensors.get(f"{self._owner.moments}{name}{MASTER}")
        held = self._tensors[f"{self._owner.weight}{name}"] if master is None else master
        return held.read().astype(np.float64)


class _Start(_State):
    """The initial weights, and moments of zero."""

    def moment(self, name: str, moment: str) -> Array:
        return np.zeros(self._tensors[name].shape)

    def weight(self, name: str) -> Array:
        return self._tensors[name].read().astype(np.float64)


def updates_are_adamws(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every update between two saved steps is AdamW's, at the schedule's rate, of a gradient clipped to the limit.

    Raises:
        NotGivenError: no two steps in a row are saved, or the target does not say how the run is configured.
        BlockedError: a checkpoint cannot be read.
    """
    options, job = options_of(evidence), evidence.job
    evidence.need("checkpoints")
    evidence.need_whole_log()
    if job.checkpoint_dir is None or job.num_updates_per_step != 1:
        raise NotGivenError("the state before and after each update is not saved")
    if job.backend == "megatron":
        raise NotGivenError("Megatron-core saves the parts of its own tensors")
    saved = saved_steps(job.checkpoint_dir, job.checkpoint_form)
    taken = _taken(evidence, options)
    pairs = [step for step in saved if step in taken and (step - 1 in saved or step == 1)]
    if not job.first_step == 1 or not pairs:
        raise NotGivenError("no two steps in a row are saved")
    wrong, number = [], 0
    held = {step: tensors_at(evidence, step) for step in {*pairs, *(step - 1 for step in pairs)} if step}
    for step, owner in itertools.product(pairs, OWNERS):
        after = _State(held[step], owner)
        names = list(after.names())
        if not names:
            continue
        if step > 1:
            before = _State(held[step - 1], owner)
        else:
            initial = stored_tensors(job.initial_model / owner.folder)
            if not all(name in initial for name in names):
                continue  # adapters, which start at random
            before = _Start(initial, owner)
        found = list(_compare(before, after, names, options, taken[step], job.num_steps))
        wrong += [f"step {step}: {what}" for what in found]
        wrong += _wrong_norm(evidence, step, before, after, names, options, owner.norm)
        number += len(names)
    return wrong[:3], f"{number} updates of tensors in {len(pairs)} steps", number


def _taken(evidence: RunEvidence, options: Mapping[str, Any]) -> dict[int, int]:
    """Return the number of updates up to each step that takes one; fine-tuning takes one at each."""
    steps = range(1, evidence.job.num_steps + 1)
    if not any(name.startswith("grpo.") for name in options):
        return {step: step for step in steps}
    rows, found, number = steps_of(evidence), {}, 0
    for step in steps:
        if updates_of(rows.get(step, []), options):
            number += 1
            found[step] = number
    return found


def _gradient(before: _State, after: _State, name: str, beta: float) -> tuple[Array, Array]:
    """Return a clipped gradient, and its rounding."""
    first, last = before.moment(name, MOMENTS[0]), after.moment(name, MOMENTS[0])
    rounding = ROUNDED * (np.abs(first) + np.abs(last)) / (1 - beta)
    return (last - beta * first) / (1 - beta), rounding


def _compare(
    before: _State, after: _State, names: list[str], options: Mapping[str, Any], number: int, num_updates: int
) -> Iterator[str]:
    """Yield the tensors whose second moments or weights are not AdamW's after update `number`."""
    beta_1, beta_2 = options["policy.optimizer.betas"]
    rate = learning_rate(options, number, num_updates)
    for name in names:
        gradient, rounding = _gradient(before, after, name, beta_1)
        squares, wanted = after.moment(name, MOMENTS[1]), beta_2 * before.moment(name, MOMENTS[1])
        wanted = wanted + (1 - beta_2) * gradient**2
        slack = ROUNDED * wanted + (1 - beta_2) * (2 * np.abs(gradient) + rounding) * rounding + 1e-30
        if not (np.abs(squares - wanted) <= slack).all():
            yield f"second moments of {name} do not follow from its gradient"
            continue
        start, end = before.weight(name), after.weight(name)
        decay = rate * options["policy.optimizer.weight_decay"] if start.ndim >= 2 else 0.0
        mean = after.moment(name, MOMENTS[0]) / (1 - beta_1**number)
        moved = rate * mean / (np.sqrt(squares / (1 - beta_2**number)) + options["policy.optimizer.eps"])
        wanted = start * (1 - decay) - moved
        gap = np.abs(end - wanted)
        if not (gap <= OF_STEP * np.abs(moved) + ROUNDED * np.abs(start) + 1e-12).all():
            yield (
                f"{name} is {float(np.nanmax(gap)):.3g} from where AdamW takes it at the rate {rate:.4g}, which is "
                f"{float(np.abs(moved).max()):.3g} away"
            )


def _wrong_norm(
    evidence: RunEvidence,
    step: int,
    before: _State,
    after: _State,
    names: list[str],
    options: Mapping[str, Any],
    tag: str,
) -> Iterator[str]:
    """Yield what is wrong with the norm of the gradient that reached the optimizer."""
    beta = options["policy.optimizer.betas"][0]
    parts = [_gradient(before, after, name, beta) for name in names]
    norm = math.sqrt(math.fsum(float((gradient**2).sum()) for gradient, _ in parts))
    rounding = math.sqrt(math.fsum(float((of**2).sum()) for _, of in parts))
    logged, limit = by_step(evidence, tag).get(step, math.nan), options["policy.max_grad_norm"]
    wanted = logged if limit is None else min(logged, limit)
    if not abs(norm - wanted) <= OF_NORM * wanted + rounding + 1e-6:
        yield (
            f"the optimizer got a gradient of norm {norm:.6g}; {tag} is {logged:.6g}, clipped to "
            f"{'no limit' if limit is None else f'{limit:g}'}"
        )
