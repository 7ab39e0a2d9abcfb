"""A run of a trainer that is computed again in float64: its steps, logs, evaluations, checkpoints and events."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.oracles.schedules import scheduled_rate
from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.transformers.worked.paired_models import (
    NUM_ROWS,
    Again,
    Case,
    Seen,
    count_of,
    losses_of,
    make_model,
    make_optimizer,
    padded,
    takes_counts,
    text_rows,
)

RATE = 0.05


def steps_of(case: Case) -> tuple[int, int, int]:
    """Return the micro-batches and the steps of an epoch, and the steps of the whole run."""
    options = case.options
    size, parts = options["per_device_train_batch_size"], options.get("gradient_accumulation_steps", 1)
    num_batches = NUM_ROWS // size if options.get("dataloader_drop_last") else math.ceil(NUM_ROWS / size)
    num_updates = math.ceil(num_batches / parts)
    total = options.get("max_steps", math.ceil(options.get("num_train_epochs", 3) * num_updates))
    return (
        (total * parts, total, total)
        if case.own.get("order") == "stream"
        else (num_batches, num_updates, total)
    )


class Due:
    """The run that is due."""

    def __init__(self, case: Case, seen: Seen, trainer: Any) -> None:
        """Train in float64 on the micro-batches that were served."""
        self.case, self.seen, options = case, seen, case.options
        self.kind, self.loss = case.own["kind"], case.own.get("loss", "own")
        self.size, self.parts = (
            options["per_device_train_batch_size"],
            options.get("gradient_accumulation_steps", 1),
        )
        self.num_batches, self.num_updates, self.total = steps_of(case)
        self.again = Again(make_model(self.kind, case.own.get("weights", "all")))
        self.optimizer = make_optimizer(self.again, options["optim"], options, RATE)
        self.logs: list[dict[str, float]] = []
        self.saved: list[int] = []
        self.best: tuple[float, int] | None = None
        self.kept: dict[int, list[Tensor]] = {}
        self.counts: list[int] = []
        self.losses: list[float] = []
        self.events = ["train_begin"]
        self.used = self.tested = self.tokens = 0
        self.rate, self.bad = RATE, [math.inf]
        self.unlogged: list[float] = []
        self.last: dict[str, float] = {}
        self.snapshot: list[dict[str, float]] = []
        self.wrong: list[str] = []
        self._run()

    def _run(self) -> None:
        options, stop = self.case.options, self.case.own.get("stop")
        if options.get("eval_on_start"):
            self._evaluate(0.0, 0, scheduled=False)
        step = 0
        for epoch in range(10**6):
            self.events.append("epoch_begin")
            for place in range(self.num_updates):
                step += 1
                batches = min(self.parts, self.num_batches - place * self.parts)
                self._update(step, batches)
                self._after_step(
                    step, epoch + min((place + 1) * self.parts, self.num_batches) / self.num_batches
                )
                if step == stop and step < self.total:
                    self._after_epoch(step, epoch, place)
                    self.events += ["log", "train_end", "train_begin"]
                    self.logs, self.unlogged = [*self.snapshot], []
                    if options.get("eval_on_start"):
                        self._evaluate(self.epoch, step, scheduled=False)
                    if place + 1 < self.num_updates:
                        self.events.append("epoch_begin")
                if step == self.total:
                    break
            if not (step == stop and step < self.total and place + 1 == self.num_updates):
                self._after_epoch(step, epoch, place)
            if step == self.total:
                break
        self.events += ["log", "train_end"]

    def _update(self, step: int, num_batches: int) -> None:
        options, plateau = self.case.options, self.case.options["lr_scheduler_type"] == "reduce_lr_on_plateau"
        named = {
            "policy.optimizer.lr": RATE,
            "policy.scheduler.name": options["lr_scheduler_type"],
            "policy.scheduler.warmup_steps": self.case.own.get("warmup", 0),
            **{
                f"policy.scheduler.{key}": value
                for key, value in options.get("lr_scheduler_kwargs", {}).items()
            },
        }
        rate = self.rate if plateau else scheduled_rate(named, step, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad()
        self.events.append("step_begin")
        batches = self.seen.batches[self.used : self.used + num_batches]
        number = sum(count_of(self.kind, one["labels"]) for one in batches)
        whole = 0.0
        for place, batch in enumerate(batches):
            noise = self.seen.noises[self.used + place] if "neftune_noise_alpha" in options else None
            own = number if takes_counts(self.kind) or self.loss == "function" else None
            found = losses_of(self.kind, self.loss, self.again.logits(batch, noise), batch["labels"], own)
            found = found / len(batches) if own is None else found
            found.backward()  # type: ignore[no-untyped-call]
            whole += float(found.detach())
            counts = options.get("include_num_input_tokens_seen")
            self.tokens += int(
                batch["attention_mask"].sum() if counts == "non_padding" else batch["input_ids"].numel()
            )
            if self.loss == "function":
                self.counts.append(number)
            if place + 1 < len(batches):
                self.events.append("substep_end")
        self.used += num_batches
        norm = self.again.norm()
        if options["max_grad_norm"] and norm > options["max_grad_norm"]:
            for one in self.again.weights:
                if one.grad is not None:
                    one.grad *= options["max_grad_norm"] / norm
        self.optimizer.step()
        self.losses.append(whole)
        self.unlogged.append(whole)
        self.last = {"grad_norm": norm, "learning_rate": rate}
        self.events += ["pre_optimizer_step", "optimizer_step"]

    def _after_step(self, step: int, epoch: float) -> None:
        options, own = self.case.options, self.case.own
        self.epoch = epoch
        self.events.append("step_end")
        every = options.get("logging_steps", 0)
        every = math.ceil(every * self.total) if 0 < every < 1 else every
        if (step == 1 and options.get("logging_first_step")) or (every and step % every == 0):
            self._log(step)
        evaluated = False
        if options.get("eval_strategy") == "steps" and step >= options.get("eval_delay", 0):
            at_end = step == self.total and evaluates_last_step()
            evaluated = step % options["eval_steps"] == 0 or at_end
        if evaluated:
            self._evaluate(epoch, step)
        saves = options.get("save_strategy")
        planned = saves == "steps" and (step % options["save_steps"] == 0 or step == self.total)
        best = saves == "best" and evaluated and self.best is not None and self.best[1] == step
        if planned or best or (step == own.get("stop") and step < self.total):
            self._save(step)

    def _after_epoch(self, step: int, epoch: int, place: int) -> None:
        options = self.case.options
        self.events.append("epoch_end")
        if options.get("logging_strategy") == "epoch":
            self._log(step)
        evaluated = options.get("eval_strategy") == "epoch" and self.epoch >= options.get("eval_delay", 0)
        if evaluated:
            self._evaluate(self.epoch, step)
        if options.get("save_strategy") == "epoch" or (
            options.get("save_strategy") == "best"
            and evaluated
            and self.best is not None
            and self.best[1] == step
        ):
            self._save(step)

    def _tokens(self) -> dict[str, float]:
        return (
            {"num_input_tokens_seen": self.tokens}
            if "include_num_input_tokens_seen" in self.case.options
            else {}
        )

    def _log(self, step: int) -> None:
        if not self.unlogged:
            return
        loss = sum(self.unlogged) / len(self.unlogged)
        self.unlogged = []
        self.logs.append({"loss": loss, **self.last, "epoch": self.epoch, "step": step, **self._tokens()})
        self.events.append("log")

    def _save(self, step: int) -> None:
        self.saved.append(step)
        self.kept[step] = [one.detach().clone() for one in self.again.weights]
        self.events.append("save")
        if step == self.case.own.get("stop"):
            self.snapshot = [*self.logs]

    def _evaluate(self, epoch: float, step: int, scheduled: bool = True) -> None:
        found: dict[str, float] = {}
        for number in range(self.case.own.get("sets", 1)):
            prefix = f"eval_set{number}" if "sets" in self.case.own else "eval"
            metrics = self._metrics(text_rows(3 + 2 * number, number))
            found |= {f"{prefix}_{name}": value for name, value in metrics.items()}
            self.logs.append({f"{prefix}_{name}": value for name, value in metrics.items()}
                             | {"epoch": epoch, "step": step, **self._tokens()})  # fmt: skip
            self.events += ["log", "evaluate"]
        options = self.case.options
        metric = options.get("metric_for_best_model")
        if options["lr_scheduler_type"] == "reduce_lr_on_plateau" and scheduled:
            value, sign = found[f"eval_{metric or 'loss'}"], 1.0
            lower = value < self.bad[0] - 1e-4 * abs(self.bad[0]) * sign if self.bad[0] < math.inf else True
            if lower:
                self.bad[0] = value
            else:
                self.rate = self.rate * 0.5 if self.rate * 0.5 < self.rate - 1e-8 else self.rate
        if metric is not None and scheduled:
            value = found[f"eval_{metric}"]
            better = self.best is None or (
                value > self.best[0] if options["greater_is_better"] else value < self.best[0]
            )
            if better:
                self.best = (value, step)

    def _metrics(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return what an evaluation of rows gives; a last batch of fewer rows is left out of it as of training."""
        losses, scores, names = 0.0, [], {row["input_ids"][0]: row for row in rows}
        number = len(rows) - len(rows) % 2 if self.case.options.get("dataloader_drop_last") else len(rows)
        done: list[int] = []
        with torch.no_grad():
            while len(done) < number and self.tested < len(self.seen.evaluated):
                batch = self.seen.evaluated[self.tested]
                self.tested += 1
                its = batch["input_ids"][:, 0].tolist()
                done += its
                right = padded([names.get(name, rows[0]) for name in its])
                if any(right[name].tolist() != batch[name].tolist() for name in right):
                    self.wrong.append(f"an evaluation of {batch}, {right} is due")
                logits, labels = self.again.logits(batch), batch["labels"]
                losses += float(losses_of(self.kind, self.loss, logits, labels)) * len(labels)
                if self.loss == "function":
                    self.counts.append(count_of(self.kind, labels))
                of_labels = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
                scores += of_labels[labels.ne(-100)].tolist()
        in_order = [row["input_ids"][0] for row in rows][:number]
        grouped = self.case.own.get("order") == "group_by_length"
        if (len({*done}) != number or not {*done} <= {*names}) if grouped else done != in_order:
            self.wrong.append(f"an evaluation of the rows {done}, {in_order} are due")
        return {"loss": losses / number, "score": sum(scores) / max(1, len(scores))}


