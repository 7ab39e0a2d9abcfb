"""R29.adapted, R29.merged: an adapter is on the weights that its options name, at the scale and for the rows given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.law import Measure
from seatrial.relations.laws.adapters.adapted import ADAPTED, BOUND, changes_base, refuses
from seatrial.relations.laws.adapters.inputs import AdapterCase, ids_of, move
from seatrial.relations.laws.adapters.merging import MERGED
from seatrial.relations.laws.adapters.several import SEVERAL, two
from seatrial.relations.laws.adapters.training import TRAINED
from seatrial.relations.oracles.adapters import adapted_weights
from seatrial.relations.tensors import largest_difference

SUMMED = 1e-4
"""A mean of float32 losses against float64."""


def _names_nothing(stack: Any) -> str | None:
    if stack.adapter_spec.weights is None or not stack.adapter_spec.merges:
        return "adapter_spec.weights=None"
    return None


@MERGED.law(
    "weights that the options name",
    "a pattern of layers that finds another number in a name, a list of excluded modules that is ignored",
    excluded=_names_nothing,
)
def named_weights_change(stack: Any, case: AdapterCase) -> Measure:
    """Compare the weights that a merge changes with those that the options name; biases do not count."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    before = {name: value.detach().clone() for name, value in model.base_weights().items()}
    model.merge()
    after = model.base_weights()
    changed = {
        name for name in before if not name.endswith("bias") and not torch.equal(before[name], after[name])
    }
    wrong = [f"{name} stays" for name in sorted(stack.adapter_spec.weights - changed)]
    wrong += [f"{name} changes" for name in sorted(changed - stack.adapter_spec.weights)]
    return Measure.count(wrong, "weights that an adapter is not on, or should not be on")


def _moves_base(stack: Any) -> str | None:
    return changes_base(stack)


@ADAPTED.law(
    "the base stays",
    "a weight that is scaled, cast or initialised when the adapter is added",
    excluded=_moves_base,
)
def base_stays(stack: Any, case: AdapterCase) -> Measure:
    """Check that every weight of the base is the same after an adapter is added."""
    plain = stack.plain_weights(dtype="float32")
    found = stack.adapted(seed=case.seed, dtype="float32").base_weights()
    wrong = [
        name
        for name, value in plain.items()
        if name in found and (found[name].dtype != value.dtype or not torch.equal(found[name], value))
    ]
    return Measure.count(wrong, "weights of the base that adding an adapter changes")


def _has_weights_apart(stack: Any) -> str | None:
    return None if stack.adapter_spec.one_weight else "adapter_spec.one_weight=None"


@ADAPTED.law(
    "weights that are one",
    "a copy for a shared tensor, one of two tied modules that is trained alone",
    excluded=_has_weights_apart,
)
def shared_weights_are_one(stack: Any, case: AdapterCase) -> Measure:
    """Check that two weights of the base are one tensor after an adapter is added, or equal after it is merged."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    one, other = stack.adapter_spec.one_weight
    base = model.base_weights()
    wrong = [] if base[one].data_ptr() == base[other].data_ptr() else [f"{other} is a copy of {one}"]
    merged = model.merged()
    wrong += [] if torch.equal(merged[one], merged[other]) else [f"{other}, merged, differs from {one}"]
    return Measure.count(wrong, "weights that are to be one")


def _is_not_rescaled(stack: Any) -> str | None:
    return changes_base(stack) or refuses("rescaling")(stack)


def _mixes_positions(stack: Any) -> str | None:
    return "adapter_spec.reads_ahead=True" if stack.adapter_spec.reads_ahead else None


def _has_another_loss(stack: Any) -> str | None:
    own = "adapter_spec.adds_to_loss=True" if stack.adapter_spec.adds_to_loss else None
    return own or _mixes_positions(stack)


@ADAPTED.law(
    "padded rows",
    "virtual tokens that padding moves, a mask that does not grow with a prompt",
    excluded=_mixes_positions,
)
def padding_changes_nothing(stack: Any, case: AdapterCase) -> Measure:
    """Compare rows that are padded at their end by other ids with the same rows alone."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    generator = torch.Generator().manual_seed(case.seed + 1)
    found = []
    lengths = [max(1, case.length - row) for row in range(len(ids_BS))]
    padded_BS = torch.randint(4, stack.vocab_size, (len(ids_BS), case.length + 2), generator=generator)
    mask_BS = torch.zeros_like(padded_BS)
    for row, length in enumerate(lengths):
        padded_BS[row, :length], mask_BS[row, :length] = ids_BS[row, :length], 1
    padded_BSV = model.outputs(padded_BS, mask_BS=mask_BS)
    for row, length in enumerate(lengths):
        alone_SV = model.outputs(ids_BS[row : row + 1, :length])[0]
        found.append((largest_difference(padded_BSV[row, :length], alone_SV), f"row {row} of {length} ids"))
    return Measure.largest(found, BOUND, "padded rows against the same rows alone, relative difference")


