"""R31.step_metrics: metrics of a training step and of a validation are those of their definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import FLOAT32, Arguments, Plain, add_laws, relation_of

DRAWS = 1000
DEVIATIONS = 6.0
"""Deviations of a mean of draws that are allowed: a true one is further off once in 10^9."""
METRICS = relation_of(
    "step_metrics",
    "metrics-of-a-step-are-those-of-their-definitions",
    "Rewards, lengths, values, throughput and validation results are those that their documentation defines.",
)
P, T = 5, 6


def step_batch(case: Numbers, shortest: int = 1) -> dict[str, Tensor]:
    """Return columns of a step: prompts padded on the left, answers on the right, one answer of few tokens or none."""
    generator = case.generator()
    prompts, answers = ([P] * 5, [T] * 5) if case.tidy else ([5, 2, 3, 1, 4], [6, 1, 4, 6, shortest])
    prompt_mask = torch.tensor([[0] * (P - one) + [1] * one for one in prompts])
    mask = torch.tensor([[1] * one + [0] * (T - one) for one in answers])
    trained = mask.clone()
    if not case.tidy:
        trained[0, 2:4] = 0
    floats = {
        name: torch.randn(5, T, generator=generator)
        for name in ("advantages", "returns", "values", "old_log_probs", "ref_log_prob")
    }
    rewards = torch.randn(5, T, generator=generator) * mask
    return {
        "prompts": torch.ones(5, P, dtype=torch.long),
        "responses": torch.ones(5, T, dtype=torch.long),
        "attention_mask": torch.cat([prompt_mask, mask], 1),
        "response_mask": trained,
        "token_level_scores": rewards,
        "token_level_rewards": rewards - 0.1 * mask,
        **floats,
    }


def _three(name: str, values: Tensor) -> dict[str, float]:
    own = [float(value) for value in values.double().flatten()]
    if not own:
        return {f"{name}/{how}": math.nan for how in ("mean", "max", "min")}
    return {f"{name}/mean": sum(own) / len(own), f"{name}/max": max(own), f"{name}/min": min(own)}


def step_metrics(batch: Mapping[str, Tensor], critic: bool) -> dict[str, float]:
    """Return metrics of a step; rows without an answer count in lengths, and in no score or reward."""
    prompts = batch["attention_mask"][:, :P].sum(1)
    answers = batch["attention_mask"][:, P:].sum(1)
    shown, whole = batch["response_mask"].bool(), answers > 0
    found = {
        **_three("critic/score", batch["token_level_scores"].double().sum(1)[whole]),
        **_three("critic/rewards", batch["token_level_rewards"].double().sum(1)[whole]),
        **_three("critic/advantages", batch["advantages"][shown]),
        **_three("critic/returns", batch["returns"][shown]),
        **_three("response_length", answers),
        **_three("prompt_length", prompts),
        "response_length/clip_ratio": float((answers == T).double().mean()),
        "prompt_length/clip_ratio": float((prompts == P).double().mean()),
    }
    if critic:
        values, returns = batch["values"][shown].double(), batch["returns"][shown].double()
        found |= _three("critic/values", batch["values"][shown])
        explained = float(1 - (returns - values).var() / returns.var()) if len(returns) > 1 else math.nan
        found["critic/vf_explained_var"] = explained
    return found


def timings(batch: Mapping[str, Tensor], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return seconds of stages, and milliseconds a token: of answers where they are generated, of all elsewhere."""
    answers = int(batch["attention_mask"][:, P:].sum())
    whole = int(batch["attention_mask"].sum())
    own = {"gen": answers, **dict.fromkeys(("ref", "values", "adv", "update_critic", "update_actor"), whole)}
    return {
        **{f"timing_s/{name}": value for name, value in seconds.items()},
        **{
            f"timing_per_token_ms/{name}": 1000 * value / own[name]
            for name, value in seconds.items()
            if name in own
        },
    }


