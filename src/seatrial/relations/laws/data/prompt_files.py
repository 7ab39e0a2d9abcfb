"""R14 of prompt files: every row is served as written, in every format; splits share nothing."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.command import ReadPrompt, ReadPrompts
from seatrial.relations.law import Measure, Relation

Rows = Sequence[Mapping[str, Any]]
HELD_OUT = 4
ENDS = (":", "=", "?", " ", "\n", ".", '"', ": ", "")
"""The ends of prompts."""


@dataclass(frozen=True, kw_only=True)
class FileCase(Case):
    """How many rows a file has."""

    num_rows: int
    seed: int

    def smaller(self) -> Iterator[FileCase]:
        """Yield half as many rows."""
        if self.num_rows > 8:
            yield replace(self, num_rows=self.num_rows // 2)

    def rows(self) -> list[dict[str, Any]]:
        """Return rows: prompts that begin alike and end with various characters, answers that are numbers or text.

        Some numbers have ten digits.
        """
        return [
            {
                "prompt": f"How much is {number + self.seed} and {number * 7 % 5}, in words{ENDS[number % len(ENDS)]}",
                "answer": (number, 1234567 * number + 0.375)[number % 4 == 3]
                if number % 2
                else f"  {number} ",
                "solution": f"It is {number}.",
            }
            for number in range(self.num_rows)
        ]


def _make(stack: Any, seed: int, tidy: bool) -> FileCase:
    return FileCase(num_rows=8 if tidy else 37 + seed, seed=seed)


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

FILES = Relation(
    id="R14.files",
    name="files-are-read-whole",
    component="prompt_files",
    statement="Every row of a file is one prompt with its own answer, in every format; two splits share no prompt.",
    catalogue="SB013 SB108 SB112 SB122 SB309 SB395 SB396",
    cost="CPU, seconds",
    cases=_make,
)


def every_row_is_served(stack: Any, case: FileCase, form: str) -> Measure:
    """Check that each row of a file is served once, in order, with its own answer and solution."""
    rows = case.rows()
    with tempfile.TemporaryDirectory() as folder:
        read = stack.read_prompts(FORMS[form](rows, Path(folder)), num_held_out=HELD_OUT)
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
            wrong.append("the order is not that of the file")
        if len(_both(read)) != len(rows) or len({one.prompt_id for one in _both(read)}) != len(rows):
            ids = len({one.prompt_id for one in _both(read)})
            wrong.append(f"{len(_both(read))} prompts with {ids} ids for {len(rows)} rows")
    return Measure.count(wrong, f"rows of {form} that are not served once, as they are written")


def _both(read: ReadPrompts) -> list[ReadPrompt]:
    return [*read.train, *read.held_out]


for form in FORMS:
    FILES.law(
        f"every row of {form}",
        "a last line, row group or file left out, rows of one group alone, texts stripped or rounded",
        form=form,
    )(every_row_is_served)


@FILES.law("rows without solutions", "prompts stripped on another path")
def rows_without_solutions(stack: Any, case: FileCase) -> Measure:
    """Check that rows without a column of solutions are served as they are written."""
    rows = [{name: value for name, value in row.items() if name != "solution"} for row in case.rows()]
    with tempfile.TemporaryDirectory() as folder:
        read = stack.read_prompts(_jsonl(rows, Path(folder)), num_held_out=HELD_OUT, with_solutions=False)
        found = sorted((one.prompt, one.answer, one.solution or "") for one in _both(read))
    due = sorted((row["prompt"], str(row["answer"]), "") for row in rows)
    wrong = [f"{one} for {other}" for one, other in zip(found, due, strict=False) if one != other]
    wrong += [f"{len(found)} prompts"] * (len(found) != len(due))
    return Measure.count(wrong, "rows without solutions that are not served once, as they are written")


@FILES.law("repeated prompts", "ids of rows in place of ids of prompts")
def repeated_prompts(stack: Any, case: FileCase) -> Measure:
    """Check that a prompt that a file repeats is served once."""
    rows = case.rows()
    with tempfile.TemporaryDirectory() as folder:
        read = stack.read_prompts(_jsonl([*rows, *rows[:3]], Path(folder)), num_held_out=HELD_OUT)
        prompts = [one.prompt for one in _both(read)]
    return Measure.count(
        [f"{len(prompts)} for {len(rows)}"] * (len(prompts) != len(rows)), "prompts served twice"
    )


@FILES.law("held-out rows", "rows that are held out and kept in training")
def held_out_rows_do_not_train(stack: Any, case: FileCase) -> Measure:
    """Check that no held-out prompt is trained on."""
    with tempfile.TemporaryDirectory() as folder:
        read = stack.read_prompts(_jsonl(case.rows(), Path(folder)), num_held_out=HELD_OUT)
        wrong = sorted({one.prompt for one in read.train} & {one.prompt for one in read.held_out})
        if len(read.held_out) != HELD_OUT:
            wrong.append(f"{len(read.held_out)} held out of {HELD_OUT}")
    return Measure.count(wrong, "prompts that are held out and trained on")


@FILES.law("shared prompts are refused", "a default that drops them in silence")
def shared_prompts_are_refused(stack: Any, case: FileCase) -> Measure:
    """Check that two files that share prompts are refused."""
    with _two_files(case) as (train, held_out):
        try:
            read = stack.read_prompts(train, held_out=held_out)
        except Exception:  # noqa: BLE001  a stack may refuse with any exception
            return Measure.count([], "files that share prompts and are not refused")
    return Measure.count(
        [f"{len(read.train)} prompts to train on"], "files that share prompts and are not refused"
    )


@contextmanager
def _two_files(case: FileCase) -> Iterator[tuple[Path, Path]]:
    """Write a file, and its first three rows as the held-out one."""
    with tempfile.TemporaryDirectory() as folder:
        held_out = Path(folder, "held_out")
        held_out.mkdir()
        yield _jsonl(case.rows(), Path(folder)), _jsonl(case.rows()[:3], held_out)


@FILES.law("shared prompts are dropped", "the overlap not looked at")
def shared_prompts_are_dropped(stack: Any, case: FileCase) -> Measure:
    """Check that shared prompts are dropped from the training file if the stack is asked to."""
    rows = case.rows()
    with _two_files(case) as (train, held_out):
        read = stack.read_prompts(train, held_out=held_out, drop_shared=True)
        trained, held = ([one.prompt for one in part] for part in (read.train, read.held_out))
    right = ([row["prompt"] for row in rows[3:]], [row["prompt"] for row in rows[:3]])
    return Measure.count(
        [f"{len(trained)} to train on, {len(held)} held out"] * ((trained, held) != right),
        "splits that are not the two files without their shared prompts",
    )
