"""R32.values: functions on nested values, texts and the environment do what they say."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections import OrderedDict, UserDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation


@dataclass(frozen=True, kw_only=True)
class Seeded(Case):
    """The seed of random values."""

    seed: int = 0


def seeded(stack: Any, seed: int, tidy: bool) -> Seeded:
    """Return the case of a seed."""
    return Seeded(seed=seed)


def without(name: str) -> Callable[[Any], str | None]:
    """Return a law's `excluded`: the declaration of a stack that does not have this function."""
    return lambda stack: None if name in stack.functions else f"functions without {name!r}"


VALUES = Relation(
    id="R32.values",
    name="functions-of-values-keep-the-rest",
    component="functions",
    statement="Functions on nested values change what they say, and keep containers, dtypes and everything else.",
    cost="CPU, milliseconds",
    cases=seeded,
    seeded=False,
)


class Pair(NamedTuple):
    """A container with names."""

    first: Any
    second: Any


DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float16, torch.uint8)


def nested(seed: int, rows: int = 4) -> dict[str, Any]:
    """Return tensors of many types in many containers; all have so many rows."""
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randint(0, 100, (rows, 3), generator=generator).to(torch.float32 if one is torch.bool else one)
        > 50
        if one is torch.bool
        else torch.randint(0, 100, (rows, 3), generator=generator).to(one)
        for one in DTYPES
    ]
    return {
        "ids": made[0],
        "pair": Pair(made[1], [made[2], (made[3],)]),
        "ordered": OrderedDict(z=made[4], a={"deep": made[5]}),
    }


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Return what is not a container, by path; a path has the types of the containers."""
    if isinstance(value, Mapping):
        found = [leaves(one, f"{path}/{type(value).__name__}:{key}") for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        found = [leaves(one, f"{path}/{type(value).__name__}:{place}") for place, one in enumerate(value)]
    else:
        return {path: value}
    return {key: one for part in found for key, one in part.items()}


def differences(given: Any, right: Any, what: str = "") -> list[str]:
    """Return where two nested values differ: containers, dtypes, shapes, devices or values."""
    mine, due = leaves(given), leaves(right)
    wrong = [f"{what}{path} is missing" for path in due if path not in mine]
    wrong += [f"{what}{path} is too much" for path in mine if path not in due]
    wrong += [
        f"{what}{path}: {mine[path]}, due {due[path]}"
        for path in due
        if path in mine and not _same(mine[path], due[path])
    ]
    return wrong


def _same(one: Any, other: Any) -> bool:
    if isinstance(other, Tensor):
        alike = isinstance(one, Tensor) and (one.dtype, one.shape, one.device) == (
            other.dtype,
            other.shape,
            other.device,
        )
        return alike and (other.is_meta or torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)


@VALUES.law(
    "sent to a device", "a container of another type, a key that is to be skipped", excluded=without("send")
)
def sending_moves_tensors(stack: Any, case: Seeded) -> Measure:
    """Send nested values to a device without memory; all tensors are there but those to be skipped."""
    given = {**nested(case.seed), "kept": torch.ones(2), "text": "a", "none": None, "number": 3}
    found = stack.functions["send"](given, torch.device("meta"), ["kept"])
    moved = {key: _on_meta(value) for key, value in given.items()}
    wrong = differences(found, {**moved, "kept": given["kept"]})
    inner = stack.functions["send"](
        [{"kept": torch.ones(2), "a": torch.ones(3)}], torch.device("meta"), ["kept"]
    )
    wrong += differences(inner, [{"kept": torch.ones(2), "a": torch.ones(3, device="meta")}], "in a list: ")
    one = stack.functions["send"](UserDict(a=torch.ones(2)), torch.device("meta"), None)
    wrong += differences(one, UserDict(a=torch.ones(2, device="meta")), "dictionary of the caller: ")
    return Measure.count(wrong, "values that are sent wrongly")


def _like(container: Any, entries: Mapping[str, Any]) -> Any:
    """Return a mapping of the same type with these entries."""
    return type(container)(entries)


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.to("meta")
    if isinstance(value, Mapping):
        return _like(value, {key: _on_meta(one) for key, one in value.items()})
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_on_meta, value))
    return type(value)(map(_on_meta, value)) if isinstance(value, (list, tuple)) else value


@VALUES.law("batch size", "the size of another dimension, or of a scalar", excluded=without("batch size"))
def batch_size_is_of_rows(stack: Any, case: Seeded) -> Measure:
    """Compare the batch size of nested values with the number of rows."""
    find = stack.functions["batch size"]
    given = [
        (nested(case.seed, 5), 5),
        ([torch.ones(3, 7)], 3),
        ({"a": [torch.ones(2)]}, 2),
        (torch.ones(6), 6),
    ]
    wrong = [f"{find(value)}, due {right}" for value, right in given if find(value) != right]
    return Measure.count(wrong, "batch sizes")


@VALUES.law("slices", "rows of one container alone, a container of another type", excluded=without("slice"))
def slices_have_rows(stack: Any, case: Seeded) -> Measure:
    """Compare rows of nested values with those of each tensor."""
    given, wrong = nested(case.seed), []
    for rows in (slice(0, 2), slice(1, 4), slice(3, None), slice(2, 2)):
        right = _mapped(given, lambda value, rows=rows: value[rows])  # type: ignore[misc]
        wrong += differences(stack.functions["slice"](given, rows), right, f"{rows}: ")
    return Measure.count(wrong, "slices")


def _mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return _like(value, {key: _mapped(one, change) for key, one in value.items()})
    made = [_mapped(one, change) for one in value]
    return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)


@VALUES.law("concatenation", "a dimension that is ignored", excluded=without("concatenate"))
def concatenation_joins(stack: Any, case: Seeded) -> Measure:
    """Compare joined nested values along both dimensions with each tensor's own."""
    one, other, wrong = nested(case.seed), nested(case.seed + 1), []
    pairs = {path: (value, leaves(other)[path]) for path, value in leaves(one).items()}
    for dimension in (0, 1):
        found = leaves(stack.functions["concatenate"]([one, other], dimension))
        right = {path: torch.cat(pair, dim=dimension) for path, pair in pairs.items()}
        wrong += differences(found, right, f"dimension {dimension}: ")
    return Measure.count(wrong, "joined values")


