"""Answers on record of classes that need torchvision: asked in a process of its own, with `torchvision` in its place.

`python -m seatrial.targets.transformers.worked.records.apart TABLE` prints what the installed release gives.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records import answers
from seatrial.targets.transformers.worked.records.torchvision import install

HERE = __name__ if __name__ != "__main__" else str(__spec__ and __spec__.name)
COMPARE = "--compare"
LONGEST = 900
"""Seconds that a table may take."""


def _table(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")


def _compared(name: str) -> dict[str, Any]:
    """Return by class where it does not give what is on record, or why it is not asked."""
    table, found = _table(name), dict[str, Any]()
    for kind in answers.record(table.RECORD):
        try:
            made = find_name("transformers", table.places_of(kind).split())
            found[kind] = {"wrong": answers.unlike_record(table.RECORD, kind, table._ask, False, made)}
        except (NotServed, Gone, ImportError) as error:
            found[kind] = {"not served": str(error)}
    return found


@cache
def _answer_of(name: str) -> dict[str, Any]:
    """Return what the process of a table says."""
    ran = subprocess.run(
        [sys.executable, "-m", HERE, COMPARE, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if ran.returncode != 0:
        return {"": ran.stderr[-2000:]}
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _unlike(name: str, kind: str, made: Any) -> list[str]:
    if not answers.due_answers(_table(name).RECORD, kind):
        raise NotServed(f"no answers of transformers {release('transformers')} are on record")
    found = _answer_of(name)
    if "" in found:
        raise RuntimeError(found[""])
    if "not served" in found[kind]:
        raise NotServed(found[kind]["not served"])
    wrong: list[str] = found[kind]["wrong"]
    return wrong


def rows_of(name: str, what: str) -> list[Row]:
    """Return a row of each class of a table's record."""
    table = _table(name)
    return [
        Row(
            "texts",
            table.places_of(kind),
            f"{what} of {kind}",
            partial(_unlike, name, kind),
            [],
            since="4.50",
        )
        for kind in answers.record(table.RECORD)
    ]


def main(words: Sequence[str]) -> None:
    """Print what the installed release gives, or with `--compare` where that is not what is on record."""
    install()
    if words[0] == COMPARE:
        print(json.dumps(_compared(words[1])))
    else:
        answers.main([*words])


if __name__ == "__main__":
    main(sys.argv[1:])