@ADAPTED.law(
    "loss of labels",
    "labels that virtual tokens move, a label of a virtual token that counts, a mean over padding",
    excluded=_has_another_loss,
)
def loss_is_of_the_labels(stack: Any, case: AdapterCase) -> Measure:
    """Compare the loss with the mean of float64 log-probabilities of the labels, from the outputs."""
    ids_BS = ids_of(stack, replace(case, num_rows=max(case.num_rows, 2), length=max(case.length, 4)))
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    mask_BS = torch.ones_like(ids_BS)
    mask_BS[0, -1] = 0
    labels_BS = ids_BS.masked_fill(mask_BS == 0, -100)
    labels_BS[:, 0] = -100  # a prompt of virtual tokens predicts it, and nothing else does
    found = model.loss(ids_BS, labels_BS, mask_BS)
    logprobs_BSV = model.outputs(ids_BS, mask_BS=mask_BS).double().log_softmax(-1)[:, :-1]
    counted = labels_BS[:, 1:] != -100
    picked_BS = logprobs_BSV.gather(2, labels_BS[:, 1:].clamp(min=0)[..., None])[..., 0]
    right = -float(picked_BS[counted].mean())
    return Measure(
        error=abs(found - right) / abs(right), bound=SUMMED, what=f"loss {found:.6g}, due {right:.6g}"
    )


@ADAPTED.law(
    "rescaled",
    "a factor that is applied to one of two products, a scale that is not put back",
    excluded=_is_not_rescaled,
)
def rescaling_scales(stack: Any, case: AdapterCase) -> Measure:
    """Check that a factor of 0 gives the base, and 0.5 half of the change; outputs are as before after the block."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    before_BSV = model.outputs(ids_BS)
    with model.disabled():
        base_BSV = model.outputs(ids_BS)
    with model.rescaled(0.0):
        none_BSV = model.outputs(ids_BS)
    with model.rescaled(0.5):
        half_BSV = model.outputs(ids_BS)
    found = [
        (largest_difference(none_BSV, base_BSV), "a factor of 0 against the base"),
        (largest_difference(model.outputs(ids_BS), before_BSV), "after the block"),
    ]
    if updates := model.updates("first"):
        halves = [
            replace(one, scaling=one.scaling / 2, bias={name: value / 2 for name, value in one.bias.items()})
            for one in updates
        ]
        right_BSV = stack.plain_outputs(ids_BS, adapted_weights(model.base_weights(), halves))
        found.append((largest_difference(half_BSV.double(), right_BSV), "a factor of 0.5 against float64"))
    return Measure.largest(found, BOUND, "outputs of a rescaled adapter, relative difference")


def _never_merges(stack: Any) -> str | None:
    return None if stack.adapter_spec.merges else "adapter_spec.merges=False"


def _is_not_one_of_two(stack: Any) -> str | None:
    return _never_merges(stack) or changes_base(stack) or refuses("two at once")(stack)


@MERGED.law(
    "one of two by name",
    "the adapter in use merged for the one that is named, or both",
    excluded=_is_not_one_of_two,
)
def merges_the_one_named(stack: Any, case: AdapterCase) -> Measure:
    """Merge the second of two adapters by its name while the first is in use, and compare with the second in use."""
    ids_BS = ids_of(stack, case)
    model = two(stack, case)
    model.use(["second"])
    second_BSV = model.outputs(ids_BS)
    model.use(["first"])
    model.merge(names=["second"])
    merged_BSV = stack.plain_outputs(ids_BS, {**stack.plain_weights(dtype="float32"), **model.base_weights()})
    return Measure(
        error=largest_difference(merged_BSV, second_BSV),
        bound=BOUND,
        what="weights with the adapter that is named, against that adapter in use, relative difference",
    )


@MERGED.law(
    "unloaded is the base",
    "a merge on the way out, a bias or a weight that stays changed",
    excluded=_is_not_one_of_two,
)
def unloaded_is_base(stack: Any, case: AdapterCase) -> Measure:
    """Compare outputs of the model without its adapter with those of the plain base."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    with model.disabled():
        base_BSV = model.outputs(ids_BS)
    return Measure(
        error=largest_difference(stack.plain_outputs(ids_BS, model.unloaded()), base_BSV),
        bound=1e-6,
        what="outputs of the model without its adapter against the base, relative difference",
    )


def _is_a_prompt(stack: Any) -> str | None:
    return changes_base(stack) or _never_merges(stack)


@SEVERAL.law("set to train by name", "tensors of the adapter in use for any name", excluded=_is_a_prompt)
def trains_as_set(stack: Any, case: AdapterCase) -> Measure:
    """Freeze the first of two adapters by name, let the second one train, and check which tensors do."""
    model = two(stack, case)
    own = {name: model.tensors_of(name) for name in ("first", "second")}
    model.use(["second"])
    due = model.trainable() & (own["second"] - own["first"])
    model.use(["first"])
    model.set_trainable("first", False)
    model.set_trainable("second", True)
    found = model.trainable()
    wrong = [f"{name} does not train" for name in sorted(due - found)]
    wrong += [f"{name} of the frozen one trains" for name in sorted(found & (own["first"] - own["second"]))]
    return Measure.count(wrong, "tensors that do not train as was set")


@TRAINED.law("numbers that train", "tensors that are counted twice, or left out")
def counts_are_right(stack: Any, case: AdapterCase) -> Measure:
    """Compare how many numbers train by the stack's own count with those of the tensors that do."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    tensors = model.tensors()
    due = sum(tensors[name].numel() for name in model.trainable())
    trained, whole = model.counts()
    wrong = [] if trained == due else [f"{trained} are said to train, {due} do"]
    wrong += [] if whole >= trained else [f"{whole} numbers in all, of which {trained} train"]
    return Measure.count(wrong, "numbers that are said to train")
