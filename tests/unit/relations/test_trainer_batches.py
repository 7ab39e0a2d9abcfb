"""The laws of a trainer's batches and predictions hold for a plain trainer; each wrong mask breaks its law."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.relations.plain_trainers import PlainTrainer

from seatrial.relations.contracts.trainers import (
    PredictedSequence,
    ServedBatch,
    ServedSequence,
    TrainerPlan,
    TrainerRecord,
)
from seatrial.relations.engine import run_relation
from seatrial.relations.not_served import NotServed
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

(BATCHES,) = select(["R15.whole"])
(PREDICTIONS,) = select(["R23.predictions"])


def _batch(rows: Any) -> ServedBatch:
    sequences = [
        ServedSequence(
            ids=(*row.prompt_ids, *row.completion_ids),
            targets=(*[False] * len(row.prompt_ids), *[True] * len(row.completion_ids)),
            positions=tuple(range(len(row.prompt_ids) + len(row.completion_ids))),
            follows=place > 0,
        )
        for place, row in enumerate(rows)
    ]
    return ServedBatch(rows=tuple(rows), sequences=tuple(sequences))


class Batched(PlainTrainer):
    """A plain trainer that packs, whose batches a fault changes."""

    def __init__(self, change: Callable[[ServedSequence], ServedSequence] = lambda one: one, padded: int = 0):
        """Keep how each sequence is changed, and how much padding is a target."""
        super().__init__()
        self.trainer_spec = replace(self.trainer_spec, flattens=True)
        self.change, self.padded = change, padded

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        record = super().trainer_run(plan)
        batches = [_batch(step.rows) for step in record.steps]
        batches += [_batch(part) for one in record.evaluations for part in one.batches]
        served = tuple(
            replace(one, sequences=tuple(map(self.change, one.sequences)), num_padded_targets=self.padded)
            for one in batches
        )
        return replace(record, served=served)


def _targets(place: int, value: bool) -> Callable[[ServedSequence], ServedSequence]:
    """Return a change of the targets of one place of each sequence."""

    def change(one: ServedSequence) -> ServedSequence:
        targets = list(one.targets or ())
        targets[place] = value
        return replace(one, targets=tuple(targets))

    return change


FAULTS: dict[str, Batched] = {
    "ids": Batched(lambda one: replace(one, ids=one.ids[::-1])),
    "targets of what trains": Batched(_targets(-1, False)),
    "targets of what does not": Batched(_targets(1, True)),
    "rows have a target": Batched(lambda one: replace(one, targets=(False,) * len(one.ids))),
    "first ids": Batched(_targets(0, True)),
    "targets of padding": Batched(padded=2),
    "positions": Batched(lambda one: replace(one, positions=tuple(range(3, 3 + len(one.ids))))),
}


def test_a_trainer_that_serves_its_rows_passes() -> None:
    """Every law is exercised and holds."""
    verdict = run_relation(BATCHES, Batched(), seeds=[0], thorough=True)
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in BATCHES.laws}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_mask_breaks_the_law_about_it(name: str) -> None:
    """And no other law, apart from the same one of evaluations."""
    trainer = FAULTS[name]
    broken = []
    for law in BATCHES.laws:
        try:
            found = law.measure(trainer, law.make(trainer, 0, False))
        except NotServed:  # no sequence is a row's
            continue
        broken += [] if found is None or found.holds else [law.name.removesuffix(", evaluations")]
    assert name in broken
    assert set(broken) <= {name, "targets of what trains", "rows have a target"}


class Predicting(PlainTrainer):
    """A plain trainer whose evaluations pass the logits of each held-out row."""

    def __init__(self, change: Callable[[PredictedSequence], list[PredictedSequence]] = lambda one: [one]):
        """Keep how predictions are changed."""
        super().__init__()
        self.change = change

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        record = super().trainer_run(plan)

        def predicted(step: int) -> tuple[PredictedSequence, ...]:
            found = []
            for row in record.held_out:
                ids = (*row.prompt_ids, *row.completion_ids)
                logits = self.next_token_logits(record.weights_at(step), ids)[2:]
                found += self.change(
                    PredictedSequence(ids=ids, places=tuple(range(2, len(ids))), logits=logits)
                )
            return tuple(found)

        evaluations = [replace(one, predictions=predicted(one.step)) for one in record.evaluations]
        return replace(record, evaluations=tuple(evaluations))


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        (lambda one: [one], Outcome.PASS),
        (lambda one: [], Outcome.FAIL),
        (lambda one: [replace(one, logits=one.logits * 0)], Outcome.FAIL),
        (lambda one: [replace(one, logits=one.logits.roll(1, 0))], Outcome.FAIL),
    ],
    ids=["right", "none", "zeros", "shifted"],
)
def test_predictions_are_compared_with_the_model(change: Any, outcome: Outcome) -> None:
    """Predictions that are missing, a stand-in or of other places break the law."""
    assert run_relation(PREDICTIONS, Predicting(change), seeds=[0], thorough=True).outcome is outcome
