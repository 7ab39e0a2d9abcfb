"""R5.base: a plain model holds, and each fault breaks the law about it."""

from collections.abc import Mapping
from typing import get_args

import pytest
import torch
from torch import Tensor

from seatrial.relations.contracts.any_models import AnyForm
from seatrial.relations.engine import run_relation
from seatrial.relations.laws.models.any_models import BASE
from seatrial.relations.not_served import NotServed
from seatrial.verdict import Outcome


class Plain:
    """A model whose outputs are the same numbers in every form, but for a fault."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.value = torch.arange(1.0, 13.0).view(3, 4)

    def any_outputs(self, form: AnyForm) -> Mapping[str, Tensor]:
        if form == "embedded" and self.fault == "no embeddings":
            raise NotServed("no inputs_embeds")
        off = 0.1 * (form == self.fault)
        return {
            "last": self.value + off,
            **({} if form == "alone" else {"across": self.value.T @ self.value}),
        }

    def any_gradients(self, *, checkpointed: bool) -> Mapping[str, Tensor]:
        return {"weight": self.value[: 2 if checkpointed and self.fault == "fewer gradients" else 3]}

    def any_changes(self) -> list[str]:
        return ["a mask"] if self.fault == "changed" else []

    def any_missing(self) -> list[str]:
        return ["a weight"] if self.fault == "shared" else []


def _broken(fault: str) -> list[str]:
    verdict = run_relation(BASE, Plain(fault), seeds=[0], shrink_seconds=0)
    broken: list[str] = verdict.details.get("laws_broken", [])
    return broken


def test_a_plain_model_holds() -> None:
    """Every law, and those that a model does not serve are left out."""
    assert run_relation(BASE, Plain(), seeds=[0]).outcome is Outcome.PASS
    assert _broken("no embeddings") == []


@pytest.mark.parametrize("form", [form for form in get_args(AnyForm) if form != "together"])
def test_an_output_that_is_another_one_breaks_the_law_of_the_form(form: str) -> None:
    """Each form has one law."""
    assert len(_broken(form)) == 1


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("fewer gradients", "gradients of activations computed again"),
        ("changed", "inputs and options stay"),
        ("shared", "one seed, two models"),
    ],
)
def test_each_fault_breaks_its_law(fault: str, law: str) -> None:
    """What is no output."""
    assert _broken(fault) == [law]
