"""The rows of the corpus that are one log and one expression, as data: what is written, what is asked, what is right.

A case writes its log into a folder of its own, in the form in which it was met.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.unit.evidence.event_writers import record_offsets, write_series

from seatrial.verdict import Outcome

NAN, INF = math.nan, math.inf


class Case(NamedTuple):
    """One log and one expression."""

    id: str
    """Of the row, and what tells its cases apart."""
    write: Callable[[Path], object]
    expression: str
    outcome: Outcome

    @property
    def row(self) -> str:
        """Return the id of the row."""
        return self.id[:4]


def dumped(**tags: Mapping[int, float] | Sequence[float]) -> Callable[[Path], object]:
    """Return a writer of metrics.json; double underscores stand for slashes."""
    held = {
        name.replace("__", "/"): dict(values)
        if isinstance(values, Mapping)
        else dict(enumerate(values, start=1))
        for name, values in tags.items()
    }
    return lambda folder: (folder / "metrics.json").write_text(json.dumps(held))


def lines(rows: Sequence[Any]) -> Callable[[Path], object]:
    """Return a writer of JSON Lines; text stays as it is."""
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    return lambda folder: (folder / "log.jsonl").write_text(text)


def _damaged(change: Callable[[bytes, list[int]], bytes]) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        path = write_series(folder / "events.out.tfevents.1", {"x": [1.0] * 100})
        blob = path.read_bytes()
        path.write_bytes(change(blob, record_offsets(blob)))

    return write


def _flipped(blob: bytes, offsets: list[int]) -> bytes:
    place = offsets[50] + 30
    return blob[:place] + bytes([blob[place] ^ 0x20]) + blob[place + 1 :]


def _events(**files: Mapping[str, Any]) -> Callable[[Path], object]:
    """Return a writer of event files, each in a folder of its own, a thousand seconds apart."""

    def write(folder: Path) -> None:
        for number, (name, series) in enumerate(files.items(), start=1):
            held = {tag.replace("__", "/"): values for tag, values in series.items()}
            write_series(folder / name / f"events.out.tfevents.{number}", held, 1000.0 * number)

    return write


def _touched(folder: Path) -> None:
    old = write_series(folder / "events.out.tfevents.1", {"x": [1.0] * 7}, 1000.0)
    new = write_series(folder / "events.out.tfevents.2", {"x": dict.fromkeys(range(4, 8), 9.0)}, 2000.0)
    os.utime(new, (1, 1))
    os.utime(old, (2, 2))


def written(name: str, text: str) -> Callable[[Path], object]:
    """Return a writer of a text as it is."""
    return lambda folder: (folder / name).write_text(text)


def _ranks(folder: Path) -> None:
    steps = range(1, 21)
    write_series(folder / "events.out.tfevents.1.rank1", {"x": dict.fromkeys(steps, NAN)}, 1000.0)
    write_series(folder / "events.out.tfevents.2.rank0", {"x": dict.fromkeys(steps, 1.0)}, 1000.25)


def _clock_behind(folder: Path) -> None:
    write_series(folder / "a" / "events.out.tfevents.1", {"x": dict.fromkeys(range(1, 21), 1.0)}, 9000.0)
    write_series(folder / "b" / "events.out.tfevents.2", {"x": dict.fromkeys(range(21, 31), NAN)}, 4000.0)


def _checkpoints(folder: Path) -> None:
    for last, value in ((10, 1.0), (5, 7.0)):
        rows = [{"step": step, "loss": value} for step in range(1, last + 1)]
        (folder / f"checkpoint-{last}").mkdir()
        text = json.dumps({"global_step": last, "log_history": rows})
        (folder / f"checkpoint-{last}" / "trainer_state.json").write_text(text)


MAX_BELOW_2 = 'max(data["x"]) < 2'
_MEMORY = "ray/node.0.gpu.0.mem_gb"
_CLAMPED = dumped(train__probs_ratio_clamped_min=[0.8, 0.9], train__probs_ratio_clamped_max=[1.1, 1.2])
_DROPPED = [
    {"step": step, "time": 1.7e9 + step, "y": 1.0, **({} if step == 7 else {"x": 1.0})} for step in range(20)
]
_GOOD = [{"step": 1, "x": 1.0}, {"step": 2, "x": 1.0}]
PASS, FAIL, BLOCKED, SKIPPED = Outcome.PASS, Outcome.FAIL, Outcome.BLOCKED, Outcome.SKIPPED

CASES: tuple[Case, ...] = (
    Case("FP01", dumped(x=[1.0, NAN, 1.02]), 'max(data["x"]) < 1.05', FAIL),
    Case("FP02", dumped(x=[0.5, 0.9, INF]), 'min(data["x"]) > 0.1', FAIL),
    Case("FP03", dumped(x=[], y=[1.0]), 'ratio_above(data["x"], 1.05) < 0.02', FAIL),
    Case("FP04", dumped(x=[NAN, NAN]), 'ratio_above(data["x"], 1.05) < 0.02', FAIL),
    Case("FP05", dumped(x=[NAN, NAN]), 'max(data["x"]) != 1', FAIL),
    Case("FP06", dumped(x=[1.0, NAN, 2.0]), 'median(data["x"]) < 3', FAIL),
    Case("FP07", dumped(x=[1.0, 2.0, NAN]), 'mean(data["x"], ignore_top_p=0.34) < 2', FAIL),
    Case("FP08", dumped(x={101: 100.0, 102: 1.0, 103: 1.0, 104: 1.0}), 'mean(data["x"], 2) < 2', PASS),
    Case("FP09", dumped(x={10: 0.9, 20: 0.9, 30: 0.0, 40: 0.9}), 'mean(data["x"], -2) > 0.5', FAIL),
    Case("FP10", dumped(x={0: 9.0, 1: 1.0, 2: 1.0}), 'mean(data["x"]) < max(data["x"])', PASS),
    Case("FP14", dumped(x=[0.5, 1.5]), '1 < max(data["x"]) < 2', PASS),
    Case("FP15", dumped(train__reward=[1.0], train__loss=[1.0]), 'max(data["train/rewrad"]) > 0', FAIL),
    Case("FP16-min", _CLAMPED, 'min(data["train/probs_ratio_clamped_min"]) > 0.79', SKIPPED),
    Case("FP16-max", _CLAMPED, 'max(data["train/probs_ratio_clamped_max"]) < 1.21', SKIPPED),
    Case("FP16-tight", _CLAMPED, 'min(data["train/probs_ratio_clamped_min"]) > 0.85', FAIL),
    Case("FP20", _damaged(lambda blob, offsets: blob[: offsets[50] + 17]), MAX_BELOW_2, BLOCKED),
    Case("FP21", _damaged(_flipped), MAX_BELOW_2, BLOCKED),
    Case("FP22-empty", _damaged(lambda blob, offsets: b""), MAX_BELOW_2, BLOCKED),
    Case("FP22-garbage", _damaged(lambda blob, offsets: bytes(range(200, 256))), MAX_BELOW_2, BLOCKED),
    Case("FP23", _touched, MAX_BELOW_2, FAIL),
    Case("FP24", _events(a={"x": [1.0] * 12}, b={"x": {11: 1.0}}), 'data["x"]["12"] > 0', FAIL),
    Case("FP25", _events(a={"x": [1.0] * 13_000 + [3.0] + [1.0] * 7000}), MAX_BELOW_2, FAIL),
    Case(
        "FP27",
        _events(a={_MEMORY: {0: 8.0, 30: 79.0}, "loss": {1: 1.0}}, b={_MEMORY: {0: 8.0}, "loss": {2: 1.0}}),
        f'max(data["{_MEMORY}"]) < 75',
        FAIL,
    ),
    Case("FP28", lines(_DROPPED), MAX_BELOW_2, BLOCKED),
    Case(
        "FP29",
        lines([{"step": 1, "x": 1.0}, "Step 2 | x: nan", {"step": 3, "x": 1.0}]),
        MAX_BELOW_2,
        BLOCKED,
    ),
    Case(
        "FP45",
        _ranks,
        MAX_BELOW_2,
        BLOCKED,
    ),
    Case("FP46", _clock_behind, MAX_BELOW_2, BLOCKED),
    Case("FP47-none", lines([*_GOOD, {"x": NAN}]), MAX_BELOW_2, BLOCKED),
    Case("FP47-half", lines([*_GOOD, {"step": 2.5, "x": NAN}]), MAX_BELOW_2, BLOCKED),
    Case("FP47-large", lines([*_GOOD, {"step": 10**20, "x": NAN}]), MAX_BELOW_2, BLOCKED),
    Case("FP48-list", lines([*_GOOD, {"step": 3, "x": [NAN]}]), MAX_BELOW_2, BLOCKED),
    Case("FP48-mean", lines([*_GOOD, {"step": 3, "x": {"mean": NAN}}]), MAX_BELOW_2, BLOCKED),
    Case("FP49-csv", written("log.csv", "step,x,x\n1,nan,1.0\n"), MAX_BELOW_2, BLOCKED),
    Case("FP49-line", lines(['{"step": 1, "x": NaN, "x": 1.0}']), MAX_BELOW_2, BLOCKED),
    Case("FP49-tag", written("metrics.json", '{"x": {"1": NaN}, "x": {"1": 1.0}}'), MAX_BELOW_2, BLOCKED),
    Case("FP50", written("metrics.json", '{"x": 1.0, "_step": 100}'), MAX_BELOW_2, FAIL),
    Case("FP51", _checkpoints, 'max(data["loss"]) < 2', BLOCKED),
    Case("FP52", _events(a={"x": [1.0] * 5}, b={"x": [5.0] * 6}, c={"x": [1.0] * 7}), MAX_BELOW_2, BLOCKED),
    Case("FP36", dumped(train__reward=[0.9, *[0.05] * 9]), 'mean(data["train/reward"], last(5)) > 0.2', FAIL),
    Case("FP39", dumped(train__reward=[0.3, 0.0, 0.5]), 'min(data["train/reward"]) > 0.1', FAIL),
)

OTHERS: Mapping[str, str] = {
    **dict.fromkeys(("FP11", "FP12", "FP13"), "the expression is refused when it is read"),
    "FP26": "held with values written as tensors, beside the tests of the reader",
    **dict.fromkeys((f"FP{number}" for number in range(30, 36)), "a run, not a log, is judged"),
    "FP40": "a run, not a log, is judged",
    **dict.fromkeys(("FP37", "FP38"), "two logs are compared"),
    "FP53": "a suite is judged",
    **dict.fromkeys((f"FP{number}" for number in range(41, 45)), "many runs are compared"),
}
"""The rest of the rows, and why they are no case."""
