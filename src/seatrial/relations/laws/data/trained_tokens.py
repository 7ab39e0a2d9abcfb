"""R15 and R6 of trainers: the tokens of their batches, and the distribution that they sample from by default."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.examples import Example, ExampleCase, make_examples
from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.worst import is_worse

NUM_TOKENS = 1500
DEVIATIONS = 6.0
"""Of the binomial count: one in a billion honest samples is farther off, times the few counts that are looked at."""
RANKS = (1, 5, 20, 50, 100)


def _make(stack: Any, seed: int, tidy: bool) -> ExampleCase:
    return make_examples(
        seed,
        ordinary_ids=stack.ordinary_ids,
        eos_id=stack.eos_id,
        pairs=False,
        lengths="equal" if tidy else "unequal",
        num_examples=3,
    )


def _wanted(stack: Any, example: Example) -> tuple[list[int], list[int]]:
    prompt = int(stack.tokens_train == "all")
    ids = [*example.prompt_ids, *example.completion_ids]
    return ids, [prompt] * len(example.prompt_ids) + [1] * len(example.completion_ids)


def _differing(errors: list[str], what: str) -> Measure:
    return Measure(
        error=float(len(errors)), bound=0, what=f"rows whose {what} differ ({(errors or ['none'])[0]})"
    )


def _ids(stack: Any, case: ExampleCase) -> Measure:
    given = stack.trained_tokens(case.examples)
    wanted = [_wanted(stack, example)[0] for example in case.examples]
    errors = [
        f"row {row}: {list(ids)} instead of {right}"
        for row, ((ids, _), right) in enumerate(zip(given, wanted, strict=True))
        if list(ids) != right
    ]
    return _differing(errors, "ids")


def _targets(stack: Any, case: ExampleCase) -> Measure:
    """All but the end token and the first token of a row, which is never predicted: each has a law, or none."""
    errors = []
    for row, (example, (_, mask)) in enumerate(
        zip(case.examples, stack.trained_tokens(case.examples), strict=True)
    ):
        right = _wanted(stack, example)[1]
        if list(mask[1 : len(right) - 1]) != right[1:-1]:
            errors.append(f"row {row}: {list(mask)} instead of {right}")
    return _differing(errors, "targets before the end token")


def _end_is_target(stack: Any, case: ExampleCase) -> Measure:
    errors = [
        f"row {row}"
        for row, (ids, mask) in enumerate(stack.trained_tokens(case.examples))
        if not ids or ids[-1] != stack.eos_id or not mask[-1]
    ]
    return _differing(errors, "end token, which is no target or missing,")


@dataclass(frozen=True, kw_only=True)
class LogitsOfAll:
    """Logits that every next token has."""

    logits: tuple[float, ...]
    seed: int

    def smaller(self) -> Iterator[LogitsOfAll]:
        """Nothing is smaller."""
        return iter(())

    def describe(self) -> Mapping[str, Any]:
        """Return the number of ids; the logits are a slope of one from the first to the last."""
        return {"num_ids": len(self.logits), "seed": self.seed}


def _make_logits(stack: Any, seed: int, tidy: bool) -> LogitsOfAll:
    """Return nearly equal logits in a random order: mass lies far beyond any usual truncation."""
    order = np.random.default_rng([seed, 6]).permutation(stack.vocab_size)
    return LogitsOfAll(logits=tuple(float(place) / stack.vocab_size for place in order), seed=seed)


def _sampled_as_scored(stack: Any, case: LogitsOfAll) -> Measure:
    """Of the sampled tokens as many are beyond the k most probable as these have not of the mass, for several k."""
    logits_V = torch.tensor(case.logits)
    probabilities_V = torch.softmax(logits_V.double() / stack.default_temperature, 0)
    ids = stack.sample_with_defaults(logits_V, NUM_TOKENS, case.seed)
    ranks = probabilities_V.argsort(descending=True).argsort()[torch.tensor(ids)]
    worst, what = 0.0, "no token"
    for k in RANKS:
        mass = float(probabilities_V.sort(descending=True).values[k:].sum())
        share = float((ranks >= k).double().mean())
        error = abs(share - mass) / math.sqrt(max(mass * (1 - mass), 1e-9) / len(ids))
        if is_worse(error, worst):
            worst, what = (
                error,
                f"{share:.3f} of the tokens beyond the {k} most probable, {mass:.3f} of the mass",
            )
    return Measure(error=worst, bound=DEVIATIONS, what=f"{what}, in standard deviations")


RELATIONS = (
    Relation(
        id="R6.defaults",
        name="defaults-sample-what-is-scored",
        component="default_sampling",
        statement="By default tokens are sampled from the distribution that the loss scores, its whole tail included.",
        catalogue=("SB038", "SB039", "SB119"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="tail of the distribution",
                make=_make_logits,
                measure=_sampled_as_scored,
                suspects="a top-k, top-p or temperature that is a library's default and unknown to the loss",
            ),
        ),
    ),
    Relation(
        id="R15.trained",
        name="trained-tokens-are-the-examples",
        component="trained_tokens",
        statement="A batch holds each example's ids; its targets are the tokens that should train, end included.",
        catalogue=("SB001", "SB002", "SB005", "SB012", "SB153"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="ids",
                make=_make,
                measure=_ids,
                suspects="texts joined and encoded again, a start or an end added twice, a header left at the end",
            ),
            Law(
                name="targets before the end token",
                make=_make,
                measure=_targets,
                suspects="a span off by one, a prompt that trains",
            ),
            Law(
                name="end token",
                make=_make,
                measure=_end_is_target,
                suspects="targets masked by comparing ids with the pad id, which is the end token too",
            ),
        ),
    ),
)
