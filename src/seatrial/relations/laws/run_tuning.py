"""R28 of a whole run of supervised fine-tuning: whole answers are learned, each after its own prompt, by AdamW."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.engine import Law, Measure, Relation
from seatrial.relations.facts import facts_of
from seatrial.relations.laws.run_updates import (
    NORM_BOUND,
    RATE_BOUND,
    largest_step_error,
    only_updates_moved,
    rates_error,
)
from seatrial.relations.run_oracles import Weights, weights_before
from seatrial.relations.runs import TUNING, run_again_tuned, tuning
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.tuning_records import AnswerRow, Lesson, TuningRecord
from seatrial.relations.worst import is_worse

# float32 forward and backward passes on both sides, as for `run_gradients`.
BOUND = 1e-4


@dataclass(frozen=True, kw_only=True)
class TuningCase:
    """The options of a run that are not those of `TUNING`."""

    options: Mapping[str, Any]
    seed: int

    def smaller(self) -> Iterator[TuningCase]:
        """Yield the run of one step."""
        if self.options.get("sft.max_num_steps", TUNING["sft.max_num_steps"]) != 1:
            yield replace(self, options={**self.options, "sft.max_num_steps": 1})

    def describe(self) -> Mapping[str, Any]:
        """Return seed and options as JSON values."""
        return {"seed": self.seed, "options": {**TUNING, **self.options}}

    def record(self, stack: Any) -> TuningRecord:
        """Return the run."""
        return tuning(stack, self.options, self.seed)


def _placed_rows(record: TuningRecord) -> list[tuple[str, AnswerRow]]:
    trained = [(f"step {step.step}", step.rows) for step in record.steps]
    held_out = [(f"held out, step {loss.step}", loss.rows) for loss in record.losses]
    return [
        (f"{place}, row {index}", row)
        for place, rows in (*trained, *held_out)
        for index, row in enumerate(rows)
    ]


def _lessons(record: TuningRecord) -> dict[int, Lesson]:
    return {lesson.prompt_id: lesson for lesson in (*record.lessons, *record.held_out)}


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(list(wrong) or ['none'])[0]})")


def _answers_are_whole(stack: Any, case: TuningCase) -> Measure:
    """The tokens that train spell the answer, to its last letter, and then the end."""
    record = case.record(stack)
    lessons = _lessons(record)
    wrong = []
    for place, row in _placed_rows(record):
        text = stack.decode(row.ids[:-1])
        if row.ids[-1:] != (record.end_id,) or text != lessons[row.prompt_id].answer:
            wrong.append(f"{place}: {stack.decode(row.ids)!r} for {lessons[row.prompt_id].answer!r}")
        elif row.mask != (1,) * len(row.ids):
            wrong.append(f"{place}: mask {row.mask}")
    return _count(wrong, "rows that train on something else than their answer and its end")


def _prompts_are_their_own(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    lessons = _lessons(record)
    wrong = [
        f"{place}: {stack.decode(row.prompt_ids)!r} for {lessons[row.prompt_id].prompt!r}"
        for place, row in _placed_rows(record)
        if not stack.decode(row.prompt_ids).endswith(lessons[row.prompt_id].prompt)
        or len({other.prompt_ids for _, other in _placed_rows(record) if other.prompt_id == row.prompt_id})
        > 1
    ]
    return _count(wrong, "rows whose prompt is not the one that their answer belongs to")


def _answers_are_right(stack: Any, case: TuningCase) -> Measure:
    lessons = _lessons(case.record(stack)).values()
    wrong = [
        f"{lesson.answer!r} to {lesson.prompt!r} gets {lesson.reward}"
        for lesson in lessons
        if lesson.reward != 1
    ]
    return _count(wrong if lessons else ["no answer"], "learned answers without full marks of the verifier")


def _rows_follow_the_schedule(stack: Any, case: TuningCase) -> Measure:
    """Steps of the batch's size go through the answers, one epoch after another, each a permutation."""
    record = case.record(stack)
    size, known = record.options["policy.train_global_batch_size"], [one.prompt_id for one in record.lessons]
    steps = record.options["sft.max_num_steps"]
    wrong = [f"step {one.step}: {len(one.rows)} rows" for one in record.steps if len(one.rows) != size]
    if [one.step for one in record.steps] != list(range(1, steps + 1)):
        wrong.append(f"steps {[one.step for one in record.steps]} of {steps}")
    served = [row.prompt_id for step in record.steps for row in step.rows]
    for start in range(0, len(served), len(known)):
        epoch = served[start : start + len(known)]
        if len(set(epoch)) < len(epoch) or not set(epoch) <= set(known):
            wrong.append(f"epoch {start // len(known) + 1}: {epoch}")
    return _count(wrong, "steps and epochs that are not whole")


