"""R15.whole, R23.predictions: the batches of a trainer's own run hold its rows, and its predictions are of them.

A gradient joins every mask of a batch in one number. Here each kind of token is checked apart, so that one wrong mask
does not hide another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.trainers import ServedBatch, ServedSequence, TrainerPlan
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.trainer.updates import MICRO_BATCHED, only_updates, plan, samples
from seatrial.relations.not_served import NotServed
from seatrial.relations.oracles.objectives import kept_tokens, prompt_targets
from seatrial.relations.oracles.trainers import doubled
from seatrial.relations.runs import trainer_run

Sequence = tuple[int, ...]
EVALUATED = plan(eval_steps=2)
LOGIT_BOUND = 1e-3
"""Of the largest logit of a sequence: float32 against float64; padding that is not masked changes far more."""


def _one_row_of_ids(stack: Any) -> str | None:
    """Return the declaration of a trainer each of whose rows of ids holds one example."""
    return samples(stack) or (None if stack.trainer_spec.flattens else "trainer_spec.flattens=False")


def _without_targets(stack: Any) -> str | None:
    """Return the declaration of a trainer that scores whole sequences."""
    kind = getattr(stack.trainer_spec.objective, "kind", "")
    return samples(stack) or ("trainer_spec.objective.kind='reward'" if kind == "reward" else None)


def _evaluates_sequences(stack: Any) -> str | None:
    """Return the declaration of a trainer whose evaluations are not judged, or have no sequence of their own."""
    spec = stack.trainer_spec
    flattened = spec.flattens or spec.evaluation.flattens
    return samples(stack) or only_updates(stack) or ("trainer_spec.flattens=True" if flattened else None)


BATCHES = Relation(
    id="R15.whole",
    name="whole-trainer-batches-are-the-rows",
    component="whole_trainer",
    statement="Each batch of `train()` holds the ids of its rows; what should train is a target, nothing else is.",
    catalogue="SB001 SB002 SB005 SB012 SB153",
    cost="CPU, the runs of R12.whole",
    cases=MICRO_BATCHED,
    excluded=samples,
)
PREDICTIONS = Relation(
    id="R23.predictions",
    name="whole-trainer-predictions-are-of-the-held-out-rows",
    component="whole_trainer",
    statement="A caller's function of metrics gets the model's outputs for the held-out rows.",
    cost="CPU, a second a run",
    cases=plan(num_steps=2, eval_steps=1, predicts=True),  # a schedule with a warm-up needs two
    excluded=_evaluates_sequences,
    thorough=True,
)


def right_sequences(stack: Any, row: Example) -> list[tuple[Sequence, tuple[bool, ...]]]:
    """Return the sequences of a row, truncated as declared, and whether each id should be a target."""
    spec = stack.trainer_spec.objective
    assert isinstance(spec, ObjectiveSpec)
    found = []
    for ids in (row.completion_ids, row.rejected_ids):
        if ids is not None:
            kept, targets = kept_tokens(row.prompt_ids, ids, spec, prompt_targets(row, spec))
            # The target of the first id is a matter of its own: nothing before it predicts it.
            found.append((tuple(kept.tolist()), (False, *targets.tolist())))
    return found


def _served(stack: Any, case: TrainerPlan) -> tuple[ServedBatch, ...]:
    served = trainer_run(stack, case).served
    if not served:
        raise NotServed("the form of this release's batches is not known")
    return served


@BATCHES.law("ids", "an end token too many or too few, another truncation, a template without its header")
@BATCHES.law(
    "ids, evaluations",
    "held-out rows that are prepared in another way than those of training",
    cases=EVALUATED,
    excluded=lambda stack: samples(stack) or only_updates(stack),
)
def ids_are_those_of_the_rows(stack: Any, case: TrainerPlan) -> Measure:
    """Compare the sequences of each batch with those of its rows, in any order."""
    wrong = []
    for number, batch in enumerate(_served(stack, case)):
        right = Counter(ids for row in batch.rows for ids, _ in right_sequences(stack, row))
        given = Counter(one.ids for one in batch.sequences)
        if given != right:
            wrong.append(
                f"batch {number}: {next(iter(given - right), None)} for {next(iter(right - given), None)}"
            )
    return Measure.count(wrong, "batches with other sequences than their rows'")


def _labelled(stack: Any, case: TrainerPlan) -> Iterator[tuple[ServedSequence, tuple[bool, ...]]]:
    """Yield the sequences that are some row's, with the right targets.

    Raises:
        NotServed: batches do not say what the targets are.
    """
    batches = _served(stack, case)
    if all(one.targets is None for batch in batches for one in batch.sequences):
        raise NotServed("batches do not say which ids are targets")
    for batch in batches:
        # Two answers of a row may be one text.
        right = dict(pair for row in batch.rows for pair in right_sequences(stack, row))
        for one in batch.sequences:
            if one.ids in right:
                yield one, right[one.ids]


def _misjudged(which: Callable[[int, bool], bool], due: bool) -> Callable[[Any, TrainerPlan], Measure]:
    """Return a law's function: ids that `which` chooses, by place and right target, are targets or are not."""

    def measure(stack: Any, case: TrainerPlan) -> Measure:
        """Check the targets."""
        wrong = [
            f"id {place} of {one.ids}"
            for one, right in _labelled(stack, case)
            if one.targets is not None
            for place, (given, target) in enumerate(zip(one.targets, right, strict=True))
            if which(place, target) and given != due
        ]
        return Measure.count(wrong, f"ids that are {'no ' * due}targets")

    return measure


