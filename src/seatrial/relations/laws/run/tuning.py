"""R28.answers, R28.updates: fine-tuning learns whole answers, and its updates are those of their likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.run.updates import (
    NORM_BOUND,
    largest_step_error,
    only_updates_move_weights,
    rates_error,
)
from seatrial.relations.measures.updates import validations_due
from seatrial.relations.oracles.runs import Weights, weights_before
from seatrial.relations.records.tuning import AnswerRow
from seatrial.relations.runs import TuningCase, tuning_cases
from seatrial.relations.tensors import largest_gradient_difference
from seatrial.relations.worst import relative_error

# float32 forward and backward passes on both sides, as for `run_gradients`.
BOUND = 1e-4
CLOSED_TURNS = (
    "{{ bos_token }}{% for turn in messages %}<{{ turn['role'] }}>{{ turn['content'] }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
"""A chat template that writes a line end after the token that ends a turn, as many do."""

ANSWERS = Relation(
    id="R28.answers",
    name="tuning-learns-whole-answers",
    component="fine_tuning",
    statement="A row of fine-tuning is a prompt, its own right answer and the end token; all of the answer trains.",
    catalogue="SB001 SB002 SB003 SB013 SB018 SB030 SB055 SB071 SB076 SB122",
    cost="CPU, seconds",
    cases=tuning_cases(),
    seeded=False,
)
UPDATES = Relation(
    id="R28.updates",
    name="tuning-updates-are-the-likelihoods",
    component="fine_tuning",
    statement="Losses and gradients of fine-tuning are those of the answers' mean negative log-likelihood.",
    catalogue="SB098 SB102 SB165 SB182 SB185 SB380 SB395",
    cost="CPU, seconds",
    cases=tuning_cases(),
    seeded=False,
)


@ANSWERS.law(
    "answers are whole",
    "the end token left out or masked, special tokens between prompt and answer, a cut by length",
)
@ANSWERS.law(
    "answers are whole, under a template that writes after the end token",
    "an end token that is left out or doubled, the template's text after it learned with the answer",
    cases=tuning_cases(
        policy__tokenizer__chat_template=CLOSED_TURNS,
        policy__max_total_sequence_length=160,
        sft__max_num_steps=1,
        sft__val_at_start=False,
    ),
)
def answers_are_whole(stack: Any, case: TuningCase) -> Measure:
    """Check that the tokens that train spell the whole answer, and then the end."""
    record = case.record(stack)
    wrong = []
    for place, row in record.rows():
        answer = record.lesson(row).answer
        if row.ids[-1:] != (record.end_id,) or stack.decode(row.ids[:-1]) != answer:
            wrong.append(f"{place}: {stack.decode(row.ids)!r} for {answer!r}")
        elif row.mask != (1,) * len(row.ids):
            wrong.append(f"{place}: mask {row.mask}")
    return Measure.count(wrong, "rows that train on something else than their answer and its end")


@ANSWERS.law("answers follow their own prompts", "answers sorted or shifted against their prompts")
def answers_follow_their_prompts(stack: Any, case: TuningCase) -> Measure:
    """Check that each row's prompt is that of its answer, with the same ids in all rows."""
    record = case.record(stack)
    forms: dict[int, set[tuple[int, ...]]] = {}
    for _, row in record.rows():
        forms.setdefault(row.prompt_id, set()).add(row.prompt_ids)
    wrong = [
        f"{place}: {stack.decode(row.prompt_ids)!r} for {record.lesson(row).prompt!r}"
        for place, row in record.rows()
        if not stack.decode(row.prompt_ids).endswith(record.lesson(row).prompt)
        or len(forms[row.prompt_id]) > 1
    ]
    return Measure.count(wrong, "rows whose prompt is not the one that their answer belongs to")


@ANSWERS.law("answers are right", "another column learned than the verifier checks")
def answers_are_right(stack: Any, case: TuningCase) -> Measure:
    """Check that the verifier gives every learned answer the full reward."""
    record = case.record(stack)
    lessons = {lesson.prompt_id: lesson for lesson in (*record.lessons, *record.held_out)}.values()
    wrong = [
        f"{lesson.answer!r} to {lesson.prompt!r} gets {lesson.reward}"
        for lesson in lessons
        if lesson.reward != 1
    ]
    return Measure.count(
        wrong if lessons else ["no answer"], "learned answers without the full reward of the verifier"
    )


