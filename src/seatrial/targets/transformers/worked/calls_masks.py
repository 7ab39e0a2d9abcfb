"""Calls of Transformers' masks of given forms and of flash attention, whose results are on record."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of
from seatrial.targets.transformers.worked.weights import BERT, llama

OLD, FLASH = "transformers.modeling_attn_mask_utils", "transformers.modeling_flash_attention_utils"
LEFT = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])
RIGHT = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


def seen(mask: Any) -> Any:
    """Return rows of a mask as words of 1 for what is seen and 0 for what is not, and its type."""
    if mask is None or isinstance(mask, str):
        return mask
    open_ = mask if mask.dtype == torch.bool else mask >= -1.0 if mask.is_floating_point() else mask > 0
    rows = ["".join(map(str, row)) for row in open_.int().flatten(0, -2).tolist()]
    return [" ".join(rows), list(mask.shape), str(mask.dtype)]


def _converter(made: Any) -> list[Any]:
    """Return masks of a converter: causal or not, with a window or not, of one query, and with a past."""
    found: list[Any] = [refusal(lambda: made(is_causal=True, sliding_window=0))]
    for causal, window in ((True, None), (True, 2), (False, None), (False, 2)):
        converter = made(is_causal=causal, sliding_window=window)
        for width, keys in ((5, 5), (3, 5), (1, 5)):
            found.append(seen(refusal(lambda width=width, keys=keys, converter=converter: converter.to_4d(
                LEFT, width, dtype=torch.float32, key_value_length=keys))))  # fmt: skip
            found.append(seen(refusal(lambda width=width, keys=keys, converter=converter: converter.to_causal_4d(
                2, width, keys, dtype=torch.float16))))  # fmt: skip
    return found


def _unmasked(made: Any) -> Any:
    least = torch.finfo(torch.float32).min
    mask = torch.tensor([[[[least] * 3, [0.0, least, least], [0.0, 0.0, least]]]])
    return [made._unmask_unattended(mask, least), refusal(lambda: made._unmask_unattended(mask > -1, 0.0))]


def _ignored(made: Any) -> Any:
    """Return when a mask is left to the kernel: by queries, keys, windows, padding and training."""
    found = []
    for mask in (None, torch.ones(2, 5), LEFT[:2].float(), torch.ones(2, 1, 5, 5)):
        for width, past, window in (
            (5, 0, None),
            (1, 4, None),
            (3, 2, None),
            (5, 0, 3),
            (5, 0, 9),
            (1, 4, 3),
        ):
            given = {
                "attention_mask": mask,
                "inputs_embeds": torch.zeros(2, width, 4),
                "past_key_values_length": past,
            }
            found.append(bool(made._ignore_causal_mask_sdpa(**given, sliding_window=window)))
    return found


def _prepared(function: Any) -> Any:
    """Return masks for a decoder of no, two- and four-dimensional ones, with pasts and windows."""
    found = []
    for mask in (None, LEFT[:2], torch.ones(2, 5, dtype=torch.long), torch.ones(2, 1, 5, 5).tril()):
        for width, past, window in ((5, 0, None), (1, 4, None), (3, 2, None), (5, 0, 3)):
            given = {
                "attention_mask": mask,
                "input_shape": (2, width),
                "inputs_embeds": torch.zeros(2, width, 4),
            }
            found.append(seen(refusal(lambda given=given, past=past, window=window: function(
                **given, past_key_values_length=past, sliding_window=window))))  # fmt: skip
    return found


def _encoders(function: Any) -> Any:
    return [
        seen(function(mask, dtype, **more))
        for mask in (RIGHT, torch.ones(2, 5))
        for dtype, more in ((torch.float32, {}), (torch.bfloat16, {"tgt_len": 3}))
    ]


def _created(function: Any) -> Any:
    return [seen(function((2, width), torch.float32, torch.device("cpu"), past, window))
            for width, past, window in ((4, 0, None), (2, 3, None), (4, 0, 2), (1, 3, None))]  # fmt: skip


def _extended(model_class: Any) -> Any:
    """Return masks that a model extends: of rows, of pairs of places, of decoders, inverted, and of heads."""
    encoder = of_name("BertModel")(of_name("BertConfig")(**BERT)).eval()
    decoder = of_name("BertModel")(of_name("BertConfig")(**BERT, is_decoder=True)).eval()
    found: list[Any] = []
    pairs = torch.ones(2, 5, 5).tril()
    for model in (encoder, decoder):
        for mask, shape in ((RIGHT, (2, 5)), (pairs, (2, 5)), (RIGHT, (2, 3)), (torch.ones(2), (2, 5))):
            found.append(seen(refusal(lambda model=model, mask=mask, shape=shape: model.get_extended_attention_mask(
                mask, shape))))  # fmt: skip
        found.append(seen(encoder.invert_attention_mask(RIGHT)))
        found.append(seen(encoder.invert_attention_mask(pairs)))
    if hasattr(encoder, "get_head_mask"):
        one = torch.tensor([1.0, 0.0, 1.0, 1.0])
        found.append(encoder.get_head_mask(None, 2))
        for given in (one, torch.stack([one, one.flip(0)])):
            for chunked in (False, True):
                mask = encoder.get_head_mask(given, 2, chunked)
                found.append([list(mask.shape), mask.flatten()])
    return found


def _indices(function: Any) -> Any:
    return [list(function(mask)) for mask in (LEFT, RIGHT, torch.tensor([[True, False], [True, True]]))]


def _cut_rows(function: Any) -> Any:
    states = numbers(3, 5, 2)
    unused = torch.tensor([[0, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    return [list(function(states, LEFT)), list(function(states, LEFT, unused))]


def _filled(function: Any) -> Any:
    return function(numbers(4, 2), torch.tensor([1, 2, 5, 7]), 2, 4)


def _packed_lengths(function: Any) -> Any:
    rows = ([[0, 1, 2, 0, 1, 0]], [[0, 1, 2], [0, 1, 2]], [[0, 1, 2, 3]], [[0, 0, 1, 2]])
    return [list(map(list, function(torch.tensor(one)))) for one in rows]


def _is_packed(function: Any) -> Any:
    rows = ([[0, 1, 2, 0, 1]], [[0, 1, 2, 3]], [[4, 5, 6]], [[4, 5, 0]], [[0, 0, 1, 2]])
    found = [bool(function(torch.tensor(one), size)) for one in rows for size in (1, 2)]
    return [*found, bool(function(None, 1))]


def _cast(function: Any) -> Any:
    found = []
    for kind in (torch.float32, torch.float16):
        for target in (None, torch.bfloat16):
            given = [torch.zeros(1, dtype=kind)] * 3
            found.append([str(one.dtype) for one in function(*given, target)])
    return found


def _options(function: Any) -> Any:
    """Return options of a kernel: by queries, windows, caps, sinks, determinism and what it supports."""
    names = ("dropout_p", "window_size", "deterministic", "softcap", "s_aux", "learnable_sink", "block_table",
             "page_table", "cache_seqlens", "max_seqlen_q", "max_seqlen_k")  # fmt: skip
    found = []
    for supports in (dict.fromkeys(names, True), dict.fromkeys(names, False)):
        for more in (
            {}, {"sliding_window": 3}, {"sliding_window": 8}, {"sliding_window": 9}, {"softcap": 30.0},
            {"deterministic": True}, {"s_aux": torch.ones(2)}, {"use_top_left_mask": True}, {"is_causal": False},
            {"dropout": 0.5, "softmax_scale": 0.25}, {"query_length": 1, "use_top_left_mask": True},
        ):  # fmt: skip
            given = {
                "query_length": 4,
                "key_length": 9,
                "is_causal": True,
                "supports_mapping": supports,
                **more,
            }
            found.append(refusal(lambda given=given: function(**given)))
    return found


def attended(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Return attention of rows [N, L, H, D] as a kernel of flash attention computes it."""
    scale = options.get("softmax_scale") or q.shape[-1] ** -0.5
    groups = q.shape[2] // k.shape[2]
    k, v = (one.repeat_interleave(groups, 2) for one in (k, v))
    scores = torch.einsum("nqhd,nkhd->nhqk", q, k) * scale
    cap = options.get("softcap")
    scores = scores if not cap else cap * torch.tanh(scores / cap)
    offset = k.shape[1] - q.shape[1]
    places = torch.arange(k.shape[1])[None] - torch.arange(q.shape[1])[:, None] - offset
    left, right = options.get("window_size", (-1, -1))
    masked = torch.zeros_like(places, dtype=torch.bool)
    masked |= (places > 0) if options.get("causal") else masked
    masked |= (places < -left) if left >= 0 else masked
    masked |= (places > right) if right >= 0 else masked
    return torch.einsum("nhqk,nkhd->nqhd", scores.masked_fill(masked, -1e9).softmax(-1), v)


