"""Worked examples of what PEFT takes: each kind is made, and offers what its description does not except."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.targets.common.target import Gone
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.peft.bases import TASKS
from seatrial.targets.peft.nets import NETS
from seatrial.targets.peft.worked.calls import NEXT

EXCEPTED: Sequence[str] = (
    "lora-trained-biases, a second adapter",
    "lora-only-biases, a second adapter",
    "lora-olora-conv1d, outputs",
    "adalora, a second adapter",
    "hra-gram-schmidt, a safe merge",
    "c3a, outputs of two",
    "lily, a safe merge",
    "osf, an unmerge",
    *(f"{name}, two in use" for name in ("prompt", "prefix", "prefix-projected", "p-tuning")),
)
"""What releases from 0.21 refuse: in their words, or by a known bug."""
IDS_BS = torch.tensor([[7, 5, 9], [11, 4, 6]])


def _kinds(own: bool) -> Iterator[tuple[str, Any]]:
    """Yield types of adapters by name: those of the table, or their variants."""
    from seatrial.targets.peft.table import LORA, OTHERS
    from seatrial.targets.peft.varied import varied

    for name, adapter in ({**LORA, **OTHERS} if own else varied(OTHERS)).items():
        try:
            yield name, adapter()
        except (Gone, ImportError):
            continue


def _refusals(of: Any, own: bool) -> list[str]:
    """Return the kinds, with what they refuse and do not say that they do; of variants, whether they are made."""
    found = []
    for name, kind in _kinds(own):
        made: list[Any] = []
        for what, call in _calls(kind, made, own):
            try:
                call()
            except Exception:  # noqa: BLE001  the stack chooses the type of its error
                found.append(f"{name}, {what}")
                break
    return [one for one in found if one not in EXCEPTED]


def _calls(kind: Any, made: list[Any], own: bool) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield what a kind offers by its description."""
    spec = kind.adapter_spec
    yield "a start", lambda: made.append(kind.adapted(seed=0, dtype="float32"))
    yield "outputs", lambda: made[0].outputs(IDS_BS)
    if not own or spec.changes_base:
        return
    if spec.merges:
        yield "a safe merge", lambda: made[0].merge(safe=True)
        yield "an unmerge", lambda: made[0].unmerge()
    yield "a second adapter", lambda: made[0].add("second")
    if "two at once" not in spec.refuses:
        yield "two in use", lambda: made[0].use(["first", "second"])
        yield "outputs of two", lambda: made[0].outputs(IDS_BS)
        if spec.merges:
            yield "two merged", lambda: made[0].merge(names=["first", "second"])
            yield "two unmerged", lambda: made[0].unmerge()
    yield "the second one", lambda: made[0].use(["second"])
    if "mixed batch" not in spec.refuses:
        yield "a mixed batch", lambda: made[0].outputs(IDS_BS, names=["first", "base"])


def _two_biases(of: Any) -> list[str]:
    """Return the types that take a second adapter with biases of its own, of those that train biases."""
    import peft

    taken = []
    for name, kind in _kinds(own=True):
        config = getattr(peft, kind.kind.config)
        if "bias" not in {item.name for item in dataclasses.fields(config)} or kind.kind.options.get("bias"):
            continue
        if kind.kind.trait in NETS or kind.kind.trait in TASKS or kind.kind.spec.changes_base or "-" in name:
            continue
        options: Mapping[str, Any] = {**kind.kind.options, "bias": "all"}
        model = peft.get_peft_model(kind.given("float32"), config(**copy.deepcopy(dict(options))), "first")
        try:
            model.add_adapter("second", config(**copy.deepcopy(dict(options))))
        except ValueError:
            continue
        taken.append(name)
    return taken


ROWS: Sequence[Row] = (
    Row(
        "refusals",
        "peft:PeftModel",
        "kinds, and what they offer",
        lambda of: _refusals(of, True),
        [],
        since=NEXT,
    ),
    Row(
        "refusals",
        "peft:PeftModel",
        "variants, and what they offer",
        lambda of: _refusals(of, False),
        [],
        since=NEXT,
    ),
    Row("refusals", "peft:PeftModel", "two adapters with biases", _two_biases, [], since=NEXT),
)
