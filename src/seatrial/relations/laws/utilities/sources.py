"""R31.sources: mixed data sets, options of files and command lines, and averages of weights are as documented."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.law import Measure, Relation
from seatrial.relations.laws.utilities.numbers import Numbers, numbers, without

SOURCES = Relation(
    id="R31.sources",
    name="mixtures-options-and-averages-are-as-documented",
    component="utilities",
    statement="Mixtures have the rows that are due, command lines precede files, and averages follow their formula.",
    cost="CPU, milliseconds",
    cases=numbers,
)


@SOURCES.law(
    "mixture", "a data set left out, other columns, another order of rows", excluded=without("mixture")
)
def mixture_has_all_rows(stack: Any, case: Numbers) -> Measure:
    """Compare a mixture of two data sets with all their rows, in their order, with the columns that are chosen."""
    sets = [
        [{"text": f"{name}{row}", "more": row} for row in range(size)] for name, size in (("a", 5), ("b", 3))
    ]
    wrong = []
    for columns in (None, ["text"]):
        given = stack.utilities["mixture"](sets, columns, None, None)
        due = [
            {k: v for k, v in row.items() if columns is None or k in columns} for one in sets for row in one
        ]
        wrong += [] if given.get("train") == due else [f"columns {columns}: {given}"]
    return Measure.count(wrong, "mixtures with other rows")


@SOURCES.law(
    "shares of a mixture",
    "a share of each data set's own rows, rows of another one",
    excluded=without("mixture"),
)
def mixture_has_its_shares(stack: Any, case: Numbers) -> Measure:
    """Check that shares are kept, with as many rows as the smallest set allows and no row twice."""
    sizes, wrong = (12, 20), []
    sets = [[{"text": f"{name}{row}"} for row in range(size)] for name, size in zip("ab", sizes, strict=True)]
    for shares in ((0.5, 0.5), (0.75, 0.25), (3.0, 1.0), (0.2, 0.8)):
        total = min(size * sum(shares) / share for size, share in zip(sizes, shares, strict=True))
        due = [round(share / sum(shares) * total) for share in shares]
        texts = [row["text"] for row in stack.utilities["mixture"](sets, None, shares, None)["train"]]
        counts = [sum(text[0] == name for text in texts) for name in "ab"]
        wrong += (
            [] if counts == due and len(set(texts)) == len(texts) else [f"{shares}: {counts}, and not {due}"]
        )
    return Measure.count(wrong, "mixtures in other shares")


@SOURCES.law("parts of a mixture", "rows in both parts, or in none", excluded=without("mixture"))
def parts_share_no_row(stack: Any, case: Numbers) -> Measure:
    """Check that training and test parts have all rows once, the test part as many as the share says."""
    sets = [[{"text": f"{name}{row}"} for row in range(8)] for name in "ab"]
    given = stack.utilities["mixture"](sets, None, None, 0.25)
    rows = {part: [row["text"] for row in given.get(part, ())] for part in ("train", "test")}
    all_rows = sorted(row["text"] for one in sets for row in one)
    wrong = [] if sorted(rows["train"] + rows["test"]) == all_rows else [f"rows {rows}"]
    wrong += [] if len(rows["test"]) == 4 else [f"{len(rows['test'])} rows of 16 are held out"]
    return Measure.count(wrong, "parts of a mixture")


@SOURCES.law(
    "parts of a mixture in several processes",
    "parts that depend on the random state of each process: rows that one holds out train in another",
    excluded=without("mixture"),
)
def parts_are_those_of_every_process(stack: Any, case: Numbers) -> Measure:
    """Compare the parts of one mixture in processes with different random states of NumPy."""
    sets = [[{"text": f"a{row}"} for row in range(40)]]
    kept = np.random.get_state()
    try:
        parts = []
        for process in (1, 2):
            np.random.seed(case.seed + process)
            parts.append({row["text"] for row in stack.utilities["mixture"](sets, None, None, 0.25)["test"]})
    finally:
        np.random.set_state(kept)
    return Measure.count(sorted(parts[0] ^ parts[1]), "rows that one process alone holds out")


@SOURCES.law(
    "options of files and command lines",
    "the file's value over the command line's, the default over the file's",
    excluded=without("parse options"),
)
def command_line_precedes_file(stack: Any, case: Numbers) -> Measure:
    """Compare the options `rate`, `count`, `word`, `flag` and `names` with those of line, file and default."""
    default = {"rate": 0.5, "count": 3, "word": "none", "flag": False, "names": ["x"]}
    table: Sequence[tuple[dict[str, Any], Sequence[str], dict[str, Any]]] = [
        ({}, (), {}),
        ({"rate": 1e-3, "word": "file"}, (), {"rate": 1e-3, "word": "file"}),
        ({"rate": 0.25, "count": 9}, ("--rate", "2"), {"rate": 2.0, "count": 9}),
        ({"flag": True, "names": ["a", "b"]}, (), {"flag": True, "names": ["a", "b"]}),
        ({"flag": True}, ("--flag", "false", "--names", "c", "d"), {"flag": False, "names": ["c", "d"]}),
        ({}, ("--count", "0", "--word", "line"), {"count": 0, "word": "line"}),
    ]
    wrong = []
    for file, line, own in table:
        given = stack.utilities["parse options"](file, list(line))
        wrong += [] if given == {**default, **own} else [f"file {file}, line {list(line)}: {given}"]
    return Measure.count(wrong, "options with other values")


@SOURCES.law(
    "averaged weights",
    "another step's factor, the average of the first weights, updates before the first one",
    excluded=without("averaged weights"),
)
def average_follows_its_formula(stack: Any, case: Numbers) -> Measure:
    """Compare BEMA with its recursion (Block and Zhang 2025) on random weights, updated at several steps."""
    steps = torch.randn(8, 5, generator=case.generator(), dtype=torch.float64)
    found = []
    for after, every, kappa, eta, lag, gamma, least in (
        (0, 1, 0.5, 0.2, 10, 1.0, 0.0),
        (2, 2, 0.5, 0.2, 3, 0.5, 0.0),
        (1, 3, 1.0, 0.4, 1, 2.0, 0.3),
    ):
        options = {
            "update_after": after, "update_freq": every, "ema_power": kappa, "bias_power": eta,
            "lag": lag, "multiplier": gamma, "min_ema_multiplier": least,
        }  # fmt: skip
        given = stack.utilities["averaged weights"](steps, options)
        error = (
            float((given.double() - _bema(steps, options)).abs().max()) if given.shape == (5,) else math.inf
        )
        found.append((error, str(options)))
        if reference := stack.utilities.get("averaged reference"):  # the average at the fifth step of seven
            given = reference(steps, {**options, "ref_model_update_after": 2, "ref_model_update_freq": 3})
            right = _bema(steps[:6], options)
            found.append((float((given.double() - right).abs().max()), f"reference, {options}"))
    return Measure.largest(found, 1e-5, "averaged weights, difference")


def _bema(steps: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the weights of the last update; the first row of `steps` is that before training."""
    first = average = result = steps[0]
    for step in range(1, len(steps)):
        after = step - options["update_after"]
        age = options["lag"] + options["multiplier"] * step
        if after == 0:
            first = average = steps[step]
        elif after > 0 and after % options["update_freq"] == 0:
            beta = max(age ** -options["ema_power"], options["min_ema_multiplier"])
            average = (1 - beta) * average + beta * steps[step]
            result = average + age ** -options["bias_power"] * (steps[step] - first)
    return result
