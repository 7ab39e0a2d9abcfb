"""R26.drawn: completions of a trainer are drawn from the distribution that its configuration describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.drawing import NEUTRAL, DrawingCase
from seatrial.relations.law import Measure, Relation

OWN: Mapping[str, float] = {"temperature": 0.3, "top_k": 3, "top_p": 0.4, "repetition_penalty": 1.8}
"""Settings such as released models bring, none of them neutral."""
TAILS: Mapping[str, float] = {"top_k": 3, "top_p": 0.4}
"""Of these: what a trainer scores with the whole distribution is drawn from it, also where it has no option of them."""
CHOICES: Mapping[str, float] = {
    "temperature": 1.7,
    "top_k": 12,
    "top_p": 0.85,
    "min_p": 0.02,
    "repetition_penalty": 1.3,
}
"""Settings of the configuration, none of them neutral and none that of the model."""
BOUND = 1e-4
"""Of a total variation between softmaxes in float32 and float64 of logits below 100, whose error is below 1e-4."""


def _case(
    options: Callable[[Mapping[str, float]], Mapping[str, float]],
    own: Mapping[str, float],
    always: frozenset[str] = frozenset(),
    **more: int,
) -> Callable[[Any, int, bool], DrawingCase]:
    """Return a law's `cases`: settings that the configuration has, chosen from them by a function.

    Of the model's own settings those are brought that the configuration has, or that are in `always`.
    """

    def make(stack: Any, seed: int, tidy: bool) -> DrawingCase:
        known = stack.drawing_defaults
        brought = (
            {}
            if tidy
            else {
                name: value
                for name, value in own.items()
                if name in known or name in always or name not in NEUTRAL
            }
        )
        chosen = options({name: value for name, value in CHOICES.items() if name in known})
        return DrawingCase(options=chosen, own=brought, seed=seed, **more)

    return make


def _none(known: Mapping[str, float]) -> Mapping[str, float]:
    return {}


def _all(known: Mapping[str, float]) -> Mapping[str, float]:
    return known


def _hot(known: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in known.items() if name == "temperature"}


DRAWN = Relation(
    id="R26.drawn",
    name="completions-are-drawn-as-configured",
    component="drawn_tokens",
    statement="Each token is drawn with the configuration's settings, regardless of those of the model's own.",
    cost="CPU, a second a generation",
    cases=_case(_all, {}),
)
SUSPECTS = (
    "settings of the model's own generation, an option that is not passed on or that another one replaces"
)


@DRAWN.law("at the defaults", SUSPECTS, cases=_case(_none, {}))
@DRAWN.law("at the defaults, a model with settings of its own", SUSPECTS, cases=_case(_none, OWN))
@DRAWN.law(
    "at the defaults, a model that cuts the tails of its distributions",
    "a setting that the trainer has no option of, and does not reset",
    cases=_case(_none, TAILS, frozenset(TAILS)),
    excluded=lambda stack: (
        "the options top_k and top_p" if TAILS.keys() <= stack.drawing_defaults.keys() else None
    ),
)
@DRAWN.law(
    "at the defaults, a model with a min_p of its own",
    "a default of None, which lets the model's own setting through",
    cases=_case(_none, {"min_p": 0.3}),
    excluded=lambda stack: None if "min_p" in stack.drawing_defaults else "no min_p",
)
@DRAWN.law("with all options", SUSPECTS)
@DRAWN.law("with all options, a model with settings of its own", SUSPECTS, cases=_case(_all, OWN))
@DRAWN.law("with a temperature alone, a model with settings of its own", SUSPECTS, cases=_case(_hot, OWN))
def tokens_are_drawn_as_configured(stack: Any, case: DrawingCase) -> Measure:
    """Compare the distribution of each token with the softmax of the model's logits under the configured settings."""
    settings = {**NEUTRAL, **stack.drawing_defaults, **case.options}
    found = []
    for number, draw in enumerate(stack.draw(case).draws):
        right = _distribution(draw.logits_V.double(), draw.ids, settings)
        given = draw.scores_V.double().softmax(-1)
        found.append((float((given - right).abs().sum() / 2), f"draw {number}"))
    return Measure.largest(found, BOUND, f"total variation from the distribution of {settings}")


