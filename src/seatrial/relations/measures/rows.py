"""What the rows of a step give: where they end, penalties on length, logged scalars."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from seatrial.relations.oracles import kl_value
from seatrial.relations.oracles.runs import counts_of
from seatrial.relations.records.run import RunRow


class ScalarError(NamedTuple):
    """A logged scalar against the one that the rows give."""

    name: str
    logged: float
    right: float
    error: float
    """Relative where the right one is above 1."""


def ending_error(
    ids: Sequence[int], reason: str, stops: Collection[int], limit: int, *, one_turn: bool = True
) -> str:
    """Return how a row's end is wrong, in words; nothing where it is right.

    A row ends with a stop token or has as many tokens as the limit, and its finish reason says which. Of a row of
    several turns, other turns may end with a stop token too.
    """
    ended = ids[-1] in stops
    early = one_turn and any(token in stops for token in ids[:-1])
    if early or (not ended and len(ids) != limit) or len(ids) > limit:
        return f"{tuple(ids)} for at most {limit} tokens"
    right = "stop" if ended else "length"
    return "" if reason == right else f"ends by {right}, says {reason}"


def overlong_penalty(length: int, longest: float, buffer: float, weight: float) -> float:
    """Return the soft overlong punishment (DAPO, arXiv 2503.14476, equation 13): 0 up to `longest - buffer` tokens."""
    return -weight * min(max(length - (longest - buffer), 0), buffer) / buffer


def rewards_by_prompt(prompts: Iterable[int], rewards: Iterable[float]) -> dict[int, list[float]]:
    """Return the rewards of each prompt's rows."""
    found: dict[int, list[float]] = {}
    for prompt, reward in zip(prompts, rewards, strict=True):
        found.setdefault(prompt, []).append(reward)
    return found


def metric_errors(
    metrics: Mapping[str, float],
    rows: Sequence[RunRow],
    options: Mapping[str, Any],
    names: Collection[str] | None = None,
) -> Iterator[ScalarError]:
    """Yield each logged scalar that has a formula here, or of these names alone, with its error.

    Args:
        metrics: logged at a step.
        rows: of the step.
        options: of the run, by dotted name: some metrics have these formulas under certain options alone.
        names: which metrics to look at.
    """
    for name, formula in FORMULAS.items():
        form = OF_THE_LOSS.get(name, {})
        has_other_form = any(options.get(option, value) != value for option, value in form.items())
        if name in metrics and not has_other_form and (names is None or name in names):
            right = formula(rows)
            error = abs(metrics[name] - right) / max(1.0, abs(right))
            yield ScalarError(name, metrics[name], right, error)


def mean(values: Iterable[float]) -> float:
    """Return the mean in float64."""
    collected = list(values)
    return math.fsum(collected) / len(collected)


def _num_sampled(row: RunRow) -> int:
    """Return the number of ids that the model sampled: all but what an environment wrote."""
    return len(row.sampled_between(0, len(row.ids)))


def _k3(log_ratio: float) -> float:
    return math.exp(log_ratio) - 1 - log_ratio


def _tokens(rows: Sequence[RunRow]) -> list[tuple[float, float, float]]:
    """Return (sampler's, old, reference) log-probability of every training token."""
    return [
        (
            row.sampling_logprobs[t],
            row.old_logprobs[t],
            row.ref_logprobs[t] if row.ref_logprobs else row.old_logprobs[t],
        )
        for row in rows
        for t in range(len(row.ids))
        if row.mask[t]
    ]


def _advantages(rows: Sequence[RunRow]) -> list[float]:
    """Return the advantage of every training token."""
    return [row.advantage for row in rows for on in row.mask if on]


def _share_at(rows: Sequence[RunRow], level: float) -> float:
    """Return the share of rows whose group has this mean reward."""
    groups = rewards_by_prompt((row.prompt_id for row in rows), (row.reward for row in rows))
    return mean(abs(mean(groups[row.prompt_id]) - level) < 1e-7 for row in rows)


FORMULAS: dict[str, Callable[[Sequence[RunRow]], float]] = {
    "reward": lambda rows: mean(row.reward for row in rows),
    "mean_gen_tokens_per_sample": lambda rows: mean(map(_num_sampled, rows)),
    "max_gen_tokens_per_sample": lambda rows: float(max(map(_num_sampled, rows))),
    "mean_prompt_length": lambda rows: mean(len(row.prompt_ids) for row in rows),
    "mean_total_tokens_per_sample": lambda rows: mean(
        len(row.prompt_ids) + _num_sampled(row) for row in rows
    ),
    "total_num_tokens": lambda rows: float(sum(len(row.prompt_ids) + _num_sampled(row) for row in rows)),
    "truncation_rate": lambda rows: mean(row.finish_reason == "length" for row in rows),
    "natural_termination_rate": lambda rows: mean(row.finish_reason == "stop" for row in rows),
    "token_mult_prob_error": lambda rows: mean(math.exp(abs(g - p)) for g, p, _ in _tokens(rows)),
    "gen_kl_error": lambda rows: mean(_k3(p - g) for g, p, _ in _tokens(rows)),
    "policy_kl_error": lambda rows: mean(_k3(g - p) for g, p, _ in _tokens(rows)),
    "advantages/mean": lambda rows: mean(_advantages(rows)),
    "advantages/min": lambda rows: min(_advantages(rows)),
    "advantages/max": lambda rows: max(_advantages(rows)),
    "approx_entropy": lambda rows: -mean(math.exp(p - g) * p for g, p, _ in _tokens(rows)),
    "probs_ratio": lambda rows: 1.0,
    "probs_ratio_min": lambda rows: 1.0,
    "probs_ratio_max": lambda rows: 1.0,
    "kl_penalty": lambda rows: mean(kl_value(p, r, "k3") for _, p, r in _tokens(rows)),
    "num_valid_samples": lambda rows: counts_of(rows)[1],
    "global_valid_toks": lambda rows: counts_of(rows)[0],
    "global_valid_seqs": lambda rows: counts_of(rows)[1],
    "baseline_reward/pct_0": lambda rows: _share_at(rows, 0),
    "baseline_reward/pct_1": lambda rows: _share_at(rows, 1),
    "baseline_reward/pct_mixed": lambda rows: 1 - _share_at(rows, 0) - _share_at(rows, 1),
}
"""NeMo RL's definitions, for a step of one update: the current policy is then the old one."""
OF_THE_LOSS = {"kl_penalty": {"loss_fn.reduction": "token", "loss_fn.reference_policy_kl_type": "k3"}}
"""Metrics that have the formula above with these options alone."""
OF_ROWS = frozenset(
    name
    for name in FORMULAS
    if name in ("reward", "total_num_tokens", "truncation_rate", "natural_termination_rate")
    or name.startswith(("mean_", "max_", "advantages/", "baseline_reward/"))
)
"""Metrics that depend on the rows alone, however many updates are made of them."""
