"""verl's count of the operations of a step, by which it logs the share of the device's speed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from unittest import mock

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name, release

COUNTER = "verl.utils.flops_counter"
WITHOUT_CHOICE = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Families that every release counts."""


class VerlWork(KnowsFailures):
    """`FlopsCounter.estimate_flops` of text models."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "attention counts as if each token saw all others: it is causal",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.7.1"),
        ).of("R31.work/operations of a layer", "R31.work/operations of a layer with a window"),
    )

    def __init__(self) -> None:
        """Find the counter."""
        self.counter = find_name("verl", [f"{COUNTER}:FlopsCounter"])
        self.utilities: Mapping[str, Callable[..., Any]] = {"estimated work": self._work}

    def _work(self, kind: str, sizes: Mapping[str, int], lengths: Sequence[int]) -> float:
        """Return the operations that one second would have."""
        from transformers import AutoConfig

        if kind not in WITHOUT_CHOICE and kind not in getattr(
            importlib.import_module(COUNTER), "ESTIMATE_FUNC", ()
        ):
            raise NotServed(f"verl {release('verl')} does not count {kind}")
        config = AutoConfig.for_model(kind, **sizes)
        with mock.patch(f"{COUNTER}.get_device_flops", lambda *_, **__: 1.0):
            found, _ = self.counter(config).estimate_flops(list(lengths), 1.0)
        return 1e12 * float(found)


ADAPTERS: dict[str, type[Any]] = {"work": VerlWork}
