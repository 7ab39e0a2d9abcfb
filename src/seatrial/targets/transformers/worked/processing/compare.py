"""How outputs of processors are compared: equal, and a batch with its rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

BOUND = 2e-5
"""Largest difference of numbers, relative to the larger of 1 and the right one."""
PADS: Mapping[str, int] = {"attention_mask": 0, "mm_token_type_ids": 0, "special_tokens_mask": 1}
"""What rows are padded with."""


def plain(value: Any) -> Any:
    """Return a value as arrays, lists, mappings and numbers."""
    if isinstance(value, Tensor):
        return value.detach().float().numpy() if value.is_floating_point() else value.numpy()
    if hasattr(value, "items"):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if hasattr(value, "mode") and hasattr(value, "getpixel"):  # a picture
        return np.asarray(value)
    return vars(value) if type(value).__name__ == "VideoMetadata" else value


def _array(value: Any) -> np.ndarray | None:
    """Return a value of numbers as an array; None where it has none, or rows of unlike lengths."""
    try:
        found = np.asarray(value)
    except ValueError:
        return None
    return found if found.dtype.kind in "biuf" and found.size else None


def unlike(found: Any, due: Any, place: str = "") -> Iterator[str]:
    """Yield where two outputs differ; lists and arrays of the same numbers are equal."""
    found, due = plain(found), plain(due)
    if isinstance(due, Mapping) and isinstance(found, Mapping):
        for name in {**due, **found}:
            if name not in found or name not in due:
                yield f"{place} {name} is {'missing' if name in due else 'new'}"
            else:
                yield from unlike(found[name], due[name], f"{place} {name}")
        return
    one, other = _array(found), _array(due)
    if one is not None and other is not None:
        if one.shape != other.shape:
            yield f"{place}: shape {one.shape}, {other.shape} is due"
        elif not _close(one, other):
            yield f"{place}: {_shown(one)}, {_shown(other)} is due"
    elif isinstance(found, (list, tuple)) and isinstance(due, (list, tuple)):
        if len(found) != len(due):
            yield f"{place}: {len(found)} values, {len(due)} are due"
        else:
            for number, pair in enumerate(zip(found, due, strict=True)):
                yield from unlike(*pair, f"{place}[{number}]")
    elif isinstance(found, np.ndarray) or isinstance(due, np.ndarray):
        if one is not None or other is not None or found.tolist() != due.tolist():
            yield f"{place}: {str(found)[:60]!r}, {str(due)[:60]!r} is due"
    elif found != due and type(found) is type(due):
        yield f"{place}: {str(found)[:60]!r}, {str(due)[:60]!r} is due"


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    one, other = one.astype(np.float64), other.astype(np.float64)
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        return bool((same | (np.abs(one - other) <= BOUND * np.maximum(1, np.abs(other)))).all())


def _shown(value: np.ndarray) -> str:
    return f"{value.dtype.name} {value.ravel()[:12].tolist()}"


def _rows(value: Any) -> list[Any]:
    return list(plain(value))


def _holds(batch: Any, single: Any) -> bool:
    """Return whether an array has another at one of its corners, and else one value; lists: each in turn."""
    whole, part = _array(batch), _array(single)
    if part is None or whole is None:
        if isinstance(batch, list) and isinstance(single, list):
            pairs = zip(batch, single, strict=False)
            return len(batch) >= len(single) and all(_holds(*pair) for pair in pairs)
        return not list(unlike(batch, single))
    if whole.ndim != part.ndim or any(a < b for a, b in zip(whole.shape, part.shape, strict=True)):
        return False
    for last in (False, True):
        places = tuple(
            slice(size - own, size) if last else slice(0, own)
            for size, own in zip(whole.shape, part.shape, strict=True)
        )
        if _close(whole[places], part):
            rest = np.ones(whole.shape, dtype=bool)
            rest[places] = False
            left = whole[rest]
            return left.size == 0 or bool((left == left[0]).all() or np.isnan(left).all())
    return False


def unlike_rows(
    batch: Mapping[str, Any], singles: Sequence[Mapping[str, Any]], pad: int | None, side: str | None
) -> Iterator[str]:
    """Yield where a batch is not its rows: tokens without padding, and media one after the other."""
    batch, rows = plain(batch), [plain(one) for one in singles]
    names = dict.fromkeys([*batch, *(name for row in rows for name in row)])
    masks = batch.get("attention_mask", batch.get("input_ids"))
    for name in names:
        have = [name in row for row in rows]
        if not any(have) or name not in batch:
            yield f"{name} is {'new' if name in batch else 'missing'}"
            continue
        parts = [row[name] for row in rows if name in row]
        if "input_ids" in batch and all(have) and _of_tokens(name, rows):
            for number, (whole, part) in enumerate(zip(_rows(batch[name]), parts, strict=True)):
                yield from _unlike_tokens(name, whole, _rows(part)[0], masks[number], pad, side)
            continue
        flat = [one for part in parts for one in _rows(part)] if np.ndim(_first(parts)) else parts
        wholes = _rows(batch[name]) if np.ndim(_first([batch[name]])) else [batch[name]]
        if len(wholes) != len(flat):
            yield f"{name}: {len(wholes)} rows, {len(flat)} are due"
        else:
            for number, pair in enumerate(zip(wholes, flat, strict=True)):
                if not _holds(*pair):
                    yield f"{name}[{number}] is not what it is alone"


def _first(parts: Sequence[Any]) -> Any:
    return [0] if isinstance(parts[0], list) else parts[0]


def _of_tokens(name: str, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a field has a value of each token of a row."""
    for row in rows:
        ids, own = row["input_ids"], row[name]
        same = np.ndim(ids) and isinstance(own, (list, np.ndarray)) and len(own) == len(ids) == 1
        if not same or not hasattr(own[0], "__len__") or len(own[0]) != len(ids[0]):
            return False
    return True


def _unlike_tokens(
    name: str, whole: Any, part: Any, mask: Any, pad: int | None, side: str | None
) -> Iterator[str]:
    extra = len(whole) - len(part)
    kept = list(whole)[extra:] if side == "left" else list(whole)[: len(part)]
    rest = list(whole)[:extra] if side == "left" else list(whole)[len(part) :]
    if extra < 0 or list(unlike(kept, list(part))):
        yield f"{name}: {str(np.ravel(whole).tolist())[:90]}, alone {str(np.ravel(part).tolist())[:90]}"
    due = pad if name == "input_ids" else PADS.get(name)
    if due is not None and any(one != due for one in np.ravel(rest).tolist()):
        yield f"{name} is padded with {np.ravel(rest)[:4].tolist()}, {due} is due"


def kept(value: Any) -> Any:
    """Return a copy to compare later."""
    return copy.deepcopy(value)


def left_by_options(
    call: Callable[..., Any],
    first: Any,
    state: Callable[[], Any],
    before: Any,
    options: Iterable[Mapping[str, Any]],
) -> Iterator[str]:
    """Yield what calls with options leave behind.

    Args:
        call: takes options.
        first: what it gave without options.
        state: gives the attributes of what is called.
        before: those before the first call.
        options: of one call each.
    """
    for one in options:
        try:
            call(**one)
        except Exception:  # noqa: BLE001  an option that the class does not take
            continue
    yield from (f"again{one}" for one in unlike(call(), first))
    yield from (f"state{one}" for one in unlike(state(), before))
