"""OpenRLHF's small functions, whichever release is installed; see `contracts.utilities`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures
from seatrial.targets.common.target import Gone, release
from seatrial.targets.openrlhf.parts import part

BALANCING = "utils.seqlen_balancing"
NAN = KnownFailure(
    "a mask that multiplies lets NaN in the padding through",
    finding="OpenRLHF: NaN in padding and the losses",
)


class OpenRLHFSmallFunctions(KnowsFailures):
    """Functions of `models.utils`, `utils.seqlen_balancing` and the penalties of lengths."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        NAN.of("R31.statistics/mean under a mask, NaN in the padding"),
    )

    def __init__(self) -> None:
        """Find those that the installed release has.

        Raises:
            Gone: there are none.
        """
        made: dict[str, Callable[..., Any]] = {}
        for name, (module, own, adapt) in PLACES.items():
            with contextlib.suppress(Gone, AttributeError):
                made[name] = adapt(getattr(part(module), own))
        if not made:
            raise Gone(f"openrlhf {release('openrlhf')} has none of {', '.join(PLACES)}")
        self.utilities: Mapping[str, Callable[..., Any]] = made


def _same(function: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = function
    return found


def _logprobs(compute: Any) -> Callable[..., Any]:
    def logprobs(logits: Tensor, ids: Tensor) -> Any:
        return compute(logits.reshape(1, -1, logits.shape[-1]), ids.reshape(1, -1)).reshape(ids.shape)

    return logprobs


def _without_padding(remove: Any) -> Callable[..., Any]:
    def removed(ids: Tensor, mask: Tensor) -> list[list[int]]:
        return [row if isinstance(row, list) else row.tolist() for row in remove(ids, mask)]

    return removed


def _imbalance(log: Any) -> Callable[..., Any]:
    def measured(lengths: Sequence[int], parts: Any) -> dict[str, float]:
        found = log(list(lengths), parts, "x")
        return {name.removeprefix("x/"): float(value) for name, value in found.items()}

    return measured


def _overlong(apply: Any) -> Callable[..., Any]:
    def punished(lengths: Sequence[int], longest: int, cache: int) -> list[float]:
        if not cache:
            raise NotServed("a buffer of no tokens is that the penalty is off")
        rewards = torch.zeros(len(lengths), dtype=torch.float64)
        rows = SimpleNamespace(rewards=rewards, response_length=torch.tensor(list(lengths)), info={})
        apply([rows], longest, cache, 1.0)
        return [float(value) for value in rows.rewards]

    return punished


PLACES: Mapping[str, tuple[str, str, Callable[[Any], Callable[..., Any]]]] = {
    "masked mean": ("models.utils", "masked_mean", _same),
    "logprobs": ("models.utils", "log_probs_from_logits", _logprobs),
    "without padding": ("utils.utils", "remove_pad_token", _without_padding),
    "balanced parts": (BALANCING, "get_seqlen_balanced_partitions", _same),
    "greedy parts": (BALANCING, "greedy_partition", _same),
    "inverse order": (BALANCING, "get_reverse_idx", _same),
    "imbalance": (BALANCING, "log_seqlen_unbalance", _imbalance),
    "first fit": (
        BALANCING,
        "get_minimum_num_micro_batch_size",
        lambda count: lambda lengths, limit: count(lengths, limit, 1, 1),
    ),
    "overlong": ("trainer.ppo_utils.length_penalty", "apply_overlong_penalty", _overlong),
}
"""Module, name, and what fits it to the contract."""


ADAPTERS: dict[str, type[Any]] = {"small-functions": OpenRLHFSmallFunctions}
