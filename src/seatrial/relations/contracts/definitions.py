"""Contract of small parts of a trainer and its sampler, each called alone on made inputs.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

DEFINITIONS: Mapping[str, str] = {
    "draw": "(logits [B, V], numbers [B] in [0, 1), settings) -> ids, log-probabilities, kept ids of each row or None",
    "row numbers": "(rows, tokens, seed) -> numbers [B, T] that the tokens of each row are drawn with",
    "continuation numbers": "(seed, first row, parts after the first) -> numbers that each part is drawn with",
    "shares of requests": "(prompts, replicas) -> (prompts, place of the first one) of each request",
    "join parts": "(ids, log-probabilities, finish reason, kept ids, mask of each part) -> the same of the whole",
    "decoders": "() -> (decoder, model) by name: all pairs that serve",
    "logits": "(model, ids [S]) -> logits [S, V] of the model's own forward",
    "sample": "(decoder, model, prompts, numbers [B, T], settings, end ids) -> (ids, log-probabilities, kept ids or "
    "None) of each row",
    "layer parts": "(seed) -> (name, the sampler's part, the model's part, input in bfloat16) of each part of a layer",
    "loaded": "() -> (model, logits [S, V] as it is loaded from files, those of its class) of each model",
    "read back": "(seed) -> (name, tensor, what an engine of another library is read to have) of each tensor",
    "optimize": "(options, weights, gradients of the micro-batches of each update, dtype, length of the schedule) -> "
    "(float32 weights, weights in dtype, norm, rate) after each update",
    "resume": "(as optimize, updates done before) -> the same, of an optimizer that takes over the state after these",
    "travel": "(tensors by name, bytes of a message) -> by name of each way, the tensors as they arrive",
    "changes": "(now [N], before [N]) -> places, values",
    "fingerprint": "(tensor) -> text that equal tensors share",
    "int8": "(weight [O, I]) -> values that are computed with",
    "merge": "(weight, A, B, scale) -> weight with its adapter",
    "join": "(seed) -> (form, whole tensors, ranks, parts of all ranks, tensors joined again) of each way to cut them",
    "cuts": "(options of the policy, tokens of prompt and completion of each row) -> rows of each micro-batch, by pass",
    "updates": "(which rows train, rows of an update, norms of the updates, scored or not) -> rows, scores, observed "
    "rows and metrics of the updates",
    "learned": "(model, options of the policy, rows, loss) -> what a whole policy of these options did on the rows",
    "adapted layers": "(options) -> linear layers of a model, its head, those with an adapter",
    "first adapter": "(layer, seed, rank, inputs) -> A, B of a new adapter",
    "write adapter": "(weights by name, rank, scale, base model, folder): write adapters as PEFT reads them",
    "phases": "() -> (sync, documented phases, seconds of those that were timed) of each kind of sync",
    "sizes": "() -> (layout, processes of each dimension, those that it reports) of each kind of layout",
    "end ids": "(end ids of a configuration, of its generation configuration) -> end ids of the model",
    "clip": "(gradients, limit) -> by name of each form, the norm before and the gradients after",
    "write": "(tensors by name, folder, bytes of a file): write files as Transformers reads them",
}
"""Parts by name, with what each takes and gives."""


@runtime_checkable
class Definitions(Protocol):
    """Small parts of a stack; an adapter has those that the stack has."""

    definitions: Mapping[str, Callable[..., Any]]
    """By the names of `DEFINITIONS`, with those arguments by position."""
