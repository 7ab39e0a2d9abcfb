"""Float64 oracles of the scalars that a whole trainer logs, from their definitions in the stack's documentation."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.contracts.trainers import Rollout, RolloutSpec, Scalar, TrainerRecord, TrainerRow
from seatrial.relations.oracles.objectives import kept_tokens, prompt_targets
from seatrial.relations.oracles.trainers import (
    MicroBatches,
    Plain,
    Weights,
    completion_distribution,
    completion_logprobs,
    doubled,
    is_trained,
    ratios,
    reference_kl,
    reference_logprobs,
    reference_weights,
    shaped_rewards,
)


@dataclass(frozen=True)
class ScoredSequence:
    """A sequence of a row as it was scored."""

    logits_TV: Tensor
    """That predict the tokens that train."""
    ids_T: Tensor
    reference_T: Tensor | None
    """Log-probabilities of the reference."""
    num_tokens: int
    """Of prompt and completion."""

    @cached_property
    def logprobs_TV(self) -> Tensor:
        """Log-probabilities of the policy."""
        return torch.log_softmax(self.logits_TV, -1)

    @property
    def logprob(self) -> float:
        """Summed log-probability of the tokens that train."""
        return float(self.logprobs_TV.gather(1, self.ids_T[:, None]).sum())

    @property
    def log_ratio(self) -> float:
        """Difference of the sum to that of the reference."""
        assert self.reference_T is not None
        return self.logprob - float(self.reference_T.sum())


class Rows:
    """Rows at the weights that they went through the model with."""

    def __init__(self, stack: Any, record: TrainerRecord, micro_batches: MicroBatches, version: int) -> None:
        """Keep the rows; `version` is the number of steps that the weights have seen."""
        self.stack, self.record, self.version = stack, record, version
        self.rows = [row for part in micro_batches for row in part]
        self.parts = micro_batches
        self.weights = doubled(record.weights_at(version))
        self.reference: Weights | None = reference_weights(stack.trainer_spec, record, version)
        self.spec = stack.trainer_spec.objective

    def part(self, rows: Sequence[TrainerRow]) -> Rows:
        """Return some of the rows."""
        return Rows(self.stack, self.record, [rows], self.version)

    @cached_property
    def rollouts(self) -> list[Rollout]:
        """The rows, of a trainer that samples."""
        return [row for row in self.rows if isinstance(row, Rollout)]

    @cached_property
    def chosen(self) -> list[ScoredSequence]:
        """The completions that are chosen or desirable, or all."""
        return [
            self._sequence(row, row.completion_ids) for row in self.examples() if row.desirable is not False
        ]

    @cached_property
    def rejected(self) -> list[ScoredSequence]:
        """The completions that are rejected or undesirable."""
        pairs = [self._sequence(row, row.rejected_ids) for row in self.examples() if row.rejected_ids]
        return pairs or [
            self._sequence(row, row.completion_ids) for row in self.examples() if row.desirable is False
        ]

    def examples(self) -> list[Example]:
        """Return the rows, of a trainer that samples nothing."""
        return [row for row in self.rows if isinstance(row, Example)]

    def _sequence(self, row: Example, completion_ids: Sequence[int]) -> ScoredSequence:
        """Return a sequence with its scores; those of a row at the same weights are computed once."""
        key = (self.version, row.prompt_ids, tuple(completion_ids))
        if key not in self.record.scored:
            self.record.scored[key] = self._scored(row, completion_ids)
        found: ScoredSequence = self.record.scored[key]
        return found

    def _scored(self, row: Example, completion_ids: Sequence[int]) -> ScoredSequence:
        spec: ObjectiveSpec = self.spec
        ids_S, trained = kept_tokens(row.prompt_ids, completion_ids, spec, prompt_targets(row, spec))
        with torch.no_grad():
            logits_SV = Plain(self.stack).objective_logits(self.weights, ids_S).double()
            if spec.kind == "reward":
                return ScoredSequence(logits_SV, ids_S[-1:], None, len(ids_S))
            reference_T = None
            if self.reference is not None:
                given_SV = Plain(self.stack).objective_logits(self.reference, ids_S).double()[:-1]
                reference_T = torch.log_softmax(given_SV, -1).gather(1, ids_S[1:, None])[:, 0][trained]
        return ScoredSequence(logits_SV[:-1][trained], ids_S[1:][trained], reference_T, len(ids_S))

    @cached_property
    def distributions(self) -> list[tuple[Rollout, Tensor]]:
        """Log-probabilities [T, V] of each rollout that trains."""
        return [(row, self._distribution(row)) for row in self.rollouts if is_trained(self.spec, row)]

    def _distribution(self, row: Rollout) -> Tensor:
        key = (self.version, row)
        if key not in self.record.scored:
            with torch.no_grad():
                self.record.scored[key] = completion_distribution(
                    self.stack, self.weights, row, self.spec.temperature
                )
        found: Tensor = self.record.scored[key]
        return found


def _entropies(rows: Rows) -> list[float]:
    found = [one.logprobs_TV for one in (*rows.chosen, *rows.rejected)] or [
        tokens_TV for _, tokens_TV in rows.distributions
    ]
    return [float(value) for tokens_TV in found for value in -(tokens_TV.exp() * tokens_TV).sum(-1)]


def _all_entropies(rows: Rows) -> list[float]:
    """Return the entropy after each token of prompt and completion, also after the last one."""
    found: list[float] = []
    for row in rows.examples():
        ids_S, _ = kept_tokens(row.prompt_ids, row.completion_ids, rows.spec)
        with torch.no_grad():
            logits_SV = Plain(rows.stack).objective_logits(rows.weights, ids_S).double()
            logprobs_SV = torch.log_softmax(logits_SV, -1)
            found += (-(logprobs_SV.exp() * logprobs_SV).sum(-1)).tolist()
    return found


def _hits(sequences: Sequence[ScoredSequence]) -> list[float]:
    return [float(right) for one in sequences for right in one.logits_TV.argmax(-1) == one.ids_T]


def _logits(sequences: Sequence[ScoredSequence]) -> list[float]:
    return [float(value) for one in sequences for value in one.logits_TV.mean(-1)]


def _scores(rows: Rows, of: Callable[[Rows], Sequence[ScoredSequence]]) -> list[float]:
    return [float(one.logits_TV[-1, 0]) for one in of(rows)]


def _margins(rows: Rows, value: Callable[[ScoredSequence], float]) -> list[float]:
    return [value(one) - value(other) for one, other in zip(rows.chosen, rows.rejected, strict=True)]


def _beta(rows: Rows) -> float:
    return float(rows.spec.beta)


def _log_ratio_or_logprob(rows: Rows) -> Callable[[ScoredSequence], float]:
    """Return the implicit reward before beta: without a reference the log-probability alone."""
    if rows.reference is None:
        return lambda one: one.logprob
    return lambda one: one.log_ratio


def _implicit(rows: Rows, sequences: Sequence[ScoredSequence]) -> list[float]:
    return [_beta(rows) * _log_ratio_or_logprob(rows)(one) for one in sequences]


def _rewards(rows: Rows) -> list[float]:
    found = []
    for row in rows.rollouts:
        weights = rows.spec.reward_weights
        found.append(math.fsum(w * r for w, r in zip(weights, row.rewards, strict=True) if r is not None))
    return found


def _shaped_rewards(rows: Rows) -> list[float]:
    """Return rewards as the advantages take them, such as with a penalty; 0 where no function gave one."""
    return [reward or 0.0 for _, reward in shaped_rewards(rows.stack, rows.record, rows.rollouts)]


def _of_groups(rows: Rows, values: Sequence[float]) -> list[list[float]]:
    """Return for each row the values of all rows of its group."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row, value in zip(rows.rollouts, values, strict=True):
        groups.setdefault((row.batch, row.prompt_ids), []).append(value)
    return [groups[row.batch, row.prompt_ids] for row in rows.rollouts]


