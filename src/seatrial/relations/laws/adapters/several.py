"""R29.several: adapters of one model do not touch one another, and combine as weighted sums."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import DENSITY, AdaptedModel, Combination, WeightUpdate
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import BOUND, changes_base, refuses
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.adapters import combined
from seatrial.relations.tensors import largest_difference

WRAPPERS = ("base_layer", "original_module", "token_adapter")
"""Parts of names that change with the adapters of a module."""


def plain_names(names: Iterable[str]) -> set[str]:
    """Return names without the parts that change with the adapters of a module."""
    return {".".join(part for part in name.split(".") if part not in WRAPPERS) for name in names}


SEVERAL = Relation(
    id="R29.several",
    name="adapters-of-one-model-are-apart",
    component="adapters",
    statement="Adapters of one model are used, trained, mixed in a batch and deleted without touching one another.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
    excluded=changes_base,
)
COMBINED = Relation(
    id="R29.combined",
    name="combined-adapter-is-weighted-sum",
    component="combined_adapters",
    statement="A combined adapter changes the weights by the weighted sum of what the given adapters change.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)


def _mixes_no_batch(stack: Any) -> str | None:
    return changes_base(stack) or refuses("mixed batch")(stack)


def two(stack: Any, case: AdapterCase) -> AdaptedModel:
    """Return a model with adapters `first` and `second`, both trained a little, the first one in use."""
    model: AdaptedModel = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    model.add("second")
    model.use(["second"])
    move(model, case.seed + 7, name="second")
    model.use(["first"])
    return model


@SEVERAL.law("switching", "an adapter that stays in use, shared tensors that the other one overwrites")
def switching_is_exact(stack: Any, case: AdapterCase) -> Measure:
    """Check that an adapter computes the same before another one is added and after switching forth and back."""
    ids_BS = ids_of(stack, case)
    alone: AdaptedModel = stack.adapted(seed=case.seed, dtype="float32")
    move(alone, case.seed)
    alone_BSV = alone.outputs(ids_BS)
    model = two(stack, case)
    first_BSV = model.outputs(ids_BS)
    model.use(["second"])
    second_BSV = model.outputs(ids_BS)
    model.use(["first"])
    wrong = []
    if not torch.equal(first_BSV, alone_BSV):
        wrong.append("the first adapter changes when a second one is added and trained")
    if torch.equal(first_BSV, second_BSV):
        wrong.append("both adapters give the same outputs")
    if not torch.equal(model.outputs(ids_BS), first_BSV):
        wrong.append("the first adapter gives other outputs after switching forth and back")
    return Measure.count(wrong, "what switching changed")


@SEVERAL.law(
    "only the adapter in use trains", "flags of the adapter that was in use before, a frozen second adapter"
)
def only_used_adapter_trains(stack: Any, case: AdapterCase) -> Measure:
    """Check the trainable tensors after adding and switching: those of the adapter in use, all that trained before."""
    fresh: AdaptedModel = stack.adapted(seed=case.seed, dtype="float32")
    before = plain_names(fresh.trainable())
    fresh.add("second")
    after = plain_names(fresh.trainable())
    wrong = [f"{name} trains when another adapter is added" for name in sorted(after - before)]
    wrong += [f"{name} trains no more when another adapter is added" for name in sorted(before - after)]
    model = two(stack, case)
    for used, other in (("first", "second"), ("second", "first")):
        model.use([used])
        own = model.tensors_of(used) - model.tensors_of(other)
        trainable = model.trainable()
        wrong += [
            f"{name} of {other} trains"
            for name in sorted(trainable & (model.tensors_of(other) - model.tensors_of(used)))
        ]
        if not trainable & own:
            wrong.append(f"nothing of {used} trains")
    counts = []
    for used in ("first", "second"):
        model.use([used])
        counts.append(len(model.trainable() & model.tensors_of(used)))
    if counts[0] != counts[1]:
        wrong.append(f"{counts[0]} tensors train of the first adapter, {counts[1]} of the second")
    return Measure.count(
        wrong, "trainable tensors of an adapter that is not in use, or none of the one that is"
    )


def _keeps_something_trained(stack: Any) -> str | None:
    return changes_base(stack) or (
        None if stack.adapter_spec.disables_all else "adapter_spec.disables_all=False"
    )


@SEVERAL.law(
    "used for inference", "a part of the adapter that trains for any use", excluded=_keeps_something_trained
)
def nothing_trains_for_inference(stack: Any, case: AdapterCase) -> Measure:
    """Check that nothing trains of an adapter that is used for inference, and that another one trains after it."""
    model = two(stack, case)
    due = model.trainable()
    model.use(["second"], trains=False)
    own = model.tensors_of("first") | model.tensors_of("second")
    wrong = [f"{name} trains for inference" for name in sorted(model.trainable() & own)]
    model.use(["first"])
    wrong += [f"{name} does not train" for name in sorted(due - model.trainable())]
    return Measure.count(wrong, "tensors that train for inference, or not after it")


@SEVERAL.law(
    "deleting", "tensors that stay in the model, an adapter in use that is removed with the other one"
)
def deleting_leaves_the_other(stack: Any, case: AdapterCase) -> Measure:
    """Check that the first adapter computes the same after the second one is deleted, of which nothing is left."""
    ids_BS = ids_of(stack, case)
    model = two(stack, case)
    before_BSV, gone = model.outputs(ids_BS), model.tensors_of("second") - model.tensors_of("first")
    model.delete("second")
    wrong = [f"{name} is left" for name in sorted(gone & model.tensors().keys())]
    if not torch.equal(model.outputs(ids_BS), before_BSV):
        wrong.append("other outputs of the first adapter")
    return Measure.count(wrong, "what deleting an adapter changed, or left")


def _is_not_merged(stack: Any) -> str | None:
    return changes_base(stack) or (None if stack.adapter_spec.merges else "adapter_spec.merges=False")


@SEVERAL.law(
    "deleting a merged one",
    "a change that stays in the weights of the base, from where nothing takes it out again",
    excluded=_is_not_merged,
)
def deleting_brings_the_base_back(stack: Any, case: AdapterCase) -> Measure:
    """Check that the base has its weights after a merged adapter is deleted; a stack may also refuse to delete it."""
    model = two(stack, case)
    before = {name: value.clone() for name, value in model.base_weights().items()}
    model.merge()
    try:
        model.delete("first")
    except NotServed:
        return Measure(error=0, bound=0, what="merged adapters that are deleted: it is refused")
    after = model.base_weights()
    found = [(largest_difference(after[name], value), name) for name, value in before.items()]
    return Measure.largest(found, BOUND, "weights of the base after a merged adapter was deleted, at")


@SEVERAL.law(
    "mixed batch",
    "rows that share a norm, a bias or a dropout, an adapter's rows put back in another order",
    excluded=_mixes_no_batch,
)
def mixed_batch_is_rows_alone(stack: Any, case: AdapterCase) -> Measure:
    """Compare a batch in which every row names its adapter with the same rows under that adapter."""
    ids_BS = ids_of(stack, case)
    model = two(stack, case)
    names = ["second", "base", "first"][: len(ids_BS)]
    mixed_BSV = model.outputs(ids_BS, names=names)
    right = []
    for name, ids_S in zip(names, ids_BS, strict=True):
        if name == "base":
            with model.disabled():
                right.append(model.outputs(ids_S[None])[0])
        else:
            model.use([name])
            right.append(model.outputs(ids_S[None])[0])
    found = [
        (largest_difference(mixed_SV, alone_SV), f"row {row}, adapter {names[row]}")
        for row, (mixed_SV, alone_SV) in enumerate(zip(mixed_BSV, right, strict=True))
    ]
    return Measure.largest(
        found, BOUND, "rows of a mixed batch against the same rows alone, relative difference"
    )


def _changes(model: AdaptedModel, name: str) -> dict[str, Tensor]:
    """Return what an adapter adds to each base weight, in float64, by merging and unmerging it."""
    model.use([name])
    before = {key: value.detach().double().clone() for key, value in model.base_weights().items()}
    model.merge()
    after = {key: value.detach().double().clone() for key, value in model.base_weights().items()}
    model.unmerge()
    return {key: after[key] - before[key] for key in before}


DROPPED = "kept values that are not divided by the part that is kept, the same values dropped of both"
SUMS = "scaling of the new adapter that is not 1, weights that are applied twice, the square root of a negative weight"


@COMBINED.law("one adapter times 0.7", SUMS, how="linear", weights=(0.7,))
@COMBINED.law("one adapter times -0.7", SUMS, how="linear", weights=(-0.7,))
@COMBINED.law("concatenated", SUMS, how="cat", weights=(0.7, 0.4))
@COMBINED.law("concatenated, one subtracted", SUMS, how="cat", weights=(0.7, -0.4))
@COMBINED.law("by singular values", SUMS, how="svd", weights=(0.7, 0.4))
@COMBINED.law("by singular values, one subtracted", SUMS, how="svd", weights=(0.7, -0.4))
@COMBINED.law(
    "by singular values, one times zero",
    f"{SUMS}, a rank that is smaller than that of the largest layer",
    how="svd",
    weights=(0.7, 0.0),
)
@COMBINED.law("pruned by magnitude", SUMS, how="magnitude_prune_svd", weights=(0.7, 0.4))
@COMBINED.law("pruned by magnitude, one subtracted", SUMS, how="magnitude_prune_svd", weights=(0.7, -0.4))
@COMBINED.law(
    "by elected signs", f"{SUMS}, a mean over adapters that do not agree", how="ties_svd", weights=(0.7, 0.7)
)
def combined_is_weighted_sum(
    stack: Any, case: AdapterCase, how: Combination, weights: tuple[float, ...]
) -> Measure:
    """Compare what the combined adapter adds to each base weight with the weighted sum of what the given ones add."""
    model = two(stack, case)
    names = ["first", "second"][: len(weights)]
    given = [_changes(model, name) for name in names]
    stack.combine(model, names, weights, how, "combined")
    found = _changes(model, "combined")
    plain = "svd" if how in ("linear", "cat") else how
    right = {key: combined([one[key] for one in given], weights, plain, DENSITY) for key in found}
    scale = max(float(value.abs().max()) for value in right.values())
    errors = [(float((found[key] - right[key]).abs().max()) / scale, key) for key in sorted(found)]
    return Measure.largest(
        errors, 1e-4, f"change of a weight by {how} of {list(weights)} against the weighted sum"
    )


@COMBINED.law(
    "the given ones stay",
    "adapters scaled in place, an initialisation of the new adapter that changes the base",
)
def combining_changes_nothing_else(stack: Any, case: AdapterCase) -> Measure:
    """Check that base weights and given adapters are the same tensors' values after a combination."""
    model = two(stack, case)
    kept = {name: value.detach().clone() for name, value in model.tensors().items()}
    base = {name: value.detach().clone() for name, value in model.base_weights().items()}
    stack.combine(model, ["first", "second"], (0.7, 0.4), "cat", "combined")
    wrong = [name for name, value in base.items() if not torch.equal(model.base_weights()[name], value)]
    own = model.tensors_of("first") | model.tensors_of("second")
    wrong += [name for name in sorted(own) if not torch.equal(model.tensors()[name], kept[name])]
    return Measure.count(wrong, "tensors that a combination changed")


