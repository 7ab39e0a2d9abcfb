"""Worked examples of Transformers' weights that are tied, shared by parts, merged from experts, or have old names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.weights import (
    BERT,
    CAUSAL,
    SIZES,
    T5,
    llama,
    rewrite,
    same,
    saved,
    tensors,
)


def _tied(model_class: Any) -> list[Any]:
    """Return names of a tied model's files, what is read with either name, and of two that differ."""
    model = llama(tie_word_embeddings=True)
    names = sorted(name for name in tensors(saved(model)) if "embed" in name or "head" in name)
    found: list[Any] = [names, model.lm_head.weight is model.model.embed_tokens.weight]
    values = dict(model.state_dict())
    for gone in ("lm_head.weight", "model.embed_tokens.weight"):
        path = rewrite(saved(model), {name: value for name, value in values.items() if name != gone})
        read, said = model_class.from_pretrained(path, output_loading_info=True)
        is_tied = read.lm_head.weight is read.model.embed_tokens.weight
        found.append([is_tied, same(read, model), sorted(said["missing_keys"])])
    path = rewrite(saved(model), {**values, "lm_head.weight": values["lm_head.weight"] + 1})
    read = model_class.from_pretrained(path)
    return [*found, [read.lm_head.weight is read.model.embed_tokens.weight, same(read, model)]]


def _untied(model_class: Any) -> list[Any]:
    """Return whether a head of its own stays one: of its files, of its configuration, and after another is tied."""
    model = llama(tie_word_embeddings=False)
    read = model_class.from_pretrained(saved(model))
    found: list[Any] = [read.lm_head.weight is read.model.embed_tokens.weight, same(read, model)]
    read.config.tie_word_embeddings = True
    read.tie_weights()
    return [*found, read.lm_head.weight is read.model.embed_tokens.weight, same(read.model, model.model)]


def _shared(model_class: Any) -> list[Any]:
    """Return how the parts of a T5 share weights after a reload, where the head is shared and where it is not."""
    model = made_model(model_class, of_name("T5Config")(**T5), 0)
    names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
    own = {**model.state_dict(), "lm_head.weight": model.lm_head.weight + 1}
    found = []
    for values in (model.state_dict(), own):
        values = {name: value.clone() for name, value in values.items()}
        read = model_class.from_pretrained(rewrite(saved(model), values))
        shares = [read.get_parameter(name) is read.shared.weight for name in names]
        found.append([*shares, same(read, values), sorted({*names} & {*tensors(saved(read))})])
    return found


def _experts(names: Mapping[str, str], model_class: Any) -> list[str]:
    """Return where experts of files are not in their places: by number, each matrix, in every layer."""
    kind, size = ("Mixtral", "num_local_experts") if "w1" in names["gate"] else ("Qwen3Moe", "num_experts")
    config = of_name(f"{kind}Config")(
        **SIZES,
        **{size: 12},
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        head_dim=4,
        decoder_sparse_step=1,
    )
    model = made_model(of_name(f"{kind}ForCausalLM"), config, 0).eval()
    if not any("gate_up_proj" in name for name in model.state_dict()):
        raise NotServed("experts of this release are modules of their own")
    written = tensors(saved(model))
    due = {names[one].format(layer, expert) for one in names for layer in range(2) for expert in range(12)}
    wrong = [f"{name} is not written" for name in sorted(due - {*written})][:2]
    rng = torch.Generator().manual_seed(0)
    values = {name: torch.randn(value.shape, generator=rng) for name, value in written.items()}
    read, said = type(model).from_pretrained(rewrite(saved(model), values), output_loading_info=True)
    wrong += [f"{name} is missing" for name in said["missing_keys"]]
    for layer in range(2):
        own = {name: value for name, value in read.state_dict().items() if f"layers.{layer}." in name}
        (table,) = [value for name, value in own.items() if "gate_up_proj" in name]
        (down,) = [value for name, value in own.items() if "experts.down_proj" in name]
        for expert in range(12):
            right = {one: values[name.format(layer, expert)] for one, name in names.items()}
            whole = torch.cat([right["gate"], right["up"]])
            if not (torch.equal(table[expert], whole) and torch.equal(down[expert], right["down"])):
                wrong.append(f"layer {layer}, expert {expert}")
    again = tensors(saved(read))
    return [*wrong[:3], *same(again, values)[:3]]


MIXTRAL = {
    one: f"model.layers.{{}}.block_sparse_moe.experts.{{}}.{name}.weight"
    for one, name in (("gate", "w1"), ("up", "w3"), ("down", "w2"))
}


QWEN = {one: f"model.layers.{{}}.mlp.experts.{{}}.{one}_proj.weight" for one in ("gate", "up", "down")}


def _old_names(model_class: Any) -> list[Any]:
    """Return what differs of a BERT whose files have names of old norms, and of one whose head has its own copy."""
    model = made_model(of_name("BertForMaskedLM"), of_name("BertConfig")(**BERT), 0)
    values = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in model.state_dict().items()
        if not name.startswith("cls.predictions.decoder")
    }
    found, said = type(model).from_pretrained(rewrite(saved(model), values), output_loading_info=True)
    return [same(found, model), sorted(said["missing_keys"]), sorted(said["unexpected_keys"])]


TIED_ROWS: Sequence[Row] = (
    Row(
        "states",
        CAUSAL,
        "a tied head",
        _tied,
        [
            ["model.embed_tokens.weight"],
            True,
            [True, [], []],
            [True, [], []],
            [False, ["lm_head.weight"]],
        ],
        since="5",
    ),
    Row("states", CAUSAL, "a head of its own", _untied, [False, [], True, []], since="4.56"),
    Row(
        "states",
        "transformers:T5ForConditionalGeneration",
        "parts that share",
        _shared,
        [[True, True, True, [], []], [True, True, False, [], ["lm_head.weight"]]],
        since="5.8",
    ),
    Row("states", CAUSAL, "experts of Mixtral's files", partial(_experts, MIXTRAL), [], since="5"),
    Row("states", CAUSAL, "experts of Qwen's files", partial(_experts, QWEN), [], since="5"),
    Row("states", CAUSAL, "names of old norms", _old_names, [[], [], []], since="4.56"),
)
