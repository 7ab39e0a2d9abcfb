"""Laws over all classes of a kind, asked in a process of its own, with our `torchvision` in its place.

`python -m seatrial.targets.transformers.worked.processing.process TABLE` prints by law and class what is wrong.
A table has `LAWS`, which take a class and yield what is wrong, `classes`, and in `OTHERWISE` by class a pattern of
what a class does otherwise by design; in `OLDER` those of releases before 5.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.known import before, between
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records.torchvision import install

HERE = __name__ if __name__ != "__main__" else str(__spec__ and __spec__.name)
RELEASES: Sequence[tuple[str, str]] = (("4.57", "5"), ("5.24", "6"))
"""First releases, and the ends, of which it is known what classes do otherwise; a table may have its own."""
LONGEST = 900
"""Seconds that a table may take."""
Law = Callable[[Any], Iterable[str]]


def _judged(law: Law, made: Any) -> dict[str, Any]:
    """Return what is wrong with a class, or why it is not judged: what a class refuses is no wrong answer."""
    drawn = random.getstate(), np.random.get_state()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        try:
            return {"wrong": list(law(made))}
        except (NotServed, Gone, ImportError) as error:
            return {"not served": str(error)[:200]}
        except Exception as error:  # noqa: BLE001  the class chooses the type of its error
            return {"raises": error_line(error)[:300]}
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])


def _by_design(table: Any, kind: str, said: str) -> bool:
    """Return whether a class does by design what is said of it."""
    older = before("transformers", "5")(None)
    tables = (table.OTHERWISE, getattr(table, "OLDER", {}) if older else {})
    patterns = [one.get(re.sub("(Pil|Fast)$", "", kind)) for one in tables]
    return any(re.search(one, said) for one in patterns if one)


def judged(name: str, only: str = "", of_class: str = "") -> dict[str, dict[str, Any]]:
    """Return by law and class what is wrong."""
    table = importlib.import_module(f"{__package__}.{name}")
    logging.disable(logging.WARNING)
    found: dict[str, dict[str, Any]] = {law: {} for law in table.LAWS}
    for kind, made in table.classes().items():
        for law, call in table.LAWS.items():
            if only in law and of_class in kind:
                start = time.process_time()
                said = _judged(call, made)
                if "wrong" in said:
                    said = {
                        "wrong": [
                            one for one in said["wrong"] if not _by_design(table, kind, f"{law}, {one}")
                        ][:3]
                    }
                found[law][kind] = {**said, "seconds": round(time.process_time() - start, 2)}
    return found


@cache
def _found(name: str) -> dict[str, dict[str, Any]]:
    """Return what the process of a table says."""
    ran = subprocess.run(
        [sys.executable, "-m", HERE, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(one for one in sys.path if one)},
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=False,
    )
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr[-2000:])
    found: dict[str, dict[str, Any]] = json.loads(ran.stdout.splitlines()[-1])
    return found


def _wrong(name: str, law: str, function: Any) -> list[str]:
    table = importlib.import_module(f"{__package__}.{name}")
    spans = getattr(table, "RELEASES", RELEASES)
    if not any(between("transformers", *span)(None) for span in spans):
        raise NotServed(
            f"what classes do otherwise is known of {spans}, and not of {release('transformers')}"
        )
    found = _found(name)[law]
    served = {kind: one["wrong"] for kind, one in found.items() if "wrong" in one}
    if not served:
        raise NotServed(next((str(one) for one in found.values()), "no class of the kind"))
    return [f"{kind}: {one}" for kind, wrong in served.items() for one in wrong][:8]


def rows_of(name: str, place: str) -> list[Row]:
    """Return a row of each law of a table."""
    table = importlib.import_module(f"{__package__}.{name}")
    known = getattr(table, "KNOWN", {})
    return [
        Row("texts", place, law, partial(_wrong, name, law), [], since="4.57", known=known.get(law))
        for law in table.LAWS
    ]


def main(words: Sequence[str]) -> None:
    """Print what is wrong: of a table, of laws and classes with a text in their name."""
    install()
    print(json.dumps(judged(*words)))


if __name__ == "__main__":
    main(sys.argv[1:])