def _factors(model: AdaptedModel, name: str) -> dict[str, WeightUpdate]:
    """Return the update of each weight that an adapter has two factors for.

    Raises:
        NotServed: the type has none.
    """
    updates = {one.weight: one for one in model.updates(name) or () if one.form == "low rank"}
    if not updates:
        raise NotServed("no adapter of two factors")
    return updates


def _weighted(given: Sequence[WeightUpdate], weights: Sequence[float], factor: str) -> list[float]:
    """Return what a factor of each adapter is multiplied by: its share of the weight and of the scaling."""
    shares = [one.scaling * weight for one, weight in zip(given, weights, strict=True)]
    return [abs(share) ** 0.5 * (-1 if share < 0 and factor == "A" else 1) for share in shares]


@COMBINED.law("factors", SUMS, how="linear", weights=(0.7, 0.4))
@COMBINED.law("factors, one subtracted", SUMS, how="linear", weights=(0.7, -0.4))
@COMBINED.law("factors pruned by magnitude", SUMS, how="magnitude_prune", weights=(0.7, -0.4))
@COMBINED.law("factors by elected signs", SUMS, how="ties", weights=(0.7, 0.4))
def combined_factors_are_weighted_sums(
    stack: Any, case: AdapterCase, how: Combination, weights: tuple[float, ...]
) -> Measure:
    """Compare the factors of the combined adapter with the weighted sums of the given ones' factors."""
    model = two(stack, case)
    given = [_factors(model, name) for name in ("first", "second")]
    stack.combine(model, ["first", "second"], weights, how, "combined")
    form = {"linear": "svd", "ties": "ties_svd"}.get(how, how)
    errors = []
    for key, found in _factors(model, "combined").items():
        updates = [one[key] for one in given]
        for factor, value in found.factors.items():
            own = [one.factors[factor].double() for one in updates]
            right = combined(own, _weighted(updates, weights, factor), form, DENSITY)
            errors.append((largest_difference(value.double(), right), f"{factor} of {key}"))
    return Measure.largest(errors, 1e-4, f"factors by {how} of {list(weights)} against the weighted sum")


