"""Worked examples of steps, saved state, options and loaders of one process."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.accelerate.ranked import new_accelerator
from seatrial.targets.accelerate.worked.placed import net
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.worked_rows import Row, unlike

ACCELERATOR = "accelerate:Accelerator"


def _loader(num_rows: int, **options: Any) -> Any:
    rows: Any = list(range(num_rows))
    return torch.utils.data.DataLoader(rows, **options)


def _gradients(model: nn.Module) -> None:
    for number, value in enumerate(model.parameters()):
        value.grad = torch.linspace(-3, 2 + number, value.numel()).reshape(value.shape)


def _clipped(accelerator_class: Any) -> list[str]:
    """Return norms and gradients that are not those of the definition, by the kind of the norm."""
    wrong: list[str] = []
    for kind in (2, 1, 3, math.inf, "inf", 2.5):
        for limit in (1.0, 0.0, 1e6):
            accelerator = new_accelerator()
            model = accelerator.prepare(net())
            model.first.bias.requires_grad_(False)
            _gradients(model)
            model.first.bias.grad = None
            own = [value.grad.double().clone() for value in model.parameters() if value.grad is not None]
            flat = torch.cat([one.flatten() for one in own]).abs()
            power = float(kind)
            norm = float(flat.max()) if math.isinf(power) else float((flat**power).sum() ** (1 / power))
            given: Any = list(model.parameters()) if limit else model.parameters()
            found = accelerator.clip_grad_norm_(given, limit, norm_type=kind)
            scale = min(1.0, limit / norm)
            wrong += unlike([float(found)], [norm], f"norm {kind}", 1e-5)
            left = [value.grad for value in model.parameters() if value.grad is not None]
            for number, (one, due) in enumerate(zip(left, own, strict=True)):
                right = (due * scale).flatten().tolist()
                wrong += unlike(one.flatten().tolist(), right, f"norm {kind} to {limit}, {number}", 1e-4)
    return wrong


def _clipped_values(accelerator_class: Any) -> list[str]:
    accelerator = new_accelerator()
    model = accelerator.prepare(net())
    _gradients(model)
    due = [value.grad.clamp(-0.75, 0.75).flatten().tolist() for value in model.parameters()]
    accelerator.clip_grad_value_(model.parameters(), 0.75)
    pairs = zip(model.parameters(), due, strict=True)
    return [text for value, right in pairs for text in unlike(value.grad.flatten().tolist(), right)]


def _scaled(optimizer_class: Any) -> list[Any]:
    """Return weights, rates and what is said of a step that overflows and of one that does not, copied in between."""
    from accelerate.scheduler import AcceleratedScheduler

    found: list[Any] = []
    new_accelerator()
    weight = nn.Parameter(torch.ones(1))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
    plain = torch.optim.SGD([weight], lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(plain, 0.5)
    made = optimizer_class(plain, scaler=scaler)
    rates = AcceleratedScheduler(schedule, made)
    for factor in (1.0, math.inf, 2.0):
        loss: Any = scaler.scale(weight.sum() * factor)
        loss.backward()
        made.step()
        rates.step()
        made.zero_grad()
        found.append([float(weight), made.step_was_skipped, rates.get_last_lr()[0], scaler.get_scale()])
    return found


def _zeroed(optimizer_class: Any) -> list[Any]:
    new_accelerator()
    weight = nn.Parameter(torch.ones(1))
    made = optimizer_class(torch.optim.SGD([weight], lr=0.5))
    found = []
    for given in (None, True, False):
        weight.grad = torch.ones(1)
        made.zero_grad(*(() if given is None else (given,)))
        found.append(None if weight.grad is None else float(weight.grad))
    made.gradient_state._set_sync_gradients(False)
    weight.grad = torch.ones(1)
    made.zero_grad()
    made.step()
    return [*found, float(weight.grad), float(weight)]


def _passed_on(optimizer_class: Any) -> list[Any]:
    """Return what an optimizer has of another that is set, and where `train` and `eval` go."""
    new_accelerator()
    weights = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    plain = torch.optim.SGD(weights[:1], lr=0.5)
    modes: list[str] = []
    plain.train, plain.eval = lambda: modes.append("train"), lambda: modes.append("eval")  # type: ignore[attr-defined]
    made = optimizer_class(plain)
    made.add_param_group({"params": weights[1:], "lr": 0.25})
    made.train()
    made.eval()
    made.param_groups[1]["lr"] = 0.125
    return [
        [group["lr"] for group in plain.param_groups],
        modes,
        made.defaults["lr"],
        made.param_groups is plain.param_groups,
    ]


def _plateau(scheduler_class: Any) -> list[float]:
    """Return rates of a schedule that follows a metric."""
    accelerator = new_accelerator()
    weight = nn.Linear(1, 1)
    plain = torch.optim.SGD(weight.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(plain, factor=0.5, patience=0)
    _, optimizer, made = accelerator.prepare(weight, plain, schedule)
    found = []
    for metric in (2.0, 3.0, 1.0, 1.5):
        optimizer.step()
        made.step(metric)
        found.append(plain.param_groups[0]["lr"])
    return found


def _accumulates(accelerator_class: Any) -> list[Any]:
    """Return where updates are, by the options of accumulation, in two epochs of five batches."""
    from accelerate.utils import GradientAccumulationPlugin

    found = []
    for options in (
        {"num_steps": 2}, {"num_steps": 2, "sync_with_dataloader": False}, {"num_steps": 3}, {"num_steps": 1},
        {"num_steps": 9}, {"num_steps": 4, "sync_with_dataloader": False},
    ):  # fmt: skip
        accelerator = new_accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(**options))
        model, loader = accelerator.prepare(nn.Linear(1, 1), _loader(5))
        steps = []
        for _ in range(2):
            for _ in loader:
                with accelerator.accumulate(model):
                    steps.append(int(accelerator.sync_gradients))
        found.append(steps)
    accelerator = new_accelerator(gradient_accumulation_steps=2)
    first, other = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)
    first, other = accelerator.prepare(first, other)
    optimizers = [accelerator.prepare(torch.optim.SGD(one.parameters(), lr=1.0)) for one in (first, other)]
    for one in (first, other):
        one.weight.data.zero_()
    for factor in (1.0, 2.0, 4.0, 8.0):
        with accelerator.accumulate(first, other):
            accelerator.backward(factor * (first.weight + 10 * other.weight).sum())
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    accelerator.gradient_accumulation_steps = 3
    return [*found, [float(first.weight), float(other.weight)], accelerator.gradient_accumulation_steps]


def _schedules(accelerator_class: Any) -> list[Any]:
    """Return rates after each micro-batch: with accumulation, and of a schedule that is stepped by itself."""
    found = []
    for options in (
        {"gradient_accumulation_steps": 2},
        {"step_scheduler_with_optimizer": False, "gradient_accumulation_steps": 2},
    ):
        accelerator = new_accelerator(**options)
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
        rates = []
        for _ in range(4):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.ones(1, 1)).sum())
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            rates.append(schedule.get_last_lr()[0])
        found.append(rates)
    return found


def _released(release: Callable[..., Any]) -> list[Any]:
    given = [torch.ones(1), object()]
    accelerator = new_accelerator()
    model, optimizer = accelerator.prepare(
        nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    )
    accelerator.step = 5
    freed = accelerator.free_memory(model, optimizer)
    kept = [accelerator._models, accelerator._optimizers, accelerator._schedulers, accelerator._dataloaders]
    return [release(*given), list(freed), kept, accelerator.step]


def _prepared(accelerator_class: Any) -> list[Any]:
    """Return whether each object comes back at its place and of its kind, and one alone as itself."""
    accelerator = new_accelerator()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loader = _loader(4, batch_size=2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    text = {"any": 1}
    made = accelerator.prepare(schedule, text, loader, optimizer, model)
    kinds = [type(one).__name__ for one in made]
    again = accelerator.prepare(*made)
    alone = new_accelerator().prepare(nn.Linear(1, 1))
    same = [one is other for one, other in zip(made, again, strict=True)]
    return [kinds, made[1] is text, same, type(alone).__name__, made[0].optimizers[0] is made[3]]


def _sizes(convert: Callable[..., Any]) -> list[str]:
    return [convert(one) for one in (512, 2048, 3 * 2**20, 5 * 2**30)]


def _compared(compare: Callable[..., Any]) -> list[bool]:
    from packaging.version import Version

    given = (
        ("1.10.0", "<", "1.9.0"),
        ("2.0.0", ">=", "2.0.0"),
        ("2.0.0", "!=", "2.0"),
        ("1.0", "==", "1.0.0"),
    )
    return [compare(Version(one), operation, other) for one, operation, other in given]


def _found_size(reduces: bool, find: Callable[..., Any]) -> list[Any]:
    """Return sizes that are tried, with other reductions and arguments; and what is passed on."""

    def attempts(fits: int, **options: Any) -> list[Any]:
        tried: list[int] = []

        def step(batch_size: int, first: Any, *, second: Any) -> Any:
            tried.append(batch_size)
            if batch_size > fits:
                raise RuntimeError("CUDA out of memory.")
            return [first, second]

        try:
            given: Any = find(**options)(step)("a", second="b")
        except RuntimeError as error:
            given = str(error)[:20]
        return [tried, given]

    if reduces:
        sizes = iter((9, 5, 1))
        if "reduce_batch_size_fn" not in inspect.signature(find).parameters:
            raise NotServed("this release reduces sizes in one way")
        return attempts(5, starting_batch_size=20, reduce_batch_size_fn=lambda: next(sizes))
    return [attempts(3, starting_batch_size=16), attempts(0, starting_batch_size=4)]


REDUCED = KnownFailure(
    "a function that reduces sizes is left out where the function is a decorator with arguments",
    finding="Accelerate: another reduction of batch sizes",
    releases=before("accelerate", "1.15"),
)
SIZES_BY_TENTHS = [16, 14, 12, 10, 9, 8, 7, 6, 5, 4, 3]
STEP_ROWS: Sequence[Row] = (
    Row("formulas", ACCELERATOR, "norms of every kind", _clipped, []),
    Row("formulas", ACCELERATOR, "gradients that are clipped by value", _clipped_values, []),
    Row(
        "steps",
        "accelerate.optimizer:AcceleratedOptimizer",
        "an overflow between two steps",
        _scaled,
        [[0.5, False, 0.25, 4.0], [0.5, True, 0.25, 2.0], [0.0, False, 0.125, 2.0]],
    ),
    Row(
        "steps",
        "accelerate.optimizer:AcceleratedOptimizer",
        "gradients that are dropped",
        _zeroed,
        [None, None, 0.0, 1.0, 1.0],
    ),
    Row(
        "steps",
        "accelerate.optimizer:AcceleratedOptimizer",
        "what it passes on",
        _passed_on,
        [[0.5, 0.125], ["train", "eval"], 0.5, True],
    ),
    Row("steps", "accelerate.scheduler:AcceleratedScheduler", "a metric", _plateau, [1.0, 0.5, 0.5, 0.25]),
    Row(
        "steps",
        ACCELERATOR,
        "updates of two epochs",
        _accumulates,
        [
            [0, 1, 0, 1, 1] * 2,
            [0, 1, 0, 1, 0, 1, 0, 1, 0, 1],
            [0, 0, 1, 0, 1] * 2,
            [1] * 10,
            [0, 0, 0, 0, 1] * 2,
            [0, 0, 0, 1, 0, 0, 0, 1, 0, 0],
            [-7.5, -75.0],
            3,
        ],
    ),
    Row(
        "steps",
        ACCELERATOR,
        "rates of micro-batches",
        _schedules,
        [[1.0, 0.5, 0.5, 0.25], [0.5, 0.25, 0.125, 0.0625]],
    ),
    Row(
        "wrappers",
        "accelerate.utils:release_memory",
        "objects",
        _released,
        [[None, None], [None, None], [[], [], [], []], 0],
    ),
    Row(
        "wrappers",
        ACCELERATOR,
        "objects in any order, twice",
        _prepared,
        [
            ["AcceleratedScheduler", "dict", "DataLoaderShard", "AcceleratedOptimizer", "Linear"],
            True,
            [True] * 5,
            "Linear",
            True,
        ],
    ),
    Row(
        "calls",
        "accelerate.utils.other:convert_bytes",
        "sizes",
        _sizes,
        ["512 bytes", "2.0 KB", "3.0 MB", "5.0 GB"],
    ),
    Row(
        "calls",
        "accelerate.utils.versions:compare_versions",
        "versions",
        _compared,
        [False, True, False, True],
    ),
    Row(
        "calls",
        "accelerate.utils:find_executable_batch_size",
        "arguments, none that fits",
        partial(_found_size, False),
        [[SIZES_BY_TENTHS, ["a", "b"]], [[4, 3, 2, 1], "No executable batch "]],
        since="1.5",
    ),
    Row(
        "calls",
        "accelerate.utils:find_executable_batch_size",
        "another reduction",
        partial(_found_size, True),
        [[20, 9, 5], ["a", "b"]],
        known=REDUCED,
    ),
)