def throughput(tokens: Sequence[int], seconds: float, gpus: int) -> dict[str, float]:
    """Return tokens a second and GPU."""
    whole = sum(tokens)
    return {
        "perf/total_num_tokens": float(whole),
        "perf/time_per_step": seconds,
        "perf/throughput": whole / seconds / gpus,
    }


def rewards_with_kl(batch: Mapping[str, Tensor], coefficient: float, kind: str) -> tuple[Tensor, float]:
    """Return rewards of tokens less the weighted KL, and the mean of rows' mean KL."""
    difference = batch["old_log_probs"].double() - batch["ref_log_prob"].double()
    mask = batch["response_mask"]
    estimates: Mapping[str, Callable[[Tensor], Tensor]] = {
        "kl": lambda d: d,
        "abs": lambda d: d.abs(),
        "mse": lambda d: 0.5 * d.square(),
        "low_var_kl": lambda d: ((-d).exp() - 1 + d).clamp(-10, 10),
    }
    kl = estimates[kind](difference) * mask
    rows = [float(row.sum()) / max(1, int(own.sum())) for row, own in zip(kl, mask, strict=True)]
    return batch["token_level_scores"].double() - coefficient * kl, sum(rows) / len(rows)


def speculation(drafts: Sequence[int], accepted: Sequence[int], steps: Sequence[int]) -> dict[str, float]:
    """Return means over requests of the accepted share, and of the accepted length of a step."""
    rates = [a / d if d else 0.0 for a, d in zip(accepted, drafts, strict=True)]
    lengths = [1 + a / v if v else 0.0 for a, v in zip(accepted, steps, strict=True)]
    return {
        "rollout/spec_accept_rate": sum(rates) / len(rates),
        "rollout/spec_accept_length": sum(lengths) / len(lengths),
    }


def majority(votes: Sequence[tuple[str, float]]) -> float:
    """Return the value that comes first with the most frequent answer; of equally frequent ones the first."""
    answers = [answer for answer, _ in votes]
    best = max(answers, key=lambda answer: (answers.count(answer), -answers.index(answer)))
    return votes[answers.index(best)][1]


@METRICS.law(
    "validation metrics",
    "best and worst exchanged, rows of another prompt or source, a majority of values in place of answers, "
    "numbers of answers that no prompt has",
    excluded=without("validation metrics"),
)
def validation_metrics_are_expectations(stack: Any, case: Numbers) -> Measure:
    """Compare means and deviations exactly, and those of draws with replacement with exact expectations.

    Of all answers of a prompt, best, worst and majority may also be those of the answers themselves, without draws.
    """
    sources, prompts, scores, answers = [], [], [], []
    generator = case.generator()
    for source, prompt in (("sums", "a"), ("sums", "b"), ("words", "a")):
        num = 3 if source == "words" else 4
        values = torch.rand(num, generator=generator, dtype=torch.float64).tolist()
        votes = [f"answer {one}" for one in torch.randint(0, 2, (num,), generator=generator).tolist()]
        sources += [source] * num
        prompts += [prompt] * num
        scores += values
        answers += votes
    order = (
        list(range(len(scores))) if case.tidy else torch.randperm(len(scores), generator=generator).tolist()
    )
    columns: list[list[Any]] = [
        [column[row] for row in order] for column in (sources, prompts, scores, answers)
    ]
    given = stack.utilities["validation metrics"](*columns)
    found = []
    for source in ("sums", "words"):
        own = given.get(source, {})
        both = [_errors(source, own, _expected(source, *columns, all_once=once)) for once in (False, True)]
        found += min(both, key=lambda errors: max(errors)[0])
    return Measure.largest(found, 1.0, "validation metrics, error by the one allowed")


