"""R29.saved: adapters that are loaded next to others, swapped, set from tensors, or for inference."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.contracts.adapters import Precision
from seatrial.relations.law import Measure
from seatrial.relations.laws.adapters.adapted import changes_base, refuses
from seatrial.relations.laws.adapters.inputs import AdapterCase, ids_of, move
from seatrial.relations.laws.adapters.saving import EXACT, SAVED
from seatrial.relations.laws.adapters.several import two
from seatrial.relations.tensors import largest_difference


def _keeps_something(stack: Any) -> str | None:
    return ("adapter_spec.saves_all=False" if not stack.adapter_spec.saves_all else None) or changes_base(
        stack
    )


def _is_not_swapped(stack: Any) -> str | None:
    return _keeps_something(stack) or refuses("swapping")(stack)


@SAVED.law(
    "loaded as another one",
    "tensors loaded into the adapter that is in use, or that keep its scaling",
    excluded=_keeps_something,
)
def loaded_as_another(stack: Any, case: AdapterCase) -> Measure:
    """Load an adapter next to another one; it computes what the saved one did, and the other one what it did."""
    ids_BS = ids_of(stack, case)
    saved, model = (stack.adapted(seed=seed, dtype="float32") for seed in (case.seed, case.seed + 5))
    move(saved, case.seed)
    move(model, case.seed + 5)
    before_BSV = model.outputs(ids_BS)
    with tempfile.TemporaryDirectory() as folder:
        saved.save(Path(folder), "first")
        model.load(Path(folder), "second")
    found = [(largest_difference(model.outputs(ids_BS), before_BSV), "the one that was there")]
    model.use(["second"])
    found.append(
        (largest_difference(model.outputs(ids_BS), saved.outputs(ids_BS)), "the one that was loaded")
    )
    return Measure.largest(found, EXACT, "outputs of two adapters, one of them loaded, relative difference")


@SAVED.law(
    "swapped in",
    "tensors that stay, a scaling that stays, a module that is not swapped",
    excluded=_is_not_swapped,
)
def swapped_in(stack: Any, case: AdapterCase) -> Measure:
    """Replace an adapter by a saved one of the same options, and compare outputs with those of the saved one."""
    ids_BS = ids_of(stack, case)
    saved, model = (stack.adapted(seed=seed, dtype="float32") for seed in (case.seed, case.seed + 5))
    move(saved, case.seed)
    move(model, case.seed + 5)
    with tempfile.TemporaryDirectory() as folder:
        saved.save(Path(folder), "first")
        model.swap(Path(folder), "first")
    return Measure(
        error=largest_difference(model.outputs(ids_BS), saved.outputs(ids_BS)),
        bound=EXACT,
        what="outputs of an adapter that is swapped in against the saved one, relative difference",
    )


MORE_RANK = 3
"""Ranks more than the adapter has."""


@SAVED.law(
    "swapped in after preparing",
    "weights that are moved by the preparation, a scaling that stays",
    excluded=_is_not_swapped,
)
def swapped_in_after_preparing(stack: Any, case: AdapterCase) -> Measure:
    """Pad an adapter to a larger rank, and compare outputs with those before, and after a swap with the saved one's."""
    ids_BS = ids_of(stack, case)
    saved, model = (stack.adapted(seed=seed, dtype="float32") for seed in (case.seed, case.seed + 5))
    move(saved, case.seed)
    move(model, case.seed + 5)
    before_BSV = model.outputs(ids_BS)
    model.prepare_swaps(MORE_RANK)
    found = [(largest_difference(model.outputs(ids_BS), before_BSV), "prepared")]
    with tempfile.TemporaryDirectory() as folder:
        saved.save(Path(folder), "first")
        model.swap(Path(folder), "first")
    found.append((largest_difference(model.outputs(ids_BS), saved.outputs(ids_BS)), "swapped in"))
    return Measure.largest(
        found, EXACT, "outputs of an adapter that is padded to a larger rank, relative difference"
    )


