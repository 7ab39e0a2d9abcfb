"""Base models of every kind, and models with heads, with outputs on record; see `contracts.recorded`."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch

from seatrial.relations.contracts.model_heads import HeadForm, HeadKind
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.transformers.any_inputs import Inputs, mask_of
from seatrial.targets.transformers.any_models import AnyBase
from seatrial.targets.transformers.any_records import Recorded
from seatrial.targets.transformers.any_table import KINDS
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.family_records import of_gradients, projected, record, rows
from seatrial.targets.transformers.head_table import FAMILIES
from seatrial.targets.transformers.model_heads import FamilyHeads
from seatrial.targets.transformers.option_values import Variant, variants_of

HERE = Path(__file__)
BASES, HEADS = (HERE.with_name(f"recorded_{name}.json") for name in ("bases", "heads"))
KEPT = 6
"""Outputs of a model that are recorded."""


class _Base(AnyBase):
    """A base model whose weights depend on their names alone."""

    def _drawn(self, attention: str) -> Any:
        model = self._made(attention)
        draw_by_names_alone(model)
        return model


class _Optioned(_Base):
    """A base model with other options."""

    def __init__(self, kind: str, options: Mapping[str, Any]) -> None:
        self.kind, self._given = kind, options  # type: ignore[misc]
        super().__init__()

    def _config(self) -> Any:
        config = super()._config()
        for name, value in self._given.items():
            setattr(config, name, copy.deepcopy(value))
        return config


def _outputs(found: Inputs) -> list[float]:
    """Return projections of outputs, each divided by its size, and the sizes."""
    values = list(found.values())[:KEPT]
    sizes = [float(one.double().square().mean().sqrt()) for one in values]
    whole = projected([one / max(size, 1e-9) for one, size in zip(values, sizes, strict=True)])
    return [*whole[:-1], *sizes, max(1.0, *sizes)]


class BaseRecord(Recorded):
    """A base model."""

    path = BASES

    def __init__(self) -> None:
        super().__init__()
        self._plain = _Optioned(self.kind, {})

    @cached_property
    def _variants(self) -> Mapping[str, Variant]:
        try:
            config = self._plain._config()
            singles = variants_of(type(config), config, {})
        except Exception:  # noqa: BLE001  its options have no values of the usual kinds
            return {}
        return {one.name: one for one in singles if not one.trains}

    def option_names(self) -> list[str]:
        """Return what can be recorded."""
        return ["", "@mask", "@loss", *self._variants]

    def projections(self, name: str) -> Sequence[float]:
        option, _, output = name.partition("@")
        if option and option not in self._variants:
            raise NotServed(f"no option {option}")
        try:
            base = _Optioned(self.kind, self._variants[option].options) if option else self._plain
            base._inputs = inputs = self._plain._inputs
            if self._plain._draws:
                raise NotServed("a call draws random numbers")
            if output == "mask":
                return _outputs(self._half_masked(base))
            if output == "loss":
                return self._gradients(base)
            return _outputs(base._called(base._model, inputs))
        except NotServed:
            raise
        except Exception as error:  # not served, which is no wrong number
            raise NotServed(error_line(error)) from error

    def _half_masked(self, base: AnyBase) -> Inputs:
        """Return outputs with a mask that leaves out the last places of the second row."""
        mask = mask_of(base._model, base._inputs)
        if not mask:
            raise NotServed("no mask")
        name, ones = next(iter(mask.items()))
        ones[1, -ones.shape[1] // 3 :] = 0
        return base._called(base._model, {**base._inputs, name: ones})

    def _gradients(self, base: AnyBase) -> list[float]:
        model = copy.deepcopy(base._model)
        found = base._called(model, base._inputs, grad=True)
        total = sum(
            value.double().mul(torch.cos(torch.arange(value.numel()).view_as(value))).mean()
            for value in found.values()
            if value.requires_grad
        )
        if not isinstance(total, torch.Tensor):
            raise NotServed("no output has a gradient")
        torch.autograd.backward(total)
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        return of_gradients(float(total.detach()), gradients)


class _Heads(FamilyHeads):
    """Models with heads whose weights depend on their names alone."""

    def __init__(self, family: str) -> None:
        self.family = family  # type: ignore[misc]
        super().__init__()

    def _model(self, kind: HeadKind, attention: str) -> Any:
        if (kind, attention) not in self._models:
            model = self._fresh(kind, attention)
            draw_by_names_alone(model)
            self._models[kind, attention] = model.eval()
        return self._models[kind, attention]


class HeadRecord(Recorded):
    """Models of a family with heads."""

    path = HEADS

    def __init__(self) -> None:
        super().__init__()
        self._heads = _Heads(self.kind)

    def option_names(self) -> list[str]:
        """Return what can be recorded."""
        return [name for kind in self._heads.head_kinds for name in (kind, f"{kind} @loss")]

    def _labels(self, kind: HeadKind, given: Sequence[Sequence[int]]) -> list[Any]:
        by_kind: Mapping[str, list[Any]] = {
            "row classes": [1, 0, 2],
            "row numbers": [0.5, -1.0, 2.0],
            "row labels": [[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]],
            "token classes": [
                [-100, *((one + place) % 3 for place, one in enumerate(row[1:]))] for row in given
            ],
            "spans": [(2, 4), (1, 1), (0, 3)],
            "masked ids": [[one if place % 3 else -100 for place, one in enumerate(row)] for row in given],
            "choices": [1, 0, 1],
            "targets": [row[::-1] for row in given],
        }
        return by_kind[kind]

    def projections(self, name: str) -> Sequence[float]:
        named, _, output = name.partition(" @")
        kind = next((one for one in get_args(HeadKind) if one == named), None)
        if kind is None or kind not in self._heads.head_kinds:
            raise NotServed(f"no head {named}")
        given = rows()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                if output:
                    loss = self._heads.head_loss(kind, given, self._labels(kind, given))
                    return [loss, max(1.0, abs(loss))]
                return projected(self._heads.head_outputs(kind, given, HeadForm(together=True)))
        except NotServed:
            raise
        except Exception as error:  # not served, which is no wrong number
            raise NotServed(error_line(error)) from error


def _adapters(record: type[Recorded], name: str, kinds: Sequence[str]) -> dict[str, type[Any]]:
    return {
        f"recorded-{name}-{kind}": type(
            f"Recorded_{name}_{kind}", (record,), {"__doc__": f"{name} {kind} on record.", "kind": kind}
        )
        for kind in kinds
    }


EVERY: dict[str, type[Any]] = {
    **_adapters(BaseRecord, "base", KINDS),
    **_adapters(HeadRecord, "heads", list(FAMILIES)),
}
"""Those that can be recorded."""
ADAPTERS: dict[str, type[Any]] = {name: one for name, one in EVERY.items() if one.kind in record(one.path)}
