"""R35.policies: a sound policy passes, and each part of one that is broken is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import pytest
from torch import Tensor

from refrl.policy.dtensor.spread_model import SpreadModel
from refrl.policy.hf import HFPolicy
from refrl.policy.lora import Adapters
from seatrial.relations.laws.definitions.policies import ADAPTERS, BFLOAT16, mistakes
from seatrial.targets.reference.components import ReferenceComponents


def wrong(options: Mapping[str, Any], backend: str = "hf", model: str = "plain") -> list[str]:
    return list(mistakes(ReferenceComponents({}), backend, model, options))


def test_a_sound_policy_passes() -> None:
    assert wrong({**ADAPTERS, "dynamic_batching.enabled": True}) == []


def test_a_reference_that_learns_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adapters, "off", lambda self: nullcontext())
    assert wrong(ADAPTERS) == ["the reference after training"]


@pytest.mark.nightly
def test_weights_that_are_served_as_they_were_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Adapters, "refresh", lambda self: None)
    assert any("as it is served" in why for why in wrong(ADAPTERS))


def test_a_type_that_the_export_does_not_name_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SpreadModel.named_weights

    def named(self: SpreadModel) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight.float()) for name, weight in whole(self))

    monkeypatch.setattr(SpreadModel, "named_weights", named)
    assert "dtype=float32 in the export" in wrong(BFLOAT16, "dtensor")


@pytest.mark.nightly
def test_a_gradient_that_is_left_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HFPolicy, "free_gradients", lambda self: None)
    found = wrong({})
    assert any("that was given up" in why for why in found)
    assert any(why.startswith("gradient of") and why.endswith("in update 1") for why in found)
