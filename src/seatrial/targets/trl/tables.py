"""Tables of completions that a trainer writes, and what reward functions add to them and to the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

from seatrial.targets.trl import tools
from seatrial.targets.trl.made_rows import MARKERS, MadeRows

COLUMN, METRIC = "numbered", "own/first"
"""What the first reward function adds: a column with the number of each row, and the mean of its rewards."""


def logging(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reward function that adds to the table and the log, through the functions that it is given."""

    @wraps(function)
    def logged(*args: Any, **given: Any) -> Any:
        found = function(*args, **given)
        given["log_extra"](COLUMN, list(given["place"]))
        for value in found:
            if value is not None:
                given["log_metric"](METRIC, value)
        return found

    return logged


def logged_rows(folder: str, rows: MadeRows, rollouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of all tables in a folder: step, place among the rollouts (None for none), rewards, advantage.

    A row is that of the first rollout of the step with its prompt, text and number that no earlier row is.
    """
    from pyarrow import parquet

    found: list[dict[str, Any]] = []
    taken: set[int] = set()
    for file in sorted(Path(folder, "completions").glob("*.parquet")):
        for row in parquet.read_table(file).to_pylist():
            asked, said = (_text(row[name]) for name in ("prompt", "completion"))
            places = [
                place
                for place, one in enumerate(rollouts)
                if place not in taken
                and one["weight_version"] == row["step"] - 1
                and rows.text(one["ids"]) == said
                and MARKERS[rows.number_of(one["prompt_ids"])] in asked
                and rows.number_of(one["prompt_ids"]) == row[COLUMN]
            ]
            taken.update(places[:1])
            found.append(
                {
                    "step": int(row["step"]),
                    "rollout": places[0] if places else None,
                    "rewards": [_number(row[f"reward{which}"]) for which in range(rows.setup.num_rewards)],
                    "advantage": float(row["advantage"]),
                }
            )
    return found


def _text(given: Any) -> str:
    return given if isinstance(given, str) else tools.text_of(given)


def _number(value: Any) -> float | None:
    """Return a reward; None where the table has none."""
    return None if value is None or value != value else float(value)
