"""Whether options of a call of a processor are those of its constructor and of its file, on record by class.

An answer says of each option `same`, `other`, or `refused` where a call does not take it.
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.records import pictures, sounds, tensor_pictures
from seatrial.targets.transformers.worked.records.answers import REFUSED, differences, given, rows_of, written

RECORD = "called_record"
SKIPPED = (
    *pictures.SKIPPED, *sounds.SKIPPED, "data_format", "input_data_format",
)  # fmt: skip


DRAWN = "ClapFeatureExtractor"
"""A class that draws a part of each sound."""


def _kind(made: Any) -> Any:
    return sounds if made.__name__.endswith("FeatureExtractor") else pictures


def _always(made: Any) -> dict[str, Any]:
    """Return options without which a class does not work, and smaller sizes."""
    if _kind(made) is sounds:
        return {}
    always = dict(tensor_pictures.ALWAYS.get(made.__name__.removesuffix("Pil"), {}))
    return {**always, **pictures._fitting(made, made(**always).to_dict())}


def _inputs(table: Any, processor: Any) -> dict[str, Any]:
    if table is pictures:
        return {"images": [pictures._picture(30, 22), pictures._picture(22, 30)]}
    name = next(iter(inspect.signature(type(processor).__call__).parameters.keys() - {"self"}), "raw_speech")
    names = [one for one in ("raw_speech", "audio", "raw_audio") if one in
             inspect.signature(type(processor).__call__).parameters]  # fmt: skip
    rate = getattr(processor, "sampling_rate", None)
    rates = {} if rate is None else {"sampling_rate": rate}
    return {names[0] if names else name: [sounds._sound(1300), sounds._sound(900)], "padding": True, **rates}


def _answer(call: Callable[[], Any]) -> Any:
    try:
        return json.loads(json.dumps(written(dict(call().items()))))
    except REFUSED:
        return None


def _same(one: Any, other: Any) -> str:
    if one is None or other is None:
        return "refused"
    return "other" if any(differences(one, other)) else "same"


def _read(made: Any, options: Mapping[str, Any]) -> Any:
    """Return a processor that is read from the file of one with these options."""
    folder = new_folder()
    made(**options).save_pretrained(folder)
    return made.from_pretrained(folder)


def _ask(made: Any, case: str) -> Any:
    """Return how each option of calls and files compares with that of the constructor."""
    table, always = _kind(made), json.loads(case)["options"]
    plain = made(**always)

    def answer(new: Callable[[], Any], **more: Any) -> Any:
        return _answer(lambda: new()(**_inputs(table, plain), **copy.deepcopy(more)))

    due = answer(lambda: plain)
    found: dict[str, Any] = {"": _same(answer(partial(_read, made, always)), due)}
    for name, value in sorted(plain.to_dict().items()):
        if name in SKIPPED:
            continue
        for other in list(_other(table, name, value))[:1]:
            options = {**always, name: other}
            right = answer(partial(made, **options))
            called = answer(lambda: plain, **{name: other})
            read = answer(partial(_read, made, options))
            changes = "" if right is None or due is None else _same(right, due)
            found[name] = [_same(called, right), _same(read, right), changes]
    found["again"] = _same(answer(lambda: plain), due)
    return found


def _other(table: Any, name: str, value: Any) -> Iterator[Any]:
    """Yield other values of an option; of sizes larger ones."""
    if table is pictures and name.endswith("size") and isinstance(value, Mapping):
        yield {key: one + 12 for key, one in value.items() if isinstance(one, int)}
    else:
        yield from table._other(name, value)


def _cases(made: Any) -> Iterator[str]:
    """Yield the one case of a class."""
    yield json.dumps({"options": _always(made)})


def places_of(kind: str) -> str:
    """Return where a class is."""
    return f"transformers:{kind}" if kind.endswith("FeatureExtractor") else pictures.places_of(kind)


def given_now() -> dict[str, Any]:
    """Return what the installed release gives."""
    names = sorted({*pictures._names(), *sounds._names()} - {DRAWN})
    return given({name: places_of(name) for name in names}, _cases, _ask)


CALLED_ROWS: Sequence[Row] = rows_of(RECORD, places_of, _ask, "options of calls and files", "texts")