def _by_row(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Any, cu_seqlens_k: Any, **options: Any) -> Tensor:
    ends = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
    parts = [
        attended(q[None, a:b], k[None, c:d], v[None, c:d], **options)[0]
        for (a, c), (b, d) in itertools.pairwise(ends)
    ]
    return torch.cat(parts)


def _kernels(module: Any) -> Any:
    """Return what a release imports of flash attention, with kernels of our own."""
    names = ("dropout_p", "window_size", "deterministic", "softcap", "max_seqlen_q", "max_seqlen_k")
    known = ("s_aux", "learnable_sink", "block_table", "page_table", "cache_seqlens")
    supports = {**dict.fromkeys(names, True), **dict.fromkeys(known, False)}

    def options(**given: Any) -> Any:
        return module._process_flash_attention_kwargs(**given, supports_mapping=supports)

    pads = (module._pad_input, module._unpad_input)
    if "attn_implementation" in module._flash_attention_forward.__code__.co_varnames:
        return lambda *names, **more: ((attended, _by_row, None, *pads), (options, options))
    return lambda *names, **more: ((attended, _by_row, *pads), options)


def _computed(function: Any) -> Any:
    """Return attention of padded, packed and plain rows, of one query, with windows, caps and scales."""
    module = importlib.import_module(FLASH)
    q, k, v = (numbers(3, 5, heads, 4, seed=one) for one, heads in ((1, 4), (2, 2), (3, 2)))
    flat = [one[:1] for one in (q, k, v)]
    packed = torch.tensor([[0, 1, 0, 1, 2]])
    cases: Mapping[str, tuple[Sequence[Tensor], Any, int, Mapping[str, Any]]] = {
        "plain": ((q, k, v), None, 5, {}),
        "both ways": ((q, k, v), None, 5, {"is_causal": False}),
        "left": ((q, k, v), LEFT, 5, {}),
        "the last queries": ((q[:, -2:], k, v), LEFT, 2, {}),
        "one query": ((q[:, -1:], k, v), LEFT, 1, {}),
        "longer keys": ((q[:, -1:], *(torch.cat([one, one], 1) for one in (k, v))), LEFT, 1, {}),
        "places": (flat, None, 5, {"position_ids": packed}),
        "places of one row": (flat, None, 5, {"position_ids": torch.arange(5)[None]}),
        "places of rows": ((q, k, v), None, 5, {"position_ids": packed.expand(3, -1)}),
        "lengths": (flat, None, 5, {"cu_seq_lens_q": torch.tensor([0, 2, 5]), "max_length_q": 3,
                                    "cu_seq_lens_k": torch.tensor([0, 2, 5]), "max_length_k": 3}),
        "a window": ((q, k, v), LEFT, 5, {"sliding_window": 2}),
        "a window of all": ((q, k, v), LEFT, 5, {"sliding_window": 5}),
        "a cap and a scale": ((q, k, v), None, 5, {"softcap": 0.5, "softmax_scale": 0.9}),
        "narrow": ((q, k, v), None, 5, {"target_dtype": torch.bfloat16}),
    }  # fmt: skip
    found = {}
    with patch.object(module, "lazy_import_flash_attention", _kernels(module)):
        for name, (states, mask, length, options) in cases.items():
            out = function(*states, mask, length, **{"is_causal": True, **options})
            found[name] = [list(out.shape), str(out.dtype), out.float() if name != "narrow" else None]
    return found


