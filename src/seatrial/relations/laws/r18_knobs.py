"""R18 and R23: every knob has its effect, unknown ones are refused, and evaluating changes nothing that trains."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.engine import Law, Measure, Relation


@dataclass(frozen=True, kw_only=True)
class KnobCase:
    """The knobs to turn."""

    knobs: tuple[str, ...]
    seed: int

    def smaller(self) -> Iterator[KnobCase]:
        """Yield one knob at a time."""
        if len(self.knobs) > 1:
            for knob in self.knobs:
                yield replace(self, knobs=(knob,))

    def describe(self) -> Mapping[str, Any]:
        """Return the knobs."""
        return {"knobs": list(self.knobs)}


def _make_knobs(stack: Any, seed: int, tidy: bool) -> KnobCase:
    if seed:
        raise NotImplementedError  # turning every knob once is the whole law
    return KnobCase(knobs=tuple(sorted(stack.knobs())), seed=seed)


def _turning_has_effect(stack: Any, case: KnobCase) -> Measure:
    values = stack.knobs()
    dead = [
        knob
        for knob in case.knobs
        if stack.observe(knob, values[knob][0]) == stack.observe(knob, values[knob][1])
    ]
    return Measure(
        error=float(len(dead)), bound=0, what=f"knobs without effect ({', '.join(dead) or 'none'})"
    )


def _same_value_same_effect(stack: Any, case: KnobCase) -> Measure:
    values = stack.knobs()
    loose = [
        knob
        for knob in case.knobs
        if stack.observe(knob, values[knob][0]) != stack.observe(knob, values[knob][0])
    ]
    return Measure(
        error=float(len(loose)),
        bound=0,
        what=f"knobs whose effect does not repeat ({', '.join(loose) or 'none'})",
    )


def _misspelt_is_refused(stack: Any, case: KnobCase) -> Measure:
    accepted = [knob for knob in case.knobs if not stack.rejects(f"{knob}x")]
    return Measure(
        error=float(len(accepted)), bound=0, what=f"misspelt knobs accepted ({', '.join(accepted) or 'none'})"
    )


@dataclass(frozen=True, kw_only=True)
class SeedCase:
    """A short training run."""

    seed: int
    tidy: bool = False
    """Compare the weights alone, as an ordinary test does, and neither logs, streams nor modes."""

    def smaller(self) -> Iterator[SeedCase]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the seed."""
        return {"seed": self.seed}


def _make_seed(stack: Any, seed: int, tidy: bool) -> SeedCase:
    return SeedCase(seed=seed, tidy=tidy)


def _evaluation_changes_nothing(stack: Any, case: SeedCase) -> Measure:
    plain = stack.train_with_evaluation(evaluate=False, seed=case.seed)
    evaluated = stack.train_with_evaluation(evaluate=True, seed=case.seed)
    if plain.keys() != evaluated.keys():
        return Measure(
            error=math.inf, bound=0, what=f"state that only one run has: {plain.keys() ^ evaluated.keys()}"
        )
    compared = [name for name in sorted(plain) if name.startswith("weight") or not case.tidy]
    changed = [name for name in compared if not _same(plain[name], evaluated[name])]
    return Measure(
        error=float(len(changed)),
        bound=0,
        what=f"training state changed by evaluation ({changed[:3] or 'none'})",
    )


def _same(one: Any, other: Any) -> bool:
    import torch

    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return bool(one == other)


RELATIONS = (
    Relation(
        id="R18.knobs",
        name="every-knob-has-its-effect",
        component="knobs",
        statement="Two values of a knob change what it is named for, one value repeats, a misspelt knob is refused.",
        catalogue=(
            "SB020",
            "SB035",
            "SB061",
            "SB077",
            "SB088",
            "SB120",
            "SB147",
            "SB163",
            "SB166",
            "SB188",
            "SB194",
        ),
        cost="CPU, seconds",
        laws=(
            Law(
                name="turning a knob",
                make=_make_knobs,
                measure=_turning_has_effect,
                suspects="a key that is swallowed, one code path that ignores it, a default that overrides it",
            ),
            Law(
                name="one value repeats",
                make=_make_knobs,
                measure=_same_value_same_effect,
                suspects="hidden randomness or state in what the knob controls",
            ),
            Law(
                name="misspelt knobs",
                make=_make_knobs,
                measure=_misspelt_is_refused,
                suspects="a schema that takes any key",
            ),
        ),
    ),
    Relation(
        id="R23.evaluation",
        name="evaluation-changes-nothing",
        component="evaluation",
        statement="Training with validation in between ends in exactly the state of training without.",
        catalogue=("SB216", "SB217", "SB390", "SB391", "SB393", "SB394", "SB396", "SB397"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="state after training",
                make=_make_seed,
                measure=_evaluation_changes_nothing,
                suspects="one random stream for both, dropout left off, data drawn from the training iterator",
            ),
        ),
    ),
)
