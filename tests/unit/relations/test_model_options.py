"""The laws of options: a plain model obeys, and each planted fault of an option is seen by the law about it."""

from collections.abc import Mapping, Sequence

import pytest
import torch
from tests.unit.relations.test_families import PlainFamily
from torch import Tensor

from seatrial.relations.contracts.families import ModelForm
from seatrial.relations.engine import run_relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.records import StepResult
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(RELATION,) = select(["R5.options"])
CACHE = ["decoded from the cache", "decoded from the cache, scaled dot-product attention"]


class PlainModel(PlainFamily):
    """Logits times an option `scale`; `dropout` acts in training mode."""

    def __init__(self, option: str, fault: str) -> None:
        super().__init__()
        self.option, self.planted = option, fault

    def family_logits(self, rows: Sequence[Sequence[int]], form: ModelForm) -> list[Tensor]:
        scale = 2.0 if "scale" in self.option else 1.0
        if self.planted == "scale is ignored" or (self.planted == "the cache has no scale" and form.decoded):
            scale = 1.0
        if self.planted == "one kind of attention ignores scale" and form.attention == "sdpa":
            scale = 1.0
        if self.planted == "dropout in evaluation" and self.option == "dropout":
            scale = 1.1
        return [scale * one for one in super().family_logits(rows, form)]

    def packed_logits(self, rows: Sequence[Sequence[int]], attention: str) -> list[Tensor]:
        if self.planted == "rows see each other":
            whole = self.family_logits([[token for row in rows for token in row]], ModelForm())[0]
            return list(whole.split([len(row) for row in rows]))
        return self.family_logits(rows, ModelForm())

    def option_step(
        self, rows: Sequence[Sequence[int]], *, attention: str = "eager", num_items: int | None = None
    ) -> StepResult:
        found = self.family_step(rows, checkpointed=False)
        own = sum(len(row) - 1 for row in rows)
        scale = 1.0 if num_items is None or self.planted == "the count is ignored" else own / num_items
        wrong = 1.1 if attention == "sdpa" and self.planted == "another gradient" else 1.0
        return StepResult(
            loss=found.loss * scale, gradients={name: wrong * one for name, one in found.gradients.items()}
        )

    def drawn_logits(self, rows: Sequence[Sequence[int]], seed: int, attention: str) -> list[Tensor]:
        generator = torch.Generator().manual_seed(seed)
        plain = self.family_logits(rows, ModelForm())
        if self.planted == "no dropout":
            return plain
        return [one * (torch.rand(one.shape, generator=generator) > 0.5) for one in plain]

    def options_lost(self) -> Sequence[str]:
        return ["scale 1.0, before 2.0"] if self.option == "scale" and self.planted == "not saved" else []


class PlainOptions:
    """Two options and a pair; a third is refused, and a fourth needs a package."""

    vocab_size = 20
    option_names: Sequence[str] = ["scale", "dropout", "refused", "packaged", "scale & dropout"]
    trains_alone: Sequence[str] = ["dropout"]

    def __init__(self, fault: str = "", known: Mapping[str, str] | None = None) -> None:
        self.fault, self.known = fault, known or {}

    def with_option(self, name: str) -> PlainModel:
        if name == "refused":
            raise NotServed("no such value")
        if name == "packaged":
            raise ImportError("a package is not installed")
        return PlainModel(name, self.fault)

    def option_excludes(self, law: str, name: str) -> str | None:
        return None

    def option_failures(self, law: str) -> Mapping[str, str]:
        return self.known


FAULTS = {
    "the cache has no scale": CACHE,
    "scale is ignored": ["options act", "options act, scaled dot-product attention"],
    "one kind of attention ignores scale": [
        "scaled dot-product attention",
        "scaled dot-product attention, padded on the left",
        CACHE[1],
        "options act, scaled dot-product attention",
    ],
    "rows see each other": ["rows laid end to end", "rows laid end to end, scaled dot-product attention"],
    "the count is ignored": ["loss by a count of items"],
    "another gradient": ["gradients of scaled dot-product attention"],
    "not saved": ["saved and loaded"],
    "no dropout": [
        "dropout acts in training alone",
        "dropout acts in training alone, scaled dot-product attention",
    ],
    "dropout in evaluation": [
        "dropout acts in training alone",
        "dropout acts in training alone, scaled dot-product attention",
    ],
}


def test_a_plain_model_obeys() -> None:
    """No law fails, and none is left out."""
    assert run_relation(RELATION, PlainOptions(), seeds=(0,)).outcome is Outcome.PASS


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_breaks_the_laws_about_it(fault: str) -> None:
    """And no other law."""
    verdict = run_relation(RELATION, PlainOptions(fault), seeds=(0,), shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.details["laws_broken"] == FAULTS[fault]
    assert "scale" in verdict.reason or "dropout" in verdict.reason or "no option" in verdict.reason


def test_a_known_failure_is_left_out() -> None:
    """An option that is known to fail, and pairs with it, are not counted."""
    stack = PlainOptions("the cache has no scale", {"scale": "Title of a finding"})
    assert run_relation(RELATION, stack, seeds=(0,)).outcome is Outcome.PASS


def test_known_failures_alone_are_no_evidence() -> None:
    """A law that would judge nothing but known failures is not served."""
    stack = PlainOptions("scale is ignored", {"scale": "Title of a finding"})
    stack.option_names = ["scale"]
    (law,) = (law for law in RELATION.laws if law.name == "options act")
    with pytest.raises(NotServed, match="only known failures: scale"):
        law.measure(stack, law.make(stack, 0, False))


def test_a_crash_with_an_option_is_a_failure_of_it() -> None:
    """The message names the option and the exception."""

    class Crashes(PlainOptions):
        def with_option(self, name: str) -> PlainModel:
            if name == "scale":
                raise ZeroDivisionError("by the scale")
            return super().with_option(name)

    verdict = run_relation(RELATION, Crashes(), seeds=(0,), shrink_seconds=0)
    assert verdict.outcome is Outcome.FAIL
    assert "scale: ZeroDivisionError: by the scale" in verdict.reason
