"""Console logs: finds the rows of metrics in what a run printed.

Rows are found behind any prefix of Slurm, Ray or a progress bar. Rows of Hugging Face trainers have no step: they are
numbered from 1, and the rows of an evaluation or a summary belong to the row before them. Where the trainer's progress
bar reached its end and its number of steps is a multiple of one distance between rows alone, they get those steps.
Rows that a terminal wrapped at its width are joined.

| form | who prints it |
|---|---|
| `step:3 - actor/lr:1e-06 - critic/score/mean:np.float64(0.5)` | verl, `trainer.logger=console` (LocalLogger) |
| `{'loss': 0.1, 'reward': '0.5', 'epoch': 0.04}` | Hugging Face trainers (their ProgressCallback): TRL, ms-swift |
| `3/100 | loss=-0.5 | reward=0.25` and `step 3: loss=0.5, reward=0.25` | custom training loops |
| `Epoch:[2/4](20/4292), loss: 0.66, lr: 0.1` | minimind; the step counts through the epochs |
| `[step 4/200] loss=0.01 correct=3/4 rewards=[1.0, 0.0]` | custom loops; a share is its value, a list its mean |
| `Step 1 | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:900` | torchtune's DiskLogger |
| `step=3 loss=0.5 reward=0.2`, `Step 3 | Loss 0.5 | Reward 0.2`, `Episode 3/9 - loss: 0.5 - lr: 0.2` | custom loops |
| `step 3: {'train/loss': 0.5}`, `rollout 3: {'rollout/raw_reward': 0.5}` | slime |
| `INFO {"step": 3, "loss": 0.5}` | loggers that write JSON behind a prefix |
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.readers.jsonl import STEP_KEYS, parse, raw_lines, step_key
from seatrial.evidence.readers.opening import suffix_of
from seatrial.evidence.readers.points import decode, decode_step
from seatrial.evidence.readers.rows import RowLog, assemble_rows, row_logs
from seatrial.evidence.runlog import RunLog


@dataclass(frozen=True)
class ConsoleRow:
    """One row that was printed."""

    step: int | None
    """None where the row names none."""
    metrics: dict[str, str]
    broken: str = ""
    """A part that is no tag and number."""
    is_summary: bool = False
    """An evaluation or the end of training, which belongs to the row before it."""
    open_ended: bool = False
    """Nothing but the end of the line says that the row is whole."""
    last: str | None = None
    """Tag of the last value, which may be cut where the line does not end."""
    total: int | None = None
    """The last step of the run, where the row names it."""


_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_VERL = re.compile(r"(?:^|[\s\])])step:(\d{1,18}) - (.+)$")
_WRAPPED = re.compile(r"(?:np|numpy|torch)?\.?(?:float|int|tensor|bfloat)\d*\(([^()]*)\)")
_DICT = re.compile(r"\{'[^{}]*(\}|$)")
_ITEM = re.compile(r"'([^']+)': ('[^']*'|\"[^\"]*\"|\[[^\]]*\]|[^,'\"\[\]{}]+)(?:, |\})")
_COUNTED = re.compile(r"(?:^|[\s(\[])(\d{1,18})/(\d{1,18})\)?\]?\s*[|,:-]\s*(\S.*)$")
_EPOCHS = re.compile(
    r"Epoch:?\s*\[(\d{1,18})/\d+\]\s*\((\d{1,18})/(\d{1,18})\)\s*[|,:-]?\s*(\S.*)$", re.IGNORECASE
)
_NAMED = re.compile(
    r"(?:^|[\s\[(:])(?:global[_ ])?(?:step|iter|iteration|update|episode)[\s:=#]+(\d{1,18})(?:/(\d{1,18}))?"
    r"(?:[\])]\s*[|,:-]?|\s*[|,:-]|(?: (?:done|completed|finished))?:|\s(?=\s*[A-Za-z_][\w./@()-]*\s*[=:]))\s*(\S.*)$",
    re.IGNORECASE,
)
_BEFORE_DICT = re.compile(
    r"(?:^|[\s\[(:])(?:step|iter|iteration|update|episode|rollout|eval)[\s:=#]+(\d{1,18})(?:/\d{1,18})?\]?\s*[:|-]?\s*$",
    re.IGNORECASE,
)
_NAME = r"[A-Za-z_][\w./@()-]*"
_NUMBER = r"[-+]?(?:[\d.]+(?:e[-+]?\d+)?|nan|inf)"
_PAIR = re.compile(rf"({_NAME}(?: [\w()]+){{0,3}})\s*[=:]\s*\$?({_NUMBER})(?:\s?[a-zA-Z%/]*)", re.IGNORECASE)
_SPACED = re.compile(
    rf"({_NAME}(?: [\w()]+){{0,3}}?)\s+([-+]?\d*\.\d+(?:e[-+]?\d+)?)(?:\s?[a-zA-Z%/]*)", re.IGNORECASE
)
_WORDS = re.compile(rf"({_NAME})[=:](\[[^\]]*\]|[^\s,;|]+)[\s,;|]*")
_SHARE = re.compile(r"(\d{1,18})/(\d{1,18})")
_BAR = re.compile(rb"(?:^|[\r\n])\s*\d{1,3}%\|[^|\r\n]*\|\s*(\d{1,12})/(\d{1,12}) \[[^\]\r\n]*(?:it/s|s/it)")
"""The bar of a trainer: others have a description before it."""
_CUT_BYTES = 4096
"""W&B's output.log ends longer lines here."""
_WIDTHS = (40, 500)
"""Columns of terminals."""
_MAX_PIECES = 200
_OF_TRAINERS = frozenset({"epoch", "train_runtime", "eval_loss", "eval_runtime"})


