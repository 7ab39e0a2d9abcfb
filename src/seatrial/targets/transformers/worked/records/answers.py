"""Answers of classes of Transformers on record: how they are written, chosen by release and compared.

A record is a table by class, then by case, of ranges of releases and their answer: `4.57:5` is from 4.57 on, before 5.
What a case means is a matter of the table that records it.

`python -m seatrial.targets.transformers.worked.records.answers TABLE` prints what the installed release gives as JSON,
and `... --merge RANGE=FILE ...` the record of what releases gave.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import math
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.worked_rows import Row

HERE = Path(__file__).parent
WHOLE = 24
"""Most numbers of an array that are on record one by one."""
BOUND = 5e-4
"""Largest difference of a number, relative to the larger of 1 and the recorded one."""
LONGEST = 5.0
"""Seconds for the cases of a class; later ones are not on record."""
PILLOW = "13"
"""The first number of the release of Pillow with which pictures are on record: others round resized ones otherwise."""
REFUSED = Exception
"""What a case may raise that a release does not serve."""
Answerer = Callable[[Any, str], Any]
"""Takes a class and a case, and returns anything that `written` takes."""


def written(value: Any) -> Any:
    """Return a value as the record has it: arrays as type, shape and weighted sums, or their numbers."""
    if isinstance(value, Tensor):
        value = value.detach().float().numpy() if value.is_floating_point() else value.numpy()
    if hasattr(value, "mode") and hasattr(value, "getpixel"):  # a picture
        value = np.asarray(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        return [written(one) for one in value] if value.dtype.kind in "OUS" else _array(value)
    if isinstance(value, Mapping) or hasattr(value, "items"):
        return {str(name): written(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        if len(value) > WHOLE and all(isinstance(one, (int, float)) for one in value):
            return _array(np.asarray(value))
        return [written(one) for one in value]
    if isinstance(value, float):
        return _rounded(value)
    return value if value is None or isinstance(value, (bool, int, str)) else type(value).__name__


def _array(value: np.ndarray) -> Any:
    numbers = value.astype(np.float64).ravel()
    if len(numbers) <= WHOLE:
        return [value.dtype.name, list(value.shape), [_rounded(float(one)) for one in numbers]]
    places = np.arange(len(numbers))
    sums = (
        numbers.mean(),
        (numbers * np.cos(0.7 * places + 0.3)).sum() / np.sqrt(len(numbers)),
        (numbers * np.sin(0.011 * places)).sum() / np.sqrt(len(numbers)),
    )
    return [value.dtype.name, list(value.shape), [_rounded(float(one)) for one in sums]]


def _rounded(value: float) -> Any:
    return float(f"{value:.6g}") if np.isfinite(value) else str(value)


def differences(found: Any, right: Any, place: str = "") -> Iterator[str]:
    """Yield where two written answers differ."""
    if isinstance(right, float) or (isinstance(found, float) and isinstance(right, int)):
        close = (
            isinstance(found, (int, float))
            and not isinstance(found, bool)
            and abs(found - right) <= BOUND * max(1.0, abs(right))
        )
        if not close:
            yield f"{place}: {found}, {right} is due"
    elif isinstance(right, Mapping) and isinstance(found, Mapping):
        for name in {**right, **found}:
            if name not in found or name not in right:
                yield f"{place}: {name} is {'missing' if name in right else 'new'}"
            else:
                yield from differences(found[name], right[name], f"{place} {name}")
    elif isinstance(right, list) and isinstance(found, list) and len(found) == len(right):
        for number, (one, due) in enumerate(zip(found, right, strict=True)):
            yield from differences(one, due, f"{place}[{number}]")
    elif type(found) is not type(right) or found != right:
        yield f"{place}: {str(found)[:100]}, {str(right)[:100]} is due"


@cache
def record(name: str) -> Mapping[str, Mapping[str, Sequence[Any]]]:
    """Return a record by class and case; empty where there is no file."""
    path = HERE / f"{name}.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def due_answers(name: str, kind: str) -> dict[str, Any]:
    """Return by case the answers that the installed release is to give."""
    return {
        case: answer
        for case, table in record(name)[kind].items()
        for spans, answer in table
        if any(map(_holds, spans.split()))
    }


def _holds(span: str) -> bool:
    """Return whether the installed release is one of a range."""
    first, _, last = span.partition(":")
    installed = Version(release("transformers"))
    return Version(first) <= installed and (not last or installed < Version(last))


def answered(ask: Answerer, made: Any, case: str) -> Any:
    """Return a written answer; words on the screen are hidden, and random numbers of NumPy are the same each time."""
    drawn = random.getstate(), np.random.get_state()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        random.seed(0)
        np.random.seed(0)
        try:
            return json.loads(json.dumps(written(ask(made, case))))
        finally:
            random.setstate(drawn[0])
            np.random.set_state(drawn[1])


def without_sums(answer: Any) -> Any:
    """Return a written answer with the type and shape alone of arrays whose numbers are not on record one by one."""
    if isinstance(answer, Mapping):
        return {name: without_sums(one) for name, one in answer.items()}
    if isinstance(answer, list):
        is_array = len(answer) == 3 and isinstance(answer[0], str) and isinstance(answer[1], list)
        has_sums = is_array and math.prod(answer[1]) > WHOLE
        return answer[:2] if has_sums else [without_sums(one) for one in answer]
    return answer


def unlike_record(name: str, kind: str, ask: Answerer, of_pictures: bool, made: Any) -> list[str]:
    """Return where a class does not give what is on record.

    Of pictures, types and shapes alone are compared where Pillow is not the release of the record.

    Raises:
        NotServed: nothing of the installed release is on record, or no case can be asked here.
    """
    due = due_answers(name, kind)
    if not due:
        raise NotServed(f"no answers of transformers {release('transformers')} are on record")
    wrong, missing = [], []
    kept = without_sums if of_pictures and release("pillow").partition(".")[0] != PILLOW else copy.copy
    for case, right in due.items():
        try:
            found = answered(ask, made, case)
        except (Gone, NotServed) as error:  # a part that the case needs
            missing.append(f"{case}: {error}")
            continue
        except ImportError as error:
            raise NotServed(str(error)) from error
        except REFUSED as error:
            wrong.append(f"{case}: {type(error).__name__} {str(error)[:100]}")
            continue
        wrong += [f"{case}{one}" for one in list(differences(kept(found), kept(right)))[:2]]
    if len(missing) == len(due):
        raise NotServed(missing[0])
    return wrong[:6]


def rows_of(
    name: str,
    places: Callable[[str], str],
    ask: Answerer,
    what: str,
    subject: str,
    of_pictures: bool = False,
) -> list[Row]:
    """Return a row of each class of a record."""
    return [
        Row(
            subject,
            places(kind),
            f"{what} of {kind}",
            partial(unlike_record, name, kind, ask, of_pictures),
            [],
            since="4.50",
        )
        for kind in record(name)
    ]


def given(
    kinds: Mapping[str, str],
    cases: Callable[[Any], Iterator[str]],
    ask: Answerer,
    longest: float = LONGEST,
) -> dict[str, Any]:
    """Return what the installed release gives: by class, of which places are given, and case."""
    found: dict[str, Any] = {}
    for kind, places in kinds.items():
        try:
            made = find_name("transformers", places.split())
            own = list(cases(made))
        except REFUSED as error:
            print(f"{kind}: {type(error).__name__} {str(error)[:200]}", file=sys.stderr)
            continue
        start = time.process_time()
        for case in own:
            if time.process_time() - start > longest:
                print(f"{kind}: too long", file=sys.stderr)
                break
            try:
                found.setdefault(kind, {})[case] = answered(ask, made, case)
            except REFUSED as error:  # what a release cannot do is not on record
                print(f"{kind}, {case}: {type(error).__name__} {str(error)[:200]}", file=sys.stderr)
    return found


def merged(releases: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the record of what releases give, by their range."""
    found: dict[str, Any] = {}
    for span, kinds in releases.items():
        for kind, cases in kinds.items():
            for case, answer in cases.items():
                table = found.setdefault(kind, {}).setdefault(case, [])
                for row in table:
                    if not list(differences(answer, row[1])):
                        row[0] += f" {span}"
                        break
                else:
                    table.append([span, answer])
    return found


def main(words: Sequence[str]) -> None:
    """Print answers of the installed release, or the record of several."""
    if words[0] == "--merge":
        pairs = [one.partition("=")[::2] for one in words[1:]]
        found = merged({span: json.loads(Path(one).read_text(encoding="utf-8")) for span, one in pairs})
    else:
        table: Any = importlib.import_module(f"{__package__}.{words[0]}")
        found = table.given_now()
    lines = [
        f"{json.dumps(kind)}: {{\n"
        + ",\n".join(
            f"  {json.dumps(case)}: {json.dumps(one, ensure_ascii=False)}" for case, one in own.items()
        )
        + "}"
        for kind, own in found.items()
    ]
    print("{" + ",\n".join(lines) + "}")


if __name__ == "__main__":
    main(sys.argv[1:])
