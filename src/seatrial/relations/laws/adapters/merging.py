"""R29.merged: merged weights compute what the adapter computed, in each precision, and can be taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import AdaptedModel, Precision
from seatrial.relations.facts import MACHINE_EPSILON
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import BOUND, changes_base, refuses
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.adapters import adapted_weights
from seatrial.relations.tensors import largest_difference

UNITS = 3
"""Units of a tensor's largest value: three factors, scaling, cast and sum round by half a unit each."""
RATE = 0.05
"""Of Adam, whose step is about as large: bfloat16 sees it in values up to 6."""
UNMERGED = 12
"""There and back where up to four reflections multiply the weight: eight products that round by 1.5 units each."""


def _never_merges(stack: Any) -> str | None:
    return None if stack.adapter_spec.merges else "adapter_spec.merges=False"


MERGED = Relation(
    id="R29.merged",
    name="merged-model-is-adapted-model",
    component="adapters",
    statement="A merged model computes what the adapted one computed; merged weights are the definition's, rounded; "
    "unmerging gives the base back.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
    excluded=_never_merges,
)


def _moved(stack: Any, case: AdapterCase, dtype: Precision) -> AdaptedModel:
    model: AdaptedModel = stack.adapted(seed=case.seed, dtype=dtype)
    move(model, case.seed)
    return model


def _worst(found: dict[str, Tensor], right: dict[str, Tensor], bound: float, what: str) -> Measure:
    """Return the largest difference of two sets of tensors, each relative to its own largest value."""
    wrong = [
        (float("inf"), f"{name} is in one of the two alone") for name in sorted(found.keys() ^ right.keys())
    ]
    both = sorted(found.keys() & right.keys())
    errors = [(largest_difference(found[name].double(), right[name].double()), name) for name in both]
    return Measure.largest([*wrong, *errors], bound, what)


