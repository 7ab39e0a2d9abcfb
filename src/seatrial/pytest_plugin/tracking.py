"""Values that tests may track, and how non-finite numbers stay visible in JSON."""

from __future__ import annotations

import json
import math
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import pytest

if TYPE_CHECKING:
    from seatrial.pytest_plugin.memory import MemoryWatch

MAX_DEPTH = 50
"""Deeper nesting counts as a cycle."""
MAX_BITS = 4096
"""Not every reader can parse larger integers."""
MAX_ELEMENTS = 1000
"""Larger arrays are not metrics: one of them would be larger than the rest of the file."""


def storable(value: Any, where: str, depth: int = 0) -> Any:
    """Return a copy of `value` that consists of JSON values only; NaN and infinities stay floats.

    Scalars of NumPy, PyTorch and similar libraries (with `item()` and no dimensions) become Python numbers, their
    arrays of at most `MAX_ELEMENTS` values nested lists.

    Args:
        value: what the test tracks.
        where: name of the metric, for the message.
        depth: nesting depth of this value.

    Raises:
        TypeError: the value, or a part of it, is not a JSON value.
    """
    __tracebackhide__ = True
    if depth > MAX_DEPTH:
        raise TypeError(f"metric {where!r} is nested deeper than {MAX_DEPTH} levels, or contains itself")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    # Subclasses (enumerations, numpy.float64) become the plain number, which every format supports.
    if isinstance(value, int) and int(value).bit_length() <= MAX_BITS:
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {
            _key(key, where): storable(item, f"{where}[{key!r}]", depth + 1) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [storable(item, f"{where}[{index}]", depth + 1) for index, item in enumerate(value)]
    if callable(getattr(value, "item", None)) and getattr(value, "ndim", None) == 0:
        return storable(value.item(), where, depth + 1)
    if callable(getattr(value, "tolist", None)) and hasattr(value, "shape"):
        return storable(_elements(value, where), where, depth + 1)
    if isinstance(value, int):
        raise TypeError(f"metric {where!r} cannot be stored: an integer of {int(value).bit_length()} bits")
    raise TypeError(
        f"metric {where!r} cannot be stored: {type(value).__name__} is no JSON value; "
        f"track a number, text, bool, None, or a list or dict of these"
    )


def _elements(value: Any, where: str) -> Any:
    """Return the values of an array as nested lists."""
    __tracebackhide__ = True
    kind = f"{type(value).__module__.partition('.')[0]} {type(value).__name__} of shape {tuple(value.shape)}"
    if math.prod(value.shape) > MAX_ELEMENTS:
        raise TypeError(
            f"metric {where!r} cannot be stored: a {kind} has more than {MAX_ELEMENTS} values; "
            "track numbers that summarise it, such as its mean and its largest value"
        )
    try:
        return value.tolist()
    except (RuntimeError, NotImplementedError) as error:
        raise TypeError(
            f"metric {where!r} cannot be stored: a {kind} has no values to read ({error})"
        ) from error


def _text(value: str, where: str) -> str:
    __tracebackhide__ = True
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"metric {where!r} cannot be stored: text that is no Unicode ({error.reason})"
        ) from error
    return str(value)


def _key(key: Any, where: str) -> str:
    __tracebackhide__ = True
    if isinstance(key, str):
        return _text(key, where)
    if isinstance(key, int) and not isinstance(key, bool):
        return str(key)
    raise TypeError(f"metric {where!r} cannot be stored: its key {key!r} is no text")


def to_json(value: Any) -> Any:
    """Return a storable value with NaN and infinities as the text `NaN`, `Infinity`, `-Infinity`.

    JSON has no such numbers; written as numbers they make the whole file unreadable for strict readers.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, dict):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json(item) for item in value]
    return value


def is_finite(value: Any) -> bool:
    """Return whether all numbers in a storable value are finite."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(is_finite(item) for item in value.values())
    if isinstance(value, list):
        return all(is_finite(item) for item in value)
    return True


METRIC_PREFIX = "tracker:"
"""A property `tracker:NAME` holds one metric."""
RECORD_PROPERTY = "seatrial.tracker"
"""This property holds other data about the test, as JSON text: parameters, units, directions, device."""
BASELINE_PROPERTY = "seatrial.baseline"
"""This property holds the verdicts of the baseline on its metrics, as JSON text."""
ELAPSED = "_elapsed"
"""Metric of every tracked test: seconds from the setup of the fixture to its teardown."""

Direction = Literal["lower", "higher"]
"""Which way is better."""


MEMORY_RESOLUTION = 2.0**21
"""Bytes. Peaks of equal code differ by more than their repeats show: another option moves them by 0.3 MB."""


class Tracked(NamedTuple):
    """A value, and which way is better."""

    value: Any
    direction: Direction | None
    resolution: float = 0.0
    """Smaller differences are none."""