LEAST_DROPPED = 0.1
"""Of four equal parts: no value kept, the first one's, the second one's, both; of 128 values or more."""


def _mixed(values: Sequence[Tensor], weights: Sequence[float], how: str) -> Tensor:
    """Return what an element may be [4, ...]: nothing, that of one adapter, or of both, over the part that is kept."""
    one, other = (value * weight / DENSITY for value, weight in zip(values, weights, strict=True))
    # By elected signs an element has the mean of two that agree.
    both = (one + other) / (2 if "ties" in how else 1)
    return torch.stack([torch.zeros_like(one), one, other, both])


@COMBINED.law("factors dropped at random", DROPPED, how="dare_linear")
@COMBINED.law("factors dropped at random, by elected signs", DROPPED, how="dare_ties")
@COMBINED.law("changes dropped at random", DROPPED, how="dare_linear_svd")
@COMBINED.law("changes dropped at random, by elected signs", DROPPED, how="dare_ties_svd")
def dropped_is_rescaled(stack: Any, case: AdapterCase, how: Combination) -> Measure:
    """Check that each element is a sum of some of the given ones over the part that is kept, and each sum occurs."""
    model, weights, names = two(stack, case), (0.7, 0.4), ["first", "second"]
    of_changes = how.endswith("_svd")
    changes = [_changes(model, name) for name in names] if of_changes else []
    factors = [] if of_changes else [_factors(model, name) for name in names]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        stack.combine(model, names, weights, how, "combined")
    made = []
    if of_changes:
        found = _changes(model, "combined")
        made = [
            (value, _mixed([one[key] for one in changes], weights, how), key)
            for key, value in found.items()
            if value.any()
        ]
    else:
        for key, update in _factors(model, "combined").items():
            for factor, value in update.factors.items():
                own = [one[key] for one in factors]
                shares = _weighted(own, weights, factor)
                values = [one.factors[factor].double() for one in own]
                made.append((value.double(), _mixed(values, shares, how), f"{factor} of {key}"))
    errors = []
    for value, right, place in made:
        distances = (value - right).abs() / right.abs().max()
        errors.append((float(distances.min(0).values.max()), place))
        parts = [float((distances.argmin(0) == part).double().mean()) for part in range(len(right))]
        if value.numel() >= 128 and min(parts[:3]) < LEAST_DROPPED:
            errors.append((float("inf"), f"{place}, parts {[round(part, 2) for part in parts]}"))
    return Measure.largest(errors, 1e-4, f"elements by {how} against the sums that they may be")
