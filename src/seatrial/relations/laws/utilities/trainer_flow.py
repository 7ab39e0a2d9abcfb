"""R31.flow: what a trainer trains with, logs, saves and resumes, where generator, models and data are stand-ins."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from seatrial.relations.contracts.trainer_flow import (
    FlowPlan,
    FlowRecord,
    FlowRow,
    answer_ids,
    logprob_of,
    prompt_ids,
    score_of,
    source_of,
    value_of,
)
from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

FLOW = relation_of(
    "flow",
    "a-trainer-s-loop-keeps-rows-together",
    "Each row that trains has the log-probabilities, score and advantage of its own answer, at each step once.",
)
TOLERANCE = 1e-5
"""float32, of numbers up to ten."""
WITH_CRITIC, WRITES = "trainer loop with a critic", "trainer loop that writes rows"
KILLED = "trainer loop that is killed"
PLANS = (
    FlowPlan(steps=2),
    FlowPlan(steps=2, balanced=True),
    FlowPlan(steps=2, balanced=True, kl_in_reward=0.5, copies=2),
    FlowPlan(steps=1, prompts=1, copies=4),
)


def _near(given: Sequence[float], due: Sequence[float]) -> bool:
    return len(given) == len(due) and all(
        abs(one - other) <= TOLERANCE for one, other in zip(given, due, strict=True)
    )


def _due_rewards(row: FlowRow, plan: FlowPlan) -> list[float]:
    """Return the score at the last token, less the weighted difference of log-probabilities at each."""
    scores = [0.0] * (len(row.answer_ids) - 1) + [score_of(row.prompt, row.copy, row.step)]
    kl = [logprob_of(token) - logprob_of(token, reference=True) for token in row.answer_ids]
    return [score - plan.kl_in_reward * one for score, one in zip(scores, kl, strict=True)]


def _sampled_at(stack: Any, step: int) -> int:
    """Return the step during which the answers of a step are sampled; `samples_ahead` says how far before it."""
    return max(1, step - int(getattr(stack, "samples_ahead", 0)))


def _wrong_row(row: FlowRow, step: int, plan: FlowPlan, group: Sequence[FlowRow]) -> list[str]:
    what = f"step {step}, answer {row.copy} of prompt {row.prompt}"
    totals = [sum(_due_rewards(one, plan)) for one in group]
    mean = math.fsum(totals) / len(totals)
    deviation = math.sqrt(math.fsum((one - mean) ** 2 for one in totals) / (len(totals) - 1))
    rewards = _due_rewards(row, plan)
    advantage = (sum(rewards) - mean) / (deviation + 1e-6)
    size = len(row.answer_ids)
    due: dict[str, tuple[Any, Any]] = {
        "step": (row.step, step),
        "source": (row.source, source_of(row.prompt)),
        "ids": (row.answer_ids, answer_ids(row.prompt, row.copy, step)),
        "mask": (row.mask, [1] * size),
        "old log-probabilities": (row.old_logprobs, [logprob_of(token) for token in row.answer_ids]),
        "log-probabilities of the reference": (
            row.ref_logprobs,
            [logprob_of(token, reference=True) for token in row.answer_ids],
        ),
        "scores": (row.scores, [0.0] * (size - 1) + [score_of(row.prompt, row.copy, row.step)]),
        "rewards": (row.rewards, rewards),
        "advantages": (row.advantages, [advantage] * size),
    }
    return [
        f"{what}: {name} {given}, {right} is right"
        for name, (given, right) in due.items()
        if (not _near(given, right) if isinstance(given, list) else given != right)
    ]


@FLOW.law(
    "rows of a step",
    "columns of two orders, scores of another answer, groups by place, a row that is missing or twice",
    excluded=without("trainer loop"),
)
def rows_are_kept_together(stack: Any, case: Numbers) -> Measure:
    """Check every column of every row, and that each prompt of a step has all its answers in a group of its own."""
    wrong = []
    for plan in PLANS:
        record: FlowRecord = _run(stack, plan)
        if sorted(record.trained) != list(range(1, plan.steps + 1)):
            wrong.append(f"{plan}: steps {sorted(record.trained)}")
        if record.mini_batch and record.mini_batch != plan.prompts * plan.copies:
            wrong.append(f"{plan}: mini-batches of {record.mini_batch} rows")
        for step, rows in record.trained.items():
            groups: dict[str, list[FlowRow]] = {}
            for row in rows:
                groups.setdefault(row.group, []).append(row)
            if len(rows) != plan.prompts * plan.copies or len(groups) != plan.prompts:
                wrong.append(f"{plan}, step {step}: {len(rows)} rows in {len(groups)} groups")
            for group in groups.values():
                if sorted((row.prompt, row.copy) for row in group) != [
                    (group[0].prompt, copy) for copy in range(plan.copies)
                ]:
                    wrong.append(
                        f"{plan}, step {step}: a group of {[(row.prompt, row.copy) for row in group]}"
                    )
                else:
                    wrong += [
                        one for row in group for one in _wrong_row(row, _sampled_at(stack, step), plan, group)
                    ]
    return Measure.count(wrong, "faults of rows that train")


@FLOW.law(
    "rows of a step with a critic",
    "values of another answer, returns of another row, a critic that is not trained while the policy waits",
    excluded=without(WITH_CRITIC),
)
def values_are_of_their_rows(stack: Any, case: Numbers) -> Measure:
    """Check values and returns of each row, without discount, and the steps in which the critic is trained."""
    plan = FlowPlan(steps=3, estimator="gae", critic=True, balanced=True, warmup=2)
    record, wrong = _run(stack, plan, WITH_CRITIC), []
    trained = [step for kind, step in record.events if kind == "update critic"]
    wrong += [] if trained == [1, 2, 3] else [f"the critic is trained in steps {trained}"]
    for step, rows in record.trained.items():
        for row in rows:
            rewards = _due_rewards(row, plan)
            due = {
                "values": (row.values, [value_of(token) for token in row.answer_ids]),
                "returns": (row.returns, [sum(rewards[place:]) for place in range(len(rewards))]),
            }
            wrong += [
                f"step {step}, answer {row.copy} of prompt {row.prompt}: {name} {given}, {right} is right"
                for name, (given, right) in due.items()
                if not _near(given, right)
            ]
    wrong += (
        []
        if sorted(record.trained) == [2, 3]
        else [f"the policy is trained in steps {sorted(record.trained)}"]
    )
    return Measure.count(wrong, "faults of values and returns")


@FLOW.law(
    "order of a step",
    "weights of the step before, a step too many or too few, a save or a validation at another step",
    excluded=without("trainer loop"),
)
def each_step_happens_in_order(stack: Any, case: Numbers) -> Measure:
    """Check when the loop generates, trains, saves, sends weights and validates, also before the policy is trained."""
    wrong = []
    for plan in (
        FlowPlan(steps=5, save_every=2, validate_every=2),
        FlowPlan(steps=4, save_every=4, validate_every=3),
        FlowPlan(steps=4, warmup=3, save_every=1),
    ):
        record = _run(stack, plan)
        due = [("sync", 0)]
        for step in range(1, plan.steps + 1):
            last = step == plan.steps
            due.append(("generate", step))
            if step >= plan.warmup:
                due.append(("update", step))
                if plan.save_every and (last or step % plan.save_every == 0):
                    due.append(("save", step))
                due.append(("sync", step))
            if plan.validate_every and (last or step % plan.validate_every == 0):
                due.append(("validate", step))
        if not any(kind == "sync" for kind, _ in record.events):
            # The generator has the policy's own weights, and older loops validate before they save.
            place = {"generate": 0, "update": 1, "validate": 2, "save": 3}
            due = sorted((one for one in due if one[0] != "sync"), key=lambda one: (one[1], place[one[0]]))
        ahead, own = getattr(stack, "samples_ahead", 0), getattr(stack, "order_of_step", None)
        if own:
            due = sorted(due, key=lambda one: (one[1], own.index(one[0])))
        if ahead:  # a step samples for the next one, and the last step for none
            due = [due[0], ("generate", 1), *(one for one in due[1:] if one != ("generate", plan.steps))]
        # Weights that did not change may be sent and saved or not, also the first ones to where they are known.
        given, due = (
            [
                one
                for one in events
                if one[0] not in ("sync", "save") or not int(not ahead) <= one[1] < plan.warmup
            ]
            for events in (record.events, due)
        )
        if given != due:
            wrong.append(f"{plan}: {given}, {due} is right")
    return Measure.count(wrong, "runs in another order")


@FLOW.law(
    "rows that are written",
    "scores of another answer, prompts in another order than answers, rows of another step",
    excluded=without(WRITES),
)
def written_rows_are_those_that_train(stack: Any, case: Numbers) -> Measure:
    """Compare the rows of each step's file with those that the step trains with."""
    record, wrong = _run(stack, FlowPlan(steps=2, balanced=True), WRITES), []
    for step, rows in record.trained.items():
        due = sorted(
            (_text(prompt_ids(row.prompt)), _text(row.answer_ids), score_of(row.prompt, row.copy, row.step))
            for row in rows
        )
        given = sorted(record.dumped.get(step, []))
        if given != due:
            wrong.append(f"step {step}: {given[:2]}, {due[:2]} is right")
    return Measure.count(wrong, "files of steps that have other rows")


