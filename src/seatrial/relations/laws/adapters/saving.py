"""R29.saved: a saved adapter computes the same when it is loaded, and its file has the adapter alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.contracts.adapters import Precision
from seatrial.relations.facts import MACHINE_EPSILON
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import changes_base
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.laws.adapters.several import two
from seatrial.relations.tensors import largest_difference

SAVED = Relation(
    id="R29.saved",
    name="saved-adapter-is-whole",
    component="adapters",
    statement="A loaded adapter computes what the saved one computed; its file has its own tensors and no others.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)
EXACT = 1e-6
"""A tensor that is derived again from those of the file may round otherwise."""
ROUNDINGS = 16
"""Through a model of two layers in half precision, once with weights loaded and once with weights cast."""


def _keeps_something(stack: Any) -> str | None:
    return None if stack.adapter_spec.saves_all else "adapter_spec.saves_all=False"


def _is_not_one_of_two(stack: Any) -> str | None:
    return _keeps_something(stack) or changes_base(stack)


@SAVED.law(
    "loaded equals saved",
    "a tensor that is not saved, or drawn again; a key that loading does not find",
    excluded=_keeps_something,
)
def loaded_equals_saved(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of the loaded adapter with those of the saved one."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        loaded = stack.loaded(Path(folder), dtype="float32")
    return Measure(
        error=largest_difference(loaded.outputs(ids_BS), model.outputs(ids_BS)),
        bound=1e-5 if stack.adapter_spec.changes_base else EXACT,
        what="outputs of the loaded adapter against the saved one, relative difference",
    )


@SAVED.law(
    "the second adapter of two",
    "a file with the other adapter's tensors, or in its place",
    excluded=_is_not_one_of_two,
)
def second_of_two_is_saved(stack: Any, case: AdapterCase) -> Measure:
    """Save the second of two adapters while the first is in use, and compare it with the loaded one."""
    ids_BS = ids_of(stack, case)
    model = two(stack, case)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "second")
        loaded = stack.loaded(Path(folder), dtype="float32")
    model.use(["second"])
    return Measure(
        error=largest_difference(loaded.outputs(ids_BS), model.outputs(ids_BS)),
        bound=EXACT,
        what="outputs of the loaded second adapter against the saved one, relative difference",
    )


@SAVED.law(
    "the adapter's tensors alone",
    "base weights or another adapter in the file, names that hold the adapter's name",
    excluded=changes_base,
)
def file_has_adapter_alone(stack: Any, case: AdapterCase) -> Measure:
    """Check that a file does not grow with a second adapter, and that no name holds an adapter's name."""
    alone = stack.adapted(seed=case.seed, dtype="float32")
    both = two(stack, case)
    names = []
    for model in (alone, both):
        with tempfile.TemporaryDirectory() as folder:
            names.append(set(model.save(Path(folder), "first")))
    wrong = [f"{name} with a second adapter alone" for name in sorted(names[1] - names[0])]
    wrong += [f"{name} without a second adapter alone" for name in sorted(names[0] - names[1])]
    wrong += [f"{name} holds the adapter's name" for name in sorted(names[0]) if ".first" in name]
    return Measure.count(wrong, "names in the file of an adapter")


@SAVED.law(
    "into bfloat16",
    "an adapter cast to half precision before it is loaded, float32 factors that raise",
    dtype="bfloat16",
    excluded=_keeps_something,
)
def loads_into_another_dtype(stack: Any, case: AdapterCase, dtype: Precision) -> Measure:
    """Compare an adapter saved over float32 and loaded over bfloat16 with one of the same values made there."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    right = stack.adapted(seed=case.seed, dtype=dtype)
    with torch.no_grad():
        own, given = right.tensors_of("first") | right.trainable(), model.tensors()
        for name, value in right.tensors().items():
            if name in own and name in given and given[name].shape == value.shape:
                value.copy_(given[name].to(value.dtype))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        loaded = stack.loaded(Path(folder), dtype=dtype)
    return Measure(
        error=largest_difference(loaded.outputs(ids_BS).float(), right.outputs(ids_BS).float()),
        bound=ROUNDINGS * MACHINE_EPSILON[dtype],
        what=f"outputs over a base in {dtype} of the loaded adapter against one made there, relative difference",
    )
