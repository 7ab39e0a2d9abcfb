"""Decodes a call's rows in blocks of tokens: a token step touches nothing but tensors that stay where they are.

On a CUDA device the step is captured in a graph, one for each number of rows, and replayed: the host launches one graph
a token and looks at the result once a block. Weights that change in place keep the graphs; weights in other places
make new ones. On a CPU the same step runs without a graph.

Shapes: L layers, P distinct prompts, R rows of the buffers, B rows of a call, S slots of the cache, K key/value heads,
H width of a head, T tokens of a completion, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.generation.base import SamplingParams
from refrl.generation.decoder import PaddedPrompts
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.lean_weights import LeanWeights, read_weights
from refrl.generation.sampling import is_filtered
from refrl.generation.static.ops import Counters, Ops, TorchOps, Turns

SLOTS_MULTIPLE = 128
"""The cache has a multiple of so many slots, so that prompts of other lengths fit the one that is there."""
CAPTURING = threading.Lock()
"""Held while a graph is captured: a capture first waits for the device, which fails while another thread captures."""
JOIN_LIMIT_BYTES = 4 * 2**30
"""Layers up to this size have their projections joined by a copy (see `lean_weights.read_weights`)."""


def rows_in_buckets(num_rows: int) -> int:
    """Return the number of rows that a graph is captured for: four to an octave, all of them up to eight."""
    step = 1 << max(0, (num_rows - 1).bit_length() - 3)
    return -(-num_rows // step) * step


@dataclass(frozen=True)
class _Buffers:
    """What a token step reads and writes; nothing of it moves while graphs of it exist."""

    cache_L2RKSH: torch.Tensor
    turns: tuple[Turns, ...]
    """Of each rotary embedding of the model."""
    first_slot_R: torch.Tensor
    """Slot of each row's first token: prompts end at one slot, padded on the left."""
    last_ids_R: torch.Tensor
    """The token that the next step reads."""
    uniforms_TR: torch.Tensor
    ids_TR: torch.Tensor
    logprobs_TR: torch.Tensor
    kept_TRV: torch.Tensor
    """Of a block of tokens: bits of the ids that the filters kept, eight to a byte; empty without a filter."""
    counters: Counters

    def fits(self, num_rows: int, num_slots: int, num_tokens: int, kept_width: int) -> bool:
        """Return whether a call of this size fits."""
        return (
            num_rows <= self.cache_L2RKSH.shape[2]
            and num_slots <= self.cache_L2RKSH.shape[4]
            and num_tokens <= self.ids_TR.shape[0]
            and kept_width <= self.kept_TRV.shape[2]
        )


