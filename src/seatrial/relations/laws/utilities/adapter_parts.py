"""R31.adapter_parts: parts of a library of adapters compute what their documentation says, in each of their uses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import relation_of
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.relations.worst import worst_of

BOUND = 2e-4
"""Error of results that several small layers of float32 give, relative to the largest; as of other adapters."""
NAME = "parts of adapters"
Use = tuple[str, Callable[[], tuple[Any, Any]]]
"""What is called, and () -> (what the library gives, what is right)."""
SUBJECTS: Mapping[str, str] = {
    "tasks": "an input that a model of a task drops, a mask or labels without the virtual tokens",
    "tasks, answers in texts": "token types, positions or places of answers that are dropped",
    "routed by tasks": "skills of another task or split, weights that do not add up to one, a scale",
    "routed by prototypes": "a similarity with its sign, a softmax over all experts, a scale of another expert",
    "prompts in attention": "a gate, queries without their rotation, heads of another group, the first layers",
    "tokens of a context": "a bound or decay of another kind of token, labels of the input",
    "tokens of a second context": "options of another adapter, kinds of tokens that are counted up in place",
    "prompts of several tasks": "rows or columns of another task",
    "generated after prompts of rows": "positions without the virtual tokens, a prompt of another row",
    "patterns": "a pattern that is not read, a key that fits the end of another name",
    "patterns of unlike keys": "a key of ranks that is not looked up for scales",
    "patterns of whole names": "an expression that fits a part of a name alone",
    "places of files": "the newest version in place of the one that is named, a folder that is left out",
}
"""What the parts are, each with what is usually wrong."""


def error_of(found: Any, right: Any) -> float:
    """Return the largest difference relative to the largest right number; infinite for another form or other values."""
    if isinstance(right, Tensor):
        if not isinstance(found, Tensor) or found.shape != right.shape:
            return math.inf
        if not right.numel():
            return 0.0
        one, other = found.detach().double(), right.detach().double()
        error = float((one - other).abs().max() / max(float(other.abs().max()), 1e-6))
        return math.inf if math.isnan(error) else error
    if isinstance(right, float):
        return error_of(torch.as_tensor(found, dtype=torch.float64), torch.tensor(right, dtype=torch.float64))
    if isinstance(right, Mapping):
        if not isinstance(found, Mapping) or set(found) != set(right):
            return math.inf
        return max((error_of(found[name], value) for name, value in right.items()), default=0.0)
    if isinstance(right, list | tuple):
        if not isinstance(found, list | tuple) or len(found) != len(right):
            return math.inf
        return max((error_of(one, other) for one, other in zip(found, right, strict=True)), default=0.0)
    return 0.0 if type(found) is type(right) and found == right else math.inf


PARTS = relation_of(
    "adapter_parts",
    "parts-of-adapters-compute-what-their-pages-say",
    "Every type of adapter computes in each of its uses what its documentation states of the inputs.",
)


def _excluded(subject: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: the declaration of a stack that does not have this subject."""
    return lambda stack: (
        None
        if NAME in stack.utilities and subject in getattr(stack, "part_subjects", SUBJECTS)
        else f"parts of adapters without {subject!r}"
    )


def uses_are_right(stack: Any, case: Numbers, subject: str) -> Measure:
    """Compare what the library gives in each use with what is right; a use that raises is no wrong result.

    Raises:
        NotServed: the installed release has none of the uses.
        Exception: nothing was compared, and this was raised first.
    """
    uses: Sequence[Use] = stack.utilities[NAME](subject, case.seed)
    found: list[tuple[float, str]] = []
    left_out, crashes = [], []
    for what, call in uses:
        try:
            found.append((error_of(*call()), what))
        except NotServed as reason:
            left_out.append(f"{what}: {reason}")
        except Exception as error:  # noqa: BLE001  the stack chooses the type of its error
            left_out.append(f"{what} raises {error_line(error)}")
            crashes.append(error)
    if not found and crashes:
        raise crashes[0]
    if not found:
        raise NotServed(left_out[0] if left_out else f"no uses of {subject}")
    worst, place = worst_of(found)
    wrong = sum(not error <= BOUND for error, _ in found)
    measure = Measure(error=worst, bound=BOUND, what=f"{len(found)} uses, {wrong} of them wrong, at {place}")
    return dataclasses.replace(measure, left_out=left_out)


for _subject, _suspects in SUBJECTS.items():
    PARTS.law(_subject, _suspects, excluded=_excluded(_subject), subject=_subject)(uses_are_right)
