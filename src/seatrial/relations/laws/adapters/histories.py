"""R29.histories: random sequences of public calls on up to three adapters, against a plain record of what is due."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.contracts.adapters import Combination
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import BOUND, changes_base, refuses
from seatrial.relations.laws.adapters.elsewhere import GRADIENTS
from seatrial.relations.laws.adapters.history import NAMES, Member, Record, disabled, history, scale, trained
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of
from seatrial.relations.laws.adapters.several import plain_names
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.adapters import adapted_weights
from seatrial.relations.tensors import largest_difference, largest_gradient_difference

MANY = 3
"""Histories of the laws whose state few calls set: a scale, or whether the adapter in use is frozen."""
SOME = 4
"""Calls before what is judged once."""


def _is_one(stack: Any) -> str | None:
    # Biases of the base that train belong to no adapter.
    return changes_base(stack) or (
        None if stack.adapter_spec.disables_all else "adapter_spec.disables_all=False"
    )


HISTORIES = Relation(
    id="R29.histories",
    name="any-history-of-adapters-is-the-plain-record",
    component="adapter_histories",
    statement="After any sequence of adding, loading, using, disabling, scaling, merging, copying and deleting adapters"
    " of one type with other options, each computes, trains and is saved as in a model that has it alone.",
    cost="CPU, a second",
    cases=adapter_case,
    excluded=_is_one,
    thorough=True,
)


def _wrong_in(found: list[str], record: Record) -> list[str]:
    """Return what is wrong, with the calls before it."""
    return [f"{one} after {', '.join(record.done)}" for one in found]


def _settled(records: Iterable[Record]) -> Record | None:
    """Return the record of the first state, some calls on, in which several adapters are neither merged nor off."""
    for record in records:
        if len(record.done) >= SOME and record.on and not record.merged and len(record.members) > 1:
            return record
    return None


def _many(stack: Any, case: AdapterCase, *, scales: bool = False) -> Iterator[Record]:
    """Yield the records of several histories."""
    for number in range(MANY):
        yield from history(stack, case, scales=scales, number=number)


def _is_not_known(stack: Any) -> str | None:
    return _is_one(stack) or (None if stack.adapter_spec.closed_form else "adapter_spec.closed_form=False")


@HISTORIES.law(
    "outputs",
    "a layer that another adapter is on, a name that begins like another one, another one's scale",
    thorough=False,
)
def outputs_are_those_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs after each call with those of the adapter in use alone, or of the base."""
    return _outputs(stack, case, scales=False)


