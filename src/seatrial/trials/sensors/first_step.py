"""Verdict on step 1, computed again from its rows with the initial model: what was drawn, and its scores.

The model is `decoder.Decoder` where it has the architecture, else transformers' own; rows go through it one by one,
without padding. Nothing of the stack is used.

Shapes: S positions of a row, T tokens of its completion, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.laws.logprobs import AGREEMENT
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.weights import stored_tensors
from seatrial.trials.run_evidence import NotGivenError, RunEvidence
from seatrial.trials.sensors.decoder import Decoder, why_not
from seatrial.trials.sensors.draws import Draws, are_all_drawn, is_filtered
from seatrial.trials.sensors.model import Model
from seatrial.trials.sensors.options import mask_of, options_of, steps_of
from seatrial.trials.sensors.paths import model_facts
from seatrial.trials.sensors.scoring import placeholder_of
from seatrial.trials.sensors.transformers_model import TransformersModel

Array = npt.NDArray[np.float64]
NATS = {"float32": 2e-4, "bfloat16": 0.2}
"""By which a log-probability may differ, by the policy's precision.

In bfloat16 0.12 was measured at one of the tokens of the trained model of `learning-signal`, on a CPU and on a GPU.
"""
MASS = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.05}
"""By which the probability that top-p gathers may differ at its border, by the sampler's precision."""
LOGITS = {"float32": 1e-4, "bfloat16": 0.2, "int8": 0.2}
"""By which a logit may differ from the k-th largest, by the sampler's precision."""
LEAST_VALUES = 20
"""Of a column, to say that all of them are rounded."""
SAME = 1e-5
"""Nats between the policy and its reference before the first update: the same weights, in the same precision."""
SAME_OVER_RANKS = 0.02
"""The same in bfloat16 with several processes, whose sums may come in another order and round a logit the other way.

The next logit between 2 and 4 is 2^-6 = 0.016 away, and the normaliser moves by less than a quarter of that. Experts
on two GPUs were measured to make them differ by 0.002.
"""
MOST_BYTES = 500_000_000
"""Of a model that transformers computes again; the trial waits for it."""
MEDIA_TASKS = frozenset({"colour", "pitch"})
"""Tasks whose images and sounds `scoring` draws from the number of the prompt."""


class Support(NamedTuple):
    """What top-k and top-p leave of a distribution."""

    least: int
    most: int
    """Tokens that they leave, at least and at most, within the rounding."""
    allows: bool
    """Whether the token that was drawn is one of them."""


class Compared(NamedTuple):
    """What comparing log-probabilities found."""

    wrong: list[str]
    largest: float
    """Difference, in nats."""
    number: int
    """Of tokens."""


