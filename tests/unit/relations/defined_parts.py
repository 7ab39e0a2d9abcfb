"""Definitions of media, sequence parallelism, parts of workers and tools of trainers, and a fault for each law."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from seatrial.relations.laws.utilities.distilled import DISTILLED_FUNCTIONS
from seatrial.relations.laws.utilities.media import MEDIA_FUNCTIONS, Segment
from seatrial.relations.laws.utilities.model_updates import MODEL_UPDATE_FUNCTIONS
from seatrial.relations.laws.utilities.sequence_parallel import SEQUENCE_PARALLEL_FUNCTIONS
from seatrial.relations.laws.utilities.trainer_tools import TRAINER_TOOL_FUNCTIONS
from seatrial.relations.laws.utilities.worker_parts import WORKER_PART_FUNCTIONS


def weighted_loss(
    name: str, columns: Mapping[str, torch.Tensor], weights: torch.Tensor | None, power: float = 1.0
) -> tuple[float, torch.Tensor]:
    """Return the weighted mean of ratios times advantages, and its gradient."""
    logprobs, mask = columns["logprobs"].double(), columns["mask"]
    own = torch.ones_like(mask) if weights is None else weights**power
    terms = -own * (logprobs - columns["old_logprobs"]).exp() * columns["advantages"] * mask / mask.sum()
    return float(terms.sum()), terms


PART_RELATIONS = (
    "R31.distilled",
    "R31.media",
    "R31.model_updates",
    "R31.sequence_parallel",
    "R31.worker_parts",
    "R31.trainer_tools",
    "R31.weighted_losses",
)
PARTS: Mapping[str, Callable[..., Any]] = {
    one.name: one.right
    for one in (
        *DISTILLED_FUNCTIONS,
        *MEDIA_FUNCTIONS,
        *MODEL_UPDATE_FUNCTIONS,
        *SEQUENCE_PARALLEL_FUNCTIONS,
        *WORKER_PART_FUNCTIONS,
        *TRAINER_TOOL_FUNCTIONS,
    )
} | {
    "weighted policy loss": weighted_loss,
    "names of weighted losses": lambda: {"ratios": "tokens"},
}


def given(name: str, change: Callable[..., tuple[Any, ...]]) -> tuple[str, Callable[..., Any]]:
    """Return a function that is called with other arguments."""
    return name, lambda *arguments: PARTS[name](*change(*arguments))


def made(name: str, change: Callable[[Any], Any]) -> tuple[str, Callable[..., Any]]:
    """Return a function whose result is another."""
    return name, lambda *arguments: change(PARTS[name](*arguments))


def updated(change: Callable[[Any], Any]) -> tuple[str, Callable[..., Any]]:
    """Return updates by another plan."""
    return given(
        "updates of a model", lambda role, table, rows, plan, part: (role, table, rows, change(plan), part)
    )


def turned(one: Segment) -> Segment:
    """Return a segment with height and width exchanged."""
    return one._replace(rows=one.columns, columns=one.rows)


PART_FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "divergence from a teacher's likeliest tokens": made(
        "likeliest tokens", lambda one: {**one, "overlap_count": one["overlap_count"] * 0}
    ),
    "what distillation logs": given(
        "metrics of distillation",
        lambda columns, masks, number: (columns, [[1] * len(mask) for mask in masks], number),
    ),
    "positions of text, images and videos": given(
        "positions of media", lambda kind, plan, *padding: (kind, [turned(one) for one in plan], *padding)
    ),
    "packed rows padded for ranks": given("padded for ranks", lambda *one: (*one[:3], 0)),
    "packed rows with tokens added": given("packed and padded", lambda *one: (*one[:3], 0)),
    "packed tokens with the ends of rows": made("packed with ends", lambda one: (one[0], [0, 3, 7], one[2])),
    "tokens of each rank": made("shares of ranks", lambda one: one[::-1]),
    "slices of each rank": made("slices of ranks", lambda one: one[::-1]),
    "all tokens for the heads of a rank": made("tokens to heads", lambda one: (one[0], one[1][::-1])),
    "all heads for the tokens of a rank": made("heads to tokens", lambda one: (one[0], one[1][::-1])),
    "values gathered of all ranks": given("gathered of ranks", lambda *one: (*one[:5], not one[5])),
    "weights of one": ("weighted policy loss", partial(weighted_loss, power=2.0)),
    "weights of rows": given(
        "weighted policy loss",
        lambda name, columns, weights: (name, columns, weights if weights is None else weights.flip(0)),
    ),
    "weights of tokens": given(
        "weighted policy loss",
        lambda name, columns, weights: (name, columns, weights if weights is None else weights.roll(1, 1)),
    ),
    "weights after updates": updated(lambda plan: plan._replace(epochs=1)),
    "losses that updates log": updated(lambda plan: plan._replace(mini=8)),
    "norms that updates log": updated(lambda plan: plan._replace(mini=8)),
    "shares that updates log": updated(lambda plan: plan._replace(mini=8)),
    "rates that updates log": made("rates of updates", lambda one: [*one[1:], one[-1]]),
    "updates that are not finite": (
        "updates of a model",
        lambda role, table, *one: table.double() * torch.nan,
    ),
    "scores of rows in any micro-batches": made(
        "scores of a model", lambda one: {name: rows[::-1] for name, rows in one.items()}
    ),
    "an MLP in tiles": made("MLP in tiles", lambda one: {**one, "weights": one["weights"][::-1]}),
    "a head that gives log-probabilities and entropies": given("fused head", lambda *one: (*one[:5], 1.0)),
    "rows of a rollout that generates": given("generated rows", lambda *one: (*one[:3], {})),
    "places of a shard in the whole": given(
        "flat places", lambda places, local, offset, full: (places, local, (0,) * len(full), full)
    ),
    "optimizers of options": given(
        "built optimizer", lambda name, options, *one: (name, {**options, "weight_decay": 0.0}, *one)
    ),
    "precisions by name": ("precision", lambda name: "bfloat16" if "16" in name else "float32"),
    "masks that are drawn": made("random masks", lambda one: {**one, "longest": one["longest"] - 1}),
    "numbers of parameters": made("size of a model", lambda one: (one[0] / 1e3, one[1])),
    "values put back among padding": given("put back", lambda values, *one: (values.flip(0), *one)),
    "values of a worker's rows": made("values of rows", lambda one: one[::-1]),
    "log-probabilities of a worker's rows": made("log-probabilities of rows", lambda one: one[::-1]),
    "entropies of a worker's rows": made("entropies of rows", lambda one: one[::-1]),
    "settings of actor, reference and critic": given(
        "settings of models", lambda role, options, *one: (role, {**options, role: options["actor"]}, *one)
    ),
    "rates that are logged": ("logged rate", lambda role, rates: rates[1]),
    "rows of supervised data": given("collated rows", lambda rows, nested: (rows[::-1], nested)),
    "what a run logs": given(
        "tracked", lambda project, run, steps: (project, run, [(step + 1, own) for step, own in steps])
    ),
    "what checkpoints save and load": made(
        "contents of checkpoints", lambda one: {"save": one["load"], "load": one["save"]}
    ),
    "saves before a machine ends": given("saved before the end", lambda *one: (*one[:4], 0.0)),
    "decisions of schedules of rollouts": given(
        "decisions of a schedule", lambda policy, *one: ("fixed_ratio", *one)
    ),
    "names with a prefix": (
        "renamed",
        lambda values, prefix: {prefix + name: values[name] for name in values},
    ),
    "facts of two batches": ("united", lambda one, other: dict(other)),
    "nested values by name": ("namespaces", lambda values: dict.fromkeys(values)),
    "options as plain values": ("regular values", lambda values: dict.fromkeys(values)),
    "a configuration with changes": ("overridden", lambda values, changes: {**values, **changes}),
    "tools of functions": given("tool of a function", lambda name: (None,)),
    "results of tools as text": given("results as text", lambda results, names: (results, names[::-1])),
    "rows that are resampled by their scores": given(
        "resampled rows", lambda scores, method, power: (scores, method, power + 1)
    ),
    "the order of rows of a run": given("order of rows", lambda number, shuffled, seed: (number, True, None)),
    "tokens that differ": given("differences of tokens", lambda one, other, mask: (one, other, mask * 0 + 1)),
    "waits of a limit of requests": given("waits of requests", lambda rate, most, one: (rate, None, one)),
}
