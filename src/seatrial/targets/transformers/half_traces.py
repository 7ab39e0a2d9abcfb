"""What each module of a model computes in a forward pass, and in which types; see `worked.halves`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.overrides import TorchFunctionMode

LETTERS = {
    torch.float64: "d", torch.float32: "f", torch.bfloat16: "h", torch.float16: "h", torch.bool: "b",
    torch.complex64: "c", torch.complex128: "z",
}  # fmt: skip
"""Short names of types; all others are whole numbers."""
WIDE = {"d", "f", "c", "z"}
"""Types that are more precise than half."""
UNNAMED = (
    "__get__",
    "__set__",
    "size",
    "dim",
    "detach",
    "clone",
    "numel",
    "is_floating_point",
    "stride",
    "item",
)
"""Functions that compute nothing."""
MOVING = {
    "view", "reshape", "unsqueeze", "squeeze", "flatten", "transpose", "permute", "expand", "getitem",
    "contiguous", "chunk", "split", "unbind", "repeat", "repeat_interleave", "cat", "stack", "setitem", "gather", "pad",
    "expand_as", "view_as", "select", "index_select", "narrow", "tensor_split", "swapaxes", "movedim", "T", "mT",
    "roll", "flip", "unflatten",
}  # fmt: skip
"""Functions that move numbers and compute none."""
LARGEST = 200_000
"""Numbers of a tensor that is kept."""
HIDDEN = 1_000
"""Larger numbers are scores of what is hidden, which are near the least number of a type."""


class Step(NamedTuple):
    """A function that a module called."""

    name: str
    types: str
    """The short names of the types that it was given, and of its result."""
    result: Tensor | None


class Traced(TorchFunctionMode):
    """Keeps the functions that modules call, by the place of the module and the number of its call."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._names = {id(module): name for name, module in model.named_modules()}
        self._now: list[tuple[str, int, str]] = [("", 0, type(model).__name__)]
        self._numbers: dict[str, int] = defaultdict(int)
        self.steps: dict[tuple[str, int, str], list[Step]] = defaultdict(list)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Notice where modules begin and end."""
        with ExitStack() as kept:
            for handle in (
                hooks.register_module_forward_pre_hook(self._begin),
                hooks.register_module_forward_hook(self._end, always_call=True),
            ):
                kept.callback(handle.remove)
            yield

    def _begin(self, module: nn.Module, given: Any) -> None:
        name = self._names.get(id(module), "?")
        self._numbers[name] += 1
        self._now.append((name, self._numbers[name], type(module).__name__))

    def _end(self, module: nn.Module, given: Any, found: Any) -> None:
        self._now.pop()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        result = next(_tensors(found), None)
        if name not in UNNAMED and result is not None:
            given = [_letter(one) for one in _tensors([*args, *kwargs.values()])]
            kept = result.detach().clone() if result.numel() <= LARGEST else None
            self.steps[self._now[-1]].append(Step(name, f"{''.join(given[:4])}>{_letter(result)}", kept))
        return found


def _letter(value: Tensor) -> str:
    return LETTERS.get(value.dtype, "i")


def _tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from _tensors(one)


def traced(model: nn.Module, inputs: Mapping[str, Any], seed: int = 0) -> Traced:
    """Return the trace of a forward pass, whose random numbers are of a seed."""
    given = {name: value.clone() if isinstance(value, Tensor) else value for name, value in inputs.items()}
    found = Traced(model)
    with torch.random.fork_rng(devices=[]), torch.no_grad(), found.hooked(), found:
        torch.default_generator.manual_seed(seed)
        model(**given)
    return found


def wide_steps(trace: Traced) -> dict[str, str]:
    """Return what modules of each class compute in a type more precise than half, in one line, empty if nothing."""
    found: dict[str, set[str]] = defaultdict(set)
    for (_, _, kind), steps in trace.steps.items():
        found[kind].update(
            f"{step.name}:{step.types}" for step in steps if step.name not in MOVING and WIDE & {*step.types}
        )
    return {kind: " ".join(sorted(steps)) for kind, steps in sorted(found.items())}


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    try:
        return one is not None and other is not None and one.shape == other.shape and torch.equal(one, other)
    except RuntimeError:  # of a function over batches, which has no numbers of its own
        return False


def misplaced(half: Traced, exact: Traced, other: Traced, spacing: float) -> list[str]:
    """Return the tensors that depend on sizes alone and are not, in half precision, the exact ones rounded.

    A tensor depends on sizes alone if it is the same in another exact pass, with other weights and other inputs.
    Whole numbers are the same in half precision; others are as near as a few roundings.

    Args:
        spacing: of numbers in half precision, relative to their size.
    """
    wrong = []
    for place, steps in exact.steps.items():
        again, halved = other.steps.get(place, []), half.steps.get(place, [])
        if [one.name for one in steps] != [one.name for one in again]:
            continue
        if [one.name for one in steps] != [one.name for one in halved]:
            continue
        for step, more, found in zip(steps, again, halved, strict=True):
            if _same(step.result, more.result) and found.result is not None and step.result is not None:
                fault = _fault(found.result, step.result, spacing)
                if fault:
                    name, _, kind = place
                    wrong.append(f"{kind} ({name}), {step.name} {found.types}: {fault}")
                    break
    return wrong


def _fault(found: Tensor, right: Tensor, spacing: float) -> str | None:
    if found.shape != right.shape:
        return f"shape {[*found.shape]}, {[*right.shape]} is due"
    if right.is_complex() or not right.numel():
        return None
    one, due = found.double(), right.double()
    held = due.abs() < HIDDEN
    one, due = one[held], due[held]
    if not due.numel() or bool((due == due[0]).all()):  # a share that is 1 by chance says nothing of sizes
        return None
    whole = bool((due == due.round()).all())
    bound = 0.0 if whole else 3 * spacing * float(due.abs().max())
    off = (one - due).abs()
    if not bool((off <= bound).all()):
        index = int(off.nan_to_num(nan=float("inf")).argmax())
        num = int((~(off <= bound)).sum())
        return f"{float(one[index]):.6g} where {float(due[index]):.6g} is due, {num} of {due.numel()}"
    return None


def unlike_record(record: Mapping[str, Collection[str]], found: Mapping[str, str]) -> list[str]:
    """Return how the steps of classes differ from those on record; a class that is not on record may do anything."""
    wrong = []
    for kind, steps in found.items():
        if kind in record and steps not in record[kind]:
            due, own = {*sorted(record[kind])[0].split()}, {*steps.split()}
            wrong.append(f"{kind}: {' '.join(sorted(own - due))} for {' '.join(sorted(due - own))}")
    return wrong
