"""How GRPO and RLOO score sampled completions, worked out in Python: what functions are given, advantages, the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.targets.common.known import before
from seatrial.targets.common.target import Gone
from seatrial.targets.common.tiny import tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.trl.named import code_has, parameters_of, sources
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.generations import LENGTHS, Plan, Run, Said
from seatrial.targets.trl.worked.limits import made_rows, places
from seatrial.targets.trl.worked.rows import Row

SAMPLED = ("GRPO", "RLOO")
TOLERANCE = 1e-4
OTHER_REWARDS = ("std_rewards.mean()", "std_grouped_rewards.mean()", "= rewards_per_func.nansum(dim=1)")
"""Code that logs the mean deviation of groups, or rewards without their weights."""
SHUFFLES = "shuffle_sequence_dict"
"""Shuffles the rows of a generation before they are divided, in releases that have it."""


def _known(values: Sequence[float]) -> list[float]:
    return [one for one in values if not math.isnan(one)]


def _mean(values: Sequence[float]) -> float:
    known = _known(values)
    return sum(known) / len(known) if known else math.nan


def _deviation(values: Sequence[float]) -> float:
    known, mean = _known(values), _mean(values)
    if len(known) < 2:
        return math.nan
    return math.sqrt(sum((one - mean) ** 2 for one in known) / (len(known) - 1))


def _groups(values: Sequence[float], size: int) -> list[list[float]]:
    return [list(values[at : at + size]) for at in range(0, len(values), size)]


def advantages_of(run: Run, penalties: Sequence[float]) -> list[float]:
    """Return the advantages of the completions, by the options of the run."""
    options, size = run.plan.options, run.num_copies
    values = run.weighted()
    if run.name == "RLOO":
        bounds = options.get("reward_clip_range") or (-math.inf, math.inf)
        shaped = [
            one if math.isnan(one) else min(max(one, bounds[0]), bounds[1]) - run.beta * more
            for one, more in zip(values, penalties, strict=True)
        ]
        found = [
            one - _mean([*group[:at], *group[at + 1 :]])
            for group in _groups(shaped, size)
            for at, one in enumerate(group)
        ]
        if options.get("normalize_advantages"):
            mean, apart = _mean(found), _deviation(found)
            found = [(one - mean) / (apart + 1e-4) for one in found]
    elif options.get("multi_objective_aggregation") == "normalize_then_sum":
        found = _whitened(_of_each(run), 1)
    else:
        kind = options.get("scale_rewards", "group")
        found = []
        for group in _groups(values, size):
            apart = _deviation(values if kind == "batch" else group) + 1e-4
            found += [(one - _mean(group)) / (1.0 if kind == "none" else apart) for one in group]
    return [0.0 if math.isnan(one) else one for one in found]


def _whitened(values: Sequence[float], num_groups: int) -> list[float]:
    found = []
    for group in _groups(values, len(values) // num_groups):
        apart = _deviation(group) + 1e-4
        found += [(one - _mean(group)) / apart for one in group]
    return found


def _of_each(run: Run) -> list[float]:
    """Return weighted sums of rewards that each have the mean 0 and the deviation 1 in their group."""
    weights = run.plan.weights or [1.0] * len(run.plan.functions)
    columns = [
        _whitened([math.nan if one is None else one for one in column], len(run.said) // run.num_copies)
        for column in zip(*run.rewards(), strict=True)
    ]
    return [
        math.nan
        if all(map(math.isnan, row))
        else sum(weight * one for weight, one in zip(weights, row, strict=True) if not math.isnan(one))
        for row in zip(*columns, strict=True)
    ]


def logprobs_of(model: Any, asked: Sequence[int], said: Sequence[int], temperature: float) -> list[float]:
    """Return the log-probabilities of a completion's tokens after a prompt, without padding."""
    ids = torch.tensor([[*asked, *said]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(asked) - 1 : -1] / temperature
    return logits.log_softmax(-1).gather(-1, torch.tensor(said)[:, None])[:, 0].tolist()  # type: ignore[no-any-return]


def _judged(name: str, plan: Plan, _: Any) -> list[str]:
    """Return what is wrong with the batches of a run, and with its log."""
    run = Run(name, plan)
    said = run.said
    wrong = [
        f"{run.names[which]} is given other completions" for which, one in run.calls.items() if one != said
    ]
    texts = [one["prompt"] for one in made_rows("prompts", LENGTHS)]
    tokenizer = run.tokenizer
    for one in said:
        if one.asked != texts[one.place]:
            wrong.append(f"the prompt {one.asked} with the column of {texts[one.place]}")
        if tokenizer.decode(one.ids, skip_special_tokens=True) != one.text:
            wrong.append(f"the ids of {tokenizer.decode(one.ids)} with {one.text}")
    if any(one is not run.trainer.state for one in run.states) and code_has(
        '"trainer_state"', run.trainer_class
    ):
        wrong.append("a function is not given the state of the trainer")
    return [*wrong, *_wrong_batches(run), *_wrong_figures(run)]


def _wrong_batches(run: Run) -> list[str]:
    """Return what is wrong with the tensors of a run's batches."""
    policy, reference = (
        tiny_model(run.tokenizer, seed).double().eval() for seed in (4 if run.beta else 0, 0)
    )
    found: dict[int, float] = {}
    wrong, penalties = [], {}
    for batch in run.batches:
        for number in range(len(batch["prompt_ids"])):
            row = {key: value[number] for key, value in batch.items() if getattr(value, "ndim", 0)}
            place = place_of(run.said, row, found, run.shown)
            if place is None:
                wrong.append(f"no completion is {run.tokenizer.decode(row['completion_ids'])}")
                continue
            found[place] = float(row["advantages"])
            mistakes, penalties[place] = _wrong_row(run, row, run.said[place], (policy, reference))
            wrong += mistakes
    order = list(found)
    if sorted(order) != list(range(len(run.said))):
        return [*wrong, f"{len(order)} of {len(run.said)} completions train"]
    due = advantages_of(run, [penalties[place] for place in sorted(order)])
    wrong += unlike([found[place] for place in sorted(order)], due, "advantages", 1e-3)
    total = sum(int(batch["completion_mask"].sum()) for batch in run.batches)
    counts = {int(one["num_items_in_batch"]) for one in run.batches if "num_items_in_batch" in one}
    is_read = not run.plan.options.get("mask_truncated_completions") or not before("trl", "1.9")(None)
    if counts - {total} and is_read:  # masked tokens counted in earlier releases (trl-6439)
        wrong.append(f"{counts} tokens that train, {total} are due")
    if run.plan.num_batches > 1 and order == sorted(order) and code_has(SHUFFLES, run.trainer_class):
        wrong.append("batches are parts of the generation in its order")
    return wrong


def place_of(
    said: Sequence[Said], row: Mapping[str, Any], taken: Collection[int], shown: Callable[[str], str] = str
) -> int | None:
    """Return the place of the first completion that a row of a batch is, and no earlier row was.

    Args:
        said: the completions.
        row: its tensors by name.
        taken: places of earlier rows.
        shown: returns a prompt as the template writes it.
    """
    tokenizer = tiny_tokenizer()
    text = tokenizer.decode(row["prompt_ids"][row["prompt_mask"].bool()])
    ids = row["completion_ids"].tolist()
    return next(
        (
            place
            for place, one in enumerate(said)
            if place not in taken
            and text == shown(one.asked)
            and tuple(ids[: len(one.ids)]) == one.ids
            and set(ids[len(one.ids) :]) <= {tokenizer.pad_token_id}
        ),
        None,
    )


def _wrong_row(
    run: Run, row: Mapping[str, Any], one: Said, models: tuple[Any, Any]
) -> tuple[list[str], float]:
    """Return what is wrong with the tensors of a row, and how far the policy is from the reference."""
    options, kept = run.plan.options, one.ids
    asked, num_ids = row["prompt_ids"][row["prompt_mask"].bool()].tolist(), len(row["completion_ids"])
    trains = not options.get("mask_truncated_completions") or kept[-1] == run.tokenizer.eos_token_id
    own, other = ([], [])
    if run.beta or any(key in row for key in ("old_per_token_logps", "old_logps")):
        own, other = (logprobs_of(model, asked, kept, options.get("temperature", 1.0)) for model in models)
    wrong = []
    if row["completion_mask"].tolist() != [int(trains)] * len(kept) + [0] * (num_ids - len(kept)):
        wrong.append(f"the mask of {run.tokenizer.decode(kept)}")
    multiple = options.get("pad_to_multiple_of") or 1
    if num_ids % multiple or row["prompt_ids"].numel() % multiple:
        wrong.append(f"{row['prompt_ids'].numel()} and {num_ids} tokens with padding")
    if trains:
        for key, due in (("old_per_token_logps", own), ("ref_per_token_logps", other)):
            wrong += unlike(row[key][: len(kept)].tolist(), due, key, 1e-3) if key in row else []
    if run.name == "GRPO" and ("ref_per_token_logps" in row) != bool(run.beta):
        wrong.append("log-probabilities of a reference that is not used, or none")
    if "old_logps" in row:
        wrong += unlike([float(row["old_logps"])], [sum(own) * trains], "old_logps", 1e-3)
    return wrong, (sum(own) - sum(other)) * trains


def _wrong_figures(run: Run) -> list[str]:
    """Return the figures of the log that are not those of the completions."""
    columns = [
        [math.nan if one is None else one for one in column] for column in zip(*run.rewards(), strict=True)
    ]
    due: dict[str, float] = {}
    for label, column in zip(run.names, columns, strict=True):
        due |= {f"rewards/{label}/mean": _mean(column), f"rewards/{label}/std": _deviation(column)}
    ends = (run.tokenizer.eos_token_id, run.tokenizer.pad_token_id)
    lengths = [len(one.ids) for one in run.said]
    ended = [len(one.ids) for one in run.said if one.ids[-1] in ends] or [0]
    for part, values in (("", lengths), ("_terminated", ended)):
        due |= {
            f"completions/mean{part}_length": sum(values) / len(values),
            f"completions/min{part}_length": min(values),
            f"completions/max{part}_length": max(values),
        }
    due["completions/clipped_ratio"] = 1 - sum(one.ids[-1] in ends for one in run.said) / len(run.said)
    if not any(one in source for source in sources([run.trainer_class]) for one in OTHER_REWARDS):
        due |= {"reward": _mean(run.weighted()), "reward_std": _deviation(run.weighted())}
    return [
        line
        for key, value in due.items()
        if key in run.logged or code_has('/mean"', run.trainer_class)
        for line in unlike([run.logged.get(key, math.nan)], [value], key, TOLERANCE)
    ]


WEIGHTS = (0.5, 2.0, -1.0)
KINDS = ("plain", "sparse", "awaited")
PLANS: Mapping[str, Sequence[Plan]] = {
    "": (
        Plan(functions=KINDS, weights=WEIGHTS),
        Plan(functions=KINDS, conversational=True, ends="all"),
        Plan(functions=("awaited", "plain", "awaited"), weights=WEIGHTS, ends="none"),
        Plan(functions=("silent", "silent"), weights=WEIGHTS[:2]),
        Plan(functions=("constant",), num_batches=2),
        Plan(functions=("plain", "model", "plain"), weights=WEIGHTS),
        Plan(functions=("plain", "object", "partial"), weights=WEIGHTS),
        Plan(functions=KINDS, weights=WEIGHTS, evaluates=1),
        Plan(functions=KINDS, weights=WEIGHTS, evaluates=2),
        Plan(options={"mask_truncated_completions": True, "pad_to_multiple_of": 8}, num_batches=2),
        Plan(options={"num_iterations": 2, "beta": 0.3, "temperature": 0.7}, num_batches=2),
    ),
    "GRPO": (
        *(
            Plan(functions=("silent", "silent"), weights=WEIGHTS[:2], options={"scale_rewards": one})
            for one in ("batch", "none")
        ),
        Plan(functions=KINDS, weights=WEIGHTS, options={"multi_objective_aggregation": "normalize_then_sum"}),
    ),
    "RLOO": (
        Plan(
            functions=("silent", "silent"),
            options={"reward_clip_range": (-0.2, 1.1), "normalize_advantages": True},
        ),
        Plan(functions=KINDS, options={"beta": 0.3, "reward_clip_range": (-0.2, 1.1)}),
    ),
}
"""Runs of both trainers, and of one."""


def _rows_of(name: str) -> Iterator[Row]:
    for plan in (*PLANS[""], *PLANS[name]):
        subject = "metrics" if plan.evaluates else "rewards"
        what = f"{', '.join(plan.functions)}, {dict(plan.options)}, {plan.ends} end"
        what += f", weights {list(plan.weights or ())}" * bool(plan.weights) + ", turns" * plan.conversational
        what += f", {plan.evaluates} in an evaluation" * bool(plan.evaluates)
        yield Row(subject, places(name), what, partial(_judged, name, plan), [])


def _made(name: str) -> Sequence[Row]:
    """Return the rows of a trainer.

    Raises:
        Gone: the release does not have it, or scores completions itself.
    """
    trainer_class = find_trainer(name)[0]
    if "reward_funcs" not in parameters_of(trainer_class):
        raise Gone(f"{name}Trainer of this release takes no reward functions")
    if not code_has('"advantages"', trainer_class):
        raise Gone(f"{name}Trainer of this release computes advantages in its loss")
    return list(_rows_of(name))


SCORED: Mapping[str, Callable[[], Sequence[Row]]] = {
    f"scored-{name.lower()}": partial(_made, name) for name in SAMPLED
}
