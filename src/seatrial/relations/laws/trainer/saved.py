"""R33.compared, of what is saved: the trained tensors, with the settings that the model was given with."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from seatrial.relations.contracts.compared import ComparedPlan
from seatrial.relations.law import Measure
from seatrial.relations.laws.trainer.compared import COMPARED, plan
from seatrial.relations.runs import compared_run


@COMPARED.law(
    "the saved model", "tensors that a trainer leaves out of what it saves", cases=plan(num_steps=2)
)
def saved_model(stack: Any, case: ComparedPlan) -> Measure | None:
    """Compare what the trainer saves at the end with the model that it trained."""
    run = compared_run(stack, case)
    if run.saved is None:
        return None
    saved = run.saved
    wrong = [
        name for name, value in run.kept.items() if name not in saved or not torch.equal(value, saved[name])
    ]
    return Measure.count(wrong, "tensors of the saved model that differ")


@COMPARED.law(
    "the saved settings",
    "settings of generation that a run changes for itself, a tokenizer that is not saved",
    excluded=lambda stack: None if stack.compare_spec.settings else "compare_spec.settings is empty",
)
def saved_settings(stack: Any, case: ComparedPlan) -> Measure | None:
    """Compare the settings of the saved model, of its generation and of its tokenizer with those that were given."""
    run = compared_run(stack, replace(case, variation=stack.compare_spec.settings))
    return (
        None if run.unlike is None else Measure.count(list(run.unlike), "settings that are not those given")
    )