def _without_evaluated_targets(stack: Any) -> str | None:
    return only_updates(stack) or _without_targets(stack)


for suffix, cases, excluded in (
    ("", MICRO_BATCHED, _without_targets),
    (", evaluations", EVALUATED, _without_evaluated_targets),
):
    BATCHES.law(
        f"targets of what trains{suffix}",
        "a mask shifted by one, an end token masked as padding",
        cases=cases,
        excluded=excluded,
    )(_misjudged(lambda place, target: target, True))
    BATCHES.law(
        f"targets of what does not{suffix}",
        "a mask of completions that packing or padding drops",
        cases=cases,
        excluded=excluded,
    )(_misjudged(lambda place, target: place > 0 and not target, False))


@BATCHES.law(
    "first ids",
    "a row's first id as the target of the row before it in the same pack",
    excluded=_one_row_of_ids,
)
def first_ids_of_packs_are_no_targets(stack: Any, case: TrainerPlan) -> Measure:
    """Check that no sequence that others precede in a row of ids begins with a target."""
    followers = [one for one, _ in _labelled(stack, case) if one.follows]
    if not followers:
        raise NotServed("no sequence follows another in a row of ids")
    wrong = [f"{one.ids}" for one in followers if one.targets is not None and one.targets[0]]
    return Measure.count(wrong, "sequences that begin with a target")


@BATCHES.law(
    "rows have a target",
    "rows that truncation leaves no answer of, which count in means over rows",
    excluded=_without_targets,
)
def rows_have_a_target(stack: Any, case: TrainerPlan) -> Measure:
    """Check that no sequence has no target."""
    wrong = [f"{one.ids}" for one, _ in _labelled(stack, case) if not any(one.targets or ())]
    return Measure.count(wrong, "sequences without a target")


@BATCHES.law(
    "targets of padding",
    "labels padded with an id, a mask padded with ones",
    excluded=_without_targets,
)
def padding_is_no_target(stack: Any, case: TrainerPlan) -> Measure:
    """Check that no place of padding is a target."""
    wrong = [f"{one.num_padded_targets}" for one in _served(stack, case) if one.num_padded_targets]
    return Measure.count(wrong, "batches whose padding is a target")


@BATCHES.law("positions", "positions that continue from one packed row to the next", excluded=_one_row_of_ids)
def positions_begin_again(stack: Any, case: TrainerPlan) -> Measure:
    """Check that the positions of each sequence count from 0."""
    found = [one for batch in _served(stack, case) for one in batch.sequences if one.positions is not None]
    if not found:
        raise NotServed("batches have no positions")
    wrong = [f"{one.positions}" for one in found if one.positions != tuple(range(len(one.ids)))]
    return Measure.count(wrong, "sequences with other positions")


@PREDICTIONS.law(
    "predictions",
    "a stand-in for the logits, rows in another order, logits of padding, the model before the step",
)
def predictions_are_of_the_held_out_rows(stack: Any, case: TrainerPlan) -> Measure:
    """Compare what the function of metrics gets with the plain model's logits of each held-out sequence."""
    record = trainer_run(stack, case)
    right = Counter(ids for row in record.held_out for ids, _ in right_sequences(stack, row))
    found = []
    for one in record.evaluations:
        given = Counter(sequence.ids for sequence in one.predictions)
        if given != right:
            found.append(
                (float("inf"), f"step {one.step}: {given.total()} sequences, {right.total()} are due")
            )
        weights = doubled(record.weights_at(one.step))
        for sequence in one.predictions:
            with torch.no_grad():
                logits = stack.next_token_logits(weights, sequence.ids)[list(sequence.places)]
            error = float((sequence.logits - logits).abs().max() / logits.abs().max())
            found.append((error, f"step {one.step}, {sequence.ids}"))
    if not record.evaluations:
        raise NotServed("nothing was evaluated")
    return Measure.largest(found, LOGIT_BOUND, "logits of held-out rows, relative difference")
