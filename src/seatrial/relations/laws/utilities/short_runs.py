"""R31.short_runs: what a trainer logs, counts, serves and hands to metrics is what a loop over its rows gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

SHORT_RUNS = relation_of(
    "short_runs",
    "short-runs-are-loops-over-rows",
    "Losses, norms, rates, epochs and tokens that are logged, rows that are served and what metrics are given are "
    "those of a loop over the rows, for each option of a run.",
)
Options = Mapping[str, Any]
RATE = 0.1


def target_of(number: int) -> float:
    """Return the target of a row."""
    return float(number % 5) - 1.5


def _rows(number: int) -> list[int]:
    return list(range(1, number + 1))


LOGGED: Sequence[Options] = (
    {"logging_steps": 1},
    {"logging_steps": 2, "gradient_accumulation_steps": 2},
    {"logging_steps": 3, "logging_first_step": True, "max_grad_norm": 0.5},
    {"logging_strategy": "epoch", "gradient_accumulation_steps": 3},
    {"logging_steps": 2, "lr_scheduler_type": "linear", "warmup_steps": 2, "weight_decay": 0.1},
    {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 3},
    {
        "logging_steps": 4,
        "eval_strategy": "epoch",
        "dataloader_drop_last": True,
        "per_device_eval_batch_size": 7,
    },
    {"logging_steps": 2, "max_steps": 5},
    {"logging_steps": 0.25, "eval_on_start": True, "eval_strategy": "no"},
)
BATCH, EPOCHS, HELD_OUT = 2, 2, 7


def _logged_cases(case: Numbers) -> Iterator[Arguments]:
    for options in LOGGED:
        yield options, 7


def _micro_batches(number: int, options: Options) -> list[list[list[int]]]:
    """Return the micro-batches of each update of an epoch."""
    rows = _rows(number)
    batches = [rows[start : start + BATCH] for start in range(0, number, BATCH)]
    if options.get("dataloader_drop_last"):
        batches = [one for one in batches if len(one) == BATCH]
    size = options.get("gradient_accumulation_steps", 1)
    return [batches[start : start + size] for start in range(0, len(batches), size)]


def logged(options: Options, number: int) -> list[dict[str, float]]:
    """Return what is logged of `y = w x + b`, whose loss is the mean squared error, trained by plain descent.

    A loss is the mean of the updates since the last one that was logged, and that of an update the mean of its
    micro-batches; the norm is that before it is cut, the rate that of the update. The last entry has the mean of all
    updates.
    """
    updates = [batches for _ in range(EPOCHS) for batches in _micro_batches(number, options)]
    per_epoch = len(updates) // EPOCHS
    steps = options.get("max_steps", len(updates))
    updates = (updates * 3)[:steps]
    every = options.get("logging_steps", 0)
    every = max(1, int(-(-steps * every // 1))) if 0 < every < 1 else every
    w = torch.tensor([0.3, -0.2], dtype=torch.float64)
    found: list[dict[str, float]] = []
    losses: list[float] = []
    since = 0

    def error(rows: Sequence[int], w: torch.Tensor) -> torch.Tensor:
        x = torch.tensor([row / 4 for row in rows], dtype=torch.float64)
        y = torch.tensor([target_of(row) for row in rows], dtype=torch.float64)
        return ((w[0] * x + w[1] - y) ** 2).mean()

    def evaluated(step: int) -> dict[str, float]:
        rows = [number + row for row in _rows(HELD_OUT)]
        return {"step": float(step), "epoch": step / per_epoch, "eval_loss": float(error(rows, w))}

    if options.get("eval_on_start"):
        found.append(evaluated(0))
    for step, batches in enumerate(updates, start=1):
        w = w.clone().requires_grad_()
        loss = sum((error(rows, w) / len(batches) for rows in batches), start=torch.zeros(()))
        (gradient,) = torch.autograd.grad(loss, w)
        losses.append(float(loss.detach()))
        norm, limit = float(gradient.norm()), options.get("max_grad_norm", 0.0)
        rate = RATE
        if options.get("lr_scheduler_type") == "linear":
            warm = options["warmup_steps"]
            rate *= (step - 1) / warm if step <= warm else (steps - step + 1) / (steps - warm)
        scale = min(1.0, limit / norm) if limit else 1.0
        decay = rate * options.get("weight_decay", 0.0) * torch.tensor([1.0, 0.0])
        w = (w - rate * scale * gradient - decay * w).detach()
        ends = step % per_epoch == 0 or step == steps
        by_epoch = options.get("logging_strategy") == "epoch"
        first = bool(options.get("logging_first_step")) and step == 1
        if (ends and by_epoch) or (not by_epoch and step % every == 0) or first:
            own = losses[since:]
            entry = {"step": float(step), "epoch": step / per_epoch, "loss": sum(own) / len(own)}
            found.append({**entry, "learning_rate": rate, **({"grad_norm": norm} if limit else {})})
            since = step
        strategy = options.get("eval_strategy")
        if (strategy == "steps" and step % options["eval_steps"] == 0) or (strategy == "epoch" and ends):
            found.append(evaluated(step))
    return [*found, {"step": float(steps), "epoch": steps / per_epoch, "train_loss": sum(losses) / steps}]


SERVED: Sequence[Options] = (
    {},
    {"gradient_accumulation_steps": 2},
    {"dataloader_drop_last": True, "gradient_accumulation_steps": 2},
    {"max_steps": 7},
    {"max_steps": 5, "gradient_accumulation_steps": 3},
)


def _served_cases(case: Numbers) -> Iterator[Arguments]:
    for options in SERVED:
        yield "sequential", options, 7
    yield "stream", {"max_steps": 7}, 7
    yield "stream", {"max_steps": 5, "gradient_accumulation_steps": 2}, 7


def _cut_cases(case: Numbers) -> Iterator[Arguments]:
    yield "stream", {"max_steps": 5, "gradient_accumulation_steps": 3}, 7


def served(form: str, options: Options, number: int) -> list[list[list[int]]]:
    """Return rows by update and micro-batch; epochs follow one another, and an epoch ends an update."""
    epoch = _micro_batches(number, options)
    updates = epoch * (EPOCHS if "max_steps" not in options else 9)
    return updates[: options.get("max_steps", len(updates))]


METRICS: Sequence[Options] = (
    {},
    {"batch_eval_metrics": True},
    {"include_for_metrics": ["inputs", "loss"]},
    {"cut": True, "eval_accumulation_steps": 1},
    {"sets": True},
    {"eval_do_concat_batches": False},
    {"batch_eval_metrics": True, "include_for_metrics": ["inputs", "loss"]},
)


def _metric_cases(case: Numbers) -> Iterator[Arguments]:
    for options in METRICS:
        for number, batch in ((7, 3), (4, 2), (3, 8)):
            yield options, number, batch


def metrics(options: Options, number: int, batch: int) -> dict[str, float]:
    """Return sums of what a metric is given of rows whose outputs are their number and its square, and the loss."""
    sets = {"one_": _rows(number), "other_": [row + 2 for row in _rows(number - 1)]}
    sets = sets if options.get("sets") else {"": _rows(number)}
    found: dict[str, float] = {}
    for name, rows in sets.items():
        own = {
            "rows": float(len(rows)),
            "outputs": float(sum(rows) + (0 if options.get("cut") else sum(row**2 for row in rows))),
            "labels": float(sum(map(target_of, rows))),
            "loss": sum((row - target_of(row)) ** 2 for row in rows) / len(rows),
        }
        if "include_for_metrics" in options:
            own["inputs"] = float(sum(rows))
            own["losses"] = own["loss"]
        found |= {f"eval_{name}{key}": value for key, value in own.items()}
    return found


def _count_cases(case: Numbers) -> Iterator[Arguments]:
    for counts in ("all", "non_padding", "no"):
        for masked in (True, False):
            yield counts, masked, [5, 2, 7, 3, 4]


def counted(counts: str, masked: bool, lengths: Sequence[int]) -> int:
    """Return the tokens of rows in batches of two, with or without padding."""
    if counts == "no":
        return 0
    if counts == "non_padding":
        return sum(lengths)
    batches = [lengths[start : start + 2] for start in range(0, len(lengths), 2)]
    return sum(len(batch) * max(batch) for batch in batches)


def _noise_cases(case: Numbers) -> Iterator[Arguments]:
    for alpha in (None, 4.0):
        for steps in (1, 2):
            yield alpha, steps


def noisy(alpha: float | None, steps: int) -> dict[str, list[bool]]:
    """Return whether embeddings have noise, in each pass of training, then in an evaluation, and after the run."""
    on = alpha is not None
    return {"training": [on] * steps, "evaluation": [False], "afterwards": [False]}


SHORT_RUN_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="logged training",
        law="log of a run",
        suspects="a mean over other updates, a rate of the next one, a norm after the cut, an epoch that is not whole",
        cases=_logged_cases,
        right=logged,
        bound=1e-4,  # releases before 5 round losses to four places
    ),
    Plain(
        name="served rows",
        law="rows in their order",
        suspects="rows left out or twice between epochs, an update that goes beyond its epoch",
        cases=_served_cases,
        right=served,
    ),
    Plain(
        name="served rows",
        law="rows of a stream that ends within an update",
        suspects="micro-batches of an epoch's end that are added to the next update",
        cases=_cut_cases,
        right=served,
    ),
    Plain(
        name="evaluated metrics",
        law="what metrics are given",
        suspects="rows of the last batch left out or twice, labels of other rows, an option that is ignored",
        cases=_metric_cases,
        right=metrics,
        bound=1e-5,
    ),
    Plain(
        name="counted tokens",
        law="tokens that are counted",
        suspects="padding that is counted, or an option that is ignored",
        cases=_count_cases,
        right=counted,
    ),
    Plain(
        name="noise of a run",
        law="noise in training alone",
        suspects="noise in evaluations, or that stays after the run, an option that is ignored",
        cases=_noise_cases,
        right=noisy,
    ),
)
add_laws(SHORT_RUNS, SHORT_RUN_FUNCTIONS)


LIMITED: Sequence[Options] = (
    {"generation_max_length": 6},
    {"generation_max_length": 9, "generation_num_beams": 3},
    {"called": {"max_new_tokens": 4}},
    {"generation_max_length": 5, "called": {"max_length": 8, "num_beams": 2}},
)


@SHORT_RUNS.law(
    "predictions by generation",
    "options of another place, a limit or beams that are ignored, padding of another id, rows in another order",
    excluded=without("generated predictions"),
    table=LIMITED,
)
@SHORT_RUNS.law(
    "predictions by generation, no limit given",
    "a limit that the first batch leaves to the others",
    excluded=without("generated predictions"),
    table=({},),
)
def predictions_are_generated(stack: Any, case: Numbers, table: Sequence[Options]) -> Measure:
    """Compare the predictions of a trainer with what its model generates of each row alone, and its loss and labels."""
    wrong = []
    for options in table:
        for batch in (1, 2, 5):
            given, due = stack.utilities["generated predictions"](options, batch)
            wrong += [
                f"{name} is {given[name]}, due {due[name]}: {options}, batches of {batch}"
                for name in due
                if given[name] != due[name]
            ]
    return Measure.count(wrong, "parts of predictions that are not those of rows alone")
