"""R31.step_metrics, further metrics: rows with an answer, turns and calls of tools, and proxies of the variance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.metrics import METRICS, P, T, step_batch
from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import FLOAT32, Plain, add_laws

TURNS = (2, 4, 2, 8, 6)
CALLS = (0, 1, 0, 3, 2)


def _of(name: str, values: Sequence[int]) -> dict[str, float]:
    return {
        f"{name}/min": float(min(values)),
        f"{name}/max": float(max(values)),
        f"{name}/mean": sum(values) / len(values),
    }


def row_metrics(batch: Mapping[str, Tensor], turns: Sequence[int], calls: Sequence[int]) -> dict[str, float]:
    """Return lengths of answers that have a token, the share that has none, and numbers of turns and calls."""
    answers = batch["attention_mask"][:, P:].sum(1).tolist()
    some = [length for length in answers if length]
    name = "response_length_non_aborted"
    return {
        "response/aborted_ratio": 1 - len(some) / len(answers),
        **(
            _of(name, some)
            if some
            else dict.fromkeys([f"{name}/{how}" for how in ("min", "max", "mean")], math.nan)
        ),
        f"{name}/clip_ratio": sum(length == T for length in some) / len(some) if some else math.nan,
        **_of("num_turns", turns),
        **_of("tool_call_counts", calls),
    }


def variance_proxies(batch: Mapping[str, Tensor], weighted: bool, norm: float | None) -> dict[str, float]:
    """Return the mean of rows' squared advantage times the sum of 1 - 2 p + sum of p squared, and what is made of it.

    With weights, that sum is times the squared mean weight of the row.
    """
    squares, sums, powers = [], [], []
    for row in range(len(batch["advantages"])):
        places = [place for place, on in enumerate(batch["response_mask"][row].tolist()) if on]
        p = batch["old_log_probs"][row].double().exp()
        w = 1 - 2 * p + batch["sum_pi_squared"][row].double()
        weights = batch["rollout_is_weights"][row].double() if weighted else torch.ones_like(w)
        advantage = float(batch["advantages"][row].double()[places].mean())
        squares.append(advantage**2)
        sums.append(float((w * weights**2)[places].sum()))
        powers.append(advantage**2 * float(weights[places].mean()) ** 2 * max(0.0, float(w[places].sum())))
    B, power = len(powers), math.fsum(powers) / len(powers)
    noise = max(0.0, (power - norm**2) / (B - 1)) if norm is not None and B > 1 else 0.0
    return {
        "variance_proxy/proxy1_signal_strength": 0.0 if norm is None else norm**2,
        "variance_proxy/proxy2_total_power": power,
        "variance_proxy/proxy3_pure_noise": noise,
        "variance_proxy/expected_a_squared": math.fsum(squares) / B,
        "variance_proxy/expected_w": math.fsum(sums) / B,
    }


def _with_probabilities(case: Numbers) -> dict[str, Tensor]:
    """Return the columns of a step with log-probabilities of tokens, sums of squares, and weights."""
    generator, batch = torch.Generator().manual_seed(case.seed + 50), step_batch(case)
    shape = batch["advantages"].shape
    logprobs = -torch.rand(shape, generator=generator) * 2 - 0.05
    return {
        **batch,
        "old_log_probs": logprobs,
        "sum_pi_squared": logprobs.exp().square() + 0.2 * torch.rand(shape, generator=generator),
        "rollout_is_weights": 0.5 + torch.rand(shape, generator=generator),
    }


def _first_rows(batch: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    return {name: column[:number].clone() for name, column in batch.items()}


add_laws(
    METRICS,
    (
        Plain(
            name="row metrics",
            law="metrics of rows with an answer, of turns and of calls",
            suspects="rows without an answer in lengths, a share of the others, the number of turns for that of calls",
            cases=lambda case: [
                (step_batch(case), TURNS, CALLS),
                (step_batch(case, 0), TURNS, CALLS),
                (_first_rows(step_batch(case), 1), TURNS[:1], CALLS[:1]),
            ],
            right=row_metrics,
            bound=FLOAT32,
        ),
        Plain(
            name="variance proxies",
            law="proxies of the variance of the gradient",
            suspects="tokens that do not train, weights twice or not at all, a divisor of the whole batch",
            cases=lambda case: [
                (_first_rows(_with_probabilities(case), number), weighted, norm)
                for number, weighted, norm in (
                    (5, False, None),
                    (5, False, 0.1),
                    (5, True, 0.1),
                    (1, True, 0.1),
                )
            ],
            right=variance_proxies,
            bound=64 * FLOAT32,
        ),
    ),
)
