"""R29.routes: an adapted model gives the same outputs in every way to ask for them, and in every copy."""

from __future__ import annotations

from typing import Any

import torch

from seatrial.relations.contracts.adapter_routes import CALLS, TRANSFERS, Call, Transfer
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.adapters.adapted import BOUND, changes_base
from seatrial.relations.laws.adapters.inputs import AdapterCase, adapter_case, ids_of, move
from seatrial.relations.tensors import largest_difference

ROUTES = Relation(
    id="R29.routes",
    name="adapter-is-the-same-on-every-route",
    component="routed_adapters",
    statement="An adapted model gives the logits of its forward pass however they are asked for, and so does every "
    "model that gets its adapter.",
    cost="CPU, a tenth of a second",
    cases=adapter_case,
)
ASKED = "a branch of the forward pass of its own, virtual tokens that are left out or added twice, a mask that moves"
MOVED = "a tensor or a scale that is not carried over, a name that is not found and is skipped without a word"
ITSELF = ("file of the change since its start",)
"""Ways in which a start that changes the base is carried over, too."""
BY_ENERGY = "converted to low rank by energy"
CUT_OFF = 5e-3
"""A float32 sum of squares does not see singular values below 2.4e-4, the root of 2^-24, of the sum's root: 32 are
1.4e-3 of the change. Outputs of PEFT 0.21.2 differ by up to 2e-3 (RandLoRA); with a fixed rank by up to 6e-6."""


def _saves_a_part(stack: Any) -> str | None:
    return None if stack.adapter_spec.saves_all else "adapter_spec.saves_all=False"


def _keeps_nothing(stack: Any) -> str | None:
    return _saves_a_part(stack) or changes_base(stack)


def answers_are_those_of_the_forward_pass(stack: Any, case: AdapterCase, call: Call) -> Measure:
    """Compare logits that are asked for in a way with those of a plain forward pass over the same ids."""
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    found_BSV, ids_BS = stack.answered(model, ids_of(stack, case), call)
    right_BSV = model.outputs(ids_BS)[:, -found_BSV.shape[1] :]
    return Measure(
        error=largest_difference(found_BSV, right_BSV),
        bound=BOUND,
        what=f"logits, {call}, against a forward pass, relative difference",
    )


def outputs_are_carried_over(stack: Any, case: AdapterCase, transfer: Transfer) -> Measure:
    """Compare outputs of a model that got the adapter with those of the one that gave it, which stay as they were."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32")
    move(model, case.seed)
    before_BSV = model.outputs(ids_BS)
    found_BSV = stack.transferred(model, ids_BS, transfer)
    found = [
        (largest_difference(found_BSV, before_BSV), "the model that got it"),
        (largest_difference(model.outputs(ids_BS), before_BSV), "the model that gave it"),
    ]
    bound = CUT_OFF if transfer == BY_ENERGY else BOUND
    return Measure.largest(found, bound, f"outputs, {transfer}, relative difference")


for _call in CALLS:
    ROUTES.law(f"asked: {_call}", ASKED, call=_call)(answers_are_those_of_the_forward_pass)
for _transfer in TRANSFERS:
    ROUTES.law(
        f"moved: {_transfer}",
        MOVED,
        transfer=_transfer,
        excluded=_saves_a_part if _transfer in ITSELF else _keeps_nothing,
    )(outputs_are_carried_over)


def _has_no_dropout_at_the_base(stack: Any) -> str | None:
    spec = stack.adapter_spec
    if not spec.takes_dropout:
        return "adapter_spec.takes_dropout=False"
    if not spec.drops_added:
        return "adapter_spec.drops_added=False"
    return changes_base(stack) or (None if spec.starts_as_base else "adapter_spec.starts_as_base=False")


@ROUTES.law(
    "training with dropout starts as the base",
    "dropout of the base's own input or output, a part of the base that is computed with and without dropout",
    excluded=_has_no_dropout_at_the_base,
    dropout=0.5,
)
def dropout_leaves_the_base(stack: Any, case: AdapterCase, dropout: float) -> Measure:
    """Compare outputs of a new adapter with dropout, in training, with those in evaluation: it adds nothing yet."""
    ids_BS = ids_of(stack, case)
    model = stack.adapted(seed=case.seed, dtype="float32", dropout=dropout)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(case.seed)
        found_BSV, _ = stack.answered(model, ids_BS, "in training")
    return Measure(
        error=largest_difference(found_BSV, model.outputs(ids_BS)),
        bound=max(BOUND, stack.adapter_spec.start_bound),
        what=f"outputs of a new adapter in training with dropout {dropout} against evaluation, relative difference",
    )
