"""Calls of Transformers' functions whose results are on record, by release; `result_of` makes an entry.

Results are of releases 4.57.2 to 4.57.6 and from 5.24 on; "both" have one that they share.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.worked_rows import Row

RECORDS = "recorded_calls*.json"
"""Files of results; a call is in one of them."""
LONGEST = 48
"""Numbers of a tensor that is on record as it is; of a larger one weighted sums are."""
CLOSE = 2e-4
"""Largest difference of numbers, relative to the larger of 1 and the recorded one: float32."""

MADE_WITH: Mapping[str, tuple[str, str]] = {
    "resize, pictures by options": ("pillow", "13."),
    "ObjectDetectionPipeline, objects of pictures": ("pillow", "13."),
    "DepthEstimationPipeline, depths of pictures": ("pillow", "13."),
    "Fp8QuantizedLayer, operations": ("torch", "2.13."),
    "GenerationMixin, rows of a model, causal": ("torch", "2.13."),
}
"""By the beginning of a call's name: a package and its version with which results are on record, as others round
otherwise."""


class Call(NamedTuple):
    """A call whose result is on record."""

    subject: str
    """Of `contracts.worked.SUBJECTS`."""
    place: str
    """`module:name`; several, separated by blanks, where releases have moved it."""
    name: str
    """What is tried, in a few words."""
    call: Callable[[Any], Any]
    """Takes the function."""


def refusal(call: Any) -> Any:
    """Return what a call without arguments gives, or the type of its error."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001  the stack chooses the type
        return f"refused: {type(error).__name__}"


def _numbers(value: Tensor) -> Any:
    value = value.detach().cpu()
    if value.numel() <= LONGEST or value.dtype in (torch.bool,):
        if value.numel() <= LONGEST:
            return plain(value.double().tolist() if value.is_floating_point() else value.tolist())
        value = value.float()
    finite = torch.nan_to_num(value.double(), nan=7.0, posinf=11.0, neginf=-11.0).clamp(-1e4, 1e4).flatten()
    places = torch.arange(1, len(finite) + 1, dtype=torch.float64)
    sums = [float((finite * torch.sin(places * step)).sum()) for step in (0.7, 1.9)]
    return [list(value.shape), *plain(sums), plain(float(finite.abs().sum()))]


def plain(value: Any) -> Any:
    """Return a result as JSON has it."""
    if isinstance(value, Tensor):
        return _numbers(value)
    if isinstance(value, np.ndarray):
        return _numbers(torch.tensor(value))
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return str(value)


def differences(found: Any, right: Any, what: str = "") -> Iterator[str]:
    """Yield where a result is not the recorded one."""
    if isinstance(right, dict) and isinstance(found, dict):
        if found.keys() != right.keys():
            yield f"{what}: {sorted(found)}, {sorted(right)} are due"
            return
        for name, one in right.items():
            yield from differences(found[name], one, f"{what} {name}".strip())
    elif isinstance(right, list) and isinstance(found, list):
        if len(found) != len(right):
            yield f"{what}: {len(found)} values, {len(right)} are due"
            return
        for place, (one, due) in enumerate(zip(found, right, strict=True)):
            yield from differences(one, due, f"{what}[{place}]")
    elif isinstance(right, float) or isinstance(found, float):
        numbers = isinstance(found, int | float) and isinstance(right, int | float)
        if not (numbers and abs(found - right) <= CLOSE * max(1.0, abs(right))):
            yield f"{what}: {found}, {right} is due"
    elif found != right:
        yield f"{what}: {str(found)[:80]}, {str(right)[:80]} is due"


@cache
def record() -> Mapping[str, Mapping[str, Any]]:
    """Return results by call and by the releases that give them."""
    found: dict[str, Mapping[str, Any]] = {}
    for path in sorted(Path(__file__).parent.glob(RECORDS)):
        found |= json.loads(path.read_text("utf-8"))
    return found


def of_release(name: str) -> Any:
    """Return the recorded result of a call for the installed release.

    Raises:
        NotServed: it is of other releases alone, of Transformers or of a package that rounds.
    """
    for start, (package, version) in MADE_WITH.items():
        if name.startswith(start) and not release(package).startswith(version):
            raise NotServed(f"its result is on record with {package} {version}")
    installed, results = Version(release("transformers")), record().get(name, {})
    line = "5.24" if installed >= Version("5.24") else "4.57"
    if installed < Version("4.57.2") or Version("4.58") <= installed < Version("5.24"):
        raise NotServed(f"no results of transformers {installed} are on record")
    for one in (line, "both"):
        if one in results:
            return results[one]
    raise NotServed(f"no result of transformers {installed} is on record")


def result_of(call: Call, function: Any) -> Any:
    """Return what a call gives, as it is on record."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return json.loads(json.dumps(plain(call.call(function))))


def _unlike(call: Call, function: Any) -> list[str]:
    due = of_release(name_of(call))
    return list(differences(result_of(call, function), due))[:4]


def name_of(call: Call) -> str:
    """Return the name of a call in the record."""
    return f"{call.place.rpartition(':')[2]}, {call.name}"


def rows_of(calls: Sequence[Call]) -> list[Row]:
    """Return rows of calls; see `worked_rows`."""
    return [Row(one.subject, one.place, one.name, partial(_unlike, one), []) for one in calls]
