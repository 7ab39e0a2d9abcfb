"""Float64 oracles of logged scalars, one token at a time, from the definitions that a stack declares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from seatrial.relations.contracts.named_metrics import MetricSpec
from seatrial.relations.oracles import kl_value
from seatrial.relations.records import LossInputs, Row


@dataclass(frozen=True, kw_only=True)
class Token:
    """A training token, with what is the same for its whole row."""

    current: float
    old: float
    sampling: float
    reference: float
    entropy: float
    advantage: float
    reward: float
    length: int


def tokens_of(inputs: LossInputs, rows: Sequence[Row]) -> list[list[Token]]:
    """Return the training tokens of each row."""
    columns = [
        values.detach().tolist()
        for values in (
            inputs.logprobs_BT,
            inputs.old_logprobs_BT,
            inputs.sampling_logprobs_BT,
            inputs.ref_logprobs_BT,
            inputs.entropy_BT,
        )
    ]
    found = []
    for place, row in enumerate(rows):
        trained = [token for token, on in enumerate(row.completion_mask) if on]
        found.append(
            [
                Token(
                    **dict(
                        zip(
                            ("current", "old", "sampling", "reference", "entropy"),
                            (values[place][token] for values in columns),
                            strict=True,
                        )
                    ),
                    advantage=row.advantage,
                    reward=row.reward,
                    length=len(trained),
                )
                for token in trained
            ]
        )
    return found


def _k3(log_ratio: float) -> float:
    return math.exp(log_ratio) - 1 - log_ratio


def _ratio(token: Token) -> float:
    return math.exp(token.current - token.old)


def _clamped(token: Token, spec: MetricSpec) -> float:
    return min(max(_ratio(token), 1 - spec.clip[0]), 1 + spec.clip[1])


def _low(token: Token, spec: MetricSpec) -> bool:
    return _ratio(token) < 1 - spec.clip[0]


def _high(token: Token, spec: MetricSpec) -> bool:
    return _ratio(token) > 1 + spec.clip[1]


def _clipped_low(token: Token, spec: MetricSpec) -> bool:
    return _low(token, spec) and token.advantage < 0


def _clipped_high(token: Token, spec: MetricSpec) -> bool:
    return _high(token, spec) and token.advantage > 0


QUANTITIES: dict[str, Callable[[Token, MetricSpec], float]] = {
    "one": lambda token, spec: 1.0,
    "logprob": lambda token, spec: token.current,
    "ratio": lambda token, spec: _ratio(token),
    "log_ratio": lambda token, spec: token.current - token.old,
    "clamped_ratio": _clamped,
    "out_low": lambda token, spec: float(_low(token, spec)),
    "out_high": lambda token, spec: float(_high(token, spec)),
    "clipped_low": lambda token, spec: float(_clipped_low(token, spec)),
    "clipped_high": lambda token, spec: float(_clipped_high(token, spec)),
    "clipped": lambda token, spec: float(_clipped_low(token, spec) or _clipped_high(token, spec)),
    "capped": lambda token, spec: float(_ratio(token) > spec.cap and token.advantage < 0),
    "surrogate": lambda token, spec: max(
        -token.advantage * _ratio(token), -token.advantage * _clamped(token, spec)
    ),
    "old_minus_current": lambda token, spec: token.old - token.current,
    "current_k3": lambda token, spec: _k3(token.current - token.old),
    "ref_k1": lambda token, spec: kl_value(token.current, token.reference, "k1"),
    "ref_k2": lambda token, spec: kl_value(token.current, token.reference, "k2"),
    "ref_k3": lambda token, spec: kl_value(token.current, token.reference, "k3"),
    "entropy": lambda token, spec: token.entropy,
    "weighted_surprise": lambda token, spec: -math.exp(token.current - token.sampling) * token.current,
    "sampler_difference": lambda token, spec: abs(token.sampling - token.old),
    "probability_difference": lambda token, spec: abs(math.exp(token.sampling) - math.exp(token.old)),
    "sampler_mult": lambda token, spec: math.exp(abs(token.sampling - token.old)),
    "sampler_k3": lambda token, spec: _k3(token.old - token.sampling),
    "trainer_k3": lambda token, spec: _k3(token.sampling - token.old),
    "advantage": lambda token, spec: token.advantage,
    "reward": lambda token, spec: token.reward,
    "length": lambda token, spec: float(token.length),
}
"""By the names of `contracts.named_metrics.Quantity`."""
OF_ROWS: dict[str, Callable[[Row], float]] = {
    "one": lambda row: 1.0,
    "advantage": lambda row: row.advantage,
    "reward": lambda row: row.reward,
    "length": lambda row: float(sum(row.completion_mask)),
    "completion_length": lambda row: float(len(row.completion_ids)),
    "prompt_length": lambda row: float(len(row.prompt_ids)),
}
"""Those that a row has as a whole."""


def metric(spec: MetricSpec, inputs: LossInputs, rows: Sequence[Row]) -> float:
    """Return a metric of a whole optimizer batch.

    Raises:
        ValueError: it is over rows, and of a quantity that a row has not.
    """
    if spec.over == "rows":
        if spec.quantity not in OF_ROWS:
            raise ValueError(f"{spec.quantity} is no quantity of a row: give over='tokens' or 'row_means'")
        values = [
            OF_ROWS[spec.quantity](row) for row in rows if spec.rows == "all" or any(row.completion_mask)
        ]
    else:
        of_rows = [
            [QUANTITIES[spec.quantity](token, spec) for token in row] for row in tokens_of(inputs, rows)
        ]
        if spec.over == "tokens":
            values = [value for row in of_rows for value in row]
        else:
            values = [
                math.fsum(row) / len(row) if row else 0.0 for row in of_rows if row or spec.rows == "all"
            ]
    if spec.how in ("min", "max"):
        return min(values) if spec.how == "min" else max(values)
    if spec.how == "std":
        return statistics.stdev(values)
    return math.fsum(values) / (len(values) if spec.how == "mean" else 1)