@HISTORIES.law(
    "scaled", "a scale of another adapter, layers that a scale does not reach", excluded=_is_not_known
)
def scaled_outputs_are_the_oracle(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs after each call with those of the adapter in use alone, also where its scale is set."""
    return _outputs(stack, case, scales=True)


SCALINGS = (
    ("set", 3.0),
    ("multiply", -1.5),
    ("divide", -1.5),
    ("divide", None),
    ("multiply", 0.5),
    ("set", -1.5),
)
"""Calls in turn: each kind after another one."""


@HISTORIES.law(
    "scaled alone", "a scale that is set or reset by another rule than the first one", excluded=_is_not_known
)
def one_is_scaled(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of the only adapter of a model with the oracle's, after each call that sets its scale."""
    model = stack.alone("own", NAMES[0], seed=case.seed)
    record = Record(stack, ids_of(stack, case), torch.Generator().manual_seed(case.seed), 0.0, ("own",), True)
    trained(model, NAMES[0], case.seed)
    if model.updates(NAMES[0]) is None:
        raise NotServed("no closed form")
    record.model, record.used, record.members[NAMES[0]] = model, NAMES[0], Member("own", model)
    found = []
    for how, factor in SCALINGS:
        scale(record, how, factor)
        error = largest_difference(model.outputs(record.ids_BS), record.due())
        found.append((error, f"{how} {factor}"))
    return Measure.largest(
        found, BOUND, "outputs of a scaled adapter against the oracle, relative difference"
    )


def _outputs(stack: Any, case: AdapterCase, *, scales: bool) -> Measure:
    # An ordinary run judges outputs without scales alone.
    for record in _many(stack, case, scales=True) if scales else history(stack, case):
        error = largest_difference(record.model.outputs(record.ids_BS), record.due())
        if not error <= BOUND:
            return Measure.count(_wrong_in([f"{record.used} is off by {error:.2g}"], record), "outputs")
    return Measure.count([], "outputs")


@HISTORIES.law("what trains", "flags of an adapter that was in use, loaded for inference, or disabled")
def trains_as_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare the names of trainable tensors after each call with those of the adapter in use alone, or none."""
    for record in _many(stack, case):
        if not record.on or record.trains is None or record.merged:
            continue
        used = [
            one
            for name, one in record.members.items()
            if one.trains_too or (name == record.used and record.trains)
        ]
        due = plain_names(key for one in used for key in one.alone.trainable())
        found = plain_names(record.model.trainable())
        wrong = [f"{key} trains" for key in sorted(found - due)]
        wrong += [f"{key} does not train" for key in sorted(due - found)]
        wrong += [] if [*record.model.active()] == [record.used] else [f"{record.model.active()} in use"]
        if wrong:
            return Measure.count(_wrong_in(wrong[:1], record), "names of what trains")
    return Measure.count([], "names of what trains")


@HISTORIES.law("disabled while for inference", "flags that enabling sets, regardless of what they were")
def stays_for_inference(stack: Any, case: AdapterCase) -> Measure:
    """Check that an adapter that is used for inference does not train after a block without it."""
    record = next(iter(history(stack, case)))
    record.model.use_one(record.used, trains=False)
    before = record.model.trainable()
    disabled(record)
    wrong = sorted(record.model.trainable() - before)
    return Measure.count(wrong, "tensors that train after the adapter was disabled")


@HISTORIES.law(
    "tensors", "random numbers of another start, a tensor that is not there, or left, or overwritten"
)
def tensors_are_those_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare the tensors of every adapter after each call with those that it has alone, and how each one starts."""
    for record in history(stack, case):
        if record.merged:  # a norm may change places with that of the base
            continue
        wrong, found = [*record.starts], record.model.tensors()
        for name, member in record.members.items():
            right, names = member.alone.tensors(), member.alone.tensors_of(name)
            # What does not train may be another one's, or derived.
            wrong += [f"no {key}" for key in sorted(names & member.alone.trainable() - found.keys())]
            wrong += [
                f"{key} is other than alone"
                for key in sorted(names & found.keys())
                if found[key].is_meta or not torch.equal(found[key], right[key])
            ]
        gone = {key for name in NAMES if name not in record.members for key in record.model.tensors_of(name)}
        wrong += [f"{key} is left" for key in sorted(gone)]
        if wrong:
            return Measure.count(_wrong_in(wrong[:1], record), "tensors of adapters")
    return Measure.count([], "tensors of adapters")


@HISTORIES.law("gradients", "dropout of an adapter that is not in use, random numbers that it draws")
def gradients_are_those_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare gradients under dropout, and under checkpointing, with those of the adapter in use alone."""
    dropout = 0.3 if stack.adapter_spec.takes_dropout else 0.0
    found = []
    for record in history(stack, case, dropout=dropout):
        member = record.members[record.used]
        if not record.on or record.merged or not record.trains:
            continue
        if not record.model.trainable() and member.alone.trainable():
            found.append((float("inf"), f"nothing that trains after {', '.join(record.done)}"))
            break
        right, names = member.alone.gradients(record.ids_BS), member.alone.tensors_of(record.used)
        own = record.model.gradients(record.ids_BS)
        due = {key: value for key, value in right.items() if key in names and value.numel()}
        error, place = largest_gradient_difference(
            {key: own.get(key, torch.zeros_like(value)) for key, value in due.items()}, due
        )
        found.append((error, f"{place} after {', '.join(record.done)}"))
        if not error <= GRADIENTS:
            break
    return Measure.largest(found, GRADIENTS, "gradients against those of a model with one adapter")


@HISTORIES.law("files", "tensors of another adapter, or that are not in use, in a file")
def files_are_those_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare the file of each adapter, some calls on, with that of a model with it alone, and what it gives."""
    wrong: list[str] = []
    record = _settled(history(stack, case)) if stack.adapter_spec.saves_all else None
    if record is None:
        return Measure.count(wrong, "files")
    for name, member in record.members.items():
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as plain:
            found = set(record.model.save(Path(folder), name))
            due = set(member.alone.save(Path(plain), name))
            loaded = stack.loaded(Path(folder), dtype="float32")
        wrong += [f"{key} in one file alone, of {name}" for key in sorted(found ^ due)[:1]]
        error = largest_difference(loaded.outputs(record.ids_BS), member.alone.outputs(record.ids_BS))
        wrong += [] if error <= BOUND else [f"{name}, loaded, is off by {error:.2g}"]
    return Measure.count(_wrong_in(wrong, record), "files")


def _mixes_no_batch(stack: Any) -> str | None:
    return _is_one(stack) or refuses("mixed batch")(stack)


@HISTORIES.law("rows", "rows of one adapter that another one computes", excluded=_mixes_no_batch)
def rows_are_those_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare a batch, some calls on, in which each row names its adapter with rows of models with it alone."""
    # What is saved whole is in a batch of rows where every adapter has it alone.
    whole = bool(stack.adapter_spec.also_trains)
    record = _settled(history(stack, case, options=("own",) if whole else ("own", "elsewhere", "scaled")))
    if record is None:
        return Measure.count([], "rows")
    names = [record.pick([*record.members, "base"]) for _ in record.ids_BS]
    mixed_BSV = record.model.outputs(record.ids_BS, names=names)
    wrong = []
    for row, name in enumerate(names):
        member = record.members[record.used if name == "base" else name]
        if name == "base":
            with member.alone.disabled():
                right_BSV = member.alone.outputs(record.ids_BS[row : row + 1])
        else:
            right_BSV = member.alone.outputs(record.ids_BS[row : row + 1])
        error = largest_difference(mixed_BSV[row : row + 1], right_BSV)
        wrong += [] if error <= BOUND else [f"row {row}, of {name}, is off by {error:.2g}"]
    return Measure.count(_wrong_in(wrong, record), "rows")


SUMS: tuple[tuple[Combination, tuple[float, float]], ...] = (
    ("cat", (0.7, -0.4)),
    ("svd", (-1.3, 0.6)),
    ("svd", (0.5, 2.0)),
    ("cat", (-0.5, -2.0)),
)


@HISTORIES.law(
    "combined",
    "the rank or the scale of one adapter for another one, layers that one alone is on",
    excluded=_is_not_known,
)
def combined_are_sums(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of weighted sums of two adapters with other options with the oracle's sum of both changes."""
    record = _settled(history(stack, case, options=("own", "elsewhere", "scaled")))
    found: list[tuple[float, str]] = []
    if record is None:
        return Measure.count([], "sums")
    names = [*record.members][-2:]
    known = [record.members[name].alone.updates(name) for name in names]
    if any(one is None or any(part.magnitude is not None for part in one) for one in known):
        raise NotServed("no sum of a closed form")
    for number, (how, weights) in enumerate(SUMS):
        record.model.weigh(names, weights, how, new := f"{names[0]}{number}")
        record.model.use_one(new, trains=True)
        updates = [
            replace(one, scaling=one.scaling * weight)
            for name, weight in zip(names, weights, strict=True)
            for one in record.members[name].alone.updates(name) or ()
        ]
        base = record.members[names[0]].alone.base_weights()
        due_BSV = stack.plain_outputs(record.ids_BS, adapted_weights(base, updates))
        error = largest_difference(record.model.outputs(record.ids_BS), due_BSV)
        options = [record.members[name].options for name in names]
        found.append((error, f"{how} of {weights} of {options}"))
    return Measure.largest(found, BOUND, "outputs of weighted sums against the oracle, relative difference")