def _text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


@FLOW.law(
    "prompts after a resume",
    "prompts again or left out, a later epoch in the order of the first",
    excluded=without("trainer loop"),
    stops=(1, 5),
)
@FLOW.law(
    "prompts after a resume at the end of an epoch",
    "an epoch without a step, the order of the first epoch",
    excluded=without("trainer loop"),
    stops=(3, 6),
)
@FLOW.law(
    "prompts after a run that was killed",
    "prompts that were read ahead of the checkpoint and are left out",
    excluded=without(KILLED),
    stops=(1, 5),
    killed=True,
)
def a_resumed_run_goes_on(stack: Any, case: Numbers, stops: Sequence[int], killed: bool = False) -> Measure:
    """Compare the prompts of each step of a run that is stopped and resumed with those of one that is not.

    A run is stopped at its own last step, or killed in the step after its checkpoint.
    """
    name = KILLED if killed else "trainer loop"
    whole, wrong = _run(stack, FlowPlan(steps=8)), []
    for stop in stops:
        with tempfile.TemporaryDirectory() as folder:
            plan = FlowPlan(steps=stop, save_every=1, folder=folder)
            stack.utilities[name](replace(plan, steps=8, killed_at=stop + 1) if killed else plan)
            record = stack.utilities[name](replace(plan, steps=8, resumed=True))
        for step in range(stop + 1, 9):
            due = sorted({row.prompt for row in whole.trained[step]})
            given = sorted({row.prompt for row in record.trained.get(step, [])})
            if given != due:
                wrong.append(f"stopped after step {stop}: step {step} has prompts {given}, {due} is right")
        if min(record.trained) != stop + 1:
            wrong.append(f"stopped after step {stop}: continues at step {min(record.trained)}")
    return Measure.count(wrong, "steps of resumed runs")


