"""R31.mixtures: low-rank adapters mixed by a classifier of each token are the weighted sum that is stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

BOUND = 2e-4
"""Error of logits that several small layers of float32 give, relative to the largest; as of other adapters."""
VOCAB = 40
NEW_IDS = 3


class Mixing(NamedTuple):
    """Options of X-LoRA (Buehler and Buehler, 2024) by what they do."""

    softmax: bool = True
    """Of the weights of all adapters of a token."""
    temperature: float = 1.0
    largest: int | None = None
    """Number of adapters of a token that have a weight; None: all."""
    softmax_of_largest: bool = False
    by_layer: bool = False
    """Whether each layer has weights of its own."""
    depth: int = 1
    """Layers of the classifier."""
    factor: float = 1.0
    """Of what all adapters add."""
    adapters_train: bool = False


class Mixed(NamedTuple):
    """A model whose adapters are mixed."""

    outputs: Callable[[Tensor], Tensor]
    """(ids [B, S]) -> logits [B, S, V]."""
    plain: Callable[[Tensor, Mapping[str, Callable[[Tensor], Tensor]]], tuple[Tensor, Tensor]]
    """(ids, what is added to a layer's output, of its input, by the layer's name) -> the base's logits, last hidden."""
    classifier: Sequence[tuple[Tensor, Tensor]]
    """Weight and bias of its layers, between which negative values are set to zero."""
    factors: Mapping[str, Sequence[tuple[Tensor, Tensor, float]]]
    """By the layer, in the model's order: A, B and the scale of each adapter."""
    weights: Callable[[], Tensor | None]
    """() -> weights [B, S, L, N] of the last forward pass, as the stack gives them."""
    generated: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """(ids, number of new ones) -> logits of the new ids, all ids."""
    disabled: Callable[[Tensor], Tensor]
    """(ids) -> logits while the adapters are disabled."""
    loaded: Callable[[], Any]
    """() -> another `Mixed`, which was saved and loaded."""
    trains: frozenset[str]
    """Of `classifier` and `adapters`, what trains."""


MIXTURES = relation_of(
    "mixtures",
    "mixed-adapters-are-a-weighted-sum",
    "Each layer adds the sum of all adapters with the weights that the classifier gives to the token.",
)


def _ids(case: Numbers) -> Tensor:
    return torch.randint(3, VOCAB, (2, 7), generator=case.generator())


def _weights(mixed: Mixed, options: Mixing, ids_BS: Tensor) -> Tensor:
    """Return the weights [B, S, L, N] that the classifier gives, before the largest are chosen."""
    hidden_BSD = mixed.plain(ids_BS, {})[1]
    for number, (weight, bias) in enumerate(mixed.classifier):
        hidden_BSD = (hidden_BSD.relu() if number else hidden_BSD) @ weight.T + bias
    num_adapters = len(next(iter(mixed.factors.values())))
    weights_BSLN = hidden_BSD.reshape(*hidden_BSD.shape[:-1], -1, num_adapters)
    if options.softmax:
        weights_BSLN = (weights_BSLN / options.temperature).softmax(-1)
    return weights_BSLN.expand(-1, -1, len(mixed.factors), -1)


def _chosen(weights_BSN: Tensor, options: Mixing) -> Tensor:
    if options.largest is None:
        return weights_BSN
    least_BS1 = weights_BSN.topk(options.largest, dim=-1).values[..., -1:]
    is_left = weights_BSN < least_BS1
    if options.softmax_of_largest:
        return weights_BSN.masked_fill(is_left, -torch.inf).softmax(-1)
    return weights_BSN.masked_fill(is_left, 0.0)


def _right(mixed: Mixed, options: Mixing, ids_BS: Tensor) -> Tensor:
    """Return the logits by the definition."""
    weights_BSLN = _weights(mixed, options, ids_BS)

    def adds(number: int, factors: Sequence[tuple[Tensor, Tensor, float]]) -> Callable[[Tensor], Tensor]:
        chosen_BSN = _chosen(weights_BSLN[:, :, number], options)
        return lambda x_BSD: (
            options.factor
            * sum(
                (
                    chosen_BSN[..., place, None] * scale * (x_BSD @ a.T @ b.T)
                    for place, (a, b, scale) in enumerate(factors)
                ),
                torch.zeros(()),
            )
        )

    added = {name: adds(number, factors) for number, (name, factors) in enumerate(mixed.factors.items())}
    return mixed.plain(ids_BS, added)[0]


def _difference(found: Tensor | None, right: Tensor) -> float:
    if found is None or found.shape != right.shape:
        return float("inf")
    return float((found - right).abs().max() / right.abs().max())


