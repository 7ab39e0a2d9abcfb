"""R14 and R17 of made tasks: their spaces are what they say, splits share nothing, answers are right. R26: streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from seatrial.relations.contracts.parts import TaskPrompt, WorkedTask
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.not_served import NotServed

NUMBERS = 8
"""Drawn of each stream: 2^-248 that two are equal by chance."""
LEARNED = 2
"""Prompts of each split whose completion is judged: programs take long."""


@dataclass(frozen=True, kw_only=True)
class TaskCase:
    """A seed of splits, or of streams."""

    seed: int

    def smaller(self) -> Iterator[TaskCase]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the seed."""
        return {"seed": self.seed}


def _make(stack: Any, seed: int, tidy: bool) -> TaskCase:
    return TaskCase(seed=seed)


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({'; '.join(wrong[:3]) or 'none'})")


def _splits(stack: Any, task: WorkedTask, seed: int) -> tuple[Sequence[TaskPrompt], Sequence[TaskPrompt]]:
    """Return splits that use up the space of a task."""
    held_out = max(1, len(task.answers) // 3)
    splits: tuple[Sequence[TaskPrompt], Sequence[TaskPrompt]] = stack.task_splits(
        task, num_train=len(task.answers) - held_out, num_held_out=held_out, seed=seed
    )
    return splits


def _spaces(stack: Any, case: TaskCase) -> Measure:
    """Splits that use up a task's space hold each of its prompts once."""
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
    return _count(wrong, "tasks whose splits do not share out their space")


def _answers(stack: Any, case: TaskCase) -> Measure:
    """The verifier of a task gives all to the answer worked out from the manual, and not to that of another prompt."""
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
            continue  # programs take long, and different ones may print one value
        others = rights[1:] + rights[:1]
        given = stack.judged_by_task(task, others, [one.answer for one in known])
        wrong += [
            f"{task.name}: {other!r} to {one.prompt!r} gets all"
            for one, right, other, reward in zip(known, rights, others, given, strict=True)
            if other != right and reward == 1
        ]
    return _count(wrong, "right answers without, or wrong ones with, the full reward")


def _tools(stack: Any, case: TaskCase) -> Measure:
    """A task's tool says what the manual says, so that the right answer can be had by asking."""
    told = [(task, turn, right) for task in stack.worked_tasks() for turn, right in task.tool.items()]
    if not told:
        raise NotServed("no task has a tool")
    given = [(task.name, turn, right, stack.answered_by_tool(task, turn)) for task, turn, right in told]
    wrong = [
        f"{name}: {said!r} to {turn!r}, not {right!r}" for name, turn, right, said in given if said != right
    ]
    return _count(wrong, "turns that a task's tool answers otherwise than its manual")


def _targets(stack: Any, case: TaskCase) -> Measure:
    """What fine-tuning learns has full marks."""
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
    return _count(wrong, "completions that fine-tuning learns and the verifier does not take")


def _seeds(stack: Any, case: TaskCase) -> Measure:
    """One seed makes one pair of splits, another seed another; more rows to train on leave the held-out ones."""
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
    return _count(wrong, "tasks whose splits do not follow their seed")


def _streams(stack: Any, case: TaskCase) -> Measure:
    """Seeds, purposes and steps each make a stream of its own, and one of them again the same."""
    keys = list(
        product((case.seed, case.seed + 1, case.seed + 11), ("rollout", "validation", "row 1"), (0, 1, 11))
    )
    drawn = {key: tuple(stack.drawn(*key, NUMBERS)) for key in keys}
    first: dict[tuple[int, ...], Any] = {}
    wrong = [f"{key} and {first[one]}" for key, one in drawn.items() if first.setdefault(one, key) != key]
    wrong += [f"{key} drawn twice" for key in keys[:3] if tuple(stack.drawn(*key, NUMBERS)) != drawn[key]]
    return _count(wrong, "streams that share their numbers, or do not repeat")


def _law(name: str, measure: Any, suspects: str, *, seeded: bool = True) -> Law:
    return Law(name=name, make=_make, measure=measure, suspects=suspects, seeded=seeded)


RELATIONS = (
    Relation(
        id="R14.tasks",
        name="tasks-are-what-they-say",
        component="tasks",
        statement="A task's prompts are its whole space, in splits that share none, each with its right answer.",
        catalogue=("SB055", "SB068", "SB071", "SB108", "SB395", "SB396"),
        cost="CPU, seconds",
        laws=(
            _law("the space is shared out", _spaces, "an operator or a length left out, overlapping splits"),
            _law("splits follow their seed", _seeds, "a seed that nobody reads, a process-wide stream"),
        ),
    ),
    Relation(
        id="R17.tasks",
        name="answers-of-tasks-are-right",
        component="tasks",
        statement="The answer worked out from the manual, and what fine-tuning learns, have full marks.",
        catalogue=("SB055", "SB068", "SB071", "SB076"),
        cost="CPU, seconds",
        laws=(
            _law(
                "answers are right",
                _answers,
                "another operation, another task under this name, a verifier not its own",
            ),
            _law(
                "what is learned is right",
                _targets,
                "the answer learned where there is a solution",
                seeded=False,
            ),
            _law(
                "what a tool says is right",
                _tools,
                "the price of another word, an answer to what is no question",
                seeded=False,
            ),
        ),
    ),
    Relation(
        id="R26.streams",
        name="streams-depend-on-their-purpose",
        component="random_streams",
        statement="Random numbers depend on seed, purpose and step, and on nothing else.",
        catalogue=("SB040", "SB051", "SB056"),
        cost="CPU, milliseconds",
        laws=(
            _law(
                "streams are apart",
                _streams,
                "a part of the key left out, parts joined without a mark between",
            ),
        ),
    ),
)
