"""R15 and R6 of trainers: the tokens of their batches, and their default sampling distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from seatrial.relations.cases.case import Case
from seatrial.relations.cases.examples import Example, ExampleCase, make_examples
from seatrial.relations.law import Measure, Relation
from seatrial.relations.worst import Worst

NUM_TOKENS = 1500
DEVIATIONS = 6.0
"""Of the binomial count: one in a billion correct samples is farther off, times the few counts that are tested."""
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


@dataclass(frozen=True, kw_only=True)
class LogitsOfAll(Case):
    """The same logits for every next token."""

    logits: tuple[float, ...]
    seed: int

    def describe(self) -> Mapping[str, Any]:
        """Return the number of ids; the logits are a slope of one from the first to the last."""
        return {"num_ids": len(self.logits), "seed": self.seed}


def _make_logits(stack: Any, seed: int, tidy: bool) -> LogitsOfAll:
    """Return nearly equal logits in a random order: probability mass is far beyond any usual truncation."""
    order = np.random.default_rng([seed, 6]).permutation(stack.vocab_size)
    return LogitsOfAll(logits=tuple(float(place) / stack.vocab_size for place in order), seed=seed)


DEFAULTS = Relation(
    id="R6.defaults",
    name="defaults-sample-what-is-scored",
    component="default_sampling",
    statement="By default tokens are sampled from the distribution that the loss scores, its whole tail included.",
    catalogue="SB038 SB039 SB119",
    cost="CPU, seconds",
    cases=_make_logits,
)

TRAINED = Relation(
    id="R15.trained",
    name="trained-tokens-are-the-examples",
    component="trained_tokens",
    statement="A batch holds each example's ids; its targets are the tokens that should train, end included.",
    catalogue="SB001 SB002 SB005 SB012 SB153",
    cost="CPU, seconds",
    cases=_make,
)


@DEFAULTS.law(
    "tail of the distribution",
    "a top-k, top-p or temperature that is a library's default and unknown to the loss",
)
def sampled_as_scored(stack: Any, case: LogitsOfAll) -> Measure:
    """Compare the share of samples beyond the k most probable tokens with their probability, for several k."""
    logits_V = torch.tensor(case.logits)
    probabilities_V = torch.softmax(logits_V.double() / stack.default_temperature, 0)
    ids = stack.sample_with_defaults(logits_V, NUM_TOKENS, case.seed)
    ranks = probabilities_V.argsort(descending=True).argsort()[torch.tensor(ids)]
    worst = Worst(place="no token")
    for k in RANKS:
        mass = float(probabilities_V.sort(descending=True).values[k:].sum())
        share = float((ranks >= k).double().mean())
        worst.add(
            abs(share - mass) / math.sqrt(max(mass * (1 - mass), 1e-9) / len(ids)),
            f"{share:.3f} of the tokens beyond the {k} most probable, {mass:.3f} of the mass",
        )
    return Measure(error=worst.error, bound=DEVIATIONS, what=f"{worst.place}, in standard deviations")


@TRAINED.law("ids", "texts joined and encoded again, a start or an end added twice, a header left at the end")
def ids_are_the_examples(stack: Any, case: ExampleCase) -> Measure:
    """Check that each row holds the ids of its example."""
    given = stack.trained_tokens(case.examples)
    wanted = [_wanted(stack, example)[0] for example in case.examples]
    errors = [
        f"row {row}: {list(ids)} instead of {right}"
        for row, ((ids, _), right) in enumerate(zip(given, wanted, strict=True))
        if list(ids) != right
    ]
    return Measure.count(errors, "rows with other ids")


def _wanted(stack: Any, example: Example) -> tuple[list[int], list[int]]:
    prompt = int(stack.tokens_train == "all")
    ids = [*example.prompt_ids, *example.completion_ids]
    return ids, [prompt] * len(example.prompt_ids) + [1] * len(example.completion_ids)


@TRAINED.law("targets before the end token", "a span off by one, a prompt that trains")
def targets_before_the_end(stack: Any, case: ExampleCase) -> Measure:
    """Check which tokens of a row are targets.

    The first token is never predicted, and the end token has a law of its own: neither is compared.
    """
    errors = []
    for row, (example, (_, mask)) in enumerate(
        zip(case.examples, stack.trained_tokens(case.examples), strict=True)
    ):
        right = _wanted(stack, example)[1]
        if list(mask[1 : len(right) - 1]) != right[1:-1]:
            errors.append(f"row {row}: {list(mask)} instead of {right}")
    return Measure.count(errors, "rows with other targets before the end token")


@TRAINED.law("end token", "targets masked by comparing ids with the pad id, which is the end token too")
def end_token_is_a_target(stack: Any, case: ExampleCase) -> Measure:
    """Check that each row ends with an end token that is a target."""
    errors = [
        f"row {row}"
        for row, (ids, mask) in enumerate(stack.trained_tokens(case.examples))
        if not ids or ids[-1] != stack.eos_id or not mask[-1]
    ]
    return Measure.count(errors, "rows whose end token is missing or not a target")
