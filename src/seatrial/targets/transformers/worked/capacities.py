"""Worked examples of layers whose experts have a number of places: tokens that find none get nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row

WIDTH, NUM_TOKENS = 8, 6
SIZES: Mapping[str, Any] = {
    "d_model": WIDTH, "d_ff": 16, "d_kv": 4, "num_heads": 2, "num_experts": 3, "vocab_size": 32, "dropout_rate": 0.0,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "activation_dropout": 0.0, "moe_token_dropout": 0.0,
    "router_dtype": "float32", "router_jitter_noise": 0.0, "second_expert_policy": "all",
}  # fmt: skip
"""Of a configuration that has an option of the name."""


def _layer(
    layer_class: Any, config_name: str, capacity: int, arguments: Sequence[Any], **options: Any
) -> Any:
    """Return a layer of experts with places, whose weights are those of a seed."""
    config_class: Any = find_name("transformers", [f"transformers:{config_name}"])
    known = config_class().to_dict()
    given = {name: value for name, value in SIZES.items() if name in known}
    config = config_class(**{**given, "expert_capacity": capacity, **options})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = layer_class(config, *arguments).float()
        for value in layer.parameters():
            torch.nn.init.normal_(value, std=0.5)
    return layer


def _given(layer: Any, rows: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        found = layer(rows)
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output


def _tokens(*shape: int) -> Tensor:
    return torch.randn(*shape, WIDTH, generator=torch.Generator().manual_seed(4))


def _equal_tokens(
    layer_class: Any, config_name: str, arguments: Sequence[Any] = (), **options: Any
) -> list[str]:
    """Return what is wrong with equal tokens, which go to the same experts: as many as there are places get output."""
    wrong = []
    rows = _tokens(1, 1).expand(1, NUM_TOKENS, WIDTH).contiguous()
    for trains in (False, True):
        whole = _given(
            _layer(layer_class, config_name, NUM_TOKENS, arguments, **options).train(trains), rows
        )[0]
        for capacity in (1, 2, NUM_TOKENS):
            layer = _layer(layer_class, config_name, capacity, arguments, **options).train(trains)
            found = _given(layer, rows)[0]
            served = int((found.abs().amax(dim=1) > 0).sum())
            where = f"{capacity} places, {'in training' if trains else 'evaluated'}"
            if served != capacity:
                wrong.append(f"{where}: {served} tokens get something")
            elif not torch.allclose(found[:capacity], whole[:capacity], atol=1e-5):
                wrong.append(f"{where}: tokens with a place get something else")
    return wrong


def _equal_tokens_of_two(layer_class: Any) -> list[str]:
    """Return the same of a layer whose tokens go to two experts, and which counts places in evaluation too."""
    return _equal_tokens(layer_class, "NllbMoeConfig", (2 * WIDTH,), moe_eval_capacity_token_fraction=-1.0)


def _rows_apart(layer_class: Any) -> list[str]:
    """Return which tokens of several rows do not get what the first tokens of their row with their expert get."""
    whole = _layer(layer_class, "SwitchTransformersConfig", NUM_TOKENS, ())
    rows = _tokens(3, NUM_TOKENS)
    with torch.no_grad():
        chosen = whole.router.classifier(rows).argmax(dim=-1)
    due, wrong = _given(whole, rows), []
    for capacity in (1, 2):
        found = _given(_layer(layer_class, "SwitchTransformersConfig", capacity, ()), rows)
        for row in range(len(rows)):
            for place, expert in enumerate(chosen[row]):
                has_place = int((chosen[row, :place] == expert).sum()) < capacity
                right = due[row, place] if has_place else torch.zeros(WIDTH)
                if not torch.allclose(found[row, place], right, atol=1e-5):
                    wrong.append(f"{capacity} places, row {row}, token {place}")
    return wrong


SWITCH = "transformers.models.switch_transformers.modeling_switch_transformers:SwitchTransformersSparseMLP"
NLLB = "transformers.models.nllb_moe.modeling_nllb_moe:NllbMoeSparseMLP"
LOST = KnownFailure(
    "tokens before are summed over a dimension of one, so that none is left out",
    finding="Transformers: places of an expert",
    releases=between("transformers", "5", "5.18"),
)
# Sources: Fedus et al. 2021 (Switch Transformers), section 2.2; Costa-jussà et al. 2022 (NLLB), section 6.2.
CAPACITY_ROWS: Sequence[Row] = (
    Row("calls", SWITCH, "tokens that find no place", partial(_equal_tokens, config_name="SwitchTransformersConfig"),
        [], since="4.52", known=LOST),
    Row("calls", SWITCH, "places of each row", _rows_apart, [], since="4.52", known=LOST),
    Row("calls", NLLB, "tokens that find no place with two experts", _equal_tokens_of_two, [], since="5"),
)  # fmt: skip