def _distribution(logits_V: Tensor, ids: tuple[int, ...], settings: Mapping[str, float]) -> Tensor:
    """Return the probabilities of the next token: penalty, temperature, then top-k, top-p and min-p in turn.

    A penalty divides positive logits of tokens that occur, and multiplies negative ones (Keskar et al. 2019).
    """
    seen = torch.zeros_like(logits_V, dtype=torch.bool)
    seen[list(set(ids))] = True
    penalty = settings["repetition_penalty"]
    penalized = torch.where(logits_V > 0, logits_V / penalty, logits_V * penalty)
    scores_V = torch.where(seen, penalized, logits_V) / settings["temperature"]
    if 0 < settings["top_k"] < len(scores_V):
        smallest = scores_V.topk(int(settings["top_k"])).values[-1]
        scores_V = scores_V.masked_fill(scores_V < smallest, -torch.inf)
    if settings["top_p"] < 1:
        ordered = scores_V.softmax(-1).sort(descending=True)
        before = ordered.values.cumsum(-1) - ordered.values
        scores_V = scores_V.index_fill(0, ordered.indices[before >= settings["top_p"]], -torch.inf)
    probs_V = scores_V.softmax(-1)
    kept_V: Tensor = probs_V * (probs_V >= settings["min_p"] * probs_V.max())
    return kept_V / kept_V.sum()


@DRAWN.law("prompts", "padding after a prompt, a prompt cut, masks of another row", cases=_case(_none, {}))
def prompts_end_where_completions_begin(stack: Any, case: DrawingCase) -> Measure:
    """Check that each prompt is shown whole, in one block that ends where the completion begins."""
    wrong = []
    for ids, mask in stack.draw(case).prompts:
        shown = tuple(token for token, real in zip(ids, mask, strict=True) if real)
        if shown not in stack.drawn_prompts:
            wrong.append(f"{shown} is no prompt")
        elif sum(mask) and not all(mask[len(mask) - sum(mask) :]):
            wrong.append(f"mask {mask}")
    return Measure.count(wrong, "prompts that the generation does not get as they are")


@DRAWN.law(
    "lengths",
    "the limit of the model's own generation, or of prompt and completion together",
    cases=_case(_hot, {"max_new_tokens": 2, "max_length": 3}, max_new_tokens=9),
)
def completions_reach_the_limit(stack: Any, case: DrawingCase) -> Measure:
    """Check that completions end with an end token or have as many tokens as configured."""
    drawn = stack.draw(case)
    wrong = [
        f"{len(ids)} tokens"
        for ids, ended in zip(drawn.completions, drawn.ended, strict=True)
        if not ended and len(ids) != case.max_new_tokens
    ]
    return Measure.count(
        wrong if drawn.completions else ["nothing is drawn"],
        f"completions of other than {case.max_new_tokens} tokens",
    )


@DRAWN.law(
    "completions of a prompt",
    "one completion for all rows of a prompt",
    cases=_case(_hot, {}, max_new_tokens=9),
)
def completions_of_a_prompt_differ(stack: Any, case: DrawingCase) -> Measure | None:
    """Check that no two rows of a prompt have one long completion; None where no prompt has two rows.

    Nine tokens at a temperature above 1 repeat by chance with a probability far below one in a million.
    """
    drawn = stack.draw(case)
    prompts = [tuple(t for t, real in zip(ids, mask, strict=True) if real) for ids, mask in drawn.prompts]
    if max(Counter(prompts).values()) == 1:
        return None
    rows = Counter(
        (prompt, ids)
        for prompt, ids in zip(prompts, drawn.completions, strict=True)
        if len(ids) == case.max_new_tokens
    )
    return Measure.count([str(row) for row, count in rows.items() if count > 1], "completions drawn twice")