def _errors(
    source: str, given: Mapping[str, float], due: Mapping[str, tuple[float, float]]
) -> list[tuple[float, str]]:
    """Return the error of each metric of a source by the one allowed, and which metric it is."""
    more = sorted(set(given) - set(due))
    found = [(math.inf if more else 0.0, f"{source} has {more}, which no prompt has answers for")]
    for name, (value, allowed) in due.items():
        own = given.get(name, math.nan)
        error = math.inf if math.isnan(own) else abs(own - value) / allowed
        found.append((error, f"{source} {name}: {own:.4g}, {value:.4g} is due"))
    return found


def _expected(
    source: str,
    sources: Sequence[str],
    prompts: Sequence[str],
    scores: Sequence[float],
    answers: Sequence[str],
    *,
    all_once: bool = False,
) -> dict[str, tuple[float, float]]:
    """Return each metric of a source, a mean over prompts, and the error that draws allow.

    With `all_once` metrics of all answers are of each answer once, without draws and their deviation.
    """
    groups = {
        prompt: [
            (answer, score)
            for own, one, answer, score in zip(sources, prompts, answers, scores, strict=True)
            if (own, one) == (source, prompt)
        ]
        for prompt in dict.fromkeys(one for own, one in zip(sources, prompts, strict=True) if own == source)
    }
    found: dict[str, list[tuple[float, float]]] = {}
    for votes in groups.values():
        values = torch.tensor([score for _, score in votes], dtype=torch.float64)
        num = len(votes)
        found.setdefault(f"mean@{num}", []).append((float(values.mean()), 1e-9))
        found.setdefault(f"std@{num}", []).append((float(values.std(unbiased=False)), 1e-9))
        for size in dict.fromkeys((2, num)):
            whole = all_once and size == num
            drawn = [tuple(votes)] if whole else list(itertools.product(votes, repeat=size))
            reduced = {
                "best": [max(score for _, score in own) for own in drawn],
                "worst": [min(score for _, score in own) for own in drawn],
                "maj": [majority(own) for own in drawn],
            }
            for name, results in reduced.items():
                own = torch.tensor(results, dtype=torch.float64)
                deviation = float(own.std(unbiased=False))
                allowed = DEVIATIONS * deviation / math.sqrt(DRAWS) + 1e-9
                found.setdefault(f"{name}@{size}/mean", []).append((float(own.mean()), allowed))
                if not whole:
                    found.setdefault(f"{name}@{size}/std", []).append((deviation, _error_of_deviation(own)))
    return {
        name: (sum(value for value, _ in own) / len(own), sum(error for _, error in own) / len(own))
        for name, own in found.items()
    }


def _error_of_deviation(values: Tensor) -> float:
    """Return the error allowed for a deviation of draws, whose variance has one of (m4 - m2^2) / N."""
    centred = values - values.mean()
    second, fourth = float(centred.square().mean()), float(centred.pow(4).mean())
    if second <= 1e-18:
        return 1e-9
    first_order = math.sqrt(max(fourth - second**2, 0.0) / DRAWS) / (2 * math.sqrt(second))
    # Of values that are as often low as high the first order is zero.
    return DEVIATIONS * first_order + DEVIATIONS**2 * math.sqrt(second) / DRAWS


