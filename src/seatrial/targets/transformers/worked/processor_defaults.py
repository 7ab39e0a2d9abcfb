"""Worked examples of the defaults of a processor's class: a call with other options leaves them as they are.

Each group of options has defaults of its own. What is due comes from a plain merge: defaults, those common to all,
the tokenizer's, the call's.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

from seatrial.targets.common.worked_rows import Row

Options = Mapping[str, Mapping[str, Any]]
DEFAULTS: Options = {
    "text_kwargs": {"max_length": 6, "padding_side": "left"},
    "images_kwargs": {"do_rescale": False, "size": {"height": 8, "width": 9}},
    "videos_kwargs": {"do_normalize": False, "size": {"height": 4, "width": 5}},
    "audio_kwargs": {"sampling_rate": 100, "max_length": 50},
    "common_kwargs": {"return_tensors": "np"},
}
"""Defaults by group."""
OTHER: Options = {
    "text_kwargs": {"max_length": 9, "truncation": True},
    "images_kwargs": {"do_rescale": True, "size": {"height": 3, "width": 2}},
    "videos_kwargs": {"do_normalize": True, "do_resize": False},
    "audio_kwargs": {"sampling_rate": 300, "padding": True},
    "common_kwargs": {"return_tensors": "pt"},
}
"""Options of a call by group."""
FLAT: Mapping[str, Sequence[str]] = {
    "truncation": ("text_kwargs", "audio_kwargs"), "do_resize": ("images_kwargs", "videos_kwargs"),
    "sampling_rate": ("audio_kwargs",), "return_tensors": tuple(one for one in DEFAULTS if one[0] != "c"),
}  # fmt: skip
"""Options that need no group, and the groups that have them."""
VALUES: Mapping[str, Any] = {
    "truncation": True,
    "do_resize": False,
    "sampling_rate": 300,
    "return_tensors": "pt",
}
GROUPS = [name for name in DEFAULTS if name != "common_kwargs"]


def _class(base: Any, options_base: Any, defaults: Options) -> tuple[Any, Any]:
    """Return a class of options with defaults, and a processor that merges them."""

    class Options(options_base, total=False):  # type: ignore[misc, call-arg]
        """Options by group."""

    class Processor(base):  # type: ignore[misc]
        """A processor without parts."""

        valid_processor_kwargs = Options

        def __init__(self) -> None:
            pass

    kind: Any = Options
    kind._defaults = copy.deepcopy({name: dict(own) for name, own in defaults.items()})
    return kind, Processor


def _due(defaults: Options, nested: Options, flat: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the options of each group by a plain merge."""
    common = {**defaults.get("common_kwargs", {}), **nested.get("common_kwargs", {})}
    found = {}
    for group in GROUPS:
        own = {name: value for name, value in flat.items() if group in FLAT[name]}
        found[group] = {**defaults.get(group, {}), **common, **nested.get(group, {}), **own}
    return found


def _kept(found: Mapping[str, Any], due: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the groups of an answer with the options that are compared."""
    names = {name for group in (DEFAULTS, OTHER) for one in group.values() for name in one} | {*FLAT}
    return {
        group: {name: value for name, value in found.get(group, {}).items() if name in names} for group in due
    }


def _calls() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return options of calls: of each group, of all, and without a group."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {})]
    found += [({group: dict(own)}, {}) for group, own in OTHER.items()]
    found += [(copy.deepcopy({name: dict(own) for name, own in OTHER.items()}), {})]
    return [*found, *(({}, {name: value}) for name, value in VALUES.items())]


def _left(base: Any, defaults: Options, callers: bool) -> list[str]:
    """Return what calls give otherwise than a plain merge, and what one leaves for the next, or for the caller."""
    from transformers.processing_utils import ProcessingKwargs

    kind, made = _class(base, ProcessingKwargs, defaults)
    processor, wrong = made(), []
    for (nested, flat), (then, later) in product(_calls(), repeat=2):
        for own, more in ((nested, flat), (then, later)):
            given = copy.deepcopy({**own, **more})
            found = processor._merge_kwargs(kind, tokenizer_init_kwargs={}, **given)
            due = _due(defaults, own, more)
            if not callers and _kept(found, due) != due:
                wrong.append(f"{own} {more}, after {nested} {flat}: {_kept(found, due)}, {due} is due")
            if callers and given != {**own, **more}:
                wrong.append(f"{own} {more}: the caller's are {given}")
            for group in GROUPS:  # what a caller of the merge does with its own copy
                found.get(group, {}).update({"max_length": 77, "do_rescale": 77, "return_tensors": 77})
        if not callers and kind._defaults != defaults:
            wrong.append(f"{nested} {flat}: defaults {kind._defaults}")
    return wrong[:3]


def _of(names: Sequence[str], callers: bool, base: Any) -> list[str]:
    return _left(base, {name: DEFAULTS[name] for name in names}, callers)


CASES: Mapping[str, Sequence[str]] = {
    "no defaults": (), **{f"defaults of {name.split('_')[0]}": (name,) for name in DEFAULTS},
    "defaults of all groups": tuple(DEFAULTS),
}  # fmt: skip
PROCESSOR_DEFAULT_ROWS: Sequence[Row] = (
    *(
        Row("texts", "transformers:ProcessorMixin", f"{name}, calls one after the other",
            partial(_of, names, False), [], since="4.57")
        for name, names in CASES.items()
    ),
    Row("texts", "transformers:ProcessorMixin", "options of a call stay the caller's",
        partial(_of, tuple(DEFAULTS), True), [], since="5.8.2"),
)  # fmt: skip