def _gradients(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    worst, place, updates = 0.0, "nowhere", 0
    for step in record.steps:
        for number, update in enumerate(step.updates):
            updates += 1
            before = weights_before(record, step, number)
            leaves = {name: before[name].clone().requires_grad_() for name in sorted(record.trainable)}
            rows = [step.rows[index] for index in update.row_indices]
            found = torch.autograd.grad(
                _loss(stack, {**before, **leaves}, rows), list(leaves.values()), allow_unused=True
            )
            expected = {
                name: torch.zeros_like(leaf) if gradient is None else gradient
                for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
            }
            error, name = largest_gradient_difference(update.gradients, expected)
            if is_worse(error, worst):
                worst, place = error, f"step {step.step}, {name}"
    return Measure(
        error=worst if updates else math.inf,
        bound=BOUND,
        what=f"raw gradient against autograd on the mean over the answers' tokens, {place}, relative difference",
    )


def _logged(stack: Any, case: TuningCase) -> Measure:
    """What is logged of a step of one update: the loss of its rows, its rate, the norm of its gradient."""
    record = case.record(stack)
    worst, place = 0.0, "nowhere"
    for step in record.steps:
        right = {
            "loss": _value(stack, record.weights_at(step.step - 1), step.rows),
            "lr": step.updates[0].learning_rate,
            "grad_norm": step.updates[0].grad_norm,
        }
        for name, value in right.items():
            logged = step.metrics.get(name, math.nan)
            error = abs(logged - value) / max(abs(value), 1e-9)
            if is_worse(error, worst):
                worst, place = error, f"step {step.step}: {name} {logged:.6g} for {value:.6g}"
    return Measure(
        error=worst, bound=max(BOUND, NORM_BOUND), what=f"logged scalars, {place}, relative difference"
    )


def _held_out(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    steps, period = record.options["sft.max_num_steps"], record.options["sft.val_period"]
    due = [0] * record.options["sft.val_at_start"] + list(range(period, steps + 1, period))
    if [one.step for one in record.losses] != due:
        return Measure(
            error=math.inf, bound=0, what=f"losses at {[one.step for one in record.losses]}, due at {due}"
        )
    asked = sorted(lesson.prompt_id for lesson in record.held_out)
    worst, place = 0.0, "nowhere"
    for one in record.losses:
        if sorted(row.prompt_id for row in one.rows) != asked:
            return Measure(error=math.inf, bound=0, what=f"step {one.step}: the loss is of other prompts")
        right = _value(stack, record.weights_at(one.step), one.rows)
        error = abs(one.loss - right) / max(abs(right), 1e-9)
        if is_worse(error, worst):
            worst, place = error, f"step {one.step}: {one.loss:.6g} for {right:.6g}"
    return Measure(error=worst, bound=BOUND, what=f"loss of held-out answers, {place}, relative difference")


def _held_out_is_apart(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    trained = {row.prompt_id for step in record.steps for row in step.rows}
    both = sorted(trained & {lesson.prompt_id for lesson in record.held_out})
    return _count([f"prompt {one}" for one in both], "held-out prompts that are trained on")


def _adamw(stack: Any, case: TuningCase) -> Measure:
    return largest_step_error(case.record(stack), facts_of(stack).decays)


def _only_updates(stack: Any, case: TuningCase) -> Measure:
    return only_updates_moved(case.record(stack))


def _rates(stack: Any, case: TuningCase) -> Measure:
    record = case.record(stack)
    return rates_error(record, due=record.options["sft.max_num_steps"], bound=RATE_BOUND)


def _learns(stack: Any, case: TuningCase) -> Measure:
    """Steps on few answers make these answers likelier, as the untouched model's own likelihood says."""
    record = case.record(stack)
    rows = list({row.prompt_id: row for step in record.steps for row in step.rows}.values())
    before, after = (
        _value(stack, weights, rows) for weights in (record.initial_weights, record.final_weights)
    )
    return Measure(
        error=after / before, bound=0.8, what=f"loss of the learned answers, {before:.4g} to {after:.4g}"
    )


def _repeats(stack: Any, case: TuningCase) -> Measure:
    one, two = case.record(stack), run_again_tuned(stack, case.options, case.seed)
    wrong = [
        name for name, value in one.final_weights.items() if not torch.equal(value, two.final_weights[name])
    ]
    wrong += [
        f"rows of step {a.step}" for a, b in zip(one.steps, two.steps, strict=False) if a.rows != b.rows
    ]
    if not one.global_streams_untouched:
        wrong.append("a global random stream")
    if one.in_training_mode:
        wrong.append("the model's mode")
    return _count(wrong, "things that differ between two runs of one seed, or that a run leaves changed")


def _loss(stack: Any, weights: Weights, rows: Sequence[AnswerRow]) -> Tensor:
    """Return the mean negative log-likelihood of the answers' tokens, in float64."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        logits_SV = stack.next_token_logits(weights, (*row.prompt_ids, *row.ids[:-1]))
        logprobs_TV = logits_SV[len(row.prompt_ids) - 1 :].double().log_softmax(-1)
        total = total - logprobs_TV[torch.arange(len(row.ids)), list(row.ids)].sum()
        tokens += len(row.ids)
    return total / tokens


def _value(stack: Any, weights: Weights, rows: Sequence[AnswerRow]) -> float:
    with torch.no_grad():
        return float(_loss(stack, weights, rows))


def _law(name: str, measure: Any, suspects: str, **options: Any) -> Law:
    chosen = {key.replace("__", "."): value for key, value in options.items()}

    def make(stack: Any, seed: int, tidy: bool) -> TuningCase:
        return TuningCase(options=chosen, seed=seed)

    return Law(name=name, make=make, measure=measure, suspects=suspects, seeded=False)


SCHEDULE = {"policy__scheduler__name": "linear", "policy__scheduler__warmup_steps": 1}

RELATIONS = (
    Relation(
        id="R28.answers",
        name="tuning-learns-whole-answers",
        component="fine_tuning",
        statement="A row of fine-tuning is a prompt, its own right answer and the end token; all of the answer trains.",
        catalogue=("SB001", "SB002", "SB003", "SB013", "SB018", "SB030", "SB055", "SB071", "SB076", "SB122"),
        cost="CPU, seconds",
        laws=(
            _law(
                "answers are whole",
                _answers_are_whole,
                "the end token left out or masked, special tokens between prompt and answer, a cut by length",
            ),
            _law(
                "prompts are their own",
                _prompts_are_their_own,
                "answers sorted or shifted against their prompts",
            ),
            _law(
                "answers are right", _answers_are_right, "another column learned than the verifier asks for"
            ),
            _law(
                "steps are whole",
                _rows_follow_the_schedule,
                "a micro-batch drawn for a batch, the rest of an epoch dropped, one batch for every step",
            ),
            _law("held-out prompts are apart", _held_out_is_apart, "one split for both"),
        ),
    ),
    Relation(
        id="R28.updates",
        name="tuning-updates-are-the-likelihoods",
        component="fine_tuning",
        statement="Losses and gradients of fine-tuning are those of the answers' mean negative log-likelihood.",
        catalogue=("SB098", "SB102", "SB165", "SB182", "SB185", "SB380", "SB395"),
        cost="CPU, seconds",
        laws=(
            _law(
                "raw gradient",
                _gradients,
                "a mean over each micro-batch, prompts in the loss, a sign, a temperature of sampling",
            ),
            _law(
                "raw gradient, packed",
                _gradients,
                "attention across boundaries, positions that run on",
                policy__sequence_packing__enabled=True,
                sft__max_num_steps=1,
            ),
            _law("logged scalars", _logged, "the mean of micro-batches' means, the rate of the next update"),
            _law(
                "loss of held-out answers",
                _held_out,
                "training answers scored, a period off by one, old weights",
            ),
            _law("AdamW", _adamw, "clipping twice, moments reset each step", policy__max_grad_norm=0.02),
            _law("learning rates", _rates, "a schedule off by one", **SCHEDULE),
            _law("only updates move weights", _only_updates, "a merge or a rounding after the step"),
            _law(
                "answers become likelier",
                _learns,
                "a sign, weights that never move",
                policy__optimizer__lr=0.05,
            ),
            _law("one seed, one run", _repeats, "a stream that is not seeded, dropout"),
        ),
    ),
)
