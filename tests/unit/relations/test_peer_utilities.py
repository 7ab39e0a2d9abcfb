"""R31 of workers, corrections, reward functions and data sets: definitions hold, and each fault breaks its law."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.unit.relations.plain_peers import END, PEERS, messages, pairs, prompts

from seatrial.relations.engine import run_relation
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = ("R31.workers", "R31.corrections", "R31.reward_calls", "R31.data_sets")


class Stack:
    """All functions, one of them replaced."""

    end = END

    def __init__(self, name: str = "", faulty: Callable[..., Any] | None = None) -> None:
        """Keep them."""
        self.utilities = {**PEERS, **({name: faulty} if faulty else {})}

    def text_of(self, ids: Sequence[int], mask: Sequence[int]) -> str:
        """Return the text of shown letters."""
        return "".join(chr(one) for one, shown in zip(ids, mask, strict=True) if shown)


@pytest.mark.parametrize("name", RELATIONS)
def test_definitions_hold(name: str) -> None:
    """On two seeds, every law."""
    (relation,) = select([name])
    verdict = run_relation(relation, Stack(), seeds=[0, 1])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


def dispatched(change: Callable[[list[list[int]], Any], Any]) -> tuple[str, Callable[..., Any]]:
    """Return a worker group whose parts and results are changed."""
    return "dispatched to workers", lambda *given: change(*PEERS["dispatched to workers"](*given))


def every_answer(
    batch: Any, mesh: Sequence[int], answers: Sequence[bool], options: Any
) -> tuple[list[list[int]], Any]:
    """Return the results of every copy of a part."""
    found: tuple[list[list[int]], Any] = PEERS["dispatched to workers"](
        batch, mesh, [True] * len(mesh), options
    )
    return found


def corrected(name: str, change: Callable[..., Any]) -> tuple[str, Callable[..., Any]]:
    """Return a correction whose result is changed."""
    return name, lambda *given: change(*PEERS[name](*given))


def changed(name: str, change: Callable[[Any], Any]) -> tuple[str, Callable[..., Any]]:
    """Return a function whose result is changed."""
    return name, lambda *given: change(PEERS[name](*given))


def not_of_kept(weights: Any, mask: Any, metrics: dict[str, float]) -> Any:
    """Return metrics whose share of rejected tokens is that of kept ones."""
    name = "masked_fraction"
    return weights, mask, {**metrics, **({name: 1 - metrics[name]} if name in metrics else {})}


def higher(weights: Any, mask: Any, metrics: dict[str, float]) -> Any:
    """Return a maximum of weights that is another one."""
    return weights, mask, {name: 2 * one if name.endswith("_max") else one for name, one in metrics.items()}


REVERSED = dispatched(lambda parts, results: (parts, results[::-1]))
FIRST = dispatched(lambda parts, results: (parts, results[: len(results) // 2]))
CORRECTION, OF_A_STEP = "sampler correction", "sampler correction of a step"
FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a part of the rows each": REVERSED,
    "a part of the rows each, given by name": FIRST,
    "rows that do not divide evenly": FIRST,
    "rows that do not divide evenly, given by name": dispatched(
        lambda parts, rows: (parts, [*rows, rows[0]])
    ),
    "a function and its rows": dispatched(lambda parts, results: (parts[::-1], results)),
    "numbers of each worker": dispatched(lambda parts, results: (parts, sum(results))),
    "all rows to all": dispatched(lambda parts, results: ([parts[0][:1]] * len(parts), results)),
    "all rows to all, given by name": FIRST,
    "workers that share rows": ("dispatched to workers", every_answer),
    "workers that share rows, given twice": ("dispatched to workers", every_answer),
    "workers that share rows of a TensorDict": REVERSED,
    "every column of a part": changed("parts for workers", lambda parts: [(one, {}) for one, _ in parts]),
    "weights and their metrics": corrected(CORRECTION, higher),
    "rejected tokens and their metrics": corrected(CORRECTION, not_of_kept),
    "weights and rejection together": corrected(
        CORRECTION, lambda weights, mask, rest: (weights, torch.tensor(mask).clamp(min=1).tolist(), rest)
    ),
    "weights and their metrics, as a step makes them": corrected(
        OF_A_STEP, lambda weights, mask, rest: (None, mask, rest)
    ),
    "rejected tokens and their metrics, as a step makes them": corrected(OF_A_STEP, not_of_kept),
    "weights and rejection together, as a step makes them": corrected(OF_A_STEP, higher),
    "what a reward function is given": changed(
        "reward calls", lambda calls: [one._replace(right=calls[0].right) for one in calls]
    ),
    "rewards of rows": changed("rewards of calls", lambda rewards: rewards[::-1]),
    "what a reward function returns besides": changed(
        "returned with rewards", lambda kept: {name: values[::-1] for name, values in kept.items()}
    ),
    "accuracies where a reward function returns a number": changed(
        "accuracies of numbers", lambda accuracies: accuracies[1:]
    ),
    "rewards that a batch has already": changed("given rewards", lambda found: (*found[:2], 1)),
    "turns and earlier scores": changed(
        "turns of reward calls", lambda rows: [{**one, "turns": None} for one in rows]
    ),
    "what a reward function is given of an episode": changed(
        "reward calls of episodes", lambda calls: [{**one, "facts": {}} for one in calls]
    ),
    "each reward function is of its own file": changed(
        "reward functions of files", lambda scores: scores[:1] * len(scores)
    ),
    "rows of several files": ("prompts of files", lambda files, options: prompts(files[:1], options)),
    "rows of other columns and formats": (
        "prompts of files",
        lambda files, options: prompts(files, {**options, "extras": True}),
    ),
    "rows of a divided data set": (
        "prompts of files",
        lambda files, options: prompts(files, {} if "parts" in options else options),
    ),
    "the first rows": (
        "prompts of files",
        lambda files, options: prompts(files, {} if options.get("reloaded") else options),
    ),
    "rows that are drawn": (
        "prompts of files",
        lambda files, options: prompts(files, {**options, "seed": 1}),
    ),
    "messages with images and videos": (
        "messages with media",
        lambda turns, media: messages(turns, {kind: names[::-1] for kind, names in media.items()}),
    ),
    "pairs of files": ("pairs of files", lambda files, o: [row[::-1] for row in pairs(files, o)]),
    "pairs that are cut": (
        "pairs of files",
        lambda files, o: [
            [(ids[-o["max_length"] :], mask[-o["max_length"] :]) for ids, mask in row]
            for row in pairs(files, {**o, "max_length": 96})
        ],
    ),
}


@pytest.mark.parametrize("law", FAULTS)
def test_a_fault_breaks_its_law(law: str) -> None:
    """And it is that law."""
    name, faulty = FAULTS[law]
    (own,) = [one for relation in RELATIONS for one in select([relation])[0].laws if one.name == law]
    stack = Stack(name, faulty)
    assert not own.measure(stack, own.make(stack, 0, False)).holds  # type: ignore[union-attr]


def test_every_law_has_a_fault() -> None:
    """One of each."""
    assert set(FAULTS) == {law.name for name in RELATIONS for law in select([name])[0].laws}