def _forward(function: Any) -> Any:
    """Return what an attention layer gives to flash attention."""
    module = importlib.import_module(FLASH)
    layer: Any = nn.Module()
    layer.is_causal, layer.layer_idx = True, 0
    layer.one = nn.Linear(1, 1)
    layer.config = SimpleNamespace(_attn_implementation="flash_attention_2", dtype=torch.float32)
    q, k, v = (numbers(3, heads, 5, 4, seed=one) for one, heads in ((1, 4), (2, 2), (3, 2)))
    found = []
    with patch.object(module, "lazy_import_flash_attention", _kernels(module)):
        for mask, options in (
            (None, {}), (LEFT, {"scaling": 0.7}), (None, {"is_causal": False}), (LEFT, {"sliding_window": 2}),
            (None, {"softcap": 0.5}), (None, {"dropout": 0.25}),
        ):  # fmt: skip
            out, weights = function(layer, q, k, v, mask, **options)
            found.append([out, weights])
        found.append(refusal(lambda: function(layer, q[:, :, :0], k, v, None)))
    return found


def _blocks_of(mask_mod: Any, **options: Any) -> Any:
    """Return a mask of blocks without its blocks, which would be compiled."""
    return SimpleNamespace(mask_mod=mask_mod)


def _flex_blocks(function: Any) -> Any:
    """Return what is seen in blocks of flex attention: of rows laid end to end, of chunks, and both ways."""
    rows = torch.tensor([[1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1]])
    found = []
    module = importlib.import_module("transformers.integrations.flex_attention")
    for options in (
        {},
        {"attention_chunk_size": 2},
        {"is_causal": False},
        {"query_length": 3, "key_length": 6},
    ):
        with patch.object(module, "create_block_mask", _blocks_of):
            made = function(rows, **options)
        batch, query, key = (torch.arange(size) for size in (2, options.get("query_length", 6), 6))
        table = [[[bool(made.mask_mod(b, torch.tensor(0), q, k)) for k in key] for q in query] for b in batch]
        found.append(["".join(str(int(one)) for one in row) for page in table for row in page])
    return found


