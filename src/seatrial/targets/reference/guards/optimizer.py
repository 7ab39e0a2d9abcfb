"""Checks the first updates of a run of refrl against AdamW in closed form: rate, decay, both moments, the clipped norm.

No gradient is kept: the first moment before and after an update gives the gradient between them (arXiv 1711.05101).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from refrl.policy.tensors import whole
from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.guards.guards import WeightSample, sample_weights
from seatrial.relations.measures.updates import adamw_weights, next_moments
from seatrial.relations.oracles.runs import norm_of
from seatrial.targets.reference.guards.base import RunConfig, check, options_of

NUM_UPDATES = 3
"""Updates that are checked."""
OF_THE_RATE = 0.02
"""A step may be off by this share of the learning rate: AdamW moves a weight by about the rate."""


class _Look(NamedTuple):
    """Elements of weights and moments at one time, float64; N elements."""

    names: WeightSample
    weights_N: Tensor
    first_N: Tensor
    second_N: Tensor


class OptimizerGuard:
    """Compares the first updates with those of the configured optimizer."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with no update checked."""
        self._config, self._guards, self._options = config, guards, options_of(config)
        self._before: _Look | None = None
        self._done = 0

    def started(self, session: Session) -> None:
        """Look at the weights that a run begins with; a resumed run is not checked."""
        is_float32 = self._config.policy.precision == "float32" or bool(masters_of(session))
        if is_float32 and session.world.size == 1 and not session.attempt.step:
            self._before = _look(session)

    def check_step(self, session: Session, metrics: Mapping[str, float], num_updates: int) -> None:
        """Check the update of a step that took one."""
        before, self._before = self._before, None
        if before is None or num_updates != 1 or not math.isfinite(metrics["grad_norm"]):
            return
        after = _look(session)
        if len(after.first_N) != len(after.weights_N) or len(after.second_N) != len(after.weights_N):
            check(self._guards, "update as configured", "weights without moments were updated", number=1)
            return
        wrong = self._wrong_step(session, before, after, metrics["lr"])
        if not self._done:
            wrong = wrong or self._wrong_norm(session, metrics["grad_norm"])
        check(self._guards, "update as configured", wrong, number=len(after.weights_N))
        self._done += 1
        self._before = after if self._done < NUM_UPDATES else None

    def _wrong_step(self, session: Session, before: _Look, after: _Look, rate: float) -> str:
        betas, number = self._config.policy.optimizer.betas, self._done + 1
        gradient_N = (after.first_N - betas[0] * before.first_N) / (1 - betas[0])
        _, second_N = next_moments(before.first_N, before.second_N, gradient_N, betas)
        largest = float(second_N.max())
        # Where a gradient is small against the moments, float32 has rounded it away.
        off = float((after.second_N - second_N).abs().max())
        if not off <= 0.02 * largest:
            return f"update {number}: the second moment is off by {off:.3g} of {largest:.3g}"
        trained = _weights(session)
        decays_N = torch.cat(  # matrices alone decay
            [torch.full((size,), float(trained[name].ndim >= 2)) for name, size in after.names.sizes.items()]
        ).double()
        right_N = adamw_weights(
            before.weights_N,
            (after.first_N, after.second_N),
            self._options,
            update=number,
            rate=rate,
            decays=decays_N,
        )
        rounding_N = 3e-7 * before.weights_N.abs()
        worst = float(((after.weights_N - right_N).abs() - rounding_N).max())
        if not worst <= OF_THE_RATE * rate:
            return f"update {number}: a weight is {worst:.3g} from where AdamW takes it, with a rate of {rate:.3g}"
        return ""

    def _wrong_norm(self, session: Session, norm: float) -> str:
        """The first moment after one update is the clipped gradient, of the norm that is logged and configured."""
        found = norm_of(_moments(session, "exp_avg")) / (1 - self._config.policy.optimizer.betas[0])
        limit = self._config.policy.max_grad_norm
        right = norm if limit is None else min(norm, limit)
        if math.isclose(found, right, rel_tol=1e-3):
            return ""
        return f"update 1: a gradient of norm {found:.5g}, logged and clipped it is {right:.5g}"


def masters_of(session: Session) -> dict[str, Tensor]:
    """Return the float32 copies that are trained in place of weights of a lower precision, where there are any."""
    prefix, suffix = "optimizer.", ".master"
    return {
        name.removeprefix(prefix).removesuffix(suffix): whole(weight.detach())
        for name, weight in session.policy.state_tensors().items()
        if name.endswith(suffix)
    }


def _look(session: Session) -> _Look:
    weights = sample_weights(_weights(session))
    first, second = (sample_weights(_moments(session, name)) for name in ("exp_avg", "exp_avg_sq"))
    return _Look(weights, *(one.elements_N.cpu().double() for one in (weights, first, second)))


def _moments(session: Session, key: str) -> dict[str, Tensor]:
    """Return the moments of the trained weights, in their order."""
    state = session.policy.state_tensors()
    names = {name: f"optimizer.{name}.{key}" for name in session.policy.trained_weights()}
    return {name: whole(state[full].detach()) for name, full in names.items() if full in state}


def _weights(session: Session) -> dict[str, Tensor]:
    """Return what the optimizer moves: the weights, or their float32 copies."""
    return {**session.policy.trained_weights(), **masters_of(session)}