ACTIVE: pytest.StashKey[Tracker] = pytest.StashKey()
"""Key of the tracker of a test that uses it."""


class Tracker:
    """Metrics of one test."""

    def __init__(self, item: pytest.Item) -> None:
        self._item = item
        self._started = time.perf_counter()
        self._metrics: dict[str, Any] = {}
        self._record: dict[str, Any] = {
            "params": _parameters(item),
            "units": {},
            "directions": {},
            "memory": {},
        }
        self._memory: MemoryWatch | None = None

    def __enter__(self) -> Tracker:
        # A rerun starts again: what the failed attempt tracked is discarded.
        properties = self._item.user_properties
        earlier = [json.loads(str(text)) for name, text in properties if name == RECORD_PROPERTY]
        self._record["attempt"] = 1 + max((record["attempt"] for record in earlier), default=0)
        properties[:] = [entry for entry in properties if not _is_ours(entry[0])]
        from seatrial.pytest_plugin.memory import MemoryWatch

        self._memory = MemoryWatch().__enter__()
        self._item.stash[ACTIVE] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._metrics[ELAPSED] = time.perf_counter() - self._started
        self._record["units"][ELAPSED] = "s"
        self._record["directions"][ELAPSED] = "lower"
        self._record["device"] = self.device()
        if self._memory is not None:
            self._memory.__exit__(kind, error, trace)
        properties = self._item.user_properties
        properties.extend((METRIC_PREFIX + name, value) for name, value in self._metrics.items())
        properties.append((RECORD_PROPERTY, json.dumps(to_json(self._record))))

    def track(
        self,
        metric_name: str,
        metric_value: Any,
        *,
        unit: str | None = None,
        direction: Direction | None = None,
    ) -> None:
        """Record one metric; if a name is tracked again, the last value counts.

        Args:
            metric_name: its name; names with a leading `_` are reserved.
            metric_value: any JSON value, or a scalar of NumPy or PyTorch. NaN is kept and shown.
            unit: for example `s`, `bytes`, `tokens/s`.
            direction: `lower` or `higher` is better; without it a baseline checks both sides.

        Raises:
            TypeError: the value is not a JSON value.
            ValueError: the name or direction is invalid.
        """
        __tracebackhide__ = True
        if not isinstance(metric_name, str) or not metric_name or metric_name.startswith("_"):
            raise ValueError(f"metric name {metric_name!r} must be text that does not begin with '_'")
        if direction not in (None, "lower", "higher"):
            raise ValueError(f"direction {direction!r} of metric {metric_name!r} must be 'lower' or 'higher'")
        self._metrics[metric_name] = storable(metric_value, metric_name)
        if unit is not None:
            self._record["units"][metric_name] = unit
        if direction is not None:
            self._record["directions"][metric_name] = direction

    def get_max_mem(self, place: str | None = None) -> int:
        """Return the peak memory of this test so far, in bytes.

        Args:
            place: `host` (the process tree), `gpu:0`, `ray:<node>`; None is the sum over all places, so that a change
                anywhere in the cluster is visible.

        Raises:
            KeyError: the place is unknown; the message lists the known ones.
        """
        peaks = self._peaks()
        if place is None:
            return sum(peaks.values())
        if place not in peaks:
            raise KeyError(f"no memory known for {place!r}; known: {', '.join(sorted(peaks))}")
        return peaks[place]

    def log_max_mem(self, metric_name: str) -> None:
        """Track the peak memory so far in bytes, and record the places that it sums."""
        peaks = self._peaks()
        self.track(metric_name, sum(peaks.values()), unit="bytes", direction="lower")
        self._record["memory"][metric_name] = peaks

    def tracked(self) -> dict[str, Tracked]:
        """Return what has been tracked so far, of any type."""
        directions, of_memory = self._record["directions"], self._record["memory"]
        return {
            name: Tracked(value, directions.get(name), MEMORY_RESOLUTION if name in of_memory else 0.0)
            for name, value in self._metrics.items()
        }

    def device(self) -> str:
        """Return the names of the GPUs that this process may use, or `cpu`."""
        from seatrial.pytest_plugin.gpus import visible_gpus

        return ", ".join(gpu.name for gpu in visible_gpus()) or "cpu"

    def _peaks(self) -> dict[str, int]:
        if self._memory is None:
            raise RuntimeError("the tracker of this test has not been entered")
        return self._memory.peaks()


def _is_ours(name: str) -> bool:
    return name in (RECORD_PROPERTY, BASELINE_PROPERTY) or name.startswith(METRIC_PREFIX)


def _parameters(item: pytest.Item) -> dict[str, Any]:
    """Return the test's parameters as JSON values; other objects are given by their text."""
    callspec = getattr(item, "callspec", None)
    return {name: _shown(value) for name, value in callspec.params.items()} if callspec else {}


def _shown(value: Any) -> Any:
    try:
        return storable(value, "parameter")
    except TypeError:
        return repr(value)[:200]