def _repeated(function: Any) -> Any:
    return [function(numbers(2, 2, 3, 2), 1), function(numbers(2, 2, 1, 2), 3)]


def _sizes(model_class: Any) -> Any:
    """Return what a model estimates of tokens and operations."""
    model = llama()
    ids = {"input_ids": torch.ones(2, 7, dtype=torch.long)}
    if not hasattr(model, "floating_point_ops"):
        raise NotServed("models of this release estimate nothing")
    return [model.estimate_tokens(ids), model.floating_point_ops(ids),
            model.floating_point_ops(ids, exclude_embeddings=False)]  # fmt: skip


def _pruned_heads(function: Any) -> Any:
    return [list(function(heads, 4, 3, done)) for heads, done in (([1], set()), ([0, 3], {1}), ([2], {0, 1}))]


def _pruned(kind: str, function: Any) -> Any:
    conv = find_name("transformers", ["transformers.pytorch_utils:Conv1D"])(4, 3)
    with torch.no_grad():
        conv.weight.copy_(numbers(3, 4))
        conv.bias.copy_(numbers(4, seed=1))
    found = []
    for dim in (0, 1):
        made = function(conv, torch.tensor([0, 2]), dim)
        found.append([made.weight, made.bias, made.weight.requires_grad])
    return found


