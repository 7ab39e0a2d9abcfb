"""A dense decoder with its gradient, in float64 numpy: Llama and Qwen3 from their papers and configuration files.

One row at a time, without padding or a cache, and without importing torch, which costs a trial more than the model
does. A unit test compares it with transformers.

Shapes: S positions, D width, H query heads, K key heads, R query heads of a key head, A width of a head, V vocabulary.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.weights import StoredTensor

Array = npt.NDArray[np.float64]
FAMILIES = frozenset({"llama", "qwen3"})
MOST_PARAMETERS = 20_000_000
"""Of a model that is computed here; larger ones take too long in float64."""
_OWN_TRAITS: Mapping[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
}
"""Values of options with which a model is one that is computed here."""


def why_not(facts: Mapping[str, Any], folder: Path) -> str | None:
    """Return why a model is not computed here; None where it is."""
    if facts.get("model_type") not in FAMILIES:
        return f"a model of type {facts.get('model_type')}"
    for name, values in _OWN_TRAITS.items():
        if name in facts and facts[name] not in values:
            return f"{name}={facts[name]}"
    if (facts.get("rope_parameters") or {}).get("rope_type", "default") != "default":
        return f"rope_parameters={facts['rope_parameters']}"
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return f"a model of {size / 1e6:.0f} MB" if size > 4 * MOST_PARAMETERS else None


class Decoder:
    """A model, with the sum of the gradients of the rows that went back through it."""

    def __init__(self, tensors: Mapping[str, StoredTensor], facts: Mapping[str, Any]) -> None:
        """Read the weights; `why_not` must say nothing about their model."""
        self._weights = {name: tensor.read().astype(np.float64) for name, tensor in tensors.items()}
        self._gradients: dict[str, Any] = defaultdict(float)
        self._heads = int(facts["num_attention_heads"])
        self._key_heads = int(facts.get("num_key_value_heads") or self._heads)
        self._width = int(facts.get("head_dim") or facts["hidden_size"] // self._heads)
        self._epsilon = float(facts.get("rms_norm_eps", 1e-6))
        rope = facts.get("rope_parameters") or {}
        theta = float(rope.get("rope_theta", facts.get("rope_theta", 10000.0)))
        self._frequencies_A = theta ** (-np.arange(0, self._width, 2) / self._width)
        self._layers = int(facts["num_hidden_layers"])
        self._padding = facts.get("pad_token_id")
        self._embedding = "model.embed_tokens.weight"
        self._head = self._embedding if facts.get("tie_word_embeddings") else "lm_head.weight"
        self._tape: list[Any] = []

    def logits(self, row: LedgerRow) -> Array:
        """Return logits_SV of a row; `backward` takes the gradient of the row that was last computed.

        Raises:
            BlockedError: the row holds a token that the model does not have; a law of the ledger fails it.
        """
        tape: list[Any] = []
        ids, size = list(row.token_ids or ()), len(self._weights[self._embedding])
        if any(not 0 <= one < size for one in ids):
            raise BlockedError(f"{row.where()} holds a token outside of the model's {size}")
        x_SD = self._weights[self._embedding][ids]
        for number in range(self._layers):
            layer = f"model.layers.{number}."
            x_SD = x_SD + self._attend(layer, self._norm(f"{layer}input_layernorm", x_SD, tape), tape)
            x_SD = x_SD + self._feed(layer, self._norm(f"{layer}post_attention_layernorm", x_SD, tape), tape)
        x_SD = self._norm("model.norm", x_SD, tape)
        self._tape = [ids, x_SD, tape]
        return x_SD @ self._weights[self._head].T

    def backward(self, gradient_SV: Array, balance: float = 0.0) -> None:
        """Add the gradient of the row that was last computed; there are no routers, so `balance` has no effect."""
        ids, x_SD, tape = self._tape
        self._gradients[self._head] += gradient_SV.T @ x_SD
        d_SD = self._norm_back(gradient_SV @ self._weights[self._head], tape)
        for _ in range(self._layers):
            d_SD = d_SD + self._norm_back(self._feed_back(d_SD, tape), tape)
            d_SD = d_SD + self._norm_back(self._attend_back(d_SD, tape), tape)
        embedded_VD = np.zeros_like(self._weights[self._embedding])
        np.add.at(embedded_VD, ids, d_SD)
        if self._padding is not None:
            embedded_VD[self._padding] = 0.0  # Hugging Face's embeddings do not train the padding token
        self._gradients[self._embedding] += embedded_VD

    def norms(self) -> dict[str, float]:
        """Return the norm of each weight's gradient."""
        return {name: float(np.sqrt((value**2).sum())) for name, value in self._gradients.items()}

    def trained(self) -> dict[str, tuple[Array, Array]]:
        """Return each weight that trains with the sum of its gradients."""
        return {name: (self._weights[name], value) for name, value in self._gradients.items()}

    def move(self, weights: Mapping[str, Array]) -> None:
        """Set weights, and begin with gradients of zero."""
        self._weights |= weights
        self._gradients.clear()

    def routed(self) -> dict[str, float]:
        """Return nothing: there are no routers."""
        return {}

    def _norm(self, name: str, x: Array, tape: list[Any]) -> Array:
        weight = self._weights[f"{name}.weight"]
        scale = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + self._epsilon)
        tape.append((name, x, scale))
        normed: Array = x * scale * weight
        return normed

    def _norm_back(self, d: Array, tape: list[Any]) -> Array:
        name, x, scale = tape.pop()
        weight = self._weights[f"{name}.weight"]
        self._gradients[f"{name}.weight"] += (d * x * scale).reshape(-1, x.shape[-1]).sum(0)
        inner = (d * weight * x).mean(-1, keepdims=True)
        back: Array = scale * d * weight - x * scale**3 * inner
        return back

    def _linear(self, name: str, x_SD: Array, tape: list[Any]) -> Array:
        tape.append((name, x_SD))
        mapped: Array = x_SD @ self._weights[f"{name}.weight"].T
        return mapped

    def _linear_back(self, d: Array, tape: list[Any]) -> Array:
        name, x_SD = tape.pop()
        self._gradients[f"{name}.weight"] += d.T @ x_SD
        back: Array = d @ self._weights[f"{name}.weight"]
        return back

    def _turned(self, x_SHA: Array, sign: int) -> Array:
        """Return the rotary embedding of queries or keys, or with sign -1 its inverse."""
        angles_SA = np.arange(len(x_SHA))[:, None] * self._frequencies_A
        cosine, sine = np.cos(angles_SA)[:, None], sign * np.sin(angles_SA)[:, None]
        left, right = np.split(x_SHA, 2, axis=-1)
        return np.concatenate([left * cosine - right * sine, right * cosine + left * sine], axis=-1)

    def _attend(self, layer: str, x_SD: Array, tape: list[Any]) -> Array:
        S, parts = len(x_SD), {}
        for part, heads in (("q", self._heads), ("k", self._key_heads), ("v", self._key_heads)):
            values = self._linear(f"{layer}self_attn.{part}_proj", x_SD, tape).reshape(S, heads, self._width)
            if f"{layer}self_attn.{part}_norm.weight" in self._weights:
                values = self._norm(f"{layer}self_attn.{part}_norm", values, tape)
            parts[part] = values if part == "v" else self._turned(values, 1)
        q_SKRA = parts["q"].reshape(S, self._key_heads, -1, self._width) / np.sqrt(self._width)
        scores = np.einsum("skra,tka->krst", q_SKRA, parts["k"])
        scores = np.where(np.tril(np.ones((S, S), dtype=bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        tape.append((q_SKRA, parts["k"], parts["v"], weights))
        attended = np.einsum("krst,tka->skra", weights, parts["v"]).reshape(S, -1)
        return self._linear(f"{layer}self_attn.o_proj", attended, tape)

    def _attend_back(self, d_SD: Array, tape: list[Any]) -> Array:
        d_SD = self._linear_back(d_SD, tape)
        q_SKRA, k_SKA, v_SKA, weights = tape.pop()
        d_SKRA = d_SD.reshape(q_SKRA.shape)
        backs = {"v": np.einsum("krst,skra->tka", weights, d_SKRA)}
        d_weights = np.einsum("skra,tka->krst", d_SKRA, v_SKA)
        d_scores = weights * (d_weights - (weights * d_weights).sum(-1, keepdims=True))
        backs["k"] = np.einsum("krst,skra->tka", d_scores, q_SKRA)
        d_q = np.einsum("krst,tka->skra", d_scores, k_SKA) / np.sqrt(self._width)
        backs["q"] = d_q.reshape(len(d_SD), self._heads, self._width)
        total: Any = 0.0
        for part in ("v", "k", "q"):
            back = backs[part] if part == "v" else self._turned(backs[part], -1)
            if str(tape[-1][0]).endswith(f"{part}_norm"):
                back = self._norm_back(back, tape)
            total = total + self._linear_back(back.reshape(len(d_SD), -1), tape)
        summed: Array = total
        return summed

    def _feed(self, layer: str, x_SD: Array, tape: list[Any]) -> Array:
        gate = self._linear(f"{layer}mlp.gate_proj", x_SD, tape)
        up = self._linear(f"{layer}mlp.up_proj", x_SD, tape)
        tape.append((gate, up))
        return self._linear(f"{layer}mlp.down_proj", gate / (1 + np.exp(-gate)) * up, tape)

    def _feed_back(self, d_SD: Array, tape: list[Any]) -> Array:
        d = self._linear_back(d_SD, tape)
        gate, up = tape.pop()
        open_ = 1 / (1 + np.exp(-gate))
        back = self._linear_back(d * gate * open_, tape)
        return back + self._linear_back(d * up * open_ * (1 + gate * (1 - open_)), tape)