def parse_row(line: str) -> ConsoleRow | None:
    """Return the row of metrics in a line, or None where there is none."""
    if "step:" in line and (found := _VERL.search(_ANSI.sub("", line))):
        return _of_verl(int(found[1]), found[2])
    if "{'" in line:
        return _of_trainer(_ANSI.sub("", line))
    if '{"' in line:
        return _of_json(line)
    if "=" in line or ": " in line or " | " in line:
        return _of_pairs(_ANSI.sub("", line))
    return None


def _of_verl(step: int, text: str) -> ConsoleRow | None:
    metrics: dict[str, str] = {}
    broken, last = "", None
    for item in _REPEATED.sub("", text).rstrip().split(" - "):
        tag, colon, value = item.rpartition(":")
        wrapped = _WRAPPED.fullmatch(value)
        value = wrapped[1] if wrapped else value
        if tag in metrics or tag == "step":
            # Two processes wrote into one line: nothing says which value is whose.
            return ConsoleRow(step, {}, f"{item} (two rows in one line)")
        last = tag if colon and tag else None
        if last is not None:
            metrics[tag] = value
        else:
            broken = broken or item
    # A sentence that begins so is no row.
    if not any(decode(value) for value in metrics.values()):
        return None
    return ConsoleRow(step, metrics, broken, open_ended=True, last=last)


def _of_trainer(line: str) -> ConsoleRow | None:
    """Read a printed dictionary: of the trainer, not one of settings."""
    found = _DICT.search(line)
    if found is None:
        return None
    held = {key: value.strip().strip("'\"") for key, value in _ITEM.findall(found[0])}
    key = next((key for key in STEP_KEYS if decode_step(held.get(key)) is not None), None)
    counter = _BEFORE_DICT.search(line[: found.start()]) if key is None else None
    is_log = (
        held.keys() & _OF_TRAINERS
        or (key and len(held) > 1)
        or counter
        or (("loss" in held or "reward" in held) and (len(held) > 1 or not found[1]))
    )
    if not is_log or not any(decode(value) for value in held.values()):
        return None
    broken = "" if found[1] else found[0][-60:]
    is_summary = "train_runtime" in held or not any(
        not name.startswith("eval_") for name in held if name != "epoch"
    )
    step = int(counter[1]) if counter else None if key is None else decode_step(held.pop(key))
    return ConsoleRow(step, held, broken, is_summary, open_ended=not found[1])