@FLOW.law(
    "metrics of the loop",
    "means of another step, rows of padding in a validation, scores of another source",
    excluded=without("trainer loop"),
)
def metrics_are_of_the_step(stack: Any, case: Numbers) -> Measure:
    """Compare means of scores of steps and of validations, of rows that no number of processes divides."""
    plan = FlowPlan(steps=2, validate_every=1, balanced=True)
    record, wrong = _run(stack, plan), []
    for step, rows in record.trained.items():
        scores = [score_of(row.prompt, row.copy, row.step) for row in rows]
        due = {
            "critic/score/mean": math.fsum(scores) / len(scores),
            "critic/score/max": max(scores),
            "response_length/mean": sum(len(row.answer_ids) for row in rows) / len(rows),
            "training/global_step": float(step),
            "global_seqlen/mean": sum(_tokens(row) for row in rows) / plan.ranks,
        }
        wrong += _wrong_metrics(record, step, due | _validation(record, step, 1))
    return Measure.count(wrong, "metrics of other rows")


def _tokens(row: FlowRow) -> int:
    return len(prompt_ids(row.prompt)) + len(row.answer_ids)


def _validation(record: FlowRecord, step: int, copies: int) -> dict[str, float]:
    """Return the mean score of each source by its metric; a prompt that is there twice has the later copies too."""
    scores: dict[str, list[float]] = {}
    seen: Counter[int] = Counter()
    for prompt, source in record.validated:
        first, seen[prompt] = seen[prompt], seen[prompt] + copies
        scores.setdefault(source, []).extend(
            score_of(prompt, copy, step) for copy in range(first, first + copies)
        )
    return {
        f"val-core/{source}/reward/mean@{copies}": math.fsum(own) / len(own) for source, own in scores.items()
    }


def _wrong_metrics(record: FlowRecord, step: int, due: Mapping[str, float]) -> list[str]:
    logged = record.logged.get(step, {})
    return [
        f"step {step}: {name} is {logged.get(name, math.nan)}, {right} is right"
        for name, right in due.items()
        if not abs(logged.get(name, math.nan) - right) <= TOLERANCE
    ]


@FLOW.law(
    "validations of several answers",
    "one answer in place of several",
    excluded=without("trainer loop"),
)
@FLOW.law(
    "validations of prompts of one text",
    "prompts of one text taken for one prompt",
    excluded=without("trainer loop"),
    one_text=True,
)
def validations_take_all_answers(stack: Any, case: Numbers, one_text: bool = False) -> Measure:
    """Compare mean scores of validations in which each prompt has three answers."""
    plan = FlowPlan(steps=1, validate_every=1, validation_copies=3, one_text=one_text)
    record = _run(stack, plan)
    return Measure.count(_wrong_metrics(record, 1, _validation(record, 1, 3)), "metrics of validations")


def _run(stack: Any, plan: FlowPlan, name: str = "trainer loop") -> FlowRecord:
    with tempfile.TemporaryDirectory() as folder:
        record: FlowRecord = stack.utilities[name](replace(plan, folder=folder))
    return record
