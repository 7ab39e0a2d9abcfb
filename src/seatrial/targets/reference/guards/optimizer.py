"""The first updates of a run of refrl held to AdamW in closed form: rate, decay, both moments, the clipped norm.

No gradient is kept for it: two looks at the first moment give the gradient between them (arXiv 1711.05101).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.policy.tensors import whole
from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.guards.guards import WeightSample, sample_weights

LOOKS = 3
"""Updates that are looked at."""
OF_THE_RATE = 0.02
"""A step may be off by this share of the learning rate: AdamW moves a weight by about the rate."""


class _Look(NamedTuple):
    """Elements of weights and moments at one time, float64; N elements."""

    names: WeightSample
    weights_N: Tensor
    first_N: Tensor
    second_N: Tensor


class AsAdamW:
    """Asks of the first updates whether they are the optimizer's that is configured."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Begin with nothing seen."""
        self._config, self._guards = config, guards
        self._before: _Look | None = None
        self._done = 0

    def started(self, session: Session) -> None:
        """Look at the weights that a run begins with; one that resumes is not looked at."""
        is_float32 = self._config.policy.precision == "float32" or bool(masters_of(session))
        if is_float32 and session.world.size == 1 and not session.attempt.step:
            self._before = _look(session)

    def trained(self, session: Session, metrics: Mapping[str, float], num_updates: int) -> None:
        """Hold the update of a step that took one."""
        before, self._before = self._before, None
        if before is None or num_updates != 1 or not math.isfinite(metrics["grad_norm"]):
            return
        after = _look(session)
        if len(after.first_N) != len(after.weights_N) or len(after.second_N) != len(after.weights_N):
            self._guards.hold("update as configured", False, "weights without moments were updated", number=1)
            return
        wrong = self._wrong_step(session, before, after, metrics["lr"])
        if not self._done:
            wrong = wrong or self._wrong_norm(session, metrics["grad_norm"])
        self._guards.hold("update as configured", not wrong, wrong, number=len(after.weights_N))
        self._done += 1
        self._before = after if self._done < LOOKS else None

    def _wrong_step(self, session: Session, before: _Look, after: _Look, rate: float) -> str:
        optimizer = self._config.policy.optimizer
        beta1, beta2 = optimizer.betas
        number = self._done + 1
        gradient_N = (after.first_N - beta1 * before.first_N) / (1 - beta1)
        second_N = beta2 * before.second_N + (1 - beta2) * gradient_N.square()
        largest = float(second_N.max())
        # Where a gradient is small beside the moments, float32 has rounded it away.
        off_N = (after.second_N - second_N).abs()
        if not float(off_N.max()) <= 0.02 * largest:
            return f"update {number}: the second moment is off by {float(off_N.max()):.3g} of {largest:.3g}"
        root_N = (after.second_N / (1 - beta2**number)).sqrt() + optimizer.eps
        decays_N = self._decays(session, after)
        moved_N = rate * after.first_N / (1 - beta1**number) / root_N
        right_N = before.weights_N * (1 - rate * optimizer.weight_decay * decays_N) - moved_N
        rounding_N = 3e-7 * before.weights_N.abs()
        off_N = (after.weights_N - right_N).abs() - rounding_N
        worst = float(off_N.max())
        if not worst <= OF_THE_RATE * rate:
            return f"update {number}: a weight is {worst:.3g} from where AdamW takes it, with a rate of {rate:.3g}"
        return ""

    def _decays(self, session: Session, look: _Look) -> Tensor:
        """Return for each element whether its tensor decays: matrices alone do."""
        trained = _weights(session)
        parts = [
            torch.full((size,), float(trained[name].ndim >= 2), dtype=torch.float64)
            for name, size in look.names.sizes.items()
        ]
        return torch.cat(parts)

    def _wrong_norm(self, session: Session, norm: float) -> str:
        """The first moment after one update is the clipped gradient, of the norm that is logged and configured."""
        beta1 = self._config.policy.optimizer.betas[0]
        moments = _moments(session, "exp_avg").values()
        found = math.sqrt(sum(float(moment.double().square().sum()) for moment in moments)) / (1 - beta1)
        limit = self._config.policy.max_grad_norm
        right = norm if limit is None else min(norm, limit)
        good = math.isclose(found, right, rel_tol=1e-3)
        return (
            "" if good else f"update 1: a gradient of norm {found:.5g}, logged and clipped it is {right:.5g}"
        )


def _look(session: Session) -> _Look:
    weights = sample_weights(_weights(session))
    first, second = (sample_weights(_moments(session, name)) for name in ("exp_avg", "exp_avg_sq"))
    return _Look(weights, *(one.elements_N.cpu().double() for one in (weights, first, second)))


def _moments(session: Session, key: str) -> dict[str, Tensor]:
    """Return the moments of the trained weights, in their order."""
    state = session.policy.state_tensors()
    names = {name: f"optimizer.{name}.{key}" for name in session.policy.trained_weights()}
    return {name: whole(state[full].detach()) for name, full in names.items() if full in state}


def masters_of(session: Session) -> dict[str, Tensor]:
    """Return the float32 copies that are trained in place of weights of a lower precision, where there are any."""
    prefix, suffix = "optimizer.", ".master"
    return {
        name.removeprefix(prefix).removesuffix(suffix): whole(weight.detach())
        for name, weight in session.policy.state_tensors().items()
        if name.endswith(suffix)
    }


def _weights(session: Session) -> dict[str, Tensor]:
    """Return what the optimizer moves: the weights, or their float32 copies."""
    live = session.policy.trained_weights()
    return {**live, **masters_of(session)}
