"""Reads logs of real runs and compares their point counts with those of readers that share no code with ours.

    python benchmarks/public_logs.py FOLDER

FOLDER holds a sub-folder for each log, with one file in it. Nothing of the logs is kept here. W&B files need wandb.
A point is a number of a tag at a step, however often it was written. Exits 1 where a count differs.
"""

from __future__ import annotations

import ast
import csv
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.vocabulary import recognise

Point = tuple[str, Any]


def is_number(value: Any) -> bool:
    """Say whether a value, or its text, is a number."""
    if value is None or isinstance(value, bool | int | float):
        return True
    if not isinstance(value, str) or "_" in value:
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def of_rows(rows: list[dict[str, Any]], *keys: str) -> Iterator[Point]:
    """Yield the points of rows with a step under one of some keys."""
    for row in rows:
        key = next(key for key in keys if key in row)
        yield from ((tag, row[key]) for tag, value in row.items() if tag != key and is_number(value))


def trainer_state(path: Path) -> Iterator[Point]:
    """Count a Hugging Face trainer state."""
    return of_rows(json.loads(path.read_text())["log_history"], "step")


def json_list(path: Path) -> Iterator[Point]:
    """Count a list of rows."""
    return of_rows(json.loads(path.read_text()), "step")


def json_columns(path: Path) -> Iterator[Point]:
    """Count an object of columns."""
    for tag, values in json.loads(path.read_text()).items():
        yield from ((tag, place) for place, _ in enumerate(values))


def json_lines(path: Path) -> Iterator[Point]:
    """Count rows of JSON."""
    return of_rows([json.loads(line) for line in path.read_text().splitlines()], "step", "current_steps")


def table(path: Path) -> Iterator[Point]:
    """Count a CSV; an empty cell is no point."""
    for row in csv.DictReader(path.open()):
        yield from (
            (tag, row["iteration"])
            for tag, cell in row.items()
            if tag != "iteration" and cell and is_number(cell)
        )


def events(path: Path) -> Iterator[Point]:
    """Count scalars by tensorboard's own loader."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for event in LegacyEventFileLoader(str(path)).Load():
        yield from (
            (value.tag, event.step) for value in event.summary.value if value.HasField("simple_value")
        )


def wandb(path: Path) -> Iterator[Point]:
    """Count history records; the file is a LevelDB log of blocks of 32 KiB behind 7 bytes of its own."""
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    blob, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(blob):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        size, kind = int.from_bytes(blob[at + 4 : at + 6], "little"), blob[at + 6]
        piece, at = blob[at + 7 : at + 7 + size], at + 7 + size
        parts = piece if kind in (1, 2) else parts + piece
        if kind not in (1, 4) or len(piece) < size:
            continue
        try:
            record = Record.FromString(parts)
        except DecodeError:
            continue
        held = {
            ".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
        }
        step = held.pop("_step", None)
        # The size of a table or an image is none of the metrics.
        media = tuple(key.removesuffix("_type") for key in held if key.endswith("._type"))
        numbers = {
            tag for tag, value in held.items() if is_number(value) and not tag.startswith(("_", *media))
        }
        yield from ((tag, step) for tag in numbers)


def console(path: Path) -> Iterator[Point]:
    """Count what was printed, line by line, in the first of four forms that has a row."""
    text = path.read_text(errors="replace")
    # The last value of a line without an end may not be whole.
    text = text if text.endswith("\n") else text.rpartition(" - ")[0] or text
    lines = re.split(r"[\r\n]", text)
    rows = [
        line[line.index("step:") + 5 :].rstrip() for line in lines if re.search(r"\bstep:\d+ - \S+:", line)
    ]
    if rows:
        for row in rows:
            step, *items = row.split(" - ")
            yield from ((item.rpartition(":")[0], step) for item in items)
        return
    printed = [
        line[line.index("{'") : line.rindex("}") + 1]
        for line in lines
        if re.search(r"\{'.*'epoch'.*\}", line)
    ]
    place = 0
    for line in printed:
        row = ast.literal_eval(re.sub(r"\b(nan|inf)\b", "None", line))
        place += "train_runtime" not in row
        yield from ((tag, place) for tag in row)
    for line in lines:
        if counted := re.search(r"(\d+)/\d+ \| (.*)", line) or re.search(r"\((\d+)/\d+\), (.*)", line):
            yield from ((item, counted[1]) for item in re.findall(r"(\w+)[=:]", counted[2]))


def reader_for(path: Path) -> Callable[[Path], Iterator[Point]]:
    """Return the reader for a file by its name."""
    if path.suffix == ".wandb":
        return wandb
    if ".tfevents." in path.name:
        return events
    by_suffix = {".jsonl": json_lines, ".csv": table}
    if path.suffix == ".json":
        head = path.read_text()[:2000]
        return (
            trainer_state
            if "log_history" in head
            else json_list
            if head.lstrip().startswith("[")
            else json_columns
        )
    return by_suffix.get(path.suffix, console)


def main() -> int:
    """Print a line for each log; return 1 where a count differs."""
    faults = 0
    for path in sorted(Path(sys.argv[1]).glob("*/*")):
        expected = len({(tag, str(step)) for tag, step in reader_for(path)(path)})
        try:
            log = read_logs(path)
            found, stack = sum(len(one) for one in log.series.values()), recognise(log.tags())
            said = f"stack {stack.name}" if stack else "stack unknown"
            said += "".join(f"; {item.what}" for item in log.damage[:1])
        except BlockedError as error:
            found, said = 0, f"no log: {str(error).partition(': ')[2][:70]}"
        faults += found != expected
        mark = "" if found == expected else "  DIFFERS"
        print(f"{path.parent.name}/{path.name[:40]:40} {found:7} {expected:7}{mark}  {said}")
    print(f"{faults} counts differ" if faults else "all counts are equal")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
