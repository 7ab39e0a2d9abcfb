"""Contract of small functions that trainers share: each alone against a slow, plain one.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

UTILITIES: Mapping[str, str] = {
    "logprobs": "(logits [..., V], ids [...]) -> log-probabilities [...]",
    "logprobs of several": "(logits [..., V], ids [..., K]) -> log-probabilities [..., K]",
    "entropy": "(logits [..., V]) -> entropies [...]",
    "deviation": "(values, dimensions or None) -> deviation with divisor N - 1, NaN left out; NaN of fewer than two",
    "minimum": "(values [N]) -> smallest, NaN left out",
    "maximum": "(values [N]) -> largest, NaN left out",
    "odds loss": "(chosen and rejected mean log-probabilities [B], beta) -> -beta log sigmoid(log odds ratio) [B]",
    "pad": "(tensors with unequal shapes, value, side, multiple or None) -> one tensor, padded along every dimension",
    "pad to length": "(tensor, length, value, dimension) -> padded at the end; as it is where it is that long",
    "flush left": "(mask, tensor) -> both with each row's block of ones first, cut to the longest",
    "flush right": "(mask, tensor) -> both with each row's block of ones last, cut to the longest",
    "split": "(columns by name, n) -> n dictionaries of equally many rows; None stays None",
    "shuffle": "(columns by name) -> the same rows in another order; None stays None",
    "first true": "(bools [..., S]) -> place of the first True, S where there is none",
    "cut after stop": "(ids [B, S], stop ids, pad id) -> ids padded after the first stop, mask up to and with it",
    "repeated order": "(rows, copies, batch, repeats, shuffles, seed, epochs) -> places, one list an epoch",
    "repeated stream": "(records, copies, batch, repeats) -> records in the order of `repeated order`",
    "unpair": "(records with prompt, chosen, rejected and more) -> records with completion and label",
    "extract prompt": "(chosen, rejected) -> what both begin with, and the rest of each",
    "cut records": "(columns of lists and others, length) -> columns with lists cut to the length",
    "without None": "(nested lists and dictionaries) -> the same without entries of dictionaries that are None",
    "common prefix": "(ids, other ids) -> number of ids that both begin with",
    "messages with images": "(messages of texts, images) -> messages of blocks, images before the first user's text",
    "think format": "(texts) -> 1.0 for each with one block of thought that begins it, else 0.0",
    "overlong": "(lengths, longest, cache) -> the punishment of each length (DAPO, equation 13)",
    "repetition": "(ids of each completion, n, largest penalty) -> the share of repeated n-grams times the penalty",
}
"""Functions by name, with what each takes and gives; tensors keep their precision unless a law says otherwise."""


@runtime_checkable
class Utilities(Protocol):
    """Small functions of a stack; an adapter has those that the installed release has."""

    utilities: Mapping[str, Callable[..., Any]]
    """By the names of `UTILITIES`, with those arguments."""