def drawn_as_configured(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """At step 1 each token is one that temperature, top-k and top-p leave, and is scored by that distribution.

    Raises:
        NotGivenError: the evidence does not say what is needed.
        BlockedError: the model cannot be read.
    """
    options, rows = step_1(evidence)
    draws = Draws(are_all=are_all_drawn(rows, options, evidence.job.precision))
    found = compare_scores(
        initial_model(evidence, options), rows, options, evidence.job.precision, draws=draws
    )
    wrong = [
        *_rounded(rows),
        *draws.too_many(),
        *draws.alike(),
        *draws.unlikely(),
        *_unlike_the_reference(rows, options),
        *found.wrong,
    ]
    return (
        wrong[:3],
        f"{found.number} tokens of {len(rows)} rows, at most {found.largest:.2g} nats apart",
        found.number,
    )


def compare_scores(
    model: Model,
    rows: Sequence[LedgerRow],
    options: Mapping[str, Any],
    precision: str,
    columns: Sequence[str] = ("prev_logprobs", "reference_logprobs", "generation_logprobs"),
    draws: Draws | None = None,
) -> Compared:
    """Compare columns of log-probabilities with a model's, and, with `draws`, the tokens with what may be drawn.

    Args:
        model: whose scores the columns should be.
        rows: of one step.
        options: of the run.
        precision: of the sampler.
        columns: of the rows.
        draws: where the model is the sampler's; the tokens are added to it.
    """
    own = NATS[options["policy.precision"]]
    bounds = dict.fromkeys(columns, own)
    if "generation_logprobs" in bounds:
        bounds["generation_logprobs"] = max(own, AGREEMENT[precision].token)
    wrong, largest, number = [], 0.0, 0
    for row in rows:
        for place, scaled_V in scaled_logits(model, row, options):
            size = _kept_size(row, place)
            token = row.sampled_ids[place]
            number += 1
            at = f"{row.where()} token {place}"
            if draws is not None:
                draws.see(row, place, logprobs_of(scaled_V, row, place))
                wrong += [f"{at} {what}" for what in not_drawn(scaled_V, token, size, options, precision)]
            if size is None and is_filtered(options):
                continue  # how many tokens were left is not written
            score = _score(scaled_V, token, size)
            for column, bound in bounds.items():
                values = getattr(row, column)
                if values is None:
                    continue
                gap = abs(values[place] - score)
                largest = max(largest, gap)
                if not gap <= bound:
                    wrong.append(f"{at} has {column} {values[place]:.6g}, the model gives {score:.6g}")
    return Compared(wrong, largest, number)


def not_drawn(
    scaled_V: Array, token: int, size: int | None, options: Mapping[str, Any], precision: str
) -> Iterator[str]:
    """Yield why a token cannot have been drawn as configured."""
    support = _support(scaled_V, token, options, precision)
    if not support.allows:
        yield f"is {token}, which top-k and top-p leave out at temperature {temperature_of(options):g}"
    if size is not None and not support.least <= size <= support.most:
        yield f"was drawn of {size} tokens; {support.least} to {support.most} are left by the options"


def _unlike_the_reference(rows: Sequence[LedgerRow], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield where the policy is not its reference, which it is before the first update."""
    over_ranks = options["policy.precision"] == "bfloat16" and options.get("cluster.num_processes", 1) > 1
    bound = SAME_OVER_RANKS if over_ranks else SAME
    for row in rows:
        pairs = zip(row.prev_logprobs or (), row.reference_logprobs or (), mask_of(row), strict=False)
        gap = max((abs(own - other) for own, other, on in pairs if on), default=0.0)
        if not gap <= bound:
            yield f"step 1 row {row.index}: policy and reference are {gap:.3g} nats apart before the first update"


def _rounded(rows: Sequence[LedgerRow]) -> Iterator[str]:
    """Yield the columns of log-probabilities whose values are all of bfloat16, which keeps three digits of them."""
    for column in ("prev_logprobs", "reference_logprobs", "generation_logprobs"):
        values = np.array([value for row in rows for value in getattr(row, column) or () if value])
        if len(values) >= LEAST_VALUES and not (values.astype(np.float32).view(np.uint32) & 0xFFFF).any():
            yield f"step 1: all {len(values)} values of {column} are rounded to bfloat16"


def step_1(evidence: RunEvidence) -> tuple[dict[str, Any], Sequence[LedgerRow]]:
    """Return the options and the rows of step 1.

    Raises:
        NotGivenError: the policy is not the initial model there, or the target does not say what it configured.
    """
    options = options_of(evidence)
    if evidence.job.first_step > 1:
        raise NotGivenError("the run continues another one: step 1 is not its own")
    if options["policy.lora_cfg.adapter_path"]:
        raise NotGivenError(
            "the policy starts from adapters (policy.lora_cfg.adapter_path), not from the model"
        )
    return options, steps_of(evidence).get(1, [])


def initial_model(evidence: RunEvidence, options: Mapping[str, Any]) -> Model:
    """Return the initial model.

    Raises:
        NotGivenError: it is too large to be computed again, or takes images or sounds that are not drawn again.
    """
    folder = evidence.job.initial_model
    facts = model_facts(folder)
    reason = why_not(facts, folder)
    if reason is None:
        return Decoder(stored_tensors(folder), facts)
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    if size > MOST_BYTES:
        raise NotGivenError(f"{reason} is too large to be computed again")
    if placeholder_of(facts) is not None and options["data.task"] not in MEDIA_TASKS:
        raise NotGivenError(f"the images or sounds of data.task={options['data.task']} are not drawn again")
    return TransformersModel(evidence)


def temperature_of(options: Mapping[str, Any]) -> float:
    """Return the temperature at which a run samples."""
    return float(options["policy.generation.temperature"])


def scaled_logits(model: Model, row: LedgerRow, options: Mapping[str, Any]) -> Iterator[tuple[int, Array]]:
    """Yield the place of each training token of a row with the logits that predict it, divided by the temperature."""
    mask = mask_of(row)
    if not any(mask):
        return
    logits_SV = model.logits(row) / temperature_of(options)
    for place, on in enumerate(mask):
        if on:
            yield place, logits_SV[(row.prompt_length or 0) + place - 1]


def _kept_size(row: LedgerRow, place: int) -> int | None:
    return None if row.kept_support_sizes is None else row.kept_support_sizes[place]


def logprobs_of(scaled_V: Array, row: LedgerRow, place: int) -> Array:
    """Return logprobs_V of the distribution that a token was drawn from; -inf where a filter left a token out."""
    size = _kept_size(row, place)
    if size is not None:
        left_V = np.full_like(scaled_V, -math.inf)
        kept = np.argsort(-scaled_V, kind="stable")[:size]
        token = row.sampled_ids[place]
        if token not in kept:
            # It was drawn, so another of the last was left out: `not_drawn` bounds by how much.
            kept[-1] = token
        left_V[kept] = scaled_V[kept]
        scaled_V = left_V
    top = scaled_V.max()
    logprobs_V: Array = scaled_V - top - math.log(np.exp(scaled_V - top).sum())
    return logprobs_V


def _score(scaled_V: Array, token: int, size: int | None) -> float:
    kept_V = scaled_V if size is None else np.sort(scaled_V)[::-1][:size]
    top = kept_V.max()
    return float(scaled_V[token] - top - math.log(np.exp(kept_V - top).sum()))


def _support(scaled_V: Array, token: int, options: Mapping[str, Any], precision: str) -> Support:
    """Return what top-k leaves of a distribution, and top-p of that."""
    top_k, top_p = options["policy.generation.top_k"], float(options["policy.generation.top_p"])
    order = np.argsort(-scaled_V, kind="stable")
    ordered_V = scaled_V[order]
    top_k = len(ordered_V) if top_k is None else min(top_k, len(ordered_V))
    least = top_k  # ties with the last of them may stay
    most = int((ordered_V >= ordered_V[top_k - 1] - LOGITS[precision]).sum())
    if top_p < 1:
        probs_V = np.exp(ordered_V - ordered_V[0])
        before_V = (np.cumsum(probs_V) - probs_V) / probs_V[:top_k].sum()
        least = max(1, min(least, int((before_V < top_p - MASS[precision]).sum())))
        most = min(most, int((before_V < top_p + MASS[precision]).sum()))
    place = int(np.flatnonzero(order == token)[0])
    return Support(least, most, place < most)
