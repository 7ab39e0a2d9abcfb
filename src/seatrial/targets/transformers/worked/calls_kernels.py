"""Calls of attention by SDPA and flex attention, of experts in one product, and of small parts of `generate`."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from seatrial.targets.transformers.worked.calls_caches import _short as short
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

SDPA, FLEX = "transformers.integrations.sdpa_attention", "transformers.integrations.flex_attention"


def _layer(groups: int, causal: bool = True) -> Any:
    layer: Any = nn.Module()
    layer.num_key_value_groups, layer.is_causal = groups, causal
    return layer.eval()


def _states(heads: int, groups: int, queries: int, keys: int) -> list[Tensor]:
    sizes = ((heads, queries), (heads // groups, keys), (heads // groups, keys))
    return [numbers(2, one, size, 4, seed=place) for place, (one, size) in enumerate(sizes)]


def _attended(function: Any) -> Any:
    """Return attention of groups of heads, queries, masks, directions, scales and biases of places."""
    found = {}
    masks: Mapping[str, Any] = {
        "none": lambda q, k: None,
        "bool": lambda q, k: torch.ones(q, k).tril(k - q).bool()[None, None].expand(2, 1, -1, -1),
        "float": lambda q, k: torch.where(torch.arange(k) % 3 == 1, -1e4, 0.0)[None, None, None].expand(2, 1, q, k),
    }  # fmt: skip
    for groups, (queries, keys), kind, causal in itertools.product(
        (1, 2), ((4, 4), (1, 5), (3, 6)), masks, (None, True, False)
    ):
        states = _states(4, groups, queries, keys)
        for own in (True, False):
            found[f"{groups} {queries} {keys} {kind} {causal} {own}"] = refusal(
                lambda states=states, groups=groups, kind=kind, q=queries, k=keys, causal=causal, own=own: (
                    short(function(_layer(groups, own), *states, masks[kind](q, k), is_causal=causal)[0])
                )
            )
    bias = numbers(1, 4, 4, 4, seed=9)
    for groups, kind, more in itertools.product((1, 2), masks, (
        {"scaling": 0.3}, {"position_bias": bias}, {"position_bias": bias, "is_causal": False}, {"softcap": 2.0},
    )):  # fmt: skip
        found[f"{groups} {kind} {sorted(more)} {more.get('is_causal')}"] = refusal(
            lambda groups=groups, kind=kind, more=more: short(
                function(_layer(groups), *_states(4, groups, 4, 4), masks[kind](4, 4), **more)[0]
            )
        )
    return found


def _scored(query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, block_mask: Any = None,
            enable_gqa: bool = False, scale: Any = None, **more: Any) -> Tensor:  # fmt: skip
    """Return flex attention, score by score."""
    if query.shape[1] != key.shape[1]:
        key, value = (one.repeat_interleave(query.shape[1] // key.shape[1], 1) for one in (key, value))
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    for place in itertools.product(*map(range, scores.shape)):
        scores[place] = score_mod(scores[place], *map(torch.tensor, place))
    out: Tensor = scores.softmax(-1) @ value
    return out


def _flexed(function: Any) -> Any:
    """Return attention with caps, masks, biases, scales and heads that are no power of two."""
    module = importlib.import_module(FLEX)
    found = {}
    mask = torch.where(torch.ones(3, 6).tril(1).bool(), 0.0, -1e4)[None, None].expand(2, 1, -1, -1)
    cases: Mapping[str, tuple[int, int, Any, Mapping[str, Any]]] = {
        "plain": (4, 1, None, {}), "groups": (4, 2, None, {}), "six heads": (6, 2, mask, {}), "mask": (4, 2, mask, {}),
        "cap": (4, 2, mask, {"softcap": 0.7}), "scale": (4, 1, mask, {"scaling": 0.2}),
        "bias": (4, 2, mask, {"position_bias": numbers(2, 4, 3, 5, seed=5)}), "dropout": (4, 1, None, {"dropout": 0.1}),
        "sinks": (4, 1, None, {"s_aux": torch.ones(4)}),
        "cap and scale": (4, 1, None, {"softcap": 0.5, "scaling": 2.0}),
    }  # fmt: skip
    with patch.object(module, "compile_friendly_flex_attention", _scored):
        for name, (heads, groups, given, more) in cases.items():
            states = _states(heads, groups, 3, 5)
            found[name] = refusal(lambda states=states, given=given, more=more, groups=groups: [
                short(one) for one in function(_layer(groups), *states, given, **more)[:1]])  # fmt: skip
    return found


class _Experts(nn.Module):
    """Three experts, with or without gates, biases, transposed weights and a norm behind them."""

    def __init__(self, *flags: bool) -> None:
        """Draw their weights; the last flag is whether other ranks have experts."""
        super().__init__()
        gate, bias, transposed, norm, shared = flags
        self.has_gate, self.has_bias, self.is_transposed, self.has_post_expert_norm = (
            gate,
            bias,
            transposed,
            norm,
        )
        self.num_experts, self._is_expert_parallel, self.act_fn = 3, shared, nn.SiLU()
        width = 8 if gate else 4
        up, down = numbers(3, width, 4, seed=1), numbers(3, 4, 4, seed=2)
        name = "gate_up_proj" if gate else "up_proj"
        setattr(self, name, up.transpose(1, 2).contiguous() if transposed else up)
        self.down_proj = down.transpose(1, 2).contiguous() if transposed else down
        setattr(self, f"{name}_bias", numbers(3, width, seed=3))
        self.down_proj_bias = numbers(3, 4, seed=4)

    def _apply_gate(self, states: Tensor) -> Tensor:
        gate, up = states.chunk(2, dim=-1)
        out: Tensor = self.act_fn(gate) * up
        return out

    def post_expert_norm(self, states: Tensor) -> Tensor:
        """Return states of length 1."""
        return nn.functional.normalize(states, dim=-1)


def _experts(function: Any) -> Any:
    """Return what experts give, with gradients: gates, biases, transposed weights, norms, experts of other ranks."""
    found = {}
    for flags in itertools.product((True, False), repeat=4):
        for shared in (False, True):
            layer = _Experts(*flags, shared)
            states = numbers(5, 4).requires_grad_()
            index = torch.tensor([[0, 2], [1, 2], [2, 0], [0, 1], [2, 3 if shared else 1]])
            weights = numbers(5, 2, seed=7).abs()
            if shared:
                weights = weights.masked_fill(index >= 3, 0.0)

            def run(
                layer: Any = layer, states: Any = states, index: Any = index, weights: Any = weights
            ) -> Any:
                out = function(layer, states, index.clone(), weights)
                (out * numbers(5, 4, seed=8)).sum().backward()
                return [short(out.detach()), short(states.grad)]

            found[" ".join(str(int(one)) for one in (*flags, shared))] = refusal(run)
    return found


def _product(function: Any) -> Any:
    states, weights = numbers(6, 3), numbers(3, 3, 2, seed=1)
    out = function(states, weights, torch.tensor([2, 2, 5]))
    return [short(out)]


def _packed_groups(function: Any) -> Any:
    return [None if one is None else short(function(one, 2))
            for one in (numbers(2, 4, 1, 3), None, numbers(2, 1, 1, 5), numbers(1, 4, 1, 5))]  # fmt: skip


def _split(function: Any) -> Any:
    """Return states of several positions taken apart, one tuple of layers a token."""
    layers = tuple(numbers(1, 2, 5, 6, seed=layer) for layer in range(2))
    states = tuple(numbers(1, 5, 3, seed=layer) for layer in range(2))
    found = []
    for given, more in ((layers, {}), (states, {"is_decoder_attention": False})):
        for first, (length, added) in itertools.product(((), ((short(1),),)), ((4, 2), (3, 4))):
            takes = {"is_decoder_attention": True} if given is layers else more
            out = refusal(lambda given=given, first=first, length=length, added=added, takes=takes: [
                [short(one) for one in token] for token in function(first, given, length, added, **takes)])  # fmt: skip
            found.append(out)
    return found


def _undone(function: Any) -> Any:
    ids = torch.arange(8).reshape(2, 4)
    return [[short(one) if isinstance(one, Tensor) else one for one in function(steps, ids, (1, 2, 3), None, ())]
            for steps in (0, 1, 2)]  # fmt: skip


def _stopped(made: Any) -> Any:
    """Return where rows end by each criterion: a length, ends, and several at once."""
    ids = torch.tensor([[5, 9, 11, 4], [7, 8, 21, 9]])
    name = made.__name__
    if name == "MaxLengthCriteria":
        return [made(length, 9)(ids, None).tolist() for length in (3, 4, 5)]
    if name == "EosTokenCriteria":
        return [made(ends)(ids, None).tolist() for ends in (4, [9], [4, 9], torch.tensor([3]))]
    both = made(
        [lambda ids, scores: torch.tensor([True, False]), lambda ids, scores: torch.tensor([False, False])]
    )
    return [both(ids, None).tolist(), both.max_length]


def _sliced(function: Any) -> Any:
    """Return features of the places of a part of a prompt."""
    made: Any = importlib.import_module("transformers.modeling_outputs").BaseModelOutputWithPooling
    given = made(pooler_output=[numbers(3, 2), numbers(2, 2, seed=1)])
    more = made(pooler_output=numbers(1, 5, 2))
    return [refusal(lambda one=one: [short(one) for one in function(one, torch.tensor([1, 3]))["pooler_output"]])
            for one in (given, more)]  # fmt: skip


STOPS = "transformers.generation.stopping_criteria"
UTILITIES = "transformers.generation.utils"
MOE = "transformers.integrations.moe"
CALLS: Sequence[Call] = (
    Call("formulas", f"{SDPA}:sdpa_attention_forward", "attention of each form", _attended),
    Call("formulas", f"{FLEX}:flex_attention_forward", "attention of each form", _flexed),
    Call("calls", f"{SDPA}:pack_gqa", "heads of a group as queries", _packed_groups),
    Call("formulas", f"{MOE}:batched_mm_experts_forward", "experts of each form", _experts),
    Call("formulas", f"{MOE}:grouped_mm_experts_forward", "experts of each form", _experts),
    Call("formulas", f"{MOE}:_grouped_mm_fallback", "products of groups", _product),
    Call("calls", f"{UTILITIES}:_split_model_outputs", "states of several tokens", _split),
    Call("calls", f"{UTILITIES}:_undo_generation_steps", "steps taken back", _undone),
    Call("calls", f"{UTILITIES}:_slice_mm_encoder_output", "features of a part", _sliced),
    *(Call("calls", f"{STOPS}:{name}", "where rows end", _stopped)
      for name in ("MaxLengthCriteria", "EosTokenCriteria", "StoppingCriteriaList")),
)  # fmt: skip
KERNEL_CALL_ROWS = rows_of(CALLS)
