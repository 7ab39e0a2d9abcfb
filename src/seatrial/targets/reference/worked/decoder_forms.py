"""Worked examples of decoders of any form: each layer by its definition, row by row, without a cache or padding."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.activations import ACT2FN

from refrl.generation import lean_traits, lean_weights
from refrl.generation.base import SamplingParams
from refrl.generation.decoder import pad_prompts
from refrl.generation.lean_decoder import LeanDecoder
from refrl.generation.lean_traits import NormNames, Traits
from refrl.generation.static.decoder import StaticDecoder
from refrl.generation.static.ops import DeviceOps
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import for_all

WIDTH, INNER, HEADS, KEY_HEADS, HEAD, VOCABULARY, EPS = 6, 5, 4, 2, 4, 11, 0.1
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu, "gelu": functional.gelu, "relu2": lambda x: x.clamp_min(0) ** 2,
    "gelu_pytorch_tanh": lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}  # fmt: skip


def of_decoder_forms() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all(
        {"logits of decoders of any form": (_lean, 16), "tokens of their blocks": (_blocks, 8)}
    )


class Form:
    """A model of made weights, under the names of some architecture, and what it computes."""

    def __init__(self, stream: random.Random) -> None:
        """Choose its traits, and make it."""
        choice, self.stream = stream.choice, torch.Generator().manual_seed(stream.randrange(999))
        window = choice((None, 2, 3))
        self.kinds = [
            choice(("full_attention", "sliding_attention")) if window else "full_attention" for _ in "ab"
        ]
        self.traits = Traits(
            NormNames(*(choice((None, name)) for name in ("one", "two", "three", "four"))),
            is_parallel=choice((False, True)), has_centred_norms=choice((False, True)), norm_offset=choice((0.0, 1.0)),
            has_interleaved_rotary=choice((False, True)), rotates_full_layers=choice((False, True)),
            windows_all_layers=bool(window) and choice((False, True)), caps_scores=choice((False, True)),
        )  # fmt: skip
        self.gate, self.bias, self.wide = (
            choice((False, True)),
            choice((False, True)),
            choice((None, True, False)),
        )
        self.turned, self.act = choice((2, HEAD)), choice(tuple(ACTIVATIONS))
        self.joined, self.names = choice((False, True)), choice((("o_proj", "down_proj"), ("dense", "fc2")))
        self.residual, self.scaling = choice((1.0, 0.5)), choice((1.0, 2.0))
        config: dict[str, Any] = {
            "sliding_window": window, "num_attention_heads": HEADS, "num_key_value_heads": KEY_HEADS,
            "attn_logit_softcapping": 0.5, "logits_scaling": choice((1.0, 4.0)),
            "final_logit_softcapping": choice((None, 2.0)),
        }  # fmt: skip
        if window or choice((False, True)):
            config["layer_types"] = self.kinds
        self.config = SimpleNamespace(**config)
        self.model: Any = nn.Module()
        for name, value in {
            "config": self.config,
            "device": torch.device("cpu"),
            "model": nn.Module(),
        }.items():
            setattr(self.model, name, value)
        inner: Any = self.model.model
        inner.embed_tokens = nn.Embedding(VOCABULARY, WIDTH)
        if self.scaling != 1.0:
            inner.embedding_multiplier = self.scaling
        inner.rotary_emb = SimpleNamespace(
            inv_freq=torch.tensor([0.9, 0.4][: self.turned // 2]), attention_scaling=1.25
        )
        inner.layers = nn.ModuleList(self._layer() for _ in self.kinds)
        setattr(inner, choice(("norm", "final_layernorm")), self._norm(WIDTH))
        self.final = next(iter(list(inner.children())[-1:]))
        self.model.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=self.bias)
        for weight in self.model.parameters():
            weight.data.copy_(torch.randn(weight.shape, generator=self.stream) / 2)

    def _norm(self, width: int) -> Any:
        norm: Any = nn.Module()
        norm.weight, norm.variance_epsilon = nn.Parameter(torch.ones(width)), EPS
        if self.traits.has_centred_norms and self.bias and width == WIDTH:
            norm.bias = nn.Parameter(torch.ones(width))
        return norm

    def _layer(self) -> Any:
        layer: Any = nn.Module()
        layer.self_attn, layer.mlp = attention, mlp = nn.Module(), nn.Module()
        for name in ("one", "two", "three", "four"):
            setattr(layer, name, self._norm(WIDTH))
        if self.residual != 1.0:
            layer.residual_multiplier = self.residual
        sizes = {"q": HEADS * HEAD, "k": KEY_HEADS * HEAD, "v": KEY_HEADS * HEAD}
        made: Any = attention
        made.config, made.head_dim, made.scaling = self.config, HEAD, 0.75
        if self.joined:
            made.qkv_proj = nn.Linear(WIDTH, sum(sizes.values()), bias=self.bias)
        else:
            for name, size in sizes.items():
                setattr(made, f"{name}_proj", nn.Linear(WIDTH, size, bias=self.bias))
        if self.wide is not None:
            for name in "qk":
                setattr(made, f"{name}_norm", self._norm(sizes[name] if self.wide else HEAD))
        setattr(made, self.names[0], nn.Linear(HEADS * HEAD, WIDTH, bias=self.bias))
        inner = {"gate_proj": INNER} if self.gate else {}
        rows = {"gate_up_proj": 2 * INNER} if self.gate and self.joined else {**inner, "up_proj": INNER}
        for name, size in rows.items():
            setattr(mlp, name, nn.Linear(WIDTH, size, bias=self.bias))
        setattr(mlp, self.names[1], nn.Linear(INNER, WIDTH, bias=self.bias))
        mlp.act_fn = ACT2FN[self.act]
        return layer

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """Return logits [S, V] of a row of ids, by definition, in float64."""
        hidden = self.model.model.embed_tokens.weight.double()[list(ids)] * self.scaling
        for layer, kind in zip(self.model.model.layers, self.kinds, strict=True):
            names, traits = self.traits.norms, self.traits
            given = self._normed(hidden, layer, names.attention)
            out = _linear(
                getattr(layer.self_attn, self.names[0]), self._attended(layer.self_attn, given, kind)
            )
            hidden = hidden + self._normed(out, layer, names.attention_out) * self.residual
            given = given if traits.is_parallel else self._normed(hidden, layer, names.mlp)
            if self.gate and self.joined:
                gate, up = _linear(layer.mlp.gate_up_proj, given).chunk(2, -1)
            else:
                up = _linear(layer.mlp.up_proj, given)
                gate = _linear(layer.mlp.gate_proj, given) if self.gate else up
            active = ACTIVATIONS[self.act](gate) * (up if self.gate else 1.0)
            out = _linear(getattr(layer.mlp, self.names[1]), active)
            hidden = hidden + self._normed(out, layer, names.mlp_out) * self.residual
        logits: Tensor = (
            _linear(self.model.lm_head, self._root(hidden, self.final)) / self.config.logits_scaling
        )
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _normed(self, hidden: Tensor, layer: Any, name: str | None) -> Tensor:
        return hidden if name is None else self._root(hidden, getattr(layer, name))

    def _root(self, values: Tensor, norm: Any) -> Tensor:
        if self.traits.has_centred_norms:
            values = values - values.mean(-1, keepdim=True)
        scaled = values / (values.square().mean(-1, keepdim=True) + EPS).sqrt()
        bias = getattr(norm, "bias", None)
        scaled = scaled * (norm.weight.double() + self.traits.norm_offset)
        return scaled if bias is None else cast(Tensor, scaled + bias.double())

    def _attended(self, attention: Any, given: Tensor, kind: str) -> Tensor:
        sizes = [HEADS * HEAD, KEY_HEADS * HEAD, KEY_HEADS * HEAD]
        if self.joined:
            queries, keys, values = _linear(attention.qkv_proj, given).split_with_sizes(sizes, -1)
        else:
            queries, keys, values = (_linear(getattr(attention, f"{name}_proj"), given) for name in "qkv")
        if self.wide:
            queries, keys = self._root(queries, attention.q_norm), self._root(keys, attention.k_norm)
        queries, keys, values = (one.reshape(len(one), -1, HEAD) for one in (queries, keys, values))
        if self.wide is False:
            queries, keys = self._root(queries, attention.q_norm), self._root(keys, attention.k_norm)
        traits, window = self.traits, self.config.sliding_window
        if traits.rotates_full_layers or window is None or kind == "sliding_attention":
            queries, keys = self._turned(queries), self._turned(keys)
        if not traits.windows_all_layers and kind == "full_attention":
            window = None
        places, each = torch.arange(len(given)), HEADS // KEY_HEADS
        keys, values = (one.repeat_interleave(each, 1).transpose(0, 1) for one in (keys, values))
        scores = queries.transpose(0, 1) @ keys.transpose(1, 2) * 0.75
        scores = torch.tanh(scores / 0.5) * 0.5 if traits.caps_scores else scores
        ago = places[:, None] - places
        scores = scores.masked_fill((ago < 0) | (ago >= (window or len(given))), -math.inf)
        gathered: Tensor = scores.softmax(-1) @ values
        return gathered.transpose(0, 1).flatten(1)

    def _turned(self, heads: Tensor) -> Tensor:
        turned, pairs = heads.clone(), self.turned // 2
        angles = torch.arange(len(heads), dtype=torch.float64)[:, None] * torch.tensor((0.9, 0.4)[:pairs])
        cos, sin = 1.25 * angles.cos(), 1.25 * angles.sin()
        for pair in range(pairs):
            one, other = (
                (2 * pair, 2 * pair + 1) if self.traits.has_interleaved_rotary else (pair, pair + pairs)
            )
            first, second = heads[..., one], heads[..., other]
            turned[..., one] = first * cos[:, pair, None] - second * sin[:, pair, None]
            turned[..., other] = second * cos[:, pair, None] + first * sin[:, pair, None]
        return turned


def _linear(linear: Any, given: Tensor) -> Tensor:
    bias = None if linear.bias is None else linear.bias.double()
    return functional.linear(given, linear.weight.double(), bias)


def _read_as(form: Form, stream: random.Random) -> ExitStack:
    """Let a form be a known architecture, whose small layers are joined or not."""
    stack = ExitStack()
    for module in (lean_traits, lean_weights):
        stack.enter_context(patch.object(module, "traits_of", lambda model: form.traits))
    stack.enter_context(patch.object(lean_weights, "JOIN_LIMIT_BYTES", stream.choice((0, 2**20))))
    return stack


def _prompts(stream: random.Random) -> list[tuple[int, ...]]:
    """Return two prompts, of one length or of two."""
    lengths = stream.choice(((3, 3), (4, 2)))
    return [tuple(stream.randrange(VOCABULARY) for _ in range(length)) for length in lengths]


@torch.no_grad()
def _lean(stream: random.Random) -> bool:
    """Return whether logits are those of whole rows: of prompts, of rows made of them, and after some are dropped."""
    form, prompts = Form(stream), _prompts(stream)
    with _read_as(form, stream):
        decoder = LeanDecoder(form.model, 3)
    rows = [[*prompts[one], *(stream.randrange(VOCABULARY) for _ in range(3))] for one in (0, 1, 0)]
    due = [form.logits(row)[-4:].float() for row in rows]
    kept = [0, 1]
    found = [(decoder.prefill(pad_prompts(prompts, 7, torch.device("cpu"))), kept)]
    decoder.expand(torch.tensor([0, 1, 0]))
    for step in range(3):
        kept = [0, 1, 2] if step < 2 else [2, 1]
        if step == 2:
            decoder.keep(torch.tensor(kept))
        found.append((decoder.step(torch.tensor([rows[row][step - 3] for row in kept])), kept))
    return all(
        torch.allclose(logits, torch.stack([due[row][step] for row in of]), rtol=1e-4, atol=1e-4)
        for step, (logits, of) in enumerate(found)
    )


def _blocks(stream: random.Random) -> bool:
    """Return whether tokens of blocks, of two calls, have the chances of whole rows; the second call is the smaller."""
    form = Form(stream)
    decoder = StaticDecoder(form.model, block_tokens=2, captures=False)
    if stream.random() < 0.5:
        decoder._ops = DeviceOps()
    with _read_as(form, stream), torch.no_grad():
        for number in (3, 2):
            prompts, of = _prompts(stream), torch.tensor([0, 1, 0][:number])
            uniforms = torch.rand(number, 4, dtype=torch.float64, generator=form.stream)
            padded = pad_prompts(prompts, 7, torch.device("cpu"))
            decoder.start(padded, of, uniforms, SamplingParams(max_new_tokens=4))
            decoder.run(1)
            early = decoder.sampled(0)
            kept = [number - 1, 1][: number - 1]
            decoder.keep(kept)
            decoder.run(2)
            late = decoder.sampled(2)
            for column, row in enumerate(kept):
                ids = [*(line[row] for line in early[0]), *(line[column] for line in late[0])]
                found = torch.cat([early[1][:, row], late[1][:, column]])
                prompt = prompts[int(of[row])]
                due = form.logits([*prompt, *ids])[len(prompt) - 1 : -1].log_softmax(-1)
                own = due.gather(1, torch.tensor(ids)[:, None])[:, 0]
                upper = due.exp().cumsum(1).gather(1, torch.tensor(ids)[:, None])[:, 0]
                is_drawn = (upper - own.exp() - 1e-4 <= uniforms[row]) & (uniforms[row] <= upper + 1e-4)
                if not (bool(is_drawn.all()) and torch.allclose(found, own.float(), atol=1e-4)):
                    return False
    return True