@ANSWERS.law(
    "steps are whole",
    "a micro-batch drawn for a batch, the rest of an epoch dropped, one batch for every step",
)
def steps_are_whole(stack: Any, case: TuningCase) -> Measure:
    """Check that steps of the batch's size go through the answers, epoch by epoch, each a permutation."""
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
    return Measure.count(wrong, "steps and epochs that are not whole")


@ANSWERS.law("held-out prompts do not train", "one split for both")
def held_out_prompts_do_not_train(stack: Any, case: TuningCase) -> Measure:
    """Check that no held-out prompt is trained on."""
    record = case.record(stack)
    trained = {row.prompt_id for step in record.steps for row in step.rows}
    both = sorted(trained & {lesson.prompt_id for lesson in record.held_out})
    return Measure.count([f"prompt {one}" for one in both], "held-out prompts that are trained on")


def _uneven(stack: Any, seed: int, tidy: bool) -> TuningCase:
    """Return a run whose rows have unequal lengths; the rows of a stack that names its own task have them already."""
    lengths = {"data.task_args": {"min_length": 1, "max_length": 3}, "data.num_train": 24}
    return TuningCase(options={} if "data.task" in getattr(stack, "options", {}) else lengths, seed=seed)


@UPDATES.law(
    "counts",
    "padding counted as tokens, tokens of a micro-batch in place of the step's",
    cases=_uneven,
)
def counts_are_the_rows(stack: Any, case: TuningCase) -> Measure:
    """Compare the logged numbers of tokens, and of those that train, with the step's rows."""
    wrong, judged = [], 0
    for step in case.record(stack).steps:
        due = {
            "total_num_tokens": sum(len(row.prompt_ids) + len(row.ids) for row in step.rows),
            "global_valid_toks": sum(sum(row.mask) for row in step.rows),
        }
        for name, count in due.items():
            judged += name in step.metrics
            if step.metrics.get(name, count) != count:
                wrong.append(f"step {step.step}, {name}: {step.metrics[name]:.6g} for {count}")
    return Measure.count(
        wrong if judged else ["no count is logged"], "logged counts that are not those of the rows"
    )


@UPDATES.law(
    "raw gradient", "a mean over each micro-batch, prompts in the loss, a sign, a temperature of sampling"
)
@UPDATES.law(
    "raw gradient, packed",
    "attention across boundaries, positions that run on",
    cases=tuning_cases(policy__sequence_packing__enabled=True, sft__max_num_steps=1),
)
def tuned_gradients_error(stack: Any, case: TuningCase) -> Measure:
    """Compare every raw gradient with autograd on the plain model."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        for number, update in enumerate(step.updates):
            before = weights_before(record, step, number)
            leaves = {name: before[name].clone().requires_grad_() for name in sorted(record.trainable)}
            rows = [step.rows[index] for index in update.row_indices]
            gradients = torch.autograd.grad(
                _loss(stack, {**before, **leaves}, rows), list(leaves.values()), allow_unused=True
            )
            expected = {
                name: torch.zeros_like(leaf) if gradient is None else gradient
                for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True)
            }
            error, name = largest_gradient_difference(update.gradients, expected)
            found.append((error, f"step {step.step}, {name}"))
    return Measure.largest(
        found,
        BOUND,
        "raw gradient against autograd on the mean over the answers' tokens, relative difference",
    )


@UPDATES.law("logged scalars", "the mean of micro-batches' means, the rate of the next update")
def logged_scalars(stack: Any, case: TuningCase) -> Measure:
    """Compare the logged scalars of each step with the loss of its rows, its learning rate and gradient norm."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        right = {
            "loss": _value(stack, record.weights_at(step.step - 1), step.rows),
            "lr": step.updates[0].learning_rate,
            "grad_norm": step.updates[0].grad_norm,
        }
        for name, value in right.items():
            logged = step.metrics.get(name, math.nan)
            place = f"step {step.step}: {name} {logged:.6g} for {value:.6g}"
            found.append((relative_error(logged, value, 1e-9), place))
    return Measure.largest(found, max(BOUND, NORM_BOUND), "logged scalars, relative difference")