@VALUES.law(
    "as lists", "bfloat16 that NumPy does not have, a container of another type", excluded=without("as lists")
)
def lists_have_values(stack: Any, case: Seeded) -> Measure:
    """Compare lists of nested values with those of each tensor."""
    given = nested(case.seed)
    right = _mapped(
        given, lambda value: value.float().tolist() if value.dtype is torch.bfloat16 else value.tolist()
    )
    return Measure.count(differences(stack.functions["as lists"](given), right), "lists of values")


@VALUES.law(
    "structure", "a dtype or a shape that another process does not get", excluded=without("structure")
)
def structure_is_kept(stack: Any, case: Seeded) -> Measure:
    """Check that empty values made by a structure have equal containers, shapes and dtypes."""
    given = nested(case.seed)
    made = _mapped(stack.functions["structure"](given), lambda value: torch.zeros_like(value))
    return Measure.count(differences(made, _mapped(given, torch.zeros_like)), "structures")


@VALUES.law(
    "merged dictionaries", "an entry that replaces its neighbours", excluded=without("merge dictionaries")
)
def dictionaries_merge(stack: Any, case: Seeded) -> Measure:
    """Compare a merge of dictionaries of dictionaries with the entries due."""
    source = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    found = stack.functions["merge dictionaries"](source, {"a": {"b": 0, "c": {"x": 5}}, "y": 6})
    right = {"a": {"b": 1, "c": {"x": 5, "d": 2}}, "y": 6, "e": 3}
    wrong = [] if found == right else [f"{found}, due {right}"]
    if source != {"a": {"b": 1, "c": {"d": 2}}, "e": 3}:
        wrong.append(f"the source is now {source}")
    return Measure.count(wrong, "merges")


SIZES = {
    **{
        f"{number}{unit}": number * 10**power
        for unit, power in (("KB", 3), ("MB", 6), ("GB", 9))
        for number in (1, 12)
    },
    **{
        f"{number}{unit}": number * 2**power
        for unit, power in (("KiB", 10), ("MiB", 20), ("GiB", 30))
        for number in (1, 7)
    },
}


@VALUES.law("bytes of a text", "powers of 1000 for those of 1024", excluded=without("bytes of text"))
def texts_are_bytes(stack: Any, case: Seeded) -> Measure:
    """Compare the bytes of texts with those of their units."""
    read = stack.functions["bytes of text"]
    wrong = [f"{text} is {read(text)}, due {right}" for text, right in SIZES.items() if read(text) != right]
    if read(123) != 123:
        wrong.append(f"123 is {read(123)}")
    return Measure.count(wrong, "sizes in texts")