KINDS: Mapping[str, Mixing] = {
    "softmax": Mixing(),
    "temperature": Mixing(temperature=0.3, factor=1.7),
    "weights of layers": Mixing(by_layer=True, depth=2),
    "the largest": Mixing(largest=2, by_layer=True),
    "softmax of the largest": Mixing(softmax=False, largest=2, softmax_of_largest=True, depth=3),
    "without softmax": Mixing(softmax=False, adapters_train=True),
}


def _of(stack: Any, kind: str) -> tuple[Mixed, Mixing]:
    options = KINDS[kind]
    return stack.utilities["mixed adapters"](options), options


@MIXTURES.law(
    "outputs",
    "a softmax over tokens, weights of another layer or adapter, a temperature or a factor that is ignored, "
    "a scaled hidden state",
    excluded=without("mixed adapters"),
)
def outputs_are_the_sum(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of every kind of mixing, and of each row alone, with the definition's."""
    found, ids_BS = [], _ids(case)
    for kind in KINDS:
        mixed, options = _of(stack, kind)
        right = _right(mixed, options, ids_BS)
        found.append((_difference(mixed.outputs(ids_BS), right), kind))
        found.append((_difference(mixed.outputs(ids_BS[1:]), right[1:]), f"{kind}, a row alone"))
    return Measure.largest(found, BOUND, "logits of mixed adapters")


@MIXTURES.law(
    "weights that are given",
    "weights that are not kept, those of an earlier pass",
    excluded=without("mixed adapters"),
)
def weights_are_those_of_the_pass(stack: Any, case: Numbers) -> Measure:
    """Compare the weights that the stack gives after a forward pass with the classifier's."""
    found, ids_BS = [], _ids(case)
    for kind in ("softmax", "weights of layers"):
        mixed, options = _of(stack, kind)
        mixed.outputs(ids_BS.flip(1))
        mixed.outputs(ids_BS)
        found.append((_difference(mixed.weights(), _weights(mixed, options, ids_BS)), kind))
    return Measure.largest(found, BOUND, "weights of adapters")


@MIXTURES.law(
    "generated",
    "a cache that the pass for the weights fills, too",
    excluded=without("mixed adapters"),
)
def generated_as_in_one_pass(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of generated ids with those of a forward pass over all ids."""
    mixed, options = _of(stack, "softmax")
    logits_BNV, ids_BS = mixed.generated(_ids(case), NEW_IDS)
    right = _right(mixed, options, ids_BS)[:, -NEW_IDS - 1 : -1]
    return Measure(error=_difference(logits_BNV, right), bound=BOUND, what="logits of generated ids")


@MIXTURES.law(
    "disabled, and then not",
    "adapters that stay, a state that is not put back",
    excluded=without("mixed adapters"),
)
def disabled_is_the_base(stack: Any, case: Numbers) -> Measure:
    """Compare the logits while disabled with the base's, and those after it with the ones before."""
    mixed, options = _of(stack, "softmax")
    ids_BS = _ids(case)
    found = [(_difference(mixed.disabled(ids_BS), mixed.plain(ids_BS, {})[0]), "while disabled")]
    found.append((_difference(mixed.outputs(ids_BS), _right(mixed, options, ids_BS)), "after it"))
    return Measure.largest(found, BOUND, "logits of mixed adapters")


@MIXTURES.law(
    "saved and loaded",
    "a classifier that is not saved, adapters in another order, options that are not saved",
    excluded=without("mixed adapters"),
)
def loaded_is_the_same(stack: Any, case: Numbers) -> Measure:
    """Compare the logits of a model that was saved and loaded with the definition's."""
    found, ids_BS = [], _ids(case)
    for kind in ("weights of layers", "softmax of the largest"):
        mixed, options = _of(stack, kind)
        right = _right(mixed, options, ids_BS)
        found.append((_difference(mixed.loaded().outputs(ids_BS), right), kind))
    return Measure.largest(found, BOUND, "logits of a loaded model")


@MIXTURES.law(
    "what trains",
    "adapters that a forward pass lets train, a classifier that is frozen",
    excluded=without("mixed adapters"),
)
def what_is_stated_trains(stack: Any, case: Numbers) -> Measure:
    """Count parts that train or not against the options, before and after a forward pass."""
    wrong = []
    for kind in ("softmax", "without softmax"):
        mixed, options = _of(stack, kind)
        due = {"classifier", "adapters"} if options.adapters_train else {"classifier"}
        wrong += [f"{kind}: {part}" for part in sorted(due ^ mixed.trains)]
    return Measure.count(wrong, "parts that train, or do not, against the options")