SAME = 1e-8
"""Largest deviation of a constant group: reference and policy of the first step differ by rounding alone."""


def _constant_groups(rows: Rows) -> list[float]:
    """Return for each row whether its group's rewards, clipped and with their penalty, give no advantage."""
    shaped = rows.spec.kl_in == "reward" or rows.spec.reward_range is not None
    values = _shaped_rewards(rows) if shaped else _rewards(rows)
    return [float(max(group) - min(group) <= SAME) for group in _of_groups(rows, values)]


def _kl(rows: Rows) -> list[float]:
    assert rows.reference is not None
    found: list[float] = []
    with torch.no_grad():
        for row, tokens_TV in rows.distributions:
            own_T = tokens_TV.gather(1, torch.tensor(row.sampled_ids)[:, None])[:, 0]
            found += reference_kl(rows.stack, rows.record, row, own_T, rows.reference).tolist()
    return found


def _log_ratios_to_reference(rows: Rows) -> list[float]:
    """Return c - r of each token."""
    assert rows.reference is not None
    temperature = rows.spec.temperature
    with torch.no_grad():
        return [
            value
            for row in rows.rollouts
            for value in (
                completion_logprobs(rows.stack, rows.weights, row, temperature)
                - reference_logprobs(rows.stack, rows.record, row, rows.reference)
            ).tolist()
        ]


def _clipped(rows: Rows, *sides: str) -> list[float]:
    """Return for each ratio whether the clip takes its gradient away."""
    return [value for of_row in _clipped_by_row(rows, *sides) for value in of_row]