@VALUES.law(
    "bytes of a dtype", "bits for bytes, a dtype whose name has no number", excluded=without("bytes of dtype")
)
def dtypes_have_bytes(stack: Any, case: Seeded) -> Measure:
    """Compare the bytes of a number of each dtype with torch's own; a truth value may count as a bit."""
    names = (
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "float8_e4m3fn",
        "complex64",
    )
    dtypes = [getattr(torch, name) for name in names if hasattr(torch, name)]
    read = stack.functions["bytes of dtype"]
    wrong = [f"{dtype}: {read(dtype)}" for dtype in dtypes if read(dtype) != dtype.itemsize]
    if read(torch.bool) not in (1, 1 / 8):
        wrong.append(f"torch.bool: {read(torch.bool)}")
    return Measure.count(wrong, "bytes of dtypes")


@VALUES.law("truth of a text", "a word that is taken for its contrary", excluded=without("truth of text"))
def texts_are_true_or_false(stack: Any, case: Seeded) -> Measure:
    """Compare the words that stand for true and false, in every case of letters."""
    read = stack.functions["truth of text"]
    given = [(word, 1) for word in ("1", "true", "True", "YES", "on", "y", "t")]
    given += [(word, 0) for word in ("0", "false", "FALSE", "no", "off", "n", "f")]
    wrong = [f"{word} is {read(word)}" for word, right in given if int(read(word)) != right]
    return Measure.count(wrong, "words")


@VALUES.law(
    "variables of a block",
    "a variable that stays, or that was there before and is lost",
    excluded=without("variables"),
)
def variables_are_put_back(stack: Any, case: Seeded) -> Measure:
    """Check the environment within a block, after it, and after a block that raises."""
    name, other = "SEATRIAL_A", "SEATRIAL_B"
    wrong = []
    for raises in (False, True):
        os.environ[name] = "before"
        os.environ.pop(other, None)
        try:
            with stack.functions["variables"]({name: "within", other: "3"}):
                if (os.environ.get(name), os.environ.get(other)) != ("within", "3"):
                    wrong.append("the block does not have them")
                if raises:
                    raise KeyError(name)
        except KeyError:
            pass
        if (os.environ.pop(name, None), os.environ.pop(other, None)) != ("before", None):
            wrong.append(f"they are not put back{' after an error' if raises else ''}")
    return Measure.count(wrong, "variables")


@VALUES.law("attribute by path", "the first part of a path alone", excluded=without("attribute"))
def paths_lead_to_attributes(stack: Any, case: Seeded) -> Measure:
    """Compare an attribute that a path leads to with that of each part."""
    inner = torch.nn.Linear(2, 3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(inner))
    found = stack.functions["attribute"](model, "1.0.weight")
    return Measure(error=float(found is not inner.weight), bound=0, what="attributes by path")


@VALUES.law("unwrapped", "an inner wrapper that stays", excluded=without("unwrap"))
def wrappers_come_off(stack: Any, case: Seeded) -> Measure:
    """Check that the model within one and two parallel wrappers is the model, and a plain model itself."""
    plain = torch.nn.Linear(2, 2)
    once = torch.nn.DataParallel(plain)
    found = [
        stack.functions["unwrap"](model) is plain for model in (plain, once, torch.nn.DataParallel(once))
    ]
    return Measure.count(
        [f"{place} wrappers" for place, right in enumerate(found) if not right], "wrappers that stay"
    )


@VALUES.law(
    "autocast of a block",
    "a setting of the call that is left out, or that stays for the next block",
    excluded=without("in autocast"),
)
def blocks_have_their_precision(stack: Any, case: Seeded) -> Measure:
    """Check the dtype of a product in a block: the call's setting goes first, then that of all calls."""
    one = torch.ones(2, 2)
    wrong = []
    for precision in ("bf16", "no"):
        for own, given in itertools.product((None, True, False), (None, False, True)):
            lower = precision == "bf16" and False not in ([given] if given is not None else [own])
            due = torch.bfloat16 if lower else torch.float32
            found = stack.functions["in autocast"](precision, own, given, lambda: (one @ one).dtype)
            if found != due:
                wrong.append(f"{precision}, {own} by setting and {given} by call: {found}, due {due}")
    return Measure.count(wrong, "blocks of another precision")


@VALUES.law("saved states", "a scalar or a dtype that is saved wrongly", excluded=without("save"))
def states_are_saved(stack: Any, case: Seeded) -> Measure:
    """Compare a state that is read with that which was saved, in both formats."""
    whole = torch.arange(12.0).reshape(3, 4) + case.seed
    state = {"a": whole, "half": whole.bfloat16(), "one": torch.tensor(5)}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for safe in (False, True):
            path = Path(folder) / f"{safe}.bin"
            stack.functions["save"](dict(state), str(path), safe)
            read = _read_safe(path) if safe else torch.load(path, weights_only=True)
            wrong += differences(read, state, f"safe={safe}: ")
    return Measure.count(wrong, "tensors of a saved state")


def _read_safe(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(str(path))
