"""R29.trained: training changes the adapter alone, all of it, at the rates of its groups."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations.contracts.adapters import Role
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import refuses
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.tensors import largest_gradient_difference

RATE = 1e-2
FIRST_STEPS = 3
"""A factor that is multiplied by one that starts at zero has a gradient from the second step on."""

TRAINED = Relation(
    id="R29.trained",
    name="adapter-alone-trains",
    component="adapters",
    statement="The adapter's tensors and what the options name train, nothing else does, and each gets a gradient.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)
GROUPS = Relation(
    id="R29.groups",
    name="adapter-groups-have-their-rates",
    component="adapter_groups",
    statement="Each trainable tensor is in one group of the optimizer, at the rate and decay of its role.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)


@TRAINED.law("nothing else trains", "a base weight that is not frozen, a module that is saved but frozen")
def only_adapter_trains(stack: Any, case: AdapterCase) -> Measure:
    """Check that trainable tensors are the adapter's, or those that the options name, and that these do train."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    trainable, own, spec = model.trainable(), model.tensors_of("first"), stack.adapter_spec
    wrong = [
        f"{name} trains"
        for name in sorted(trainable - own)
        if not any(part in name for part in spec.also_trains)
    ]
    wrong += [
        f"nothing of {part} trains"
        for part in spec.also_trains
        if not any(part in name for name in trainable)
    ]
    if not trainable & own:
        wrong.append("nothing of the adapter trains")
    return Measure.count(wrong, "tensors of the base that train, or of the options that do not")


def _trains_later(stack: Any) -> str | None:
    return None if stack.adapter_spec.trains_at_once else "adapter_spec.trains_at_once=False"


@TRAINED.law(
    "every tensor has a gradient",
    "a tensor that no forward pass reads, or that is detached; two factors that both start at zero",
    excluded=_trains_later,
)
def every_tensor_has_a_gradient(stack: Any, case: AdapterCase) -> Measure:
    """Count trainable tensors without a gradient in the first steps from the start: one of two factors may wait."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    tensors, left = model.tensors(), model.trainable()
    for _ in range(FIRST_STEPS):
        gradients = model.gradients(ids_BS)
        left = frozenset(name for name in left if not bool(gradients[name].abs().max() > 0))
        if not left:
            break
        with torch.no_grad():
            for name in model.trainable():
                tensors[name].sub_(5 * RATE * gradients[name] / gradients[name].norm().clamp(min=1e-30))
    return Measure.count(sorted(left), "trainable tensors without a gradient")


@TRAINED.law(
    "a step changes the adapter alone", "weights shared with the base, a buffer that every step moves"
)
def step_changes_adapter_alone(stack: Any, case: AdapterCase) -> Measure:
    """Check that a step along the gradients leaves the base as it was, and changes what the adapter computes."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    trainable = model.trainable()
    before = {name: value.detach().clone() for name, value in model.tensors().items()}
    outputs_BSV = model.outputs(ids_BS)
    gradients = model.gradients(ids_BS)
    with torch.no_grad():
        for name, value in model.tensors().items():
            if name in trainable:
                value.sub_(RATE * gradients[name])
    tensors = model.tensors()
    wrong = [
        name
        for name, value in before.items()
        if name not in trainable and not torch.equal(tensors[name], value)
    ]
    if torch.equal(model.outputs(ids_BS), outputs_BSV):
        wrong.append("no output")
    return Measure.count(wrong, "tensors of the base that a step changed, or outputs that it did not")


@TRAINED.law(
    "gradient checkpointing",
    "inputs without a gradient, dropout drawn again, an adapter that is off in the second pass",
    excluded=refuses("checkpointing"),
)
def checkpointing_changes_no_gradient(stack: Any, case: AdapterCase) -> Measure:
    """Compare gradients with gradient checkpointing with those without."""
    ids_BS = ids_of(stack, case)
    found = []
    for checkpointing in (False, True):
        model = stack.adapted(seed=case.seed, dtype="float32")
        move(model, case.seed)
        found.append(model.gradients(ids_BS, checkpointing=checkpointing))
    error, place = largest_gradient_difference(found[1], found[0])
    return Measure(
        error=error, bound=1e-5, what=f"gradients with checkpointing against those without, at {place}"
    )


@GROUPS.law("each tensor once", "a tensor that no group has, one that is in two")
def each_tensor_once(stack: Any, case: AdapterCase) -> Measure:
    """Check that the groups hold every trainable tensor exactly once, and no other."""
    groups, roles = stack.optimizer_groups(lr=RATE, ratio=16.0, embedding_lr=RATE / 10, weight_decay=0.1)
    held = [name for group in groups for name in group.names]
    wrong = [f"{name} {held.count(name)} times" for name in roles if held.count(name) != 1]
    wrong += [f"{name} does not train" for name in held if name not in roles]
    return Measure.count(wrong, "tensors that are not in one group")


@GROUPS.law("rates", "a ratio or an embedding's rate that is ignored, a role taken from the wrong name")
def groups_have_their_rates(stack: Any, case: AdapterCase) -> Measure:
    """Compare the rate of each factor with that of its role: A lr, B lr x ratio, embeddings a rate of their own."""
    ratio, embedding_lr = 16.0, RATE / 10
    groups, roles = stack.optimizer_groups(lr=RATE, ratio=ratio, embedding_lr=embedding_lr, weight_decay=0.1)
    due: dict[Role, float] = {"A": RATE, "B": RATE * ratio, "embedding": embedding_lr}
    rates = {name: group.lr for group in groups for name in group.names}
    wrong = [
        f"{name} at {rates.get(name)}, due {due[role]}"
        for name, role in sorted(roles.items())
        if role in due and rates.get(name) != due[role]
    ]
    return Measure.count(wrong, "tensors at another rate")


@GROUPS.law("decay", "biases that decay, factors that do not")
def factors_decay(stack: Any, case: AdapterCase) -> Measure:
    """Check that every factor decays as the options say."""
    groups, roles = stack.optimizer_groups(lr=RATE, ratio=16.0, embedding_lr=RATE / 10, weight_decay=0.1)
    decays = {name: group.weight_decay for group in groups for name in group.names}
    wrong = [
        f"{name} decays by {decays.get(name)}"
        for name, role in sorted(roles.items())
        if role != "other" and decays.get(name) != 0.1
    ]
    return Measure.count(wrong, "factors with another decay")
