"""What Transformers gives kernels of attention, with a plain kernel in their place; see `contracts.utilities`."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.laws.utilities.packed_attention import sinks
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release

MODULE = "transformers.modeling_flash_attention_utils"


def _found(name: str) -> Any:
    try:
        return find_name("transformers", [f"{MODULE}:{name}"])
    except Gone as error:
        raise NotServed(str(error)) from error


def _kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    """Return attention [B, Q, H, D] as kernels define it: the last query sees the last key; -1 is no window."""
    Q, K, D = q.shape[1], k.shape[1], q.shape[3]
    k, v = (one.repeat_interleave(q.shape[2] // one.shape[2], dim=2) for one in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (D**-0.5 if softmax_scale is None else softmax_scale)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    apart = torch.arange(K)[None] - torch.arange(K - Q, K)[:, None]
    left, right = window_size
    hidden = (apart > 0) if causal else torch.zeros_like(apart, dtype=torch.bool)
    hidden |= (apart < -left) if left >= 0 else False
    hidden |= (apart > right) if right >= 0 else False
    scores = scores.masked_fill(hidden, float("-inf"))
    if s_aux is not None:
        scores = torch.cat([scores, s_aux[None, :, None, None].expand(*scores.shape[:3], 1)], dim=-1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1)[..., :K], v)


def _kernel_of_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    s_aux: Tensor | None = None,
    deterministic: bool = False,
) -> Tensor:
    """Return attention [N, H, D] of rows one after the other, which begin at the sums of lengths."""
    starts = list(zip(cu_seqlens_q.tolist(), cu_seqlens_k.tolist(), strict=True))
    longest = [
        max(end - start for start, end in itertools.pairwise(one)) for one in zip(*starts, strict=True)
    ]
    assert longest == [int(max_seqlen_q), int(max_seqlen_k)], (longest, max_seqlen_q, max_seqlen_k)
    assert starts[-1] == (len(q), len(k)), f"rows end at {starts[-1]} of {len(q)} queries and {len(k)} keys"
    options: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "window_size": window_size}
    return torch.cat(
        [
            _kernel(
                q[None, one:end],
                k[None, other:last],
                v[None, other:last],
                softcap=softcap,
                s_aux=s_aux,
                **options,
            )[0]
            for (one, other), (end, last) in itertools.pairwise(starts)
        ]
    )


def attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Sequence[Sequence[int]] | None,
    places: Sequence[Sequence[int]] | None,
    lengths: Sequence[int] | None,
    options: Mapping[str, Any],
) -> Tensor:
    """Return what `_flash_attention_forward` gives with plain kernels."""
    forward, define = _found("_flash_attention_forward"), _found("_lazy_define_process_function")
    if places is not None and min(places[0]) and Version(release("transformers")) < Version("5.15"):
        raise NotServed("rows of this release have a place 0")
    pad, unpad = _found("_pad_input"), _found("_unpad_input")
    given: dict[str, Any] = {"is_causal": True, **options}
    if given.pop("sinks", False):
        given["s_aux"] = sinks(queries.shape[2])
    if lengths is not None:
        sums = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        given |= {"cu_seq_lens_q": sums, "cu_seq_lens_k": sums}
        given |= {"max_length_q": max(lengths), "max_length_k": max(lengths)}
    makes: Any = define(_kernel_of_rows)
    cached = [None] if hasattr(importlib.import_module(MODULE), "_flash_with_kvcache_fn") else []
    paged = "k_cache" in inspect.signature(forward).parameters
    kernels = ((_kernel, _kernel_of_rows, *cached, pad, unpad), (makes, dict) if paged else makes)
    with mock.patch(f"{MODULE}.lazy_import_flash_attention", lambda *_, **__: kernels):
        found: Tensor = forward(
            queries,
            keys,
            values,
            None if mask is None else torch.tensor(mask),
            query_length=queries.shape[1],
            position_ids=None if places is None else torch.tensor(places),
            **given,
        )
    return found


def unpadded(values: Tensor, mask: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return values without padding, and put back in place."""
    flat, places, sums, longest, *_ = _found("_unpad_input")(values, torch.tensor(mask))
    again = _found("_pad_input")(flat, places, len(mask), len(mask[0]))
    return {
        "values": flat,
        "places": places.tolist(),
        "sums": sums.tolist(),
        "longest": int(longest),
        "padded again": again,
    }


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"packed attention": attention, "unpadded": unpadded}
