"""Calls of small methods and functions of Transformers' models, whose results are on record; see `recorded_calls`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import made_model
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.calls_loading import CAUSAL, IDS, UTILITIES, of_two_parts
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of
from seatrial.targets.transformers.worked.weights import BERT, T5, llama, same, saved


def _attentions(model_class: Any) -> Any:
    """Return kinds of attention of a whole and its parts that are set later, by one name and by part."""
    model = model_class._from_config(of_two_parts(), attn_implementation="eager")
    found: list[Any] = []

    def seen() -> list[str]:
        parts = (model.config, model.config.text_config, model.config.vision_config,
                 model.model.language_model.layers[0].self_attn.config)  # fmt: skip
        return [one._attn_implementation for one in parts]

    for given in (None, "sdpa", {"vision_config": "eager"}, {"text_config": "eager", "vision_config": "sdpa"}, "eager",
                  {"": "sdpa"}):  # fmt: skip
        if given is not None:
            model.set_attn_implementation(given)
        found.append(seen())
    return [*found, refusal(lambda: model.set_attn_implementation("none-such")), seen(),
            refusal(lambda: model.set_attn_implementation("flash_attention_2")), seen()]  # fmt: skip


def _small(model_class: Any) -> Any:
    """Return what small methods of a model give: parts by name, tags, decoders, parameters, types and devices."""
    model = llama()
    model.add_model_tags("one")
    model.add_model_tags(["two", "three", "one"])
    encoder = of_name("BertModel")(of_name("BertConfig")(**BERT))
    t5 = of_name("T5ForConditionalGeneration")(of_name("T5Config")(**T5))
    weight = model.get_parameter_or_buffer("model.layers.1.mlp.up_proj.weight")
    found: list[Any] = [
        model.model_tags, model.can_generate(), encoder.can_generate(), t5.can_generate(),
        type(model.get_decoder()).__name__, type(t5.get_decoder()).__name__, type(t5.get_encoder()).__name__,
        weight is model.model.layers[1].mlp.up_proj.weight, model.base_model is model.model,
        encoder.base_model is encoder, refusal(lambda: model.get_parameter_or_buffer("model.none")),
        sorted(type(model).dummy_inputs.fget(model)) if isinstance(type(model).dummy_inputs, property) else [],
        refusal(lambda: model.get_position_embeddings()), refusal(lambda: model.resize_position_embeddings(9)),
    ]  # fmt: skip
    names = ["model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight"]
    if hasattr(model, "retrieve_modules_from_names"):
        found.append([type(one).__name__ for one in model.retrieve_modules_from_names(names)])
    own = nn.Linear(2, 2)
    if hasattr(model, "set_decoder"):
        model.set_decoder(own)
        found.append(model.model is own)
    return found


def _pruned_heads(model_class: Any) -> Any:
    """Return sizes and outputs of a BERT without heads, before and after a reload."""
    model = made_model(model_class, of_name("BertConfig")(**BERT), 0).eval()
    if not hasattr(model, "prune_heads"):
        raise NotServed("models of this release prune no heads")
    mask = torch.ones(2, 4)
    mask[0, 1] = mask[1, 0] = mask[1, 3] = 0
    with torch.no_grad():
        right = model(IDS, head_mask=mask).last_hidden_state
    model.prune_heads({0: [1], 1: [0, 3]})
    with torch.no_grad():
        found = model(IDS).last_hidden_state
    read = model_class.from_pretrained(saved(model))
    return [bool((found - right).abs().max() < 1e-5), model.config.pruned_heads, same(read, model),
            list(read.encoder.layer[1].attention.self.query.weight.shape)]  # fmt: skip


def _joined(model_class: Any) -> Any:
    """Return what an encoder and a decoder share, with and without the option, before and after a reload."""
    found: list[Any] = []
    for tied in (True, False):
        bert = of_name("BertConfig")(**BERT)
        decoder = of_name("BertConfig")(**BERT, is_decoder=True, add_cross_attention=True)
        config = of_name("EncoderDecoderConfig").from_encoder_decoder_configs(bert, decoder)
        config.tie_encoder_decoder = tied
        model = made_model(model_class, config, 0)
        read = refusal(lambda model=model: model_class.from_pretrained(saved(model)))
        for one in (model, read):
            if isinstance(one, str):
                found.append(one)
                continue
            inner = one.decoder.bert
            pairs = [(inner.encoder.layer[0].output.dense, one.encoder.encoder.layer[0].output.dense),
                     (inner.embeddings.word_embeddings, one.encoder.embeddings.word_embeddings)]  # fmt: skip
            found.append([left.weight is right.weight for left, right in pairs] + [len(same(one, model))])
    return found


def _longer(model_class: Any) -> Any:
    """Return tables of places after a resize: of fixed ones and of trained ones."""
    found: list[Any] = []
    for kind, config, sizes in (
        ("PegasusModel", "PegasusConfig", {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 23,
         "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
         "max_position_embeddings": 12}),
        ("DistilBertModel", "DistilBertConfig", {"dim": 16, "hidden_dim": 16, "n_heads": 2, "n_layers": 1,
         "vocab_size": 23, "max_position_embeddings": 12}),
    ):  # fmt: skip
        for size in (9, 16):
            model = made_model(of_name(kind), of_name(config)(**sizes), 0)
            before = model.get_position_embeddings()
            before = before[0] if isinstance(before, tuple) else before
            kept = before.weight.detach().clone()
            model.resize_position_embeddings(size)
            after = model.get_position_embeddings()
            after = after[0] if isinstance(after, tuple) else after
            few = min(size, 12)
            found.append([list(after.weight.shape), bool(torch.allclose(after.weight[:few], kept[:few])),
                          model.config.max_position_embeddings])  # fmt: skip
    return found


def _sharded(function: Any) -> Any:
    """Return what is said of names, and what differs, of shards that are read into a model."""
    model, fresh = llama(), llama(rope_theta=3.0)
    path = saved(model, max_shard_size="4KB")
    with torch.no_grad():
        for value in fresh.parameters():
            value.zero_()
    said = function(fresh, str(path))
    other = llama(num_hidden_layers=3)
    loose = function(other, str(path), strict=False)
    return [same(fresh, model), list(said.missing_keys), len(loose.missing_keys), list(loose.unexpected_keys),
            refusal(lambda: str(function(other, str(path))))]  # fmt: skip


def _state(function: Any) -> Any:
    path, model = saved(llama()), llama()
    file = str(path / "model.safetensors")
    found = [same(function(file), model)]
    torch.save(model.state_dict(), path / "x.bin")
    found.append(same(function(str(path / "x.bin")), model))
    meta = function(file, map_location="meta")
    return [*found, sorted({f"{one.device} {one.dtype}" for one in meta.values()})]


def _variants(function: Any) -> Any:
    return [function(name, variant) for name in ("model.safetensors", "model.safetensors.index.json", "a.b.bin")
            for variant in (None, "fp16")]  # fmt: skip


def _spread(function: Any) -> Any:
    names = ["a.b.w", "a.c", "ab.w", "d", "a.b"]
    return [function(dict(one), names) for one in ({"": "cpu"}, {"a": 0, "a.b": "disk", "ab": 1, "d": "cpu"})]


def _only(function: Any) -> Any:
    weights = {"a.w": "one", "b.w": "two", "c.w": "two", "d.w": "three"}
    return [sorted(function(dict(one), weights)) for one in (
        {"a": "disk", "b": "disk", "c": "cpu", "d": "disk"}, {"": "disk"}, {"": "cpu"})]  # fmt: skip


def _overlaps(function: Any) -> Any:
    whole = numbers(12)
    state = {"a": whole[:4], "b": whole[4:8], "c": whole[6:], "d": whole.clone(), "e": whole[:4]}
    found = function([{"a", "b", "c"}, {"a", "e"}, {"a", "b"}], state)
    return [sorted(map(sorted, found[0])), sorted(found[1])]


def _identical(function: Any) -> Any:
    whole = numbers(12)
    state = {"a": whole, "b": whole.view(3, 4), "c": whole[:4], "d": whole[:4]}
    return [sorted(map(sorted, one)) for one in function([{"a", "b"}, {"c", "d"}, {"a", "c"}], state)]


def _first(function: Any) -> Any:
    mixed = nn.Sequential(nn.Linear(2, 2).half(), nn.Linear(2, 2))
    whole = nn.Sequential(nn.Embedding(2, 2).bfloat16())
    counts = nn.Module()
    counts.register_buffer("count", torch.zeros(1, dtype=torch.int64))
    return [str(function(one)) for one in (mixed, whole, counts, llama().double())]


def _unwrapped(function: Any) -> Any:
    model = llama()
    one = nn.DataParallel(model)
    return [function(one) is model, function(model) is model, function(one, recursive=True) is model]


CALLS: Sequence[Call] = (
    Call("models", "transformers:Gemma3ForConditionalGeneration", "kinds of attention of parts", _attentions),
    Call("models", CAUSAL, "small methods", _small),
    Call("models", "transformers:BertModel", "heads that are pruned", _pruned_heads),
    Call("models", "transformers:EncoderDecoderModel", "weights that both halves share", _joined),
    Call("models", "transformers:PreTrainedModel", "tables of places that are resized", _longer),
    Call("states", f"{UTILITIES}:load_sharded_checkpoint", "shards", _sharded),
    Call("states", f"{UTILITIES}:load_state_dict", "files", _state),
    Call("states", f"{UTILITIES}:_add_variant", "names of files", _variants),
    Call("states", f"{UTILITIES}:expand_device_map transformers.integrations.accelerate:expand_device_map", "places",
         _spread),
    Call("states", f"{UTILITIES}:get_disk_only_shard_files", "files on disk alone", _only),
    Call("states", f"{UTILITIES}:_find_disjoint", "parts of a tensor", _overlaps),
    Call("states", f"{UTILITIES}:_find_identical", "the same tensor", _identical),
    Call("states", f"{UTILITIES}:get_parameter_dtype", "types of modules", _first),
    Call("states", f"{UTILITIES}:unwrap_model", "models that are wrapped", _unwrapped),
)  # fmt: skip
MODEL_CALL_ROWS = rows_of(CALLS)
