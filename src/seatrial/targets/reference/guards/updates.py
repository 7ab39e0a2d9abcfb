"""Checks what refrl shows an observer of each update: the raw gradients, and the weights after it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from refrl.policy.base import Update
from seatrial.guards import Guards
from seatrial.guards.guards import WeightSample, sample_weights
from seatrial.relations.oracles.runs import norm_of
from seatrial.targets.reference.guards.base import RunConfig, check

OF_NORM = {"float32": 1e-4, "bfloat16": 0.02}
"""Relative difference of the norm of the shown gradients from the one that the update reports."""
MOST_BYTES = 64 * 2**20
"""Of a model whose updates are shown: each one is a copy of all weights and gradients."""


def shows_updates(config: RunConfig) -> bool:
    """Return whether a run shows its updates: of a small model in one process."""
    size = sum(file.stat().st_size for file in Path(config.policy.model_name).glob("*.safetensors"))
    return config.policy.backend == "hf" and config.cluster.num_processes == 1 and size <= MOST_BYTES


class UpdateGuard:
    """Compares what is shown of each update with what it reports, with the live weights, and with the step before."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with no update seen."""
        self._guards, self._tolerance = guards, OF_NORM[config.policy.precision]
        self._shown: tuple[Mapping[str, torch.Tensor], WeightSample] | None = None

    def check_step(self, live: Mapping[str, torch.Tensor], updates: Sequence[Update]) -> None:
        """Check the updates of a step, whose last one left the live weights."""
        if not updates:
            return
        wrong = []
        for number, update in enumerate(updates):
            norm = norm_of(update.gradients)
            if math.isfinite(update.grad_norm) and not math.isclose(
                norm, update.grad_norm, rel_tol=self._tolerance, abs_tol=1e-7
            ):
                wrong.append(
                    f"update {number} shows gradients of norm {norm:.6g}, and reports {update.grad_norm:.6g}"
                )
        check(self._guards, "gradients as reported", wrong, number=len(updates))
        samples = [sample_weights({name: update.weights[name] for name in live}) for update in updates]
        wrong = [
            f"{name} is not as the last update shows" for name in samples[-1].differing(sample_weights(live))
        ]
        if self._shown is not None and self._shown[1].differing(sample_weights(self._shown[0])):
            wrong.append("the weights that the step before showed have changed since")
        for (first, before), (second, after) in pairwise(zip(updates, samples, strict=True)):
            moves = second.learning_rate > 0 and second.grad_norm > 0
            if moves and not before.differing(after):
                wrong.append(
                    f"the updates at rows {first.first_row} and {second.first_row} show the same weights"
                )
        check(self._guards, "weights as updated", wrong, number=len(samples))
        self._shown = ({name: updates[-1].weights[name] for name in live}, samples[-1])