class StaticDecoder:
    """Decodes calls of `generate` with the live weights of a model that `lean_support.supports_lean`."""

    def __init__(self, model: PreTrainedModel, *, block_tokens: int, captures: bool) -> None:
        """Take a model.

        Args:
            model: its weights are read where they are, at every call.
            block_tokens: token steps between two looks of the host.
            captures: whether to capture CUDA graphs; the model is on a CUDA device then.
        """
        self.block_tokens = block_tokens
        self._model = model
        self._captures = captures
        self._ops: Ops = _ops_of(model.device)
        self._weights: LeanWeights | None = None
        self._places: tuple[int, ...] = ()
        self._buffers: _Buffers | None = None
        self._graphs: dict[tuple[int, SamplingParams], torch.cuda.CUDAGraph] = {}
        """By number of rows, and by what of the parameters a step depends on."""

    @property
    def num_graphs(self) -> int:
        """Graphs that are held."""
        return len(self._graphs)

    def start(
        self,
        prompts: PaddedPrompts,
        prompt_of_row_B: torch.Tensor,
        uniforms_BT: torch.Tensor,
        params: SamplingParams,
    ) -> None:
        """Read the prompts, and sample the first token of every row."""
        num_rows, num_tokens = uniforms_BT.shape
        width = prompts.ids_PS.shape[1]
        self._read_weights()
        assert self._weights is not None
        # Lengths and end tokens are the loop's affair: calls that differ in them share their graphs.
        self._params = replace(params, max_new_tokens=1, stop_token_ids=None)
        vocab_size = self._weights.head.weights[0].shape[0]
        self._is_filtered = is_filtered(params, vocab_size)
        kept_width = -(-vocab_size // 8) if self._is_filtered else 0
        buffers = self._buffers_for(self._bucket(num_rows), width + num_tokens, num_tokens, kept_width)
        self._num_rows = num_rows
        self._num_kept = 0
        prompt_reader = LeanDecoder(self._model, 0)
        logits_BV = prompt_reader.prefill(prompts)[prompt_of_row_B]
        cache = buffers.cache_L2RKSH
        if self._ops.reads_all_slots(self._weights):
            # A hidden slot counts nothing, unless it holds NaN.
            cache.zero_()
        cache[:, :, :num_rows, :, :width] = prompt_reader.cached_L2PKSH[:, :, prompt_of_row_B]
        # Rows that fill the bucket attend to their own tokens alone.
        buffers.first_slot_R.fill_(width)
        buffers.first_slot_R[:num_rows] = width - prompts.lens_P[prompt_of_row_B]
        buffers.last_ids_R.zero_()
        buffers.uniforms_TR[:num_tokens].fill_(0.5)
        buffers.uniforms_TR[:num_tokens, :num_rows] = uniforms_BT.T
        # The first token comes from the prompts' logits; the first step writes the slot after them.
        buffers.counters.set(slot=width, token=0)
        self._draw(logits_BV, num_rows)
        buffers.counters.token.add_(1)
        self._num_sampled = 1

    def run(self, num_tokens: int) -> None:
        """Take so many token steps; nothing is waited for."""
        num_rows = self._bucket(self._num_rows)
        for _ in range(num_tokens):
            graph = self._graphs.get((num_rows, self._params))
            if graph is not None:
                graph.replay()
            else:
                # The first step of a bucket also compiles kernels and opens libraries, which a capture may not.
                self._step(num_rows)
                if self._captures:
                    self._capture(num_rows)
        self._num_sampled += num_tokens

    def sampled(self, start: int) -> tuple[list[list[int]], torch.Tensor]:
        """Return (ids, log-probabilities [T, B]) of the tokens from `start` on; waits for the device."""
        assert self._buffers is not None
        chosen = (slice(start, self._num_sampled), slice(0, self._num_rows))
        return self._buffers.ids_TR[chosen].tolist(), self._buffers.logprobs_TR[chosen].clone()

    def kept(self) -> torch.Tensor | None:
        """Return the ids that the filters kept at the tokens since the last call, [T, B, V]; None without a filter."""
        if not self._is_filtered:
            return None
        assert self._buffers is not None and self._weights is not None
        start, self._num_kept = self._num_kept, self._num_sampled
        rows = torch.arange(start, self._num_sampled, device=self._buffers.kept_TRV.device)
        packed = self._buffers.kept_TRV[rows % self._kept_length, : self._num_rows]
        return _unpack(packed, self._weights.head.weights[0].shape[0])

    def keep(self, columns: Sequence[int]) -> None:
        """Keep only these rows, in this order."""
        buffers = self._buffers
        assert buffers is not None
        places = torch.arange(len(columns), device=buffers.last_ids_R.device)
        rows = torch.tensor(columns, device=places.device)
        moved = (rows != places).nonzero().squeeze(-1)
        if len(moved):
            origin = rows[moved]
            buffers.cache_L2RKSH[:, :, moved] = buffers.cache_L2RKSH[:, :, origin]
            for one in (buffers.first_slot_R, buffers.last_ids_R):
                one[moved] = one[origin]
            # What was sampled before has been read: only the random numbers still to come move along.
            buffers.uniforms_TR[:, moved] = buffers.uniforms_TR[:, origin]
        self._num_rows = len(columns)

    @property
    def _kept_length(self) -> int:
        return self.block_tokens + 1

    def _bucket(self, num_rows: int) -> int:
        return rows_in_buckets(num_rows) if self._captures else num_rows

    def _read_weights(self) -> None:
        """Take weights that are elsewhere, or write again the copies that were made of them."""
        places = tuple(weight.data_ptr() for weight in (*self._model.parameters(), *self._model.buffers()))
        fresh = read_weights(self._model, join_limit_bytes=JOIN_LIMIT_BYTES)
        if self._weights is None or places != self._places:
            self._weights, self._places = fresh, places
            self._graphs.clear()
            self._buffers = None
            return
        for old, new in zip(self._weights.tensors(), fresh.tensors(), strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)

    def _buffers_for(self, num_rows: int, num_slots: int, num_tokens: int, kept_width: int) -> _Buffers:
        """Return buffers for a call of this size; larger ones than there are end the graphs."""
        if self._buffers is not None and self._buffers.fits(num_rows, num_slots, num_tokens, kept_width):
            return self._buffers
        weights = self._weights
        assert weights is not None
        self._graphs.clear()
        self._buffers = None  # its memory may serve the next one
        num_slots = -(-num_slots // SLOTS_MULTIPLE) * SLOTS_MULTIPLE
        layer, like = weights.layers[0], weights.embedding_VD
        device = like.device
        self._buffers = _Buffers(
            cache_L2RKSH=like.new_empty(
                len(weights.layers), 2, num_rows, layer.num_kv_heads, num_slots, layer.head_dim
            ),
            turns=tuple(
                Turns(rotary, torch.stack(rotary.tables(num_slots, like.dtype)))
                for rotary in weights.rotaries
            ),
            first_slot_R=torch.zeros(num_rows, dtype=torch.long, device=device),
            last_ids_R=torch.zeros(num_rows, dtype=torch.long, device=device),
            uniforms_TR=torch.zeros(num_tokens, num_rows, dtype=torch.float64, device=device),
            ids_TR=torch.zeros(num_tokens, num_rows, dtype=torch.long, device=device),
            logprobs_TR=torch.zeros(num_tokens, num_rows, device=device),
            kept_TRV=torch.zeros(self._kept_length, num_rows, kept_width, dtype=torch.uint8, device=device),
            counters=Counters(device),
        )
        return self._buffers

    def _step(self, num_rows: int) -> None:
        """Read the last token of every row, sample the next one, and advance the counters."""
        buffers, weights, ops = self._buffers, self._weights, self._ops
        assert buffers is not None and weights is not None
        hidden_RD = weights.embedded(buffers.last_ids_R[:num_rows])
        delta_RD: torch.Tensor | None = None
        for layer, cache_2RKSH in zip(weights.layers, buffers.cache_L2RKSH, strict=True):
            hidden_RD, normed_RD = ops.add_norm(hidden_RD, delta_RD, layer.attention_norm)
            mixed_RC = ops.attend(
                layer,
                layer.qkv(normed_RD).view(num_rows, -1, layer.head_dim),
                None if layer.rotary is None else buffers.turns[layer.rotary],
                cache_2RKSH[:, :num_rows],
                buffers.first_slot_R[:num_rows],
                buffers.counters,
            )
            attended_RD = layer.attention_out(mixed_RC)
            if layer.is_parallel:
                hidden_RD = hidden_RD + attended_RD
            else:
                hidden_RD, normed_RD = ops.add_norm(hidden_RD, attended_RD, layer.mlp_norm)
            delta_RD = layer.down(ops.activated(layer, layer.up(normed_RD)))
        _, normed_RD = ops.add_norm(hidden_RD, delta_RD, weights.final_norm)
        self._draw(weights.logits(normed_RD), num_rows)
        buffers.counters.advance()

    def _draw(self, logits_RV: torch.Tensor, num_rows: int) -> None:
        buffers = self._buffers
        assert buffers is not None
        kept_RV = self._ops.sample(
            logits_RV,
            self._params,
            buffers.uniforms_TR[:, :num_rows],
            buffers.ids_TR[:, :num_rows],
            buffers.logprobs_TR[:, :num_rows],
            buffers.last_ids_R[:num_rows],
            buffers.counters,
        )
        if kept_RV is not None:
            place = buffers.counters.token % self._kept_length
            buffers.kept_TRV[:, :num_rows].index_copy_(0, place, _pack(kept_RV)[None])

    def _capture(self, num_rows: int) -> None:
        graph = torch.cuda.CUDAGraph()
        # Graphs share the memory of one that is held: a pool ends with the last graph of it.
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        with CAPTURING, torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            self._step(num_rows)
        self._graphs[num_rows, self._params] = graph


def _ops_of(device: torch.device) -> Ops:
    if device.type != "cuda":
        return TorchOps()
    from refrl.generation.static.triton_ops import TritonOps

    return TritonOps()


def _pack(kept_RV: torch.Tensor) -> torch.Tensor:
    """Return booleans as bits, eight to a byte, the first one lowest."""
    padded_RV = functional.pad(kept_RV, (0, -kept_RV.shape[-1] % 8))
    # Filled on the device: a copy from the host cannot be captured.
    bits = torch.arange(8, dtype=torch.uint8, device=kept_RV.device)
    return (padded_RV.unflatten(-1, (-1, 8)).to(torch.uint8) << bits).sum(-1, dtype=torch.uint8)


def _unpack(packed: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Return the booleans of `_pack`, cut to the vocabulary."""
    bits = torch.arange(8, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> bits) & 1).bool().flatten(-2)[..., :vocab_size]