def _grids(function: Any) -> Any:
    return [list(function(torch.arange(2), torch.arange(3), indexing=kind)) for kind in ("ij", "xy")]


def _within(function: Any) -> Any:
    values = torch.tensor([[1, 2, 3], [4, 5, 6]])
    return [
        function(values, torch.tensor([2, 6])).int(),
        function(values, 5).int(),
        function(values, torch.tensor(1)),
    ]


def _stored(function: Any) -> Any:
    one = torch.arange(6.0)
    return [function(one) == function(one.view(2, 3)), function(one) == function(one.clone()), function(one)[2],
            function(one[2:])[2]]  # fmt: skip


UTILITIES = "transformers.pytorch_utils"
CALLS: Sequence[Call] = (
    Call("batches", f"{OLD}:AttentionMaskConverter", "masks of a converter", _converter),
    Call("batches", f"{OLD}:AttentionMaskConverter", "queries that see nothing", _unmasked),
    Call("batches", f"{OLD}:AttentionMaskConverter", "masks that are left to a kernel", _ignored),
    Call("batches", f"{OLD}:_prepare_4d_causal_attention_mask", "masks of decoders", _prepared),
    Call("batches", f"{OLD}:_prepare_4d_causal_attention_mask_for_sdpa", "masks of decoders",
         lambda one: _prepared(lambda sliding_window, **given: one(**given, sliding_window=sliding_window))),
    Call("batches", f"{OLD}:_prepare_4d_attention_mask", "masks of encoders", _encoders),
    Call("batches", f"{OLD}:_prepare_4d_attention_mask_for_sdpa", "masks of encoders", _encoders),
    Call("batches", f"{OLD}:_create_4d_causal_attention_mask", "masks without padding", _created),
    Call("batches", "transformers:PreTrainedModel", "masks that a model extends", _extended),
    Call("batches", f"{FLASH}:_get_unpad_data", "places of real tokens", _indices),
    Call("batches", f"{FLASH}:_unpad_input", "rows without padding", _cut_rows),
    Call("batches", f"{FLASH}:_pad_input", "rows with padding again", _filled),
    Call("batches", f"{FLASH}:prepare_fa_kwargs_from_position_ids", "lengths of packed rows", _packed_lengths),
    Call("batches", f"{FLASH}:_is_packed_sequence", "rows that are packed", _is_packed),
    Call("calls", f"{FLASH}:fa_peft_integration_check", "types of inputs", _cast),
    Call("calls", f"{FLASH}:_process_flash_attention_kwargs", "options of a kernel", _options),
    Call("formulas", f"{FLASH}:_flash_attention_forward", "rows of each form", _computed),
    Call("formulas", "transformers.integrations.flash_attention:flash_attention_forward", "what a layer gives",
         _forward),
    Call("batches", "transformers.integrations.flex_attention:make_flex_block_causal_mask", "blocks", _flex_blocks),
    Call("calls", "transformers.integrations.flex_attention:repeat_kv", "heads of a group", _repeated),
    Call("calls", "transformers.integrations.sdpa_attention:repeat_kv", "heads of a group", _repeated),
    Call("calls", "transformers:LlamaForCausalLM", "tokens and operations", _sizes),
    Call("calls", f"{UTILITIES}:find_pruneable_heads_and_indices", "heads that are left", _pruned_heads),
    Call("calls", f"{UTILITIES}:prune_conv1d_layer", "columns that are left", lambda one: _pruned("conv", one)),
    Call("calls", f"{UTILITIES}:prune_layer", "columns that are left", lambda one: _pruned("conv", one)),
    Call("calls", f"{UTILITIES}:meshgrid", "two orders", _grids),
    Call("calls", f"{UTILITIES}:isin_mps_friendly", "members", _within),
    Call("calls", f"{UTILITIES}:id_tensor_storage", "views and copies", _stored),
)  # fmt: skip
MASK_CALL_ROWS = rows_of(CALLS)
