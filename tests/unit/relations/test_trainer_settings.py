"""The laws of a trainer's settings hold for a plain trainer that follows them, and each setting ignored breaks one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.relations.plain_trainers import PlainTrainer

from seatrial.relations.contracts.trainers import Best, EvaluationSpec, TrainerPlan, TrainerRecord
from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.relations.runs import sharing_runs, trainer_run
from seatrial.verdict import Outcome

(SETTINGS,) = select(["R24.whole"])
DECLARED: dict[str, Any] = {
    "order": "shuffled",
    "evaluation": EvaluationSpec(num_rows=4),
    "best": Best(metric="loss", larger=False),
    "sampling": {"temperature": 0.7},
    "dropout": 0.1,
    "width_multiple": 8,
}


class Settled(PlainTrainer):
    """A plain trainer whose records are changed before laws read them."""

    def __init__(
        self, change: Callable[[TrainerPlan, TrainerRecord], TrainerRecord] = lambda _, one: one, **spec: Any
    ):
        """Keep what the trainer declares, and how its records are changed."""
        super().__init__()
        self.trainer_spec = replace(self.trainer_spec, **{**DECLARED, **spec})
        self.change = change

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        record = super().trainer_run(plan)
        best = min(record.evaluations, key=lambda one: one.logged["loss"], default=None)
        kept = record.final_weights if best is None else record.weights_at(best.step)
        right = {
            "final_weights": kept,
            "sampling": ({"temperature": 0.7},),
            "dropout": 0.1,
            "widths": {8, 16},
        }
        return self.change(plan, replace(record, **right))


def of_one_seed(plan: TrainerPlan, record: TrainerRecord) -> TrainerRecord:
    """Return the record of seed 0, whatever the plan's is."""
    return replace(record, steps=PlainTrainer().trainer_run(replace(plan, seed=0)).steps)


def in_order(plan: TrainerPlan, record: TrainerRecord) -> TrainerRecord:
    """Return the record with a split that has the order in which rows were served."""
    served = [row for step in record.steps for row in step.rows]
    return replace(record, split=tuple(served))


def without_a_row(plan: TrainerPlan, record: TrainerRecord) -> TrainerRecord:
    """Return the record whose evaluations leave a row out."""
    cut = tuple(replace(one, batches=(one.batches[0][:-1],)) for one in record.evaluations)
    return replace(record, evaluations=cut)


FAULTS: dict[str, tuple[str, Settled]] = {
    "another seed changes nothing": ("seed of the order", Settled(of_one_seed)),
    "the order has no seed of its own": ("seed of the order", Settled(order_has_own_seed=True)),
    "rows are not shuffled": ("order of rows", Settled(in_order)),
    "rows are shuffled": ("order of rows", Settled(order="as given")),
    "a short micro-batch is kept": ("last micro-batch of an epoch", Settled(drops_last=True)),
    "prompts are cut": (
        "prompts are those of the split",
        Settled(
            lambda _, one: replace(
                one, split=tuple(replace(row, prompt_ids=row.prompt_ids[1:]) for row in one.split)
            )
        ),
    ),
    "temperature is 1": (
        "generation settings",
        Settled(lambda _, one: replace(one, sampling=({"temperature": 1.0},))),
    ),
    "nothing is generated": ("generation settings", Settled(lambda _, one: replace(one, sampling=()))),
    "dropout is off": ("dropout", Settled(lambda _, one: replace(one, dropout=0.0))),
    "widths are not rounded": (
        "width of padded rows",
        Settled(lambda _, one: replace(one, widths=frozenset({8, 9}))),
    ),
    "rows are packed": ("rows of ids", Settled(lambda _, one: replace(one, flattened=True))),
    "rows are not packed": ("rows of ids", Settled(flattens=True)),
    "held-out rows are not packed": ("rows of ids", Settled(evaluation=EvaluationSpec(flattens=True))),
    "a held-out row is left out": ("held-out rows", Settled(without_a_row)),
    "evaluation batches are larger": ("held-out rows", Settled(evaluation=EvaluationSpec(num_rows=2))),
    "the worst weights are kept": ("weights at the end", Settled(best=Best(metric="loss", larger=True))),
}


def test_a_trainer_that_follows_its_settings_passes() -> None:
    """Every law is exercised and holds."""
    verdict = run_relation(SETTINGS, Settled(), seeds=[0], thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in SETTINGS.laws}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_setting_that_is_ignored_breaks_its_law(fault: str) -> None:
    """And no other law of the relation."""
    name, trainer = FAULTS[fault]
    with sharing_runs():
        broken = [law.name for law in SETTINGS.laws if _is_broken(law, trainer)]
    assert name in broken
    assert len(broken) == 1 or fault in (
        "rows are not shuffled",
        "prompts are cut",
        "another seed changes nothing",
    )


def _is_broken(law: Any, trainer: Settled) -> bool:
    if law.excluded(trainer):
        return False
    found = law.measure(trainer, law.make(trainer, 0, False))
    return found is not None and not found.holds


def test_the_first_step_is_logged_if_it_is_configured() -> None:
    """The law of the logging interval sees a first step that is not logged."""
    (logged,) = select(["R22.whole"])
    law = next(one for one in logged.laws if "logging interval" in one.name)
    trainer = Settled(logs_first_step=True)
    case = law.make(trainer, 0, False)
    assert not law.measure(trainer, case).holds  # type: ignore[union-attr]
    assert trainer_run(trainer, case).steps[0].logged == {}