def _of_json(line: str) -> ConsoleRow | None:
    """Read a JSON object with a step at the end of a line."""
    row = parse(line[line.index('{"') :].rstrip())
    key = step_key(row) if isinstance(row, dict) else None
    if key is None:
        return None
    metrics = {name: str(value) for name, value in row.items() if name != key and type(value) in (int, float)}
    return ConsoleRow(decode_step(row[key]), metrics) if metrics else None


def _of_pairs(line: str) -> ConsoleRow | None:
    """Read a counter and then nothing but pairs of a tag and a number; units behind a number are left out."""
    total = None
    if found := _EPOCHS.search(line):
        step, rest = (int(found[1]) - 1) * int(found[3]) + int(found[2]), found[4]
    elif found := _COUNTED.search(line):
        step, rest, total = int(found[1]), found[3], int(found[2])
    elif found := _NAMED.search(line):
        step, rest, total = int(found[1]), found[3], int(found[2]) if found[2] else None
    else:
        return None
    metrics = _pairs(rest.strip())
    if len(metrics) < 2:
        metrics = _words(rest.strip())
    if not metrics:
        return None
    return ConsoleRow(step, metrics, open_ended=True, last=[*metrics][-1], total=total)


def _pairs(text: str) -> dict[str, str]:
    """Return the pairs of `a: 1 | b: 2`, none where a part is no pair."""
    metrics = {}
    for item in re.split(r"\s*[|,;]\s*|\s+- ", text):
        pair = _PAIR.fullmatch(item) or _SPACED.fullmatch(item)
        if pair is None:
            return {}
        metrics[pair[1]] = pair[2]
    return metrics


def _words(text: str) -> dict[str, str]:
    """Return the numbers of `a=1 b=[1, 0] c=3/4`: the mean of a list, the value of a share; none of other text."""
    found = _WORDS.findall(text)
    if len(found) < 2 or _WORDS.sub("", text):
        return {}
    metrics = {}
    for name, value in found:
        share = _SHARE.fullmatch(value)
        numbers = [decode(one.strip(" '\"")) for one in value.strip("[]").split(",")]
        values = [one.value for one in numbers if one is not None]
        if share and int(share[2]):
            metrics[name] = str(int(share[1]) / int(share[2]))
        elif len(values) == len(numbers):
            metrics[name] = str(sum(values) / len(values)) if len(values) > 1 else value.strip("[]'\"")
    return metrics


NAME = "console"
PRIORITY = 5

_SUFFIXES = {"", ".log", ".out", ".txt", ".err", ".stdout", ".stderr", ".console"}
_OF_A_QUEUE = re.compile(r"\.[eo]\d+")
MAX_BYTES_BEFORE_A_ROW = 64 << 20
_BREAKS = re.compile(rb"[\r\n]")


def claims(file: Path, head: bytes) -> bool:
    """Say whether a file is text in which a line is a row of metrics."""
    suffix = suffix_of(file)
    if b"\0" in head or not (suffix in _SUFFIXES or _OF_A_QUEUE.fullmatch(suffix)):
        return False
    seen = 0
    try:
        for text in raw_lines(file, RowLog(str(file))):
            if any(parse_row(part.decode(errors="replace")) for part in _BREAKS.split(text)):
                return True
            seen += len(text)
            if seen > MAX_BYTES_BEFORE_A_ROW:
                return False
    except BlockedError:
        return False
    return False


def read(root: Path, paths: Sequence[Path], tags: Collection[str] | None = None) -> RunLog:
    """Read console logs.

    Raises:
        BlockedError: no line is a row of metrics.
        OSError: a file cannot be read.
    """
    logs = row_logs(root, paths)
    notes = [note for path, log in zip(paths, logs, strict=True) for note in _read(path, log)]
    return assemble_rows(logs, tags, notes=notes)