@SAVED.law(
    "what trains after preparing",
    "new tensors that train for frozen ones, or the other way round",
    excluded=_is_not_swapped,
)
def preparing_changes_not_what_trains(stack: Any, case: AdapterCase) -> Measure:
    """Compare what trains before and after padding an adapter: one that trains, and one for inference."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        frozen = stack.loaded(Path(folder), dtype="float32", trainable=False)
    wrong = []
    for one, what in ((model, "made"), (frozen, "loaded for inference")):
        before = one.trainable()
        one.prepare_swaps(MORE_RANK)
        after = one.trainable()
        wrong += [f"{name}, {what}, trains now" for name in sorted(after - before)]
        wrong += [f"{name}, {what}, trains no more" for name in sorted(before - after)]
    return Measure.count(wrong, "tensors that train before or after padding alone")


def _is_a_prompt(stack: Any) -> str | None:
    return None if stack.adapter_spec.merges else "adapter_spec.merges=False"


def _is_in_its_own_dtype(stack: Any) -> str | None:
    return ("adapter_spec.keeps_dtype=True" if stack.adapter_spec.keeps_dtype else None) or _is_a_prompt(
        stack
    )


def _is_not_set(stack: Any) -> str | None:
    # A prompt is saved as the encoder computes it, and not as the encoder's own tensors.
    return _is_a_prompt(stack) or _keeps_something(stack)


@SAVED.law(
    "tensors of one set in the other",
    "tensors of the adapter in use for any name, a buffer that is left out",
    excluded=_is_not_set,
)
def tensors_are_set(stack: Any, case: AdapterCase) -> Measure:
    """Take the tensors of the first of two adapters, set them in the second one, and compare what both compute."""
    ids_BS = ids_of(stack, case)
    model = two(stack, case)
    first_BSV = model.outputs(ids_BS)
    model.use(["second"])
    model.set_state("second", model.state("first"))
    found = [(largest_difference(model.outputs(ids_BS), first_BSV), "the second one")]
    model.use(["first"])
    found.append((largest_difference(model.outputs(ids_BS), first_BSV), "the first one"))
    return Measure.largest(found, EXACT, "outputs after tensors of the first are set in the second, at")


@SAVED.law("for inference", "tensors that train though the adapter was loaded for inference")
def nothing_trains_for_inference(stack: Any, case: AdapterCase) -> Measure:
    """Check that no tensor trains of an adapter that is loaded for inference."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        loaded = stack.loaded(Path(folder), dtype="float32", trainable=False)
    return Measure.count(sorted(loaded.trainable()), "tensors that train of an adapter loaded for inference")


@SAVED.law(
    "what trains after loading",
    "a tensor that is frozen when it is loaded, a base weight that trains then",
    excluded=_is_a_prompt,
)
def same_tensors_train(stack: Any, case: AdapterCase) -> Measure:
    """Compare the names of the tensors that train before an adapter is saved and after it is loaded for training."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        loaded = stack.loaded(Path(folder), dtype="float32")
    wrong = [f"{name} trains no more" for name in sorted(model.trainable() - loaded.trainable())]
    wrong += [f"{name} trains now" for name in sorted(loaded.trainable() - model.trainable())]
    return Measure.count(wrong, "tensors that train before saving or after loading alone")


@SAVED.law(
    "float32 over bfloat16",
    "an adapter that is added or loaded in the precision of the base",
    dtype="bfloat16",
    excluded=_is_in_its_own_dtype,
)
def adapters_stay_in_float32(stack: Any, case: AdapterCase, dtype: Precision) -> Measure:
    """Check that tensors that train are float32 over a base in half precision: made, added and loaded ones."""
    model = stack.adapted(seed=case.seed, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder), "first")
        loaded = stack.loaded(Path(folder), dtype=dtype)
        wrong = _in_half(loaded, "loaded", stack)
    wrong += _in_half(model, "made", stack)
    spec = stack.adapter_spec
    if changes_base(stack) is None and spec.casts_added and "two at once" not in spec.refuses:
        model.add("second")
        model.use(["second"])
        wrong += _in_half(model, "added", stack)
    return Measure.count(wrong, "tensors of an adapter in half precision")


def _in_half(model: Any, how: str, stack: Any) -> list[str]:
    """Return the tensors of adapters that train in half precision; those of the base keep its own."""
    tensors = model.tensors()
    own = model.tensors_of("first") | model.tensors_of("second")
    kept = stack.adapter_spec.also_trains
    return [
        f"{name}, {how}, is {tensors[name].dtype}"
        for name in sorted(model.trainable() & own)
        if tensors[name].dtype in (torch.bfloat16, torch.float16) and not any(part in name for part in kept)
    ]
