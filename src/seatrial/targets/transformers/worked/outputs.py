"""Worked examples of what models return: outputs as mappings and tuples, chosen hidden states, arrays of any kind."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.weights import llama

IDS = torch.tensor([[5, 9, 1, 4], [7, 2, 8, 3]])
OLD_CACHE = "past_key_values"
CLASSES = (
    "BaseModelOutput", "BaseModelOutputWithPooling", "CausalLMOutput", "MaskedLMOutput", "SequenceClassifierOutput",
    "TokenClassifierOutput", "QuestionAnsweringModelOutput", "BaseModelOutputWithPast", "CausalLMOutputWithPast",
    "Seq2SeqModelOutput", "Seq2SeqLMOutput", "ImageClassifierOutput", "BackboneOutput", "MoeModelOutputWithPast",
)  # fmt: skip


def _views(found: Any, due: Mapping[str, Any], what: str) -> list[str]:
    """Return which views of an output are not those of the fields that have a value, in the order of the class."""
    values, names = list(due.values()), list(due)
    wrong = [] if list(found.keys()) == names else [f"{what}: keys {list(found.keys())}, {names} are due"]
    tuples = (("tuple", found.to_tuple()), ("slice", found[:]), ("values", tuple(found.values())))
    for view, got in tuples:
        if len(got) != len(values) or any(one is not two for one, two in zip(got, values, strict=True)):
            wrong.append(f"{what}: other {view}")
    for at, (name, value) in enumerate(due.items()):
        got = (found[name], found[at], found[at - len(values)], getattr(found, name), found.get(name))
        wrong += [] if all(one is value for one in got) and name in found else [f"{what}: other {name}"]
    for field in dataclasses.fields(found):
        if field.name not in due and (getattr(found, field.name) is not None or field.name in found):
            wrong.append(f"{what}: {field.name} has a value")
    return wrong


def _output(made: Any) -> list[str]:
    """Return which views are wrong of outputs with some fields, after each way to make and to change one."""
    names = [field.name for field in dataclasses.fields(made)]
    wrong = []
    for step in (1, 2, 3):
        given = {name: torch.full((2,), float(at)) for at, name in enumerate(names) if at % step == 0}
        found = made(**given)
        wrong += _views(found, given, f"every {step}. field")
        leaves, tree = torch.utils._pytree.tree_flatten(found)
        again = torch.utils._pytree.tree_unflatten(leaves, tree)
        wrong += [] if type(again) is made else [f"a tree of {type(again).__name__}"]
        wrong += _views(again, given, "made again of its leaves")
        wrong += _views(copy.copy(found), given, "copied")
        wrong += _views(made(list(given.items())), given, "made of pairs")
        wrong += _views(made(dict(given)), given, "made of a mapping")
        for by_key in (True, False):
            changed, new = made(**given), torch.ones(3)
            if by_key:
                changed[names[0]] = new
            else:
                setattr(changed, names[0], new)
            wrong += _views(changed, {**given, names[0]: new}, f"changed {'by key' if by_key else 'by name'}")
    wrong += _views(made(), {}, "empty")
    return [*wrong, *_renamed(made, names)][:4]


def _renamed(made: Any, names: Sequence[str]) -> list[str]:
    """Return whether the cache of an output is another one under the name of earlier releases."""
    if "cache" not in names:
        return []
    cache, wrong = object(), []
    found = made(**{OLD_CACHE: cache})
    for value in (found.cache, found["cache"], found[OLD_CACHE], found.get(OLD_CACHE), found.past_key_values):
        wrong += [] if value is cache else ["another cache by an earlier name"]
    found = made()
    found[OLD_CACHE] = cache
    return wrong + (
        [] if found.cache is cache and OLD_CACHE in found else ["it is not set by an earlier name"]
    )


def _hidden(model: Any, asked: Any) -> tuple[Tensor | None, ...] | None:
    with torch.no_grad():
        found = model(input_ids=IDS, use_cache=False, output_hidden_states=asked).hidden_states
    return None if found is None else tuple(found)


CHOICES: Mapping[str, Sequence[Any]] = {
    "": (True, 1, 4, -1, -5, [0], [1, 3], [-1, -2], [2], [0, -1], [1, 1], [2, 9, -9], False, True),
    ", the first by its number": (0,),
}
FIRST = KnownFailure(
    "the number 0 is taken as False: no state is returned",
    finding="Transformers: the hidden state of number 0",
)


def _chosen(whole: bool, choices: str, model_class: Any) -> list[str]:
    """Return which hidden states are not those of the layers that are chosen by their places; others are None."""
    model = llama(num_hidden_layers=4).eval()
    if not whole:
        model = model.model
    kept: list[Tensor] = []
    base = model.model if whole else model
    taken = [base.embed_tokens, *base.layers[:-1], base.norm]
    hooks = [
        part.register_forward_hook(
            lambda part, given, found: kept.append(found[0] if isinstance(found, tuple) else found)
        )
        for part in taken
    ]
    with torch.no_grad():
        model(input_ids=IDS, use_cache=False)
    for hook in hooks:
        hook.remove()
    wrong = []
    for asked in CHOICES[choices]:
        places = [asked] if type(asked) is int else asked
        due = {*range(5)} if asked is True else {one % 5 for one in places or () if -5 <= one < 5}
        found = _hidden(model, asked)
        if asked is False or found is None:
            wrong += [] if found is None and asked is False else [f"{asked}: {found}"[:60]]
            continue
        if len(found) != 5:
            wrong.append(f"{asked}: {len(found)} states")
            continue
        for at, (state, right) in enumerate(zip(found, kept, strict=True)):
            fits = (
                torch.allclose(state, right, atol=1e-6) if at in due and state is not None else state is None
            )
            wrong += [] if fits and (at in due) == (state is not None) else [f"{asked}: state {at}"]
    return wrong[:4]


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor | np.ndarray | np.generic) else value


KINDS: Mapping[str, Callable[[Any], Any]] = {"numpy": np.asarray, "torch": torch.tensor}


def _reshaped(name: str, function: Any) -> list[str]:
    """Return where a change of an array's form is not NumPy's, of arrays of each kind."""
    array = np.arange(24).reshape(2, 1, 12)
    table: Mapping[str, Sequence[tuple[Mapping[str, Any], Any]]] = {
        "transpose": [({}, array.T), ({"axes": [1, 0, 2]}, array.transpose(1, 0, 2)),
                      ({"axes": [2, 0, 1]}, array.transpose(2, 0, 1))],
        "reshape": [({"newshape": (3, 8)}, array.reshape(3, 8)), ({"newshape": (4, -1)}, array.reshape(4, -1))],
        "squeeze": [({}, array.squeeze()), ({"axis": 1}, array.squeeze(1))],
        "expand_dims": [({"axis": at}, np.expand_dims(array, at)) for at in (0, 1, 3, -1)],
        "tensor_size": [({}, 24)],
    }  # fmt: skip
    return [
        f"{kind}, {dict(given)}"
        for kind, made in KINDS.items()
        for given, due in table[name]
        if _plain(function(made(array), **given)) != _plain(due)
        or (name != "tensor_size" and type(function(made(array), **given)) is not type(made(array)))
    ]


NESTED: Sequence[tuple[Any, Any]] = (
    (torch.tensor([[1, 2], [3, 4]]), [[1, 2], [3, 4]]), (np.array([1.5, 2.0]), [1.5, 2.0]), (np.int64(3), 3),
    (torch.tensor(4), 4), ([torch.tensor([1]), np.array([2, 3])], [[1], [2, 3]]), ([[1, 2], [3]], [[1, 2], [3]]),
    ((torch.tensor(1), 2), [1, 2]), ("words", "words"), (None, None), (True, True), ([], []),
    ({"a": torch.tensor([1, 2]), "b": {"c": np.float64(0.5)}}, {"a": [1, 2], "b": {"c": 0.5}}),
    ([{"a": torch.tensor(7)}, {"a": np.arange(2)}], [{"a": 7}, {"a": [0, 1]}]),
)  # fmt: skip


def _lists(function: Any) -> list[str]:
    """Return which nested tensors and arrays are not the plain values they hold."""
    found = [(function(given), due) for given, due in NESTED]
    return [f"{got}, {due} is due" for got, due in found if got != due or type(got) is not type(due)]


def _arrays(function: Any) -> list[str]:
    """Return which values are not the arrays of NumPy that they hold."""
    tables = {"a": torch.tensor([1, 2]), "b": [3.5, 4.0]}
    found = function(tables)
    wrong = [name for name in tables if type(found[name]) is not np.ndarray]
    wrong += [name for name in tables if _plain(found[name]) != _plain(tables[name])]
    for given in ([1, 2], (1, 2), torch.tensor([1, 2]), np.array([1, 2])):
        got = function(given)
        wrong += [] if type(got) is np.ndarray and got.tolist() == [1, 2] else [f"{type(given).__name__}"]
    return wrong


def _flat(function: Any) -> list[Any]:
    """Return nested mappings as one, whose keys are joined."""
    nested = {"a": 1, "b": {"c": 2, "d": {"e": 3}}}
    return [function(nested), function(nested, "x"), function(nested, delimiter="/"), function({})]


FLAT = [
    {"a": 1, "b.c": 2, "b.d.e": 3}, {"x.a": 1, "x.b.c": 2, "x.b.d.e": 3}, {"a": 1, "b/c": 2, "b/d/e": 3}, {}
]  # fmt: skip


GENERIC = "transformers.utils.generic"


def _known_class(name: str, base: Any) -> list[str]:
    made = find_name("transformers", [f"transformers.modeling_outputs:{name}"])
    if not dataclasses.is_dataclass(made):
        raise NotServed(f"{name} has no fields")
    return _output(made)


# Sources: the documentation of ModelOutput, of capture_outputs, and of each function.
OUTPUT_ROWS: Sequence[Row] = (
    *(
        Row("states", f"{GENERIC}:ModelOutput", f"views of {name}", partial(_known_class, name), [], since="4.56")
        for name in CLASSES
    ),
    *(
        Row("states", "transformers:LlamaForCausalLM", f"chosen hidden states of {what}{choices}",
            partial(_chosen, whole, choices), [], since="5.24", known=FIRST if choices else None)
        for what, whole in (("a whole model", True), ("a model without a head", False))
        for choices in CHOICES
    ),
    *(
        Row("formulas", f"{GENERIC}:{name}", "arrays of each kind", partial(_reshaped, name), [])
        for name in ("transpose", "reshape", "squeeze", "expand_dims", "tensor_size")
    ),
    Row("formulas", f"{GENERIC}:to_py_obj", "nested tensors and arrays", _lists, [], since="4.56"),
    Row("formulas", f"{GENERIC}:to_numpy", "tables, lists and tensors", _arrays, []),
    Row("formulas", f"{GENERIC}:flatten_dict", "nested mappings", _flat, FLAT),
)  # fmt: skip
