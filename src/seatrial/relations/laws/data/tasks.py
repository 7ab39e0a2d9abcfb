"""R14 and R17 of tasks: splits cover a task and share nothing, answers are right. R26: random streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.parts import TaskPrompt, WorkedTask
from seatrial.relations.law import Measure, Relation
from seatrial.relations.not_served import NotServed

NUMBERS = 8
"""Drawn from each stream: two are equal by chance with probability 2^-248."""
LEARNED = 2
"""Prompts of each split whose completion is verified: programs are slow."""


@dataclass(frozen=True, kw_only=True)
class TaskCase(Case):
    """A seed of splits, or of streams."""

    seed: int


def _make(stack: Any, seed: int, tidy: bool) -> TaskCase:
    return TaskCase(seed=seed)


TASKS = Relation(
    id="R14.tasks",
    name="tasks-are-as-documented",
    component="tasks",
    statement="The splits of a task hold each of its prompts once, with the right answer.",
    catalogue="SB055 SB068 SB071 SB108 SB395 SB396",
    cost="CPU, seconds",
    cases=_make,
    seeded=True,
)

ANSWERS = Relation(
    id="R17.tasks",
    name="answers-of-tasks-are-right",
    component="tasks",
    statement="The answer from the manual and the completion of fine-tuning get full reward.",
    catalogue="SB055 SB068 SB071 SB076",
    cost="CPU, seconds",
    cases=_make,
)

STREAMS = Relation(
    id="R26.streams",
    name="streams-depend-on-their-purpose",
    component="random_streams",
    statement="Random numbers depend on seed, purpose and step, and on nothing else.",
    catalogue="SB040 SB051 SB056",
    cost="CPU, milliseconds",
    cases=_make,
    seeded=True,
)


@TASKS.law("splits cover the task", "an operator or a length left out, overlapping splits")
def splits_cover_the_task(stack: Any, case: TaskCase) -> Measure:
    """Check that splits as large as a task's set of prompts hold each of these once."""
    wrong = []
    for task in stack.worked_tasks():
        train, held_out = _splits(stack, task, case.seed)
        found = [one.prompt for one in (*train, *held_out)]
        missing, extra = task.answers.keys() - set(found), set(found) - task.answers.keys()
        if missing or extra or len(found) != len(set(found)):
            twice = len(found) - len(set(found))
            wrong.append(
                f"{task.name}: {sorted(missing)[:3]} missing, {sorted(extra)[:3]} unknown, {twice} twice"
            )
    return Measure.count(wrong, "tasks whose splits do not cover their prompts exactly")


def _splits(stack: Any, task: WorkedTask, seed: int) -> tuple[Sequence[TaskPrompt], Sequence[TaskPrompt]]:
    """Return splits that use all prompts of a task."""
    held_out = max(1, len(task.answers) // 3)
    splits: tuple[Sequence[TaskPrompt], Sequence[TaskPrompt]] = stack.task_splits(
        task, num_train=len(task.answers) - held_out, num_held_out=held_out, seed=seed
    )
    return splits


@TASKS.law("splits follow their seed", "a seed that is not used, a process-wide stream")
def splits_follow_their_seed(stack: Any, case: TaskCase) -> Measure:
    """Check that one seed gives one pair of splits, and another seed another."""
    wrong = []
    for task in stack.worked_tasks():
        if len(task.answers) < 12:
            continue
        once, again, other = (
            [one.prompt for one in _splits(stack, task, seed)[0]]
            for seed in (case.seed, case.seed, case.seed + 1)
        )
        if once != again or once == other:
            wrong.append(task.name)
    return Measure.count(wrong, "tasks whose splits do not follow their seed")


@ANSWERS.law("answers are right", "another operation, another task under this name, another task's verifier")
def answers_are_right(stack: Any, case: TaskCase) -> Measure:
    """Check that a verifier gives full reward to the manual's answer, and not to another prompt's answer."""
    wrong = []
    for task in stack.worked_tasks():
        train, held_out = _splits(stack, task, case.seed)
        known = [one for one in (*train, *held_out) if one.prompt in task.answers]
        rights = [task.answers[one.prompt] for one in known]
        given = stack.judged_by_task(task, rights, [one.answer for one in known])
        wrong += [
            f"{task.name}: {right!r} to {one.prompt!r} gets {reward}"
            for one, right, reward in zip(known, rights, given, strict=True)
            if reward != 1
        ]
        if any(one.startswith("print(") for one in rights):
            continue  # programs are slow, and different ones may print one value
        others = rights[1:] + rights[:1]
        given = stack.judged_by_task(task, others, [one.answer for one in known])
        wrong += [
            f"{task.name}: {other!r} to {one.prompt!r} gets full reward"
            for one, right, other, reward in zip(known, rights, others, given, strict=True)
            if other != right and reward == 1
        ]
    return Measure.count(wrong, "right answers without full reward, or wrong ones with it")


@ANSWERS.law("learned completions are right", "the answer learned where there is a solution", seeded=False)
def learned_completions_are_right(stack: Any, case: TaskCase) -> Measure:
    """Check that the completions of fine-tuning get full reward."""
    wrong = []
    for task in stack.worked_tasks():
        train, held_out = _splits(stack, task, case.seed)
        prompts = [*train[:LEARNED], *held_out[:LEARNED]]
        given = stack.judged_by_task(task, [one.target for one in prompts], [one.answer for one in prompts])
        wrong += [
            f"{task.name}: {one.target!r} to {one.prompt!r} gets {reward}"
            for one, reward in zip(prompts, given, strict=True)
            if reward != 1
        ]
    return Measure.count(wrong, "completions of fine-tuning that the verifier rejects")


@ANSWERS.law(
    "tool answers are right",
    "the price of another word, an answer to a turn without a question",
    seeded=False,
)
def tool_answers_are_right(stack: Any, case: TaskCase) -> Measure:
    """Check that a task's tool answers as the manual says, so that a model can get the right answer from it."""
    known = [(task, turn, right) for task in stack.worked_tasks() for turn, right in task.tool.items()]
    if not known:
        raise NotServed("no task has a tool")
    given = [(task.name, turn, right, stack.answered_by_tool(task, turn)) for task, turn, right in known]
    wrong = [
        f"{name}: {said!r} to {turn!r}, not {right!r}" for name, turn, right, said in given if said != right
    ]
    return Measure.count(wrong, "turns that a task's tool answers differently from its manual")


@STREAMS.law("streams are independent", "a part of the key left out, parts joined without a mark between")
def streams_are_independent(stack: Any, case: TaskCase) -> Measure:
    """Check that seeds, purposes and steps each have their own stream, which repeats."""
    keys = list(
        product((case.seed, case.seed + 1, case.seed + 11), ("rollout", "validation", "row 1"), (0, 1, 11))
    )
    drawn = {key: tuple(stack.drawn(*key, NUMBERS)) for key in keys}
    first: dict[tuple[int, ...], Any] = {}
    wrong = [f"{key} and {first[one]}" for key, one in drawn.items() if first.setdefault(one, key) != key]
    wrong += [f"{key} drawn twice" for key in keys[:3] if tuple(stack.drawn(*key, NUMBERS)) != drawn[key]]
    return Measure.count(wrong, "streams that share their numbers, or do not repeat")