@MERGED.law(
    "outputs", "scaling that is left out of the merge, a bias that is not merged, a transposed weight"
)
def merged_outputs(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of the model merged for good with those of the adapted one, in float32."""
    ids_BS = ids_of(stack, case)
    model = _moved(stack, case, "float32")
    adapted_BSV = model.outputs(ids_BS)
    merged_BSV = stack.plain_outputs(ids_BS, model.merged())
    return Measure(
        error=largest_difference(merged_BSV, adapted_BSV),
        bound=BOUND,
        what="outputs after merging for good against the adapted model, relative difference",
    )


@MERGED.law(
    "outputs while merged", "an adapter that is added a second time while merged, a layer that is left out"
)
def outputs_while_merged(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs while the adapter is merged with those before, in float32."""
    ids_BS = ids_of(stack, case)
    model = _moved(stack, case, "float32")
    adapted_BSV = model.outputs(ids_BS)
    model.merge()
    return Measure(
        error=largest_difference(model.outputs(ids_BS), adapted_BSV),
        bound=BOUND,
        what="outputs while merged against the adapted model, relative difference",
    )


@MERGED.law(
    "weights in bfloat16",
    "a product or a norm in half precision, weights cast before they are added",
    dtype="bfloat16",
)
@MERGED.law(
    "weights in float16",
    "a product or a norm in half precision, an epsilon that float16 rounds to 0",
    dtype="float16",
)
def merged_weights(stack: Any, case: AdapterCase, dtype: Precision) -> Measure:
    """Compare weights merged in half precision with the same adapter merged in float32, or with the oracle.

    Both begin from tensors that half precision can hold, so that the difference is that of the merge alone.
    """
    model, wide = _moved(stack, case, dtype), stack.adapted(seed=case.seed, dtype="float32")
    with torch.no_grad():
        given = model.tensors()
        for name, tensor in wide.tensors().items():
            if name in given and given[name].shape == tensor.shape:
                tensor.copy_(given[name].to(tensor.dtype))
    updates = model.updates("first")
    right = dict(wide.merged()) if updates is None else adapted_weights(model.base_weights(), updates)
    return _worst(
        dict(model.merged()),
        right,
        UNITS * MACHINE_EPSILON[dtype],
        f"weights merged in {dtype} against {'float32' if updates is None else 'the oracle'}, relative difference",
    )


@MERGED.law(
    "merge and unmerge", "a norm computed from merged weights, a bias that stays merged", dtype="float32"
)
@MERGED.law("merge and unmerge in bfloat16", "weights that are divided by a rounded factor", dtype="bfloat16")
def unmerging_gives_base(stack: Any, case: AdapterCase, dtype: Precision) -> Measure:
    """Compare the base weights after merging and unmerging with those before."""
    model = _moved(stack, case, dtype)
    before = {name: value.detach().clone() for name, value in model.base_weights().items()}
    model.merge()
    merged = {name: value.detach().clone() for name, value in model.base_weights().items()}
    model.unmerge()
    if all(torch.equal(merged[name], value) for name, value in before.items()):
        return Measure(error=1.0, bound=0, what="merging changed no weight")
    bound = UNMERGED * MACHINE_EPSILON[dtype] * _growth(before, merged)
    return _worst(
        dict(model.base_weights()), before, bound, f"weights in {dtype} after merging and unmerging"
    )


@MERGED.law("training continues", "new tensors in the place of those that an optimizer has", dtype="float32")
@MERGED.law(
    "training continues in bfloat16", "tensors of an adapter that are cast and put back", dtype="bfloat16"
)
def training_continues(stack: Any, case: AdapterCase, dtype: Precision) -> Measure:
    """Check that an optimizer changes the same tensors after merging and unmerging, all of it in one precision."""
    ids_BS = ids_of(stack, case)
    model = _moved(stack, case, "float32")
    model.cast(dtype)
    step = model.optimizer(RATE)
    due = _changed(model, step, ids_BS)
    if not due:
        return Measure(error=1.0, bound=0, what="a step changes no tensor before merging")
    model.merge()
    model.unmerge()
    left = sorted(due - _changed(model, step, ids_BS))
    return Measure.count(left, "tensors that a step changes no more after merging and unmerging")


def _changed(model: AdaptedModel, step: Callable[[Tensor], None], ids_BS: Tensor) -> set[str]:
    """Return the names of the tensors that train and that a step changes."""
    before = {name: model.tensors()[name].clone() for name in model.trainable()}
    step(ids_BS)
    after = model.tensors()
    return {name for name, value in before.items() if not torch.equal(after[name], value)}


def _growth(before: dict[str, Tensor], merged: dict[str, Tensor]) -> float:
    """Return how much larger merged weights are at most: what they round by stays after unmerging."""
    return max(
        1.0,
        *(
            float(merged[name].abs().max()) / max(float(value.abs().max()), 1e-30)
            for name, value in before.items()
            if value.is_floating_point() and value.numel()
        ),
    )


@MERGED.law("safe merge", "a path of its own that leaves out a bias, a cast or a scale", dtype="float32")
@MERGED.law("safe merge in bfloat16", "weights that are left in another precision", dtype="bfloat16")
def safe_merge_is_merge(stack: Any, case: AdapterCase, dtype: Precision) -> Measure:
    """Compare the weights that a merge with its checks gives with those of one without, and their precision."""
    plain, safe = _moved(stack, case, dtype), _moved(stack, case, dtype)
    safe.merge(safe=True)
    plain.merge()
    found, right = dict(safe.base_weights()), dict(plain.base_weights())
    other = [name for name, value in found.items() if name in right and value.dtype != right[name].dtype]
    if other:
        return Measure.count(other, f"weights that a safe merge leaves in another precision than {dtype}")
    bound = 1e-6 if dtype == "float32" else UNITS * MACHINE_EPSILON[dtype]
    return _worst(found, right, bound, "weights of a safe merge against a plain one")


@MERGED.law("disabled while merged", "an adapter that stays merged where it is disabled")
def disabled_while_merged(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of a merged adapter that is disabled with those before it was merged."""
    ids_BS = ids_of(stack, case)
    model = _moved(stack, case, "float32")
    with model.disabled():
        base_BSV = model.outputs(ids_BS)
    model.merge()
    with model.disabled():
        found_BSV = model.outputs(ids_BS)
    return Measure(
        error=largest_difference(found_BSV, base_BSV),
        bound=BOUND,
        what="outputs of a merged adapter that is disabled against the base, relative difference",
    )


def _is_not_one_of_two(stack: Any) -> str | None:
    return _never_merges(stack) or changes_base(stack) or refuses("two at once")(stack)


@MERGED.law(
    "two adapters",
    "weights of the second adapter computed from weights that hold the first one",
    excluded=_is_not_one_of_two,
)
def two_adapters_merge(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of two adapters that are used together with those after merging both; then unmerge both."""
    return _there_and_back(stack, case, [None], "two adapters merged against two in use")


@MERGED.law(
    "two adapters, safe merge",
    "the first adapter's change for each, checks of one adapter alone",
    excluded=_is_not_one_of_two,
)
def two_adapters_merge_safely(stack: Any, case: AdapterCase) -> Measure:
    """Compare the weights that a merge of two adapters with its checks gives with those of one without."""
    made = []
    for safe in (False, True):
        model = _two(stack, case)
        model.use(["first", "second"])
        model.merge(safe=safe)
        made.append(dict(model.base_weights()))
    return _worst(made[1], made[0], 1e-6, "weights of a safe merge of two adapters against a plain one")


@MERGED.law(
    "two adapters, in turn",
    "weights of the second adapter computed from merged ones",
    excluded=_is_not_one_of_two,
)
def two_adapters_merge_in_turn(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of two adapters that are merged one after the other with those of both in use; unmerge both."""
    return _there_and_back(
        stack, case, [["first"], ["second"]], "two adapters merged in turn against two in use"
    )


def _there_and_back(
    stack: Any, case: AdapterCase, calls: Sequence[Sequence[str] | None], what: str
) -> Measure:
    """Compare two adapters in use with them merged, by calls that name some or, with None, all; then unmerge."""
    ids_BS = ids_of(stack, case)
    model = _two(stack, case)
    model.use(["first", "second"])
    before = {name: value.detach().clone() for name, value in model.base_weights().items()}
    adapted_BSV = model.outputs(ids_BS)
    for names in calls:
        model.merge(names=names)
    error = largest_difference(model.outputs(ids_BS), adapted_BSV)
    model.unmerge()
    left = _worst(dict(model.base_weights()), before, BOUND, "weights")
    return Measure.largest(
        [(error, "outputs"), (left.error, "weights after unmerging")],
        BOUND,
        what,
    )


def _two(stack: Any, case: AdapterCase) -> AdaptedModel:
    """Return a model with two adapters that were trained a little."""
    model = _moved(stack, case, "float32")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)  # every model draws the same second adapter
        model.add("second")
    model.use(["second"])
    move(model, case.seed + 7, name="second")
    return model


def _refused(model: AdaptedModel, *, safe: bool = False, names: list[str] | None = None) -> bool:
    """Merge; return whether the stack refuses."""
    try:
        model.merge(safe=safe, names=names)
    except ValueError:
        return True
    return False


def _takes_two_at_once(stack: Any) -> str | None:
    if "two at once" in stack.adapter_spec.refuses:
        return _never_merges(stack) or changes_base(stack)
    return "adapter_spec.refuses has no 'two at once'"


@MERGED.law(
    "refused together and in turn",
    "a check of the given adapters alone, without those that are merged",
    excluded=_takes_two_at_once,
)
def refused_in_turn(stack: Any, case: AdapterCase) -> Measure:
    """Check that two adapters that cannot be merged together are not merged one after the other either."""
    if not _refused(_two(stack, case), names=["first", "second"]):
        raise NotServed("two adapters are merged together")
    model = _two(stack, case)
    model.merge(names=["first"])
    accepted = [] if _refused(model, names=["second"]) else ["the second adapter, after the first"]
    return Measure.count(accepted, "merges that are refused together, and not in turn")


@MERGED.law("refused merge", "weights that change before they are checked, values that no check reads")
def refused_merge_changes_nothing(stack: Any, case: AdapterCase) -> Measure:
    """Check that a merge with checks refuses an adapter in which a tensor is not finite, and changes nothing."""
    wrong, broken = [], _moved(stack, case, "float32")
    for kind, names in _kinds_of_tensors(broken, stack.adapter_spec.also_trains).items():
        model = _moved(stack, case, "float32")
        before = {name: value.detach().clone() for name, value in model.base_weights().items()}
        tensors = model.tensors()
        with torch.no_grad():
            for name in names:
                # One value: a test for any finite one is none.
                tensors[name][(0,) * tensors[name].dim()] = float("nan")
        if not _refused(model, safe=True):
            wrong.append(f"{kind} is merged")
            continue
        after = model.base_weights()
        wrong += [
            f"{name} changes, as {kind} is refused"
            for name, value in before.items()
            if _is_of(name, names) and not torch.equal(after[name], value)
        ][:1]
    return Measure.count(
        wrong, "merges of values that are not finite, or weights that a refused merge changed"
    )


def _is_of(weight: str, names: list[str]) -> bool:
    """Return whether a weight is that of a layer that has one of these tensors; layers before it may be merged."""
    return any(f"{weight.rpartition('.')[0]}." in name for name in names)


def _kinds_of_tensors(model: AdaptedModel, whole: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the trainable tensors of the adapter by what they are, of all layers together, without whole modules."""
    kinds: dict[str, list[str]] = {}
    for name in sorted(model.trainable() & model.tensors_of("first")):
        if any(part in name for part in whole):
            continue
        parts = name.split(".")
        kind = [part for part in parts[parts.index("first") - 1 :] if not part.isdigit()]
        kinds.setdefault(".".join(kind), []).append(name)
    return kinds
