"""The detection matrix: which relation detects which planted fault, on which seeds, and also on tidy inputs or not.

Every question is asked in a process of its own, in which the fault is planted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.faults.mutate import Mutant
from seatrial.faults.planting import Change, ask
from seatrial.relations import NotServed
from seatrial.relations.engine import DEFAULT_SEEDS, first_violation, run_relation
from seatrial.relations.law import Relation
from seatrial.relations.registry import all_relations, select
from seatrial.verdict import Outcome

LAYOUTS = "layouts"
"""Key, among the options of a mutant, of the layouts to train in."""


@dataclass(frozen=True, kw_only=True)
class Detection:
    """The result of one relation on one mutant."""

    mutant: str
    relation: str
    seeds: tuple[int, ...]
    """Requested seeds on which the relation can be exercised and does not fail without the fault."""
    caught: tuple[int, ...]
    """Seeds on which it fails with the fault, each run alone."""
    tidy: bool | None
    """Whether it also fails on tidy inputs of the same seeds; None if that was not measured."""
    sentence: str
    """Its first message; empty if it did not fail."""

    @property
    def always(self) -> bool:
        """Whether the relation fails on every seed."""
        return bool(self.seeds) and self.caught == self.seeds


def cell_of(mutant: Mutant) -> dict[str, Any]:
    """Return the options and, under `LAYOUTS`, the layouts in which relations are asked about a mutant."""
    return {**mutant.options, **({LAYOUTS: mutant.layouts} if mutant.layouts else {})}


def reachable(mutant: Mutant) -> tuple[Relation, ...]:
    """Return the relations that a mutant can break; those of verifiers, which are slow, only for verifier modules."""
    rewards = mutant.module.startswith("refrl.rewards.")
    return tuple(relation for relation in all_relations() if rewards or relation.component != "reward")


def detect(
    mutant: Mutant,
    *,
    relations: Sequence[Relation] | None = None,
    seeds: Sequence[int] = DEFAULT_SEEDS,
    tidy: bool = True,
) -> list[Detection]:
    """Return the result of each relation with the fault planted.

    Args:
        mutant: the fault.
        relations: None takes those that the mutant names.
        seeds: each is run alone.
        tidy: run on tidy inputs too, where the others see the fault.
    """
    chosen = list(mutant.relations) if relations is None else [relation.id for relation in relations]
    options = cell_of(mutant)
    sound = {relation: _sound_seeds(relation, options, seeds) for relation in chosen}
    broken = ask(broken_seeds, mutant, options, sound)
    asked = {relation: list(seeds) for relation in chosen if tidy and broken[relation]}
    tidy_broken = ask(broken_tidy, mutant, options, asked) if asked else {}
    return [
        Detection(
            mutant=mutant.id,
            relation=relation,
            seeds=tuple(sound[relation]),
            caught=tuple(broken[relation]),
            tidy=tidy_broken.get(relation),
            sentence=next(iter(broken[relation].values()), ""),
        )
        for relation in chosen
    ]


def first_seen(
    change: Change, options: Mapping[str, Any], relations: Sequence[str]
) -> tuple[str, str] | None:
    """Return the first of these relations that detects a fault on the first default seed, with its message, or None.

    A relation that fails without the fault too sees nothing, and none is asked in a cell that only the fault allows.
    """
    left = list(relations) if ask(is_cell, None, dict(options)) else []
    while left:
        found: tuple[str, str] | None = ask(first_broken, change, dict(options), left)
        if found is None or _sound_seeds(found[0], options, DEFAULT_SEEDS[:1]):
            return found
        left = left[left.index(found[0]) + 1 :]
    return None


_SOUND: dict[tuple[str, str, int], bool] = {}


def _sound_seeds(relation: str, options: Mapping[str, Any], seeds: Sequence[int]) -> list[int]:
    """Return the seeds on which unchanged refrl can run a relation and does not fail it; measured once each."""
    key = repr(sorted(options.items()))
    open_seeds = [seed for seed in seeds if (relation, key, seed) not in _SOUND]
    if open_seeds:
        answers = ask(sound_seeds, None, dict(options), relation, open_seeds)
        _SOUND.update({(relation, key, seed): answer for seed, answer in answers.items()})
    return [seed for seed in seeds if _SOUND[relation, key, seed]]


def sound_seeds(options: Mapping[str, Any], relation: str, seeds: Sequence[int]) -> dict[int, bool]:
    """Return for each seed whether a relation can run and does not fail; called in a separate process."""
    stack, chosen = _stack(options), _of_id(relation)
    outcomes = {seed: run_relation(chosen, stack, seeds=[seed]) for seed in seeds}
    return {
        seed: verdict.outcome in (Outcome.PASS, Outcome.SKIPPED) and verdict.num_samples > 0
        for seed, verdict in outcomes.items()
    }


def broken_seeds(options: Mapping[str, Any], asked: Mapping[str, Sequence[int]]) -> dict[str, dict[int, str]]:
    """Return for each relation the seeds on which it fails, with its message; called in the process with the fault."""
    found: dict[str, dict[int, str]] = {}
    for relation, seeds in asked.items():
        chosen = _of_id(relation)
        violations = {seed: first_violation(chosen, _stack(options), seeds=[seed]) for seed in seeds}
        found[relation] = {
            seed: violation.sentence() for seed, violation in violations.items() if violation is not None
        }
    return found


def broken_tidy(options: Mapping[str, Any], asked: Mapping[str, Sequence[int]]) -> dict[str, bool]:
    """Return for each relation whether tidy inputs of the seeds break it; called in the process with the fault."""
    return {
        relation: first_violation(_of_id(relation), _stack(options), seeds=seeds, tidy=True) is not None
        for relation, seeds in asked.items()
    }


def is_cell(options: Mapping[str, Any]) -> bool:
    """Return whether the schema takes these options; called in a separate process."""
    try:
        _stack(options)
    except NotServed:
        return False
    return True


def first_broken(options: Mapping[str, Any], relations: Sequence[str]) -> tuple[str, str] | None:
    """Return the first relation that fails, with its message; called in the process with the fault.

    Nothing breaks where the options are no cell: the schema refuses them.
    """
    from seatrial.relations.runs import sharing_runs

    try:
        stack = _stack(options)
    except NotServed:
        return None
    with sharing_runs():
        for relation in relations:
            violation = first_violation(_of_id(relation), stack, seeds=DEFAULT_SEEDS[:1])
            if violation is not None:
                return relation, violation.sentence()
    return None


def _stack(options: Mapping[str, Any]) -> Any:
    """Return the adapter of refrl with these options; refrl is imported here, with the fault."""
    from seatrial.targets.reference.components import ReferenceComponents

    stack = ReferenceComponents({name: value for name, value in options.items() if name != LAYOUTS})
    stack.trains_in = options.get(LAYOUTS)
    return stack


def _of_id(relation: str) -> Relation:
    """Return the relation with exactly this id; an id can also be the number of other relations (R2, R2.ranks)."""
    return next(one for one in select([relation]) if one.id == relation)
