"""A random history of calls on up to three adapters of one model, and a plain record of what is due of it.

The record knows which adapter is in use, trains, is merged, is disabled and how it is scaled. What is due of an adapter
is what a model computes that has it alone, or the float64 oracle where its scale was set.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapter_histories import OPTIONS, HistoryModel, Options
from seatrial.relations.laws.adapters.inputs import MOVED, AdapterCase, ids_of
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.adapters import adapted_weights

NAMES = ("a", "ab", "default")
"""One is the beginning of another, and one is what PEFT calls an adapter without a name."""
STEPS = 10
"""Calls of a history, with the one that makes the model."""
FACTORS = (0.5, 3.0, -1.5)


@dataclass
class Member:
    """What is due of one adapter."""

    options: Options
    alone: HistoryModel
    factor: float = 1.0
    trains_too: bool = False
    """Whether it was loaded to be trained, and no call has set what trains since."""


@dataclass
class Record:
    """A model, and the plain record of what is due of it."""

    stack: Any
    ids_BS: Tensor
    generator: torch.Generator
    dropout: float
    options: tuple[Options, ...]
    scales: bool
    model: HistoryModel = field(init=False)
    members: dict[str, Member] = field(default_factory=dict)
    used: str = ""
    trains: bool | None = True
    """None: an adapter for inference that was disabled, about which another law is."""
    on: bool = True
    merged: bool = False
    note: str = ""
    starts: list[str] = field(default_factory=list)
    """What of an added adapter does not start as it does alone."""
    done: list[str] = field(default_factory=list)

    def pick(self, choices: Any) -> Any:
        """Return one of these at random."""
        return list(choices)[int(torch.randint(len(choices), (), generator=self.generator))]

    def seed(self) -> int:
        """Return a random number."""
        return int(torch.randint(1000, (), generator=self.generator))

    def others(self) -> list[str]:
        """Return the names of adapters that are not in use."""
        return [name for name in self.members if name != self.used]

    def settle(self) -> None:
        """Note that a call sets what trains."""
        for member in self.members.values():
            member.trains_too = False

    def due(self) -> Tensor:
        """Return the logits that are due."""
        if not self.on:
            with self.members[self.used].alone.disabled():
                return self.members[self.used].alone.outputs(self.ids_BS)
        member = self.members[self.used]
        if member.factor == 1:
            return member.alone.outputs(self.ids_BS)
        updates = [
            replace(
                one,
                scaling=one.scaling * member.factor,
                bias={name: bias * member.factor for name, bias in one.bias.items()},
            )
            for one in member.alone.updates(self.used) or ()
        ]
        weights = adapted_weights(member.alone.base_weights(), updates)
        due_BSV: Tensor = self.stack.plain_outputs(self.ids_BS, weights)
        return due_BSV


def trained(model: HistoryModel, name: str, seed: int) -> HistoryModel:
    """Add random numbers to what trains of a model with one adapter, as training would."""
    generator, tensors = torch.Generator().manual_seed(1000 + seed), model.tensors()
    with torch.no_grad():
        for key in sorted(model.trainable()):
            noise = torch.randn(tensors[key].shape, generator=generator)
            tensors[key].add_(noise.to(tensors[key].dtype) * MOVED)
    return model


def _member(record: Record, name: str) -> tuple[Member, int]:
    """Return an adapter of random options alone, not yet trained, and the seed of its start."""
    used = [one.options for one in record.members.values()]
    left = [one for one in record.options if one not in used] + [one for one in record.options if one in used]
    while True:
        options, seed = record.pick(left[: max(1, len(left) - len(used))]), record.seed()
        try:
            alone = record.stack.alone(options, name, seed=seed, dropout=record.dropout)
        except NotServed:
            left.remove(options)
            if not left:
                raise
        else:
            return Member(options, alone), seed


def _set(record: Record, name: str) -> None:
    """Give an adapter the values that it has alone."""
    _copy_values(record.members[name].alone, record.model, name)


def _copy_values(source: HistoryModel, target: HistoryModel, name: str) -> None:
    """Give an adapter of a model the values that it has in another one."""
    given, tensors = source.tensors(), target.tensors()
    with torch.no_grad():
        for key in source.tensors_of(name) & tensors.keys():
            tensors[key].copy_(given[key])


def _starts_alike(found: Tensor, due: Tensor) -> bool:
    """Return whether values are equal, or of one size: the order in which a stack draws numbers is its own."""
    if found.shape != due.shape or not due.is_floating_point() or torch.equal(found, due):
        return found.shape == due.shape
    sizes = float(found.abs().mean()), float(due.abs().mean())
    return max(sizes) <= 3 * min(sizes)


def _add(record: Record) -> None:
    name = record.pick([name for name in NAMES if name not in record.members])
    member, seed = _member(record, name)
    record.model.put(member.options, name, seed=seed)
    start, tensors = member.alone.tensors(), record.model.tensors()
    record.starts += [
        f"{key} does not start as alone"
        for key in sorted(member.alone.tensors_of(name) & tensors.keys())
        if not _starts_alike(tensors[key], start[key])
    ]
    trained(member.alone, name, record.seed())
    record.members[name] = member
    record.note = f"{name} {member.options}"
    _set(record, name)


def _load(record: Record) -> None:
    name = record.pick([name for name in NAMES if name not in record.members])
    member, _ = _member(record, name)
    trained(member.alone, name, record.seed())
    with tempfile.TemporaryDirectory() as folder:
        member.alone.save(Path(folder), name)
        member.trains_too = record.pick([True, False])
        record.model.read_in(
            Path(folder), name, trainable=member.trains_too, low_memory=record.pick([False, True])
        )
    record.members[name] = member
    record.note = f"{name} {member.options}"


def _overwrite(record: Record) -> None:
    name = record.pick(record.others())
    alone = trained(record.members[name].alone, name, record.seed())
    try:
        if record.pick([True, False]):
            record.model.set_state(name, alone.state(name))
        else:
            with tempfile.TemporaryDirectory() as folder:
                alone.save(Path(folder), name)
                record.model.read_in(Path(folder), name, trainable=False, low_memory=False)
    except NotServed:
        _copy_values(record.model, alone, name)
        raise
    record.members[name].trains_too = False


def _use(record: Record) -> None:
    name, trains = record.pick(record.members), record.pick([True, True, False])
    record.model.use_one(name, trains=trains)
    record.used, record.trains, record.merged = name, trains, False
    record.settle()
    record.note = name if trains else f"{name} for inference"


def _delete(record: Record) -> None:
    name = record.pick(record.others())
    record.model.delete(name)
    record.note = name
    del record.members[name]


def disabled(record: Record) -> None:
    """Compute in a block without adapters."""
    with record.model.disabled():
        record.model.outputs(record.ids_BS)
    record.merged, record.trains = False, record.trains or None
    record.settle()


def _switch(record: Record) -> None:
    record.model.switch(not record.on)
    record.on, record.trains = not record.on, record.trains or None
    record.settle()


def _train(record: Record) -> None:
    if record.model.trainable():  # what trains is another law's
        record.model.gradients(record.ids_BS)


def _merge(record: Record) -> None:
    record.model.merge(safe=record.pick([True, False]))
    record.merged = True


def _unmerge(record: Record) -> None:
    record.model.unmerge()
    record.merged = False


def _copy(record: Record) -> None:
    record.model = record.model.copied()


def scale(record: Record, how: str, factor: float | None, name: str = "") -> None:
    """Set, multiply or divide the scale of an adapter, the one in use unless it is named; None: reset it."""
    member = record.members[name or record.used]
    if factor is None:
        record.model.divide_scale(None)
        member.factor = 1.0
    elif how == "set":
        record.model.set_scale(name or record.used, factor)
        member.factor = factor
    elif how == "multiply":
        record.model.multiply_scale(factor)
        member.factor *= factor
    else:
        record.model.divide_scale(factor)
        member.factor /= factor


def _set_scale(record: Record) -> None:
    name = record.pick(record.members)
    scale(record, "set", record.pick(FACTORS), name)


def _multiply_scale(record: Record) -> None:
    scale(record, "multiply", record.pick(FACTORS))


def _divide_scale(record: Record) -> None:
    scale(record, "divide", record.pick([None, *FACTORS]))


Call = Callable[[Record], None]
CALLS: Mapping[str, Call] = {
    "add": _add,
    "load": _load,
    "overwrite": _overwrite,
    "use": _use,
    "delete": _delete,
    "disabled": disabled,
    "switch": _switch,
    "train": _train,
    "merge": _merge,
    "unmerge": _unmerge,
    "copy": _copy,
    "set scale": _set_scale,
    "multiply scale": _multiply_scale,
    "divide scale": _divide_scale,
}


def _may(record: Record, call: str) -> bool:
    """Return whether a user may make a call in this state."""
    if call in ("add", "load"):
        return len(record.members) < len(NAMES) and not record.merged and record.on
    if call in ("overwrite", "delete"):
        return len(record.members) > 1 and not record.merged and record.on
    if call == "merge":
        return bool(record.stack.adapter_spec.merges) and record.on and not record.merged
    if call == "unmerge":
        return record.merged
    if "scale" in call:
        closed = record.stack.adapter_spec.closed_form and all(
            one.alone.updates(name) is not None for name, one in record.members.items()
        )
        return record.scales and not record.merged and record.on and closed
    if call == "train":
        return record.on and not record.merged and record.trains is True
    return record.on and not record.merged if call == "copy" else call == "switch" or record.on


def history(
    stack: Any,
    case: AdapterCase,
    *,
    dropout: float = 0.0,
    options: tuple[Options, ...] = OPTIONS,
    scales: bool = False,
    number: int = 0,
) -> Iterator[Record]:
    """Yield the record after each call of a random history, by its number, of adapters with any of these options."""
    generator = torch.Generator().manual_seed(7919 * case.seed + 104729 * number + 11)
    record = Record(stack, ids_of(stack, case), generator, dropout, options, scales)
    record.used = record.pick(NAMES)
    member, seed = _member(record, record.used)
    record.model = stack.alone(member.options, record.used, seed=seed, dropout=dropout)
    record.members[record.used] = member
    trained(member.alone, record.used, record.seed())
    _set(record, record.used)
    _add(record)
    record.done.append(f"{record.used} {member.options}, add {record.note}")
    yield record
    refused: set[str] = set()
    while len(record.done) < STEPS:
        # The adapter in use, or its scale, changes about as often as anything else happens.
        often = ["use"] * 3 + (["set scale", "divide scale"] * 2 if record.scales else [])
        calls = [call for call in (*CALLS, *often) if call not in refused and _may(record, call)]
        call = record.pick(calls)
        try:
            CALLS[call](record)
        except NotServed:
            refused.add(call)
            continue
        record.done.append(f"{call} {record.note or record.used}")
        record.note = ""
        yield record