def _read(path: Path, log: RowLog) -> list[str]:
    """Read one file; return notes."""
    place = 0
    bar = (0, 0)
    counted: list[tuple[ConsoleRow, int, int]] = []
    for number, text in _unwrapped(path, log):
        for found in _BAR.finditer(text):
            at, total = int(found[1]), int(found[2])
            bar = max(bar, (total, at))
        for part in _BREAKS.split(text):
            row = parse_row(part.decode(errors="replace"))
            if row is None:
                continue
            if row.open_ended and (not text.endswith(b"\n") or len(part) == _CUT_BYTES):
                log.lose(
                    number, f"truncated in line {number}, whose row of metrics may not be whole", is_cut=True
                )
                row = replace(row, broken="")
                row.metrics.pop(row.last or "", None)
            if row.step is not None:
                _add(log, row, number, row.step)
                continue
            place += not row.is_summary
            counted.append((row, number, place))
    stride = _stride(*bar, place)
    for row, number, place in counted:
        _add(log, row, number, max(place, 1) * stride)
    if not place:
        return []
    how = f"the progress bar shows one in {stride} steps" if stride > 1 else "they are counted from 1"
    return [f"{path.name}: its {place} rows name no step; {how}"]


def _unwrapped(path: Path, log: RowLog) -> Iterator[tuple[int, bytes]]:
    """Yield the lines with their numbers; the pieces of a row that a terminal wrapped are one line."""
    width = _width(path)
    held: list[tuple[int, bytes]] = []
    for number, text in enumerate(raw_lines(path, log), start=1):
        held.append((number, text))
        if len(text.rstrip(b"\r\n")) != width or len(held) == _MAX_PIECES:
            yield from _joined(held) if len(held) > 1 else held
            held = []
    yield from _joined(held)


def _joined(pieces: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Return one line for each row of pieces that make a whole one together, and other lines as they are."""
    lines: list[tuple[int, bytes]] = []
    while pieces:
        number, first = pieces[0]
        taken = next(
            (place for place, (_, text) in enumerate(pieces[1:], start=1) if parse_row(_text(text))),
            len(pieces),
        )
        whole = b"".join(text.rstrip(b"\r\n") for _, text in pieces[:taken]) + b"\n"
        row, head = parse_row(_text(whole)), parse_row(_text(first))
        is_whole = row is not None and not row.broken and all(decode(one) for one in row.metrics.values())
        if taken > 1 and is_whole and head is not None:
            lines.append((number, whole))
        else:
            lines += pieces[:taken]
        pieces = pieces[taken:]
    return lines


def _text(line: bytes) -> str:
    return line.decode(errors="replace").rstrip("\r\n")


def _width(path: Path) -> int:
    """Return the length of the longest lines of a text if several have it and a terminal may be so wide, else 0."""
    lengths = Counter(len(text.rstrip(b"\r\n")) for text in raw_lines(path, RowLog(str(path))))
    longest = max(lengths, default=0)
    return longest if lengths[longest] > 1 and _WIDTHS[0] <= longest <= _WIDTHS[1] else 0


def _stride(total: int, at: int, num_rows: int) -> int:
    """Return the steps between two rows of a run that reached the end of its progress bar; 1 where it is not known."""
    if at < total or not num_rows:
        return 1
    # All distances with that number of rows; of several none is known.
    least, most = total // (num_rows + 1) + 1, total // num_rows
    return least if least == most else 1


def _add(log: RowLog, row: ConsoleRow, number: int, step: int) -> None:
    if row.total is not None:
        log.note_total(row.total)
    if row.broken:
        log.lose(number, f"line {number}: part of a row of metrics is no tag and number: {row.broken[:60]!r}")
    log.add(step, row.metrics, line=number)