@cache
def evaluates_last_step() -> bool:
    """Return whether the release evaluates at the last step of a run, regardless of the steps between evaluations."""
    import transformers
    from transformers.trainer_callback import DefaultFlowCallback

    args: Any = SimpleNamespace(
        logging_first_step=False, logging_strategy="no", eval_strategy=transformers.IntervalStrategy.STEPS,
        eval_delay=0, save_strategy="no",
    )  # fmt: skip
    state: Any = SimpleNamespace(global_step=3, max_steps=3, eval_steps=2, logging_steps=1, save_steps=1)
    flow: Any = DefaultFlowCallback()
    return bool(flow.on_step_end(args, state, transformers.TrainerControl()).should_evaluate)


SKIPPED = ("runtime", "per_second", "flos", "train_loss", "preparation_time")


def differences(case: Case, due: Due, seen: Seen, trainer: Any, found: Any, folder: str) -> list[str]:
    """Return where a run is not the one that is due."""
    wrong = [*due.wrong, *_rows_wrong(case, due), *_noise_wrong(case, seen)]
    history = [one for one in trainer.state.log_history if "train_loss" not in one]
    kinds = [(one["step"], sorted(name for name in one if not any(part in name for part in SKIPPED)))
             for one in history]  # fmt: skip
    # Earlier releases log norms of gradients where they limit them, and no others.
    has_norms = case.options["max_grad_norm"] or hasattr(trainer, "_get_grad_norm")
    logs = [one if has_norms else {name: value for name, value in one.items() if name != "grad_norm"}
            for one in due.logs]  # fmt: skip
    right = [(one["step"], sorted(one)) for one in logs]
    if kinds != right:
        wrong.append(f"logged {kinds}, {right} is due")
    else:
        for one, other in zip(history, logs, strict=True):
            names = sorted(other)
            what = f"logged at {other['step']}: {', '.join(names)}, "
            wrong += unlike([one[name] for name in names], [other[name] for name in names], what, 2e-4)
    if seen.events != due.events:
        wrong.append(f"events {seen.events}, {due.events} are due")
    if seen.counts != due.counts:
        wrong.append(f"counts of labels {seen.counts}, {due.counts} are due")
    weights = [value for value in trainer.model.parameters() if value.requires_grad]
    # Steps of RMSprop whose denominators are as good as zero are large, and so is the rounding in them.
    tolerance = 5e-3 if case.options["optim"] == "rmsprop" and "optim_args" not in case.options else 2e-4
    last = due.again.weights
    if case.options.get("load_best_model_at_end") and due.best is not None:
        last = due.kept[due.best[1]]
    if len(weights) != len(last):
        wrong.append(f"{len(weights)} weights, {len(last)} are due")
    else:
        wrong += [
            f"weights {place} differ by {float((one - other).abs().max())}"
            for place, (one, other) in enumerate(zip(weights, last, strict=True))
            if not float((one - other).abs().max()) <= tolerance
        ]
    state = trainer.state
    wrong += unlike(
        [state.global_step, state.max_steps, state.epoch], [due.total, due.total, due.epoch], "state"
    )
    if "stop" not in case.own:
        wrong += unlike(
            [found.training_loss], [sum(due.losses) / len(due.losses)], "the loss of the run", 2e-4
        )
    wrong += _files_wrong(case, due, folder)
    return wrong