@UPDATES.law("loss of held-out answers", "training answers scored, a period off by one, old weights")
@UPDATES.law(
    "loss of held-out answers, every second step and the last",
    "the last step left out, a validation before the first step that was not configured",
    cases=tuning_cases(
        sft__val_period=2, sft__val_at_start=False, sft__val_at_end=True, sft__max_num_steps=3
    ),
)
def loss_of_held_out_answers(stack: Any, case: TuningCase) -> Measure:
    """Compare each validation loss with that of the held-out answers at the weights of its step."""
    record = case.record(stack)
    steps, due = [one.step for one in record.losses], validations_due(record.options, loop="sft")
    if steps != due:
        return Measure(error=math.inf, bound=0, what=f"losses at {steps}, due at {due}")
    expected = sorted(lesson.prompt_id for lesson in record.held_out)
    found = []
    for one in record.losses:
        if sorted(row.prompt_id for row in one.rows) != expected:
            return Measure(error=math.inf, bound=0, what=f"step {one.step}: the loss is of other prompts")
        right = _value(stack, record.weights_at(one.step), one.rows)
        place = f"step {one.step}: {one.loss:.6g} for {right:.6g}"
        found.append((relative_error(one.loss, right, 1e-9), place))
    return Measure.largest(found, BOUND, "loss of held-out answers, relative difference")


@UPDATES.law(
    "AdamW", "clipping twice, moments reset each step", cases=tuning_cases(policy__max_grad_norm=0.02)
)
def adamw(stack: Any, case: TuningCase) -> Measure:
    """Compare each update with AdamW in float64 on the raw gradients."""
    return largest_step_error(case.record(stack), facts_of(stack).decays)


@UPDATES.law(
    "learning rates",
    "a schedule off by one",
    cases=tuning_cases(policy__scheduler__name="linear", policy__scheduler__warmup_steps=1),
)
def learning_rates(stack: Any, case: TuningCase) -> Measure:
    """Compare the learning rate of each update with the schedule."""
    record = case.record(stack)
    return rates_error(record, due=record.options["sft.max_num_steps"])


UPDATES.law("only updates move weights", "a merge or a rounding after the step")(only_updates_move_weights)


@UPDATES.law(
    "answers become likelier",
    "a sign, weights that never move",
    cases=tuning_cases(policy__optimizer__lr=0.05),
)
def answers_become_likelier(stack: Any, case: TuningCase) -> Measure:
    """Check that a few steps on few answers lower their loss, by the untouched model's own likelihood."""
    record = case.record(stack)
    rows = list({row.prompt_id: row for step in record.steps for row in step.rows}.values())
    before, after = (
        _value(stack, weights, rows) for weights in (record.initial_weights, record.final_weights)
    )
    return Measure(
        error=after / before, bound=0.8, what=f"loss of the learned answers, {before:.4g} to {after:.4g}"
    )


@UPDATES.law("one seed, one run", "a stream that is not seeded, dropout")
def one_seed_one_run(stack: Any, case: TuningCase) -> Measure:
    """Check that two runs of one seed are bitwise equal, and leave global streams and the model's mode alone."""
    one, two = case.record(stack), case.repeat(stack)
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
    return Measure.count(
        wrong, "things that differ between two runs of one seed, or that a run leaves changed"
    )


def _loss(stack: Any, weights: Weights, rows: Sequence[AnswerRow]) -> Tensor:
    """Return the mean negative log-likelihood of the answers' tokens, in float64."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for row in rows:
        seen = {} if row.media is None else {"media": row.media}
        logits_SV = stack.next_token_logits(weights, (*row.prompt_ids, *row.ids[:-1]), **seen)
        logprobs_TV = logits_SV[len(row.prompt_ids) - 1 :].double().log_softmax(-1)
        total = total - logprobs_TV[torch.arange(len(row.ids)), list(row.ids)].sum()
        tokens += len(row.ids)
    return total / tokens


def _value(stack: Any, weights: Weights, rows: Sequence[AnswerRow]) -> float:
    with torch.no_grad():
        return float(_loss(stack, weights, rows))
