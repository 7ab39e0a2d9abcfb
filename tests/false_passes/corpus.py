"""The corpus of false passes: inputs on which other projects' gates said Pass, and what a right gate says.

A row is data. A test next to this file that takes rows by `@pytest.mark.parametrize("row", ...)` with their ids holds
them to their right-hand side; `docs/evidence/false_passes.md` shows each row with its tests. Rows of another family
are in a module of their own, `corpus_<family>.py`, with a tuple `ROWS`.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Row:
    """One false pass."""

    id: str
    family: str
    evidence: str
    """What the run left."""
    check: str
    """The check; `x` is a series."""
    others: str
    """What other gates said."""
    right: str
    """What a right gate says."""
    met: str = "NeMo RL tests/check_metrics.py, run at commit 7ea279a"
    """Where it was met."""

    def __str__(self) -> str:
        """Return the row as the name of a test."""
        return self.id


EXPRESSIONS = "Series and expressions"
HISTORIES = "Runs and suites"

ROWS: tuple[Row, ...] = (
    Row(
        id="FP01",
        family=EXPRESSIONS,
        evidence="`[1.0, NaN, 1.02]`",
        check="`max(x) < 1.05`",
        others="Pass: a NaN that is not first is ignored",
        right="Fail, and names the step",
    ),
    Row(
        id="FP02",
        family=EXPRESSIONS,
        evidence="`[0.5, 0.9, Inf]`",
        check="`min(x) > 0.1`",
        others="Pass",
        right="Fail, and names the step",
    ),
    Row(
        id="FP03",
        family=EXPRESSIONS,
        evidence="an empty series",
        check="`ratio_above(x, 1.05) < 0.02`",
        others="Pass (0.0)",
        right="Fail: no samples",
    ),
    Row(
        id="FP04",
        family=EXPRESSIONS,
        evidence="all NaN",
        check="`ratio_above(x, 1.05) < 0.02`",
        others="Pass: NaN counts as not above",
        right="Fail, and names the steps",
    ),
    Row(
        id="FP05",
        family=EXPRESSIONS,
        evidence="all NaN",
        check="`max(x) != 1`",
        others="Pass: NaN differs from everything",
        right="Fail, and names the steps",
    ),
    Row(
        id="FP06",
        family=EXPRESSIONS,
        evidence="`[1, 2, NaN]` in any order",
        check="`median(x) < 3`",
        others="depends on the place of the NaN",
        right="Fail in any order",
    ),
    Row(
        id="FP07",
        family=EXPRESSIONS,
        evidence="`[1, 2, NaN]`",
        check="`mean(x, ignore_top_p=0.34) < 2`",
        others="Pass: the NaN is dropped as an outlier",
        right="Fail, and names the step",
    ),
    Row(
        id="FP08",
        family=EXPRESSIONS,
        evidence="steps 101..105 of a resumed run, the first one slow",
        check="`mean(x, 2)`, to skip the warm-up step",
        others="skips nothing",
        right="skips the first logged point",
    ),
    Row(
        id="FP09",
        family=EXPRESSIONS,
        evidence="steps 10, 20, 30, 40",
        check="`mean(x, -2)`",
        others="reads the last point only",
        right="reads the last two points",
    ),
    Row(
        id="FP10",
        family=EXPRESSIONS,
        evidence="steps 0..3",
        check="`mean(x)` against `max(x)`",
        others="one drops step 0, the other keeps it",
        right="both read the same points",
    ),
    Row(
        id="FP11",
        family=EXPRESSIONS,
        evidence="any",
        check="`max(x) < 1 or True`",
        others="Pass",
        right="refused when read: an operand is constant",
    ),
    Row(
        id="FP12",
        family=EXPRESSIONS,
        evidence="any",
        check='`exit(0)`; `__import__("os").system("...") == 0`',
        others="exit 0; the command runs, twice",
        right="refused when read, exit 2, nothing runs",
    ),
    Row(
        id="FP13",
        family=EXPRESSIONS,
        evidence="any",
        check="a bare `max(x)`",
        others="Pass when it is not zero",
        right="refused when read: not a comparison",
    ),
    Row(
        id="FP14",
        family=EXPRESSIONS,
        evidence="any",
        check="`1 < max(x) < 2`, `max(x) != 5`, brackets",
        others="right verdict; the value shown is wrong or lost",
        right="the measured value is shown, with its bound",
    ),
    Row(
        id="FP15",
        family=EXPRESSIONS,
        evidence="a run that logs `train/reward`",
        check='`max(data["train/rewrad"]) > 0`',
        others="found after the GPU run",
        right="found before the run where the target's tags are known; else Fail with the nearest names",
    ),
    Row(
        id="FP16",
        family=EXPRESSIONS,
        evidence="a value clamped by construction",
        check='`min(data["train/probs_ratio_clamped_min"]) > 0.79` with clip 0.2',
        others="Pass on every run",
        right="reported as a check that cannot fail, never Pass",
    ),
    Row(
        id="FP36",
        family=HISTORIES,
        evidence="reward above the target at step 1, collapse after",
        check="best reward so far > target",
        others="Pass",
        right="trend and final window are asked: Fail",
        met="verl tests/special_e2e/check_results.py",
    ),
    Row(
        id="FP37",
        family=HISTORIES,
        evidence="golden values; the last of fifty is 1e9",
        check="golden comparison that lets 1 % of the steps differ",
        others="Pass",
        right="every step is compared: Fail",
        met="Megatron-LM golden-value pipeline, ApproximateTest",
    ),
    Row(
        id="FP38",
        family=HISTORIES,
        evidence="all losses NaN in both golden and run",
        check="golden comparison",
        others="Pass: NaN minus NaN is not above the tolerance",
        right="Fail, and names the steps",
        met="Megatron-LM GRPO gate, Megatron-Bridge validate_convergence, TRL tests/invariant",
    ),
    Row(
        id="FP39",
        family=HISTORIES,
        evidence="collapse in mid-run, recovery at the last step",
        check="last value of the summary > target",
        others="Pass",
        right="the whole series is asked: Fail",
        met="gates on the final value of a run's summary",
    ),
    Row(
        id="FP53",
        family=HISTORIES,
        evidence="a run that stopped after step 1 of 20, and whose script asked for 20 before it called the checker",
        check="the suite that the script was migrated to",
        others="Pass: the guard around the call is lost",
        right="the suite has the script's `steps`: Fail",
        met="seatrial before 0.1.0, 56 of 207 suites of NeMo RL at commit 7ea279a",
    ),
)


def all_rows() -> list[Row]:
    """Return the rows of every family, by id."""
    names = sorted(path.stem for path in HERE.glob("corpus_*.py"))
    others = [importlib.import_module(f"tests.false_passes.{name}") for name in names]
    rows = [*ROWS, *(row for module in others for row in module.ROWS)]
    return sorted(rows, key=lambda row: row.id)


def by_id(*ids: str) -> list[Row]:
    """Return some rows of any family."""
    found = [row for row in all_rows() if row.id in ids]
    assert len(found) == len(ids), f"the corpus does not have all of {ids}"
    return found


def held_by() -> dict[str, list[str]]:
    """Return the tests of each id as `file::function`, read from the decorators of the tests."""
    held: dict[str, list[str]] = {}
    for path in sorted(HERE.glob("test_*.py")):
        for function in ast.parse(path.read_text()).body:
            if isinstance(function, ast.FunctionDef):
                for row_id in dict.fromkeys(_rows_of(function)):
                    held.setdefault(row_id, []).append(f"{path.name}::{function.name}")
    return held


def _rows_of(function: ast.FunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.parametrize":
            name, values = decorator.args[:2]
            if ast.literal_eval(name) == "row":
                texts = [node.value for node in ast.walk(values) if isinstance(node, ast.Constant)]
                yield from (text for text in texts if re.fullmatch(r"FP\d\d", str(text)))


def markdown(rows: Iterable[Row]) -> str:
    """Return rows as tables, one per family."""
    families = {row.family: None for row in rows}
    tests = held_by()
    lines: list[str] = []
    for family, members in groupby(
        sorted(rows, key=lambda row: [*families].index(row.family)), lambda row: row.family
    ):
        lines += [
            f"## {family}",
            "",
            "| id | evidence | check | others | right | met in | test |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            "| "
            + " | ".join(
                [row.id, row.evidence, row.check, row.others, row.right, row.met, _links(tests[row.id])]
            )
            + " |"
            for row in members
        ]
        lines.append("")
    return "\n".join(lines)


def _links(tests: list[str]) -> str:
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    return ", ".join(f"[{name}](../../tests/false_passes/{name})" for name in files)


HEAD = """# False passes

Inputs on which the gates of public projects said Pass, and what `seatrial` says. Each row is held by the tests that
its last column names. This page is generated: `make docs`.

"""


def page() -> str:
    """Return the page of the docs."""
    return HEAD + markdown(all_rows())


if __name__ == "__main__":
    print(page(), end="")
