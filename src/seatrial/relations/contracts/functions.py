"""Contract of small functions of a library that places models and moves values: each alone, by its documentation.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

FUNCTIONS: Mapping[str, str] = {
    "send": "(nested values, device, keys to skip) -> the same containers with tensors on the device",
    "batch size": "(nested values) -> first dimension of the first tensor",
    "slice": "(nested values, slice) -> the same containers with rows of the slice",
    "concatenate": "(list of nested values, dimension) -> the same containers, joined",
    "as lists": "(nested values) -> the same containers with lists for tensors",
    "structure": "(nested values) -> the same containers of empty tensors with equal shapes and dtypes",
    "merge dictionaries": "(source, destination) -> destination with the entries of source, at every depth",
    "bytes of text": "(text such as 5GB or 5GiB) -> number of bytes",
    "bytes of dtype": "(dtype) -> bytes of one number",
    "truth of text": "(text) -> 1 or 0",
    "variables": "(variables) -> block in which the environment has them",
    "attribute": "(object, path with dots) -> attribute",
    "unwrap": "(model) -> the model within parallel wrappers",
    "save": "(state, path, safetensors or not): write a state dictionary",
    "module sizes": "(model, dtype or None, dtypes by name) -> bytes by module and tensor",
    "buffer sizes": "(model) -> bytes of all buffers",
    "largest layer": "(named modules, sizes, classes not split) -> bytes, names",
    "device map": "(model, bytes by device, classes not split, dtype) -> device by module",
    "balanced memory": "(model, bytes by device) -> bytes by device",
    "shorten map": "(device by module) -> the same map with parents for children on one device",
    "tied": "(model) -> groups of names of one parameter",
    "set tensor": "(model, name, device, value, dtype or None): set a parameter or buffer",
    "offload": "(tensor, name, folder) -> description of its file",
    "read offloaded": "(path, description) -> tensor",
    "in autocast": "(precision such as bf16, whether autocast is on by setting and by call, each true, false or none, "
    "function) -> its result",
    "storage dtype": "(model, dtype of weights, dtype of the computation, patterns of modules to skip)",
}
"""Functions by name, with what each takes and gives."""


@runtime_checkable
class Functions(Protocol):
    """Small functions of a library; an adapter has those that the installed release has."""

    functions: Mapping[str, Callable[..., Any]]
    """By the names of `FUNCTIONS`, with those arguments by position."""