def _clipped_by_row(rows: Rows, *sides: str) -> list[list[float]]:
    """Return the same for the ratios of each row; needs advantages only for their sign."""
    from seatrial.relations.oracles.trainers import advantages

    spec: RolloutSpec = rows.spec
    estimated: dict[Rollout, float] = {}
    for batch in {row.batch for row in rows.rollouts}:
        estimated |= advantages(rows.stack, rows.record, batch)
    found: list[list[float]] = []
    for row, tokens_TV in rows.distributions:
        found.append([])
        own_T = tokens_TV.gather(1, torch.tensor(row.sampled_ids)[:, None])[:, 0]
        of_row = 1 if spec.ratio != "token" else None
        for ratio in ratios(rows.stack, rows.record, row, own_T).tolist()[:of_row]:
            low = ratio < 1 - spec.clip_low and estimated[row] < 0
            high = ratio > 1 + spec.clip_high and estimated[row] > 0
            found[-1].append(float((low and "low" in sides) or (high and "high" in sides)))
    return found


def _deviation(values: Sequence[float]) -> float:
    """Return the sample's standard deviation; NaN of less than two values."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def _spread(group: Sequence[float]) -> float:
    """Return the standard deviation in a group; a single completion does not differ."""
    return _deviation(group) if len(group) > 1 else 0.0


QUANTITIES: Mapping[str, Callable[[Rows], list[float]]] = {
    "tokens": lambda rows: (
        [float(one.num_tokens) for one in (*rows.chosen, *rows.rejected)]
        or [float(len(row.prompt_ids) + len(row.ids)) for row in rows.rollouts]
    ),
    "entropy": _entropies,
    "entropy after each token": _all_entropies,
    "hit": lambda rows: _hits((*rows.chosen, *rows.rejected)),
    "chosen hit": lambda rows: _hits(rows.chosen),
    "chosen logit": lambda rows: _logits(rows.chosen),
    "rejected logit": lambda rows: _logits(rows.rejected),
    "chosen log-probability": lambda rows: [one.logprob for one in rows.chosen],
    "rejected log-probability": lambda rows: [one.logprob for one in rows.rejected],
    "chosen reward": lambda rows: _implicit(rows, rows.chosen),
    "rejected reward": lambda rows: _implicit(rows, rows.rejected),
    "reward margin": lambda rows: [_beta(rows) * v for v in _margins(rows, _log_ratio_or_logprob(rows))],
    "right reward": lambda rows: [float(v > 0) for v in _margins(rows, _log_ratio_or_logprob(rows))],
    "score": lambda rows: _scores(rows, lambda r: (*r.chosen, *r.rejected)),
    "score margin": lambda rows: _margins(rows, lambda one: float(one.logits_TV[-1, 0])),
    "right score": lambda rows: [
        float(v > 0) for v in _margins(rows, lambda one: float(one.logits_TV[-1, 0]))
    ],
    "tool calls": lambda rows: [float(len(row.calls)) for row in rows.rollouts],
    "failed call": lambda rows: [float(not one) for row in rows.rollouts for one in row.calls],
    "length": lambda rows: [float(len(row.sampled_ids)) for row in rows.rollouts],
    "ended length": lambda rows: [float(len(row.sampled_ids)) for row in rows.rollouts if row.ended],
    "truncated": lambda rows: [float(not row.ended) for row in rows.rollouts],
    "reward": _rewards,
    "shaped reward": _shaped_rewards,
    "deviation of the reward in a group": lambda rows: [
        _spread(group) for group in _of_groups(rows, _rewards(rows))
    ],
    "deviation of the shaped reward in a group": lambda rows: [
        _spread(group) for group in _of_groups(rows, _shaped_rewards(rows))
    ],
    "first reward": lambda rows: [row.rewards[0] for row in rows.rollouts if row.rewards[0] is not None],
    "constant group": _constant_groups,
    "reference KL": _kl,
    "log-ratio to the reference": _log_ratios_to_reference,
    "clipped": lambda rows: _clipped(rows, "low", "high"),
    "clipped low": lambda rows: _clipped(rows, "low"),
    "clipped high": lambda rows: _clipped(rows, "high"),
    "clipped low of a row": lambda rows: [statistics.fmean(one) for one in _clipped_by_row(rows, "low")],
    "clipped high of a row": lambda rows: [statistics.fmean(one) for one in _clipped_by_row(rows, "high")],
}
"""What is averaged, each value of a row or of a token that trains."""


def scalar(definition: Scalar, rows: Rows) -> float:
    """Return a scalar of all rows of a step together; NaN where there is no value."""
    return _HOWS[definition.how](QUANTITIES[definition.quantity](rows))


def mean_over_parts(definition: Scalar, rows: Rows) -> float:
    """Return the mean of a scalar's values for each micro-batch, those without one left out."""
    found = [scalar(definition, rows.part(part)) for part in rows.parts]
    values = [value for value in found if not math.isnan(value)]
    return math.fsum(values) / len(values) if values else math.nan


_HOWS: Mapping[str, Callable[[list[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values) if values else math.nan,
    "min": lambda values: min(values, default=math.nan),
    "max": lambda values: max(values, default=math.nan),
    "deviation": _deviation,
    "total": math.fsum,
}