def _rows_wrong(case: Case, due: Due) -> list[str]:
    """Return where micro-batches are not the rows of the data set, each once an epoch, in their order."""
    order, seen, rows = case.own.get("order", "sequential"), due.seen, text_rows()
    numbers = [one["input_ids"][:, 0].sub(3).tolist() for one in seen.batches]
    wrong = []
    for batch, its in zip(seen.batches, numbers, strict=True):
        right = padded([rows[number] for number in its])
        if {*right} != {*batch} or any(not torch.equal(right[name], batch[name]) for name in right):
            wrong.append(f"the batch of rows {its} is another one")
    if due.used != len(numbers):
        wrong.append(f"{len(numbers)} micro-batches, {due.used} are due")
    for first in range(0, len(numbers), due.num_batches):
        epoch = numbers[first : first + due.num_batches]
        flat = [number for batch in epoch for number in batch]
        whole = len(epoch) == due.num_batches
        sizes = [due.size] * (len(epoch) - 1) + [len(epoch[-1])]
        if [len(batch) for batch in epoch] != sizes or len(epoch[-1]) > due.size:
            wrong.append(f"batches {epoch} of other sizes")
        if order in ("sequential", "stream"):
            if flat != [number % NUM_ROWS for number in range(len(flat))]:
                wrong.append(f"rows {epoch} are not in order")
        elif len({*flat}) != len(flat) or (whole and not due.case.options.get("dataloader_drop_last")
                                           and len(flat) != NUM_ROWS):  # fmt: skip
            wrong.append(f"rows {epoch} are not each once")
        lengths = [rows[number]["length"] for number in flat]
        # Groups of rows of similar lengths are the batches of a step, where rows are few; the longest row is the first.
        width = due.size * due.parts
        groups = [lengths[at + 1 : at + width] for at in range(0, len(lengths), width)]
        longest = max(row["length"] for row in rows)
        if order == "group_by_length" and (
            lengths[0] != longest or any(one != sorted(one, reverse=True) for one in groups)
        ):
            wrong.append(f"rows of lengths {lengths} are not grouped by {width}")
    return wrong


def _noise_wrong(case: Case, seen: Seen) -> list[str]:
    alpha, wrong = case.options.get("neftune_noise_alpha"), []
    for noise in seen.noises:
        bound = (alpha or 0.0) / math.sqrt(noise.shape[1] * noise.shape[2])
        largest = float(noise.abs().max())
        if not (0.5 * bound <= largest <= bound * 1.0001 + 1e-9):
            wrong.append(f"noise of {largest}, at most {bound} is due")
    return wrong


def _files_wrong(case: Case, due: Due, folder: str) -> list[str]:
    """Return where a run keeps other checkpoints than those of its steps, within their limit."""
    found = sorted(int(one.name.rpartition("-")[2]) for one in Path(folder).glob("checkpoint-*"))
    steps = sorted({*due.saved})
    limit = case.options.get("save_total_limit")
    if limit:
        best = due.best[1] if due.best is not None and case.options.get("load_best_model_at_end") else None
        steps = [best] if best is not None else steps[-limit:]
    return [] if found == steps else [f"checkpoints {found}, {steps} are due"]
