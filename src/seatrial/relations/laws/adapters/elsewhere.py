"""R29.elsewhere: a second adapter on other layers, of another size, is apart from the first in every order of calls."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import AdaptedModel
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import BOUND, changes_base, refuses
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.tensors import largest_difference, largest_gradient_difference

GRADIENTS = 1e-3
"""Float32 gradients through layers whose order of sums differs."""


def _is_alone(stack: Any) -> str | None:
    # Biases of the base that train belong to neither adapter.
    return changes_base(stack) or (
        None if stack.adapter_spec.disables_all else "adapter_spec.disables_all=False"
    )


ELSEWHERE = Relation(
    id="R29.elsewhere",
    name="adapters-on-other-layers-are-apart",
    component="adapters_elsewhere",
    statement="With two adapters on other layers, in any order in which they are added, used, disabled, merged and "
    "deleted, the one in use computes and trains as in a model that has it alone.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
    excluded=_is_alone,
)
STEPS = 14
"""Calls of a random history."""
SEEDS = {"first": 0, "second": 7}


def _alone(stack: Any, case: AdapterCase, name: str) -> AdaptedModel:
    """Return a model that has one of the two adapters, after some training."""
    make = stack.adapted if name == "first" else stack.elsewhere
    model: AdaptedModel = make(seed=case.seed, dtype="float32")
    move(model, case.seed + SEEDS[name], name=name)
    return model


def _set(model: AdaptedModel, alone: AdaptedModel, name: str) -> None:
    """Give an adapter the values that it has in the model that has it alone."""
    given, tensors = alone.tensors(), model.tensors()
    with torch.no_grad():
        for key in alone.tensors_of(name) & tensors.keys():
            tensors[key].copy_(given[key])


def _both(stack: Any, case: AdapterCase, first: AdaptedModel, second: AdaptedModel) -> AdaptedModel:
    """Return a model with both adapters and the values that each has alone; the first one is in use."""
    model: AdaptedModel = stack.adapted(seed=case.seed, dtype="float32")
    stack.add_elsewhere(model, "second")
    model.use(["first"])
    _set(model, first, "first")
    _set(model, second, "second")
    return model


def _trains(model: AdaptedModel, name: str, other: str) -> list[str]:
    """Return what trains of an adapter, and what of the other one, by name."""
    own, others = model.tensors_of(name), model.tensors_of(other)
    return sorted(key for key in model.trainable() if key in own or key in others)


def _differences(
    model: AdaptedModel, alone: AdaptedModel, alone_BSV: Tensor, ids_BS: Tensor, name: str, when: str
) -> list[str]:
    """Return how a model that uses one adapter differs from the one that has it alone."""
    other = "second" if name == "first" else "first"
    error = largest_difference(model.outputs(ids_BS), alone_BSV)
    wrong = [] if error <= BOUND else [f"{when}: outputs of {name} are off by {error:.2g}"]
    found, due = _trains(model, name, other), _trains(alone, name, other)
    wrong += [f"{when}: {key} trains" for key in found if key not in due]
    return wrong + [f"{when}: {key} does not train" for key in due if key not in found]


@ELSEWHERE.law("added", "an adapter that trains or is in use as soon as it is added")
def adding_changes_nothing(stack: Any, case: AdapterCase) -> Measure:
    """Add the second adapter without using it, and compare the first one with a model that has it alone."""
    ids_BS = ids_of(stack, case)
    alone = _alone(stack, case, "first")
    model = stack.adapted(seed=case.seed, dtype="float32")
    _set(model, alone, "first")
    stack.add_elsewhere(model, "second")
    wrong = _differences(model, alone, alone.outputs(ids_BS), ids_BS, "first", "added")
    return Measure.count(wrong, "what differs from a model with one adapter")


@ELSEWHERE.law(
    "switched", "a layer that one of the two adapters does not have, a scale of the other one's rank"
)
def switching_is_apart(stack: Any, case: AdapterCase) -> Measure:
    """Use both adapters in turn, and compare outputs and what trains with models that have one alone."""
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    model = _both(stack, case, *alone.values())
    wrong = []
    for name in ("first", "second", "first"):
        model.use([name])
        wrong += _differences(model, alone[name], alone[name].outputs(ids_BS), ids_BS, name, "switched")
    return Measure.count(wrong, "what differs from a model with one adapter")


@ELSEWHERE.law("gradients", "a gradient of the adapter that is not in use, or none of the one that is")
def gradients_are_apart(stack: Any, case: AdapterCase) -> Measure:
    """Compare gradients of each adapter with those in a model that has it alone."""
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    model = _both(stack, case, *alone.values())
    found = []
    for name in ("second", "first"):
        model.use([name])
        right, own = alone[name].gradients(ids_BS), model.gradients(ids_BS)
        names = alone[name].tensors_of(name)
        due = {key: value for key, value in right.items() if key in names and value.numel()}
        error, place = largest_gradient_difference(
            {key: own.get(key, torch.zeros_like(value)) for key, value in due.items()}, due
        )
        found.append((error, f"{place} of {name}"))
    return Measure.largest(found, GRADIENTS, "gradients against those of a model with one adapter")


@ELSEWHERE.law("disabled", "a layer that has the second adapter alone and is not disabled")
def disabling_disables_both(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs while adapters are disabled with those of a model whose only adapter is disabled."""
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    with alone["second"].disabled():
        right_BSV = alone["second"].outputs(ids_BS)
    model = _both(stack, case, *alone.values())
    found = []
    for name in SEEDS:
        model.use([name])
        with model.disabled():
            found.append((largest_difference(model.outputs(ids_BS), right_BSV), f"{name} in use"))
    return Measure.largest(found, BOUND, "outputs while disabled against the base, relative difference")


