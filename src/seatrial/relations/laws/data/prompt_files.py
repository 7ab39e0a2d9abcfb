"""R14 of files of prompts: every row is served, as it is written, in every form; splits of files share nothing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.relations.contracts.command import ReadPrompt, ReadPrompts
from seatrial.relations.law import Law, Measure, Relation

Rows = Sequence[Mapping[str, Any]]
HELD_OUT = 4
ENDS = (":", "=", "?", " ", "\n", ".", '"', ": ", "")
"""With which prompts end."""


@dataclass(frozen=True, kw_only=True)
class FileCase:
    """How many rows a file has."""

    num_rows: int
    seed: int

    def smaller(self) -> Iterator[FileCase]:
        """Yield half as many rows."""
        if self.num_rows > 8:
            yield replace(self, num_rows=self.num_rows // 2)

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        return vars(self)

    def rows(self) -> list[dict[str, Any]]:
        """Return rows: prompts that begin alike and end in marks of every kind, answers that are numbers or text."""
        return [
            {
                "prompt": f"How much is {number + self.seed} and {number * 7 % 5}, in words{ENDS[number % len(ENDS)]}",
                "answer": number if number % 2 else f"  {number} ",
                "solution": f"It is {number}.",
            }
            for number in range(self.num_rows)
        ]


def _make(stack: Any, seed: int, tidy: bool) -> FileCase:
    return FileCase(num_rows=8 if tidy else 37 + seed, seed=seed)


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def _jsonl(rows: Rows, folder: Path) -> Path:
    """Write lines, one of them empty, the last without an end."""
    path = folder / "rows.jsonl"
    lines = [json.dumps(row) for row in rows]
    path.write_text("\n".join([*lines[:3], "", *lines[3:]]), encoding="utf-8")
    return path


def _parquet(rows: Rows, folder: Path) -> Path:
    from pyarrow import parquet

    parquet.write_table(_table(rows), folder / "rows.parquet", row_group_size=5)
    return folder / "rows.parquet"


def _arrow(rows: Rows, folder: Path) -> Path:
    from pyarrow import ipc

    table = _table(rows)
    with ipc.new_stream(folder / "rows.arrow", table.schema) as stream:
        stream.write_table(table, max_chunksize=7)
    return folder / "rows.arrow"


def _parts(rows: Rows, folder: Path) -> Path:
    from pyarrow import parquet

    (folder / "parts").mkdir()
    for number, start in enumerate(range(0, len(rows), 9)):
        parquet.write_table(_table(rows[start : start + 9]), folder / "parts" / f"train-{number}.parquet")
    return folder / "parts"


def _table(rows: Rows) -> Any:
    from pyarrow import Table

    return Table.from_pylist([{**row, "answer": str(row["answer"])} for row in rows])


FORMS: Mapping[str, Callable[[Rows, Path], Path]] = {
    "JSONL": _jsonl,
    "Parquet": _parquet,
    "Arrow": _arrow,
    "a folder of parts": _parts,
}


def _both(read: ReadPrompts) -> list[ReadPrompt]:
    return [*read.train, *read.held_out]


def _every_row(form: str) -> Callable[[Any, FileCase], Measure]:
    def measure(stack: Any, case: FileCase) -> Measure:
        rows = case.rows()
        with _folder() as folder:
            read = stack.read_prompts(FORMS[form](rows, folder), num_held_out=HELD_OUT)
            found = {one.prompt: one for one in _both(read)}
            wrong = [f"{row['prompt']!r} is not served" for row in rows if row["prompt"] not in found]
            wrong += [
                f"{found[row['prompt']]} for {row}"
                for row in rows
                if row["prompt"] in found
                and (found[row["prompt"]].answer, found[row["prompt"]].solution)
                != (str(row["answer"]), row["solution"])
            ]
            order = [one.prompt for one in read.train]
            if order != [row["prompt"] for row in rows if row["prompt"] in set(order)]:
                wrong.append("the order is another one than the file's")
            if len(_both(read)) != len(rows) or len({one.prompt_id for one in _both(read)}) != len(rows):
                ids = len({one.prompt_id for one in _both(read)})
                wrong.append(f"{len(_both(read))} prompts with {ids} ids for {len(rows)} rows")
        return _count(wrong, f"rows of {form} that are not served once, as they are written")

    return measure


def _without_solutions(stack: Any, case: FileCase) -> Measure:
    """Rows without a column of solutions are served as they are written too."""
    rows = [{name: value for name, value in row.items() if name != "solution"} for row in case.rows()]
    with _folder() as folder:
        read = stack.read_prompts(_jsonl(rows, folder), num_held_out=HELD_OUT, with_solutions=False)
        found = sorted((one.prompt, one.answer, one.solution or "") for one in _both(read))
    due = sorted((row["prompt"], str(row["answer"]), "") for row in rows)
    wrong = [f"{one} for {other}" for one, other in zip(found, due, strict=False) if one != other]
    wrong += [f"{len(found)} prompts"] * (len(found) != len(due))
    return _count(wrong, "rows without solutions that are not served once, as they are written")


def _repeated(stack: Any, case: FileCase) -> Measure:
    """A prompt that stands in a file again is one prompt."""
    rows = case.rows()
    with _folder() as folder:
        read = stack.read_prompts(_jsonl([*rows, *rows[:3]], folder), num_held_out=HELD_OUT)
        prompts = [one.prompt for one in _both(read)]
    return _count([f"{len(prompts)} for {len(rows)}"] * (len(prompts) != len(rows)), "prompts served twice")


def _apart(stack: Any, case: FileCase) -> Measure:
    with _folder() as folder:
        read = stack.read_prompts(_jsonl(case.rows(), folder), num_held_out=HELD_OUT)
        wrong = sorted({one.prompt for one in read.train} & {one.prompt for one in read.held_out})
        if len(read.held_out) != HELD_OUT:
            wrong.append(f"{len(read.held_out)} held out of {HELD_OUT}")
    return _count(wrong, "prompts that are held out and trained on")


def _shared_are_refused(stack: Any, case: FileCase) -> Measure:
    with _two_files(case) as (train, held_out):
        try:
            read = stack.read_prompts(train, held_out=held_out)
        except Exception:  # noqa: BLE001  how a stack refuses is its own affair
            return _count([], "files that share prompts and are not refused")
    return _count([f"{len(read.train)} prompts to train on"], "files that share prompts and are not refused")


def _shared_are_dropped(stack: Any, case: FileCase) -> Measure:
    rows = case.rows()
    with _two_files(case) as (train, held_out):
        read = stack.read_prompts(train, held_out=held_out, drop_shared=True)
        trained, asked = ([one.prompt for one in part] for part in (read.train, read.held_out))
    right = ([row["prompt"] for row in rows[3:]], [row["prompt"] for row in rows[:3]])
    return _count(
        [f"{len(trained)} to train on, {len(asked)} held out"] * ((trained, asked) != right),
        "splits of two files that are not the files without what they share",
    )


@contextmanager
def _two_files(case: FileCase) -> Iterator[tuple[Path, Path]]:
    """Write a file, and its first three rows as the held-out one."""
    with _folder() as folder:
        (folder / "held_out").mkdir()
        yield _jsonl(case.rows(), folder), _jsonl(case.rows()[:3], folder / "held_out")


def _count(wrong: Sequence[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(list(wrong) or ['none'])[0]})")


def _law(name: str, measure: Any, suspects: str) -> Law:
    return Law(name=name, make=_make, measure=measure, suspects=suspects)


RELATIONS = (
    Relation(
        id="R14.files",
        name="files-are-read-whole",
        component="prompt_files",
        statement="Every row of a file is one prompt with its own answer, in every form; two splits share no prompt.",
        catalogue=("SB013", "SB108", "SB112", "SB122", "SB309", "SB395", "SB396"),
        cost="CPU, seconds",
        laws=(
            *(
                _law(
                    f"every row of {form}",
                    _every_row(form),
                    "a last line, row group or file left out, rows of one group alone, texts stripped or rounded",
                )
                for form in FORMS
            ),
            _law("rows without solutions", _without_solutions, "prompts stripped on a path of their own"),
            _law("repeated prompts", _repeated, "ids of rows in place of ids of prompts"),
            _law("held-out rows", _apart, "rows that are held out and kept in training"),
            _law("shared prompts are refused", _shared_are_refused, "a default that drops them in silence"),
            _law("shared prompts are dropped", _shared_are_dropped, "the overlap not looked at"),
        ),
    ),
)
