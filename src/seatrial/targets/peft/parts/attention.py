"""Adaption prompts: each of the last layers attends to a prompt of its own, through a gate that begins at zero."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.adapter_parts import Use
from seatrial.relations.not_served import NotServed
from seatrial.targets.peft.generated import generated
from seatrial.targets.peft.parts.shared import drawn, greedy, logits_of, reloaded

IDS_BS = ((5, 9, 7, 30, 11), (8, 4, 21, 3, 6))
HEADS, WIDTH, LENGTH = 4, 32, 3
FAMILIES = ("Llama", "Mistral")
BASE = 10000.0
"""Of the rotary embedding."""


def _plain(family: str) -> Any:
    import transformers

    library: Any = transformers
    sizes = {
        "vocab_size": 48, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": HEADS, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = getattr(library, f"{family}ForCausalLM")(getattr(library, f"{family}Config")(**sizes))
        with torch.no_grad():
            for value in model.parameters():
                value.mul_(10 if value.dim() > 1 else 1)
    return model.eval()


def _ids() -> Tensor:
    return torch.tensor(IDS_BS)


def _config(layers: int) -> Any:
    import peft

    return peft.AdaptionPromptConfig(adapter_len=LENGTH, adapter_layers=layers, task_type="CAUSAL_LM")


def _draw(model: Any, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Draw the prompts that are in use; return (prompt, gate) of each layer."""
    found = []
    with torch.no_grad():
        layers = [layer for layer in model.modules() if hasattr(layer, "adaption_prompt")]
        for number, layer in enumerate(layers):
            layer.adaption_prompt.copy_(drawn(seed + number, *layer.adaption_prompt.shape))
            layer.adaption_gate.fill_(0.5 + number)
            found.append((layer.adaption_prompt[0].clone(), layer.adaption_gate.clone()))
    return found


def _rotated(x_BHSD: Tensor) -> Tensor:
    """Return queries turned by their position (Su et al., 2021), halves as pairs."""
    size = x_BHSD.shape[-1]
    rates_D = BASE ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles_SD = torch.arange(x_BHSD.shape[2], dtype=torch.float64)[:, None] * rates_D
    cos_SD, sin_SD = angles_SD.cos().float(), angles_SD.sin().float()
    first, second = x_BHSD.chunk(2, dim=-1)
    return torch.cat([first * cos_SD - second * sin_SD, second * cos_SD + first * sin_SD], dim=-1)


def _attends(layer: Any, prompt_LD: Tensor, gate: Tensor) -> Callable[[Tensor], Tensor]:
    """Return what a layer's attention adds (Zhang et al., 2023, section 3.2)."""

    def add(x_BSD: Tensor) -> Tensor:
        queries = layer.q_proj(x_BSD).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        keys, values = (
            part(prompt_LD).unflatten(-1, (-1, queries.shape[-1])).transpose(0, 1)
            for part in (layer.k_proj, layer.v_proj)
        )
        keys, values = (one.repeat_interleave(HEADS // len(one), dim=0) for one in (keys, values))
        scores = _rotated(queries) @ keys.transpose(1, 2) / math.sqrt(queries.shape[-1])
        made: Tensor = layer.o_proj((gate * scores.softmax(-1) @ values).transpose(1, 2).flatten(2))
        return made

    return add


def _right(family: str, tensors: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    model = _plain(family)
    for layer, (prompt_LD, gate) in zip(model.model.layers[-len(tensors) :], tensors, strict=True):
        add = _attends(layer.self_attn, prompt_LD, gate)
        layer.self_attn.register_forward_hook(
            lambda layer, given, options, made, add=add: (
                made[0] + add(options["hidden_states"] if "hidden_states" in options else given[0]),
                *made[1:],
            ),
            with_kwargs=True,
        )
    return logits_of(model, _ids(), use_cache=False)


def in_attention(seed: int) -> Sequence[Use]:
    """Return uses of adaption prompts."""
    import peft

    def adapted(family: str, layers: int) -> Any:
        try:
            return peft.get_peft_model(_plain(family), _config(layers)).eval()
        except AttributeError as error:
            raise NotServed(
                f"the attention of the installed Transformers has no such name: {error}"
            ) from error

    def made(family: str, layers: int) -> tuple[Any, list[tuple[Tensor, Tensor]]]:
        model = adapted(family, layers)
        return model, _draw(model, seed)

    def outputs(family: str, layers: int) -> tuple[Any, Any]:
        model, tensors = made(family, layers)
        return logits_of(model, _ids(), use_cache=False), _right(family, tensors)

    def begins() -> tuple[Any, Any]:
        model = adapted("Llama", 2)
        return logits_of(model, _ids()), logits_of(_plain("Llama"), _ids())

    def several() -> tuple[Any, Any]:
        model, first = made("Llama", 2)
        found = []
        model.add_adapter("second", _config(1))
        found.append(logits_of(model, _ids()))
        model.set_adapter("second")
        second = _draw(model, seed + 50)
        found.append(logits_of(model, _ids()))
        model.set_adapter("default")
        found.append(logits_of(model, _ids()))
        with model.disable_adapter():
            found.append(logits_of(model, _ids()))
        found.append(logits_of(model, _ids()))
        one, other = _right("Llama", first), _right("Llama", second)
        return found, [one, other, one, logits_of(_plain("Llama"), _ids()), one]

    def loaded() -> tuple[Any, Any]:
        model, tensors = made("Llama", 2)
        return logits_of(reloaded(model, _plain("Llama")), _ids()), _right("Llama", tensors)

    def generates() -> tuple[Any, Any]:
        model, _ = made("Llama", 2)
        logits_BNV, _ = generated(model, _ids(), torch.ones_like(_ids()), 3)
        return logits_BNV, greedy(model, _ids(), 3, use_cache=False)

    def trains() -> tuple[Any, Any]:
        model, _ = made("Llama", 2)
        ids_BS = _ids()
        model.train()(input_ids=ids_BS, labels=ids_BS).loss.backward()
        found = {
            name.rpartition(".")[2] for name, value in model.named_parameters() if value.grad is not None
        }
        return found, {"adaption_prompt", "adaption_gate"}

    uses: list[Use] = [
        (f"{family}, the last {layers} layers", lambda family=family, layers=layers: outputs(family, layers))  # type: ignore[misc]
        for family in FAMILIES
        for layers in (1, 2, 3)
    ]
    return [
        *uses,
        ("before training", begins),
        ("several, and none", several),
        ("saved and loaded", loaded),
        ("generated", generates),
        ("what trains", trains),
    ]