@ELSEWHERE.law("deleted and added again", "settings or tensors of the adapter that was deleted")
def deleted_is_gone(stack: Any, case: AdapterCase) -> Measure:
    """Delete each adapter while the other one is in use, add it again, and compare both with models that have one."""
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    model = _both(stack, case, *alone.values())
    model.use(["first"])
    gone = model.tensors_of("second") - model.tensors_of("first")
    model.delete("second")
    wrong = [f"{key} is left" for key in sorted(gone & model.tensors().keys())]
    wrong += _differences(
        model, alone["first"], alone["first"].outputs(ids_BS), ids_BS, "first", "after deleting the second"
    )
    stack.add_elsewhere(model, "second")
    _set(model, alone["second"], "second")
    for name in ("second", "first"):
        model.use([name])
        wrong += _differences(
            model, alone[name], alone[name].outputs(ids_BS), ids_BS, name, "after adding it again"
        )
    return Measure.count(wrong, "what differs from a model with one adapter")


def _never_merges(stack: Any) -> str | None:
    return _is_alone(stack) or (None if stack.adapter_spec.merges else "adapter_spec.merges=False")


@ELSEWHERE.law("merged twice", "a change that is added for each call", excluded=_never_merges)
def merging_twice_is_merging(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs after an adapter is merged twice with those before."""
    ids_BS = ids_of(stack, case)
    model = _alone(stack, case, "first")
    before_BSV = model.outputs(ids_BS)
    model.merge()
    model.merge()
    return Measure(
        error=largest_difference(model.outputs(ids_BS), before_BSV),
        bound=BOUND,
        what="outputs of an adapter that is merged twice against those before, relative difference",
    )


@ELSEWHERE.law(
    "merged again", "a weight that is not brought back, a note of what is merged", excluded=_never_merges
)
def merging_again_is_merging(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs after an adapter is merged, unmerged, and merged again with those before, each time."""
    ids_BS = ids_of(stack, case)
    model = _alone(stack, case, "first")
    before_BSV = model.outputs(ids_BS)
    model.merge()
    model.unmerge()
    found = [(largest_difference(model.outputs(ids_BS), before_BSV), "unmerged")]
    model.merge()
    found.append((largest_difference(model.outputs(ids_BS), before_BSV), "merged again"))
    return Measure.largest(found, BOUND, "outputs against those before merging, relative difference")


@ELSEWHERE.law(
    "merged next to the other", "the weights of layers that the adapter is not on", excluded=_never_merges
)
def merged_is_apart(stack: Any, case: AdapterCase) -> Measure:
    """Merge the second adapter, compare outputs with those of a model that has it alone, unmerge, and use the first."""
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    model = _both(stack, case, *alone.values())
    model.use(["second"])
    model.merge()
    found = [(largest_difference(model.outputs(ids_BS), alone["second"].outputs(ids_BS)), "merged")]
    model.unmerge()
    model.use(["first"])
    found.append((largest_difference(model.outputs(ids_BS), alone["first"].outputs(ids_BS)), "the first one"))
    return Measure.largest(found, BOUND, "outputs against a model with one adapter, relative difference")


@ELSEWHERE.law("saved", "layers of the other adapter in the file, or its settings")
def saved_is_apart(stack: Any, case: AdapterCase) -> Measure:
    """Compare the file of each adapter with that of a model that has it alone, and what it computes when loaded."""
    if not stack.adapter_spec.saves_all:
        return Measure.count([], "names in files")
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    model = _both(stack, case, *alone.values())
    wrong = []
    for name, other in (("first", "second"), ("second", "first")):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as plain:
            model.use([other])
            found, due = set(model.save(Path(folder), name)), set(alone[name].save(Path(plain), name))
            loaded = stack.loaded(Path(folder), dtype="float32")
        wrong += [f"{key} in one file alone, of {name}" for key in sorted(found ^ due)]
        error = largest_difference(loaded.outputs(ids_BS), alone[name].outputs(ids_BS))
        wrong += [] if error <= BOUND else [f"{name}, loaded, is off by {error:.2g}"]
    return Measure.count(wrong, "what differs from the file of a model with one adapter")


CALLS = ("use first", "use second", "disabled", "merge and unmerge", "delete and add", "train")


def _takes_one_at_a_time(stack: Any) -> str | None:
    return _is_alone(stack) or refuses("two at once")(stack)


@ELSEWHERE.law(
    "any order",
    "a state that a call leaves and a later one reads: flags, merged adapters, an adapter in use that is gone",
    excluded=_takes_one_at_a_time,
)
def any_order_is_apart(stack: Any, case: AdapterCase) -> Measure:
    """Make random calls, and compare after each what is in use with the model that has it alone."""
    ids_BS = ids_of(stack, case)
    alone = {name: _alone(stack, case, name) for name in SEEDS}
    right = {name: one.outputs(ids_BS) for name, one in alone.items()}
    model = _both(stack, case, *alone.values())
    generator = torch.Generator().manual_seed(case.seed)
    used, wrong = "first", []
    for step in range(STEPS):
        call = CALLS[int(torch.randint(len(CALLS), (), generator=generator))]
        used = _call(stack, model, alone, call, used, ids_BS)
        wrong += _differences(model, alone[used], right[used], ids_BS, used, f"call {step}, {call}")
        if wrong:
            break
    return Measure.count(wrong, "what differs from a model with one adapter")


def _call(
    stack: Any, model: AdaptedModel, alone: dict[str, AdaptedModel], call: str, used: str, ids_BS: Tensor
) -> str:
    """Make a call; return the adapter that is in use after it."""
    if call.startswith("use"):
        model.use([call.split()[1]])
        return call.split()[1]
    if call == "disabled":
        with ExitStack() as blocks:
            blocks.enter_context(model.disabled())
            model.outputs(ids_BS)
    elif call == "train":
        model.gradients(ids_BS)
    elif call == "merge and unmerge" and stack.adapter_spec.merges:
        model.merge()
        model.outputs(ids_BS)
        model.unmerge()
    elif call == "delete and add":
        model.use(["first"])
        model.delete("second")
        stack.add_elsewhere(model, "second")
        model.use(["first"])
        _set(model, alone["second"], "second")
        return "first"
    return used