def validation_of_failures(
    sources: Sequence[str],
    prompts: Sequence[str],
    accuracies: Sequence[float | None],
    expected: Mapping[tuple[str, str], int],
) -> dict[str, dict[str, dict[str, float]]]:
    """Return means and deviations of `acc`, failures and missing answers as 0, and of answers that succeeded."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for source in dict.fromkeys(sources):
        of_names: dict[str, dict[str, list[float]]] = {}
        rows = list(zip(sources, prompts, accuracies, strict=True))
        if all(value is None for own, _, value in rows if own == source):
            continue
        for (own, prompt), count in expected.items():
            if own != source:
                continue
            values = [value for *place, value in rows if place == [source, prompt] and value is not None]
            filled = values + [0.0] * (count - len(values))
            for name, column in (("acc", filled), ("acc_success_only", values)):
                if not column:
                    continue
                numbers = torch.tensor(column, dtype=torch.float64)
                means = of_names.setdefault(name, {})
                means.setdefault(f"mean@{len(column)}", []).append(float(numbers.mean()))
                if len(column) > 1:
                    means.setdefault(f"std@{len(column)}", []).append(float(numbers.std(unbiased=False)))
        found[source] = {
            name: {how: sum(values) / len(values) for how, values in means.items()}
            for name, means in of_names.items()
        }
    return found


def _failures(case: Numbers) -> list[Arguments]:
    """Return a failed answer, one that is missing, a prompt without an answer, all right, and a source without any."""
    rows: list[tuple[str, str, float | None]] = [
        ("sums", "a", 1.0),
        ("sums", "b", 0.5),
        ("sums", "a", None),
        ("sums", "b", 1.0),
        ("words", "a", 1.0),
        ("sums", "a", 0.5),
        ("words", "a", 0.0),
        ("games", "a", None),
    ]
    expected = {("sums", "a"): 3, ("sums", "b"): 3, ("sums", "c"): 3, ("words", "a"): 2, ("games", "a"): 2}
    order = range(len(rows)) if case.tidy else torch.randperm(len(rows), generator=case.generator()).tolist()
    sources, prompts, accuracies = zip(*[rows[place] for place in order], strict=True)
    return [(list(sources), list(prompts), list(accuracies), expected)]


def _batches(*more: Sequence[Any]) -> Callable[[Numbers], Iterable[Arguments]]:
    return lambda case: [(step_batch(case), *others) for others in more]


STAGES = {"gen": 2.0, "ref": 1.5, "update_actor": 3.25, "adv": 0.5, "step": 9.0}
METRIC_FUNCTIONS = (
    Plain(
        name="step metrics",
        law="metrics of a step",
        suspects="tokens of padding or of a tool in means, rows without an answer in rewards, lengths of the mask",
        cases=_batches((True,), (False,)),
        right=step_metrics,
        bound=32 * FLOAT32,
    ),
    Plain(
        name="step metrics",
        law="metrics of a step, an answer without a token",
        suspects="its reward in the mean, an average over no tokens",
        cases=lambda case: [(step_batch(case, 0), True)],
        right=step_metrics,
        bound=32 * FLOAT32,
    ),
    Plain(
        name="timings",
        law="times of stages, by tokens",
        suspects="tokens of answers where all are computed",
        cases=_batches((STAGES,)),
        right=timings,
        bound=1e-6,
    ),
    Plain(
        name="throughput",
        law="tokens a second",
        suspects="the number of GPUs left out",
        cases=lambda case: [([5, 7, 11], 2.5, 4), ([300], 0.5, 1)],
        right=throughput,
        bound=1e-9,
    ),
    Plain(
        name="rewards with KL",
        law="rewards less the weighted KL",
        suspects="the sign of the penalty, tokens that do not train, a mean over tokens for one over rows",
        cases=_batches(*[(0.3, kind) for kind in ("kl", "abs", "mse", "low_var_kl")]),
        right=rewards_with_kl,
        bound=32 * FLOAT32,
    ),
    Plain(
        name="answer part",
        law="the part of a mask that is the answer's",
        suspects="the prompt's part, one place more",
        cases=_batches(()),
        right=lambda batch: batch["attention_mask"][:, P:],
    ),
    Plain(
        name="validation of failures",
        law="validations with answers that failed",
        suspects="answers that failed or are missing left out of the accuracy, or in that of the others",
        cases=_failures,
        right=validation_of_failures,
        bound=1e-9,
    ),
    Plain(
        name="speculation",
        law="metrics of speculative decoding",
        suspects="sums over requests in place of means of ratios",
        cases=lambda case: [([10, 4, 0], [5, 4, 0], [3, 1, 0]), ([8], [2], [4])],
        right=speculation,
        bound=1e-12,
    ),
)
add_laws(METRICS, METRIC_FUNCTIONS)
