"""Worked examples of what Transformers' models save: shards, variants, tensors that are given; counts of weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.weights import (
    BERT,
    GPT2,
    SIZES,
    T5,
    folder,
    llama,
    same,
    saved,
    tensors,
)

INDEX = "model.safetensors.index.json"


def _files(path: Path) -> list[str]:
    return sorted(
        one.name for one in path.iterdir() if one.suffix == ".safetensors" or one.name.endswith("index.json")
    )


def _shards(model_class: Any) -> list[str]:
    """Return where files in shards are not those of the limit: their sizes, the index, and files of an earlier save."""
    wrong, model = [], llama()
    sizes = {name: value.numel() * 4 for name, value in model.state_dict().items()}
    path = folder()
    for limit, most in (("3KB", 3000), (6000, 6000), ("2KB", 2000), ("1MB", None)):
        model.save_pretrained(path, max_shard_size=limit)
        found = [name for name in _files(path) if name.endswith(".safetensors")]
        if most is None:
            # An index of an earlier save stays; what is read is the one file.
            wrong += [] if found == ["model.safetensors"] else [f"{limit}: {found}"]
            continue
        found = [name for name in found if name != "model.safetensors"]
        index = json.loads((path / INDEX).read_text())
        if {*index["weight_map"]} != {*sizes} or {*index["weight_map"].values()} != {*found}:
            wrong.append(f"{limit}: the index has other names than files")
        if index["metadata"]["total_size"] != sum(sizes.values()):
            wrong.append(f"{limit}: {index['metadata']}")
        count = index["metadata"].get("total_parameters")
        if count is not None and count != sum(sizes.values()) // 4:
            wrong.append(f"{limit}: {count} parameters")
        for file in found:
            own = [name for name, where in index["weight_map"].items() if where == file]
            if len(own) > 1 and sum(sizes[name] for name in own) > most:
                wrong.append(f"{limit}: {file} is of {sum(sizes[name] for name in own)} bytes")
        if len({one.rpartition("-of-")[2] for one in found}) != 1 or len(found) < 2:
            wrong.append(f"{limit}: {found}")
        read, said = model_class.from_pretrained(path, output_loading_info=True)
        wrong += [f"{limit}: {name} differs" for name in (*same(read, model), *said["missing_keys"])]
    return wrong[:4]


def _variants(model_class: Any) -> list[Any]:
    """Return files of a variant, in one file and in shards, and what is read with and without its name."""
    path = folder()
    plain, other = llama(), llama().double()
    with torch.no_grad():
        other.model.norm.weight.add_(1)
    plain.save_pretrained(path)
    other.float().save_pretrained(path, variant="other")
    found: list[Any] = [_files(path)]
    found += [
        float(model_class.from_pretrained(path, **options).model.norm.weight[0])
        for options in ({}, {"variant": "other"})
    ]
    whole = saved(other, variant="other", max_shard_size="8KB")
    names = _files(whole)
    found.append([names[0], all(".other" in name for name in names), len(names) > 2])
    found.append(same(model_class.from_pretrained(whole, variant="other"), other))
    try:
        model_class.from_pretrained(saved(plain), variant="none")
    except OSError as error:
        found.append("none" in str(error))
    return found


def _given(model_class: Any) -> list[Any]:
    """Return what is saved of tensors that are given, of views, and of a model that trains in part."""
    model = llama()
    state = {name: value + 1 for name, value in model.state_dict().items() if "layers" in name}
    written = tensors(saved(model, state_dict=dict(state)))
    model.model.norm.weight.data = torch.arange(32.0)[::2]
    model.lm_head.weight.data = torch.arange(16 * 23.0).reshape(16, 23).T
    model.requires_grad_(False)
    again = saved(model)
    return [same(written, state), same(tensors(again), model), model.training]


def _described(model_class: Any) -> list[Any]:
    """Return what configurations say of a saved model, whether they are read again, and the model is as it was."""
    model = llama(rope_theta=77.0, tie_word_embeddings=True, sliding=3)
    model.generation_config.temperature, model.generation_config.do_sample = 0.5, True
    model.config.use_cache = False
    path = saved(model.bfloat16())
    read = model_class.from_pretrained(path)
    own = json.loads((path / "config.json").read_text())
    made = json.loads((path / "generation_config.json").read_text())
    drop = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")
    before, after = (
        {name: value for name, value in one.config.to_dict().items() if name not in drop}
        for one in (model, read)
    )
    differs = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return [
        own.get("dtype", own.get("torch_dtype")), own["architectures"], own["sliding"], own["use_cache"], differs,
        made["temperature"], read.generation_config.temperature, read.generation_config.do_sample,
    ]  # fmt: skip


def _counts(model_class: Any) -> list[Any]:
    """Return numbers of weights: all, trainable, without embeddings, of a tied head, and bytes."""
    found = []
    for tied in (False, True):
        model = llama(tie_word_embeddings=tied)
        model.model.layers[0].requires_grad_(False)
        layer = sum(value.numel() for value in model.model.layers[0].parameters())
        table = 23 * 16
        whole = 2 * layer + 16 + table * (1 if tied else 2)
        frequencies = sum(value.numel() * value.element_size() for value in model.buffers())
        found += [
            model.num_parameters() - whole, model.num_parameters(only_trainable=True) - whole + layer,
            model.num_parameters(exclude_embeddings=True) - whole + table,
            model.num_parameters(True, True) - whole + layer + table,
            model.get_memory_footprint() - 4 * whole - frequencies,
            model.get_memory_footprint(return_buffers=False) - 4 * whole,
            model.bfloat16().get_memory_footprint(return_buffers=False) - 2 * whole,
        ]  # fmt: skip
    return found


def _converted(model_class: Any) -> list[Any]:
    """Return the types of a model after conversions, with its device."""
    model = llama()
    found = [str(model.half().dtype), str(model.float().dtype), str(model.to(torch.float64).dtype)]
    found += [str(model.to(dtype=torch.bfloat16).dtype), str(model.to("cpu").dtype), str(model.device)]
    return found


def _embeddings(model_class: Any) -> list[str]:
    """Return models whose tables of inputs and outputs are not those of their names, read and replaced."""
    wrong = []
    kinds = (
        ("LlamaForCausalLM", "LlamaConfig", SIZES, "model.embed_tokens", "lm_head"),
        ("LlamaModel", "LlamaConfig", SIZES, "embed_tokens", None),
        ("LlamaForSequenceClassification", "LlamaConfig", SIZES, "model.embed_tokens", None),
        ("GPT2LMHeadModel", "GPT2Config", GPT2, "transformer.wte", "lm_head"),
        ("BertForMaskedLM", "BertConfig", BERT, "bert.embeddings.word_embeddings", "cls.predictions.decoder"),
        ("BertModel", "BertConfig", BERT, "embeddings.word_embeddings", None),
        ("T5ForConditionalGeneration", "T5Config", T5, "shared", "lm_head"),
        ("T5EncoderModel", "T5Config", T5, "shared", None),
        ("OPTForCausalLM", "OPTConfig", {"hidden_size": 16, "word_embed_proj_dim": 16, "ffn_dim": 24, "vocab_size": 23,
         "num_hidden_layers": 1, "num_attention_heads": 4}, "model.decoder.embed_tokens", "lm_head"),
        ("BloomForCausalLM", "BloomConfig", {"hidden_size": 16, "n_layer": 1, "n_head": 4, "vocab_size": 23},
         "transformer.word_embeddings", "lm_head"),
        ("MambaForCausalLM", "MambaConfig", {"hidden_size": 16, "num_hidden_layers": 1, "vocab_size": 23},
         "backbone.embeddings", "lm_head"),
    )  # fmt: skip
    for kind, config, sizes, table, head in kinds:
        model = made_model(of_name(kind), of_name(config)(**sizes), 0)
        if model.get_input_embeddings() is not model.get_submodule(table):
            wrong.append(f"{kind}: other embeddings of inputs")
        outputs = model.get_output_embeddings()
        if outputs is not (None if head is None else model.get_submodule(head)):
            wrong.append(f"{kind}: other embeddings of outputs")
        own = nn.Embedding(23, 16)
        model.set_input_embeddings(own)
        if model.get_submodule(table) is not own or model.get_input_embeddings() is not own:
            wrong.append(f"{kind}: embeddings of inputs are not replaced")
        if head is not None:
            last = nn.Linear(16, 23)
            model.set_output_embeddings(last)
            if model.get_submodule(head) is not last:
                wrong.append(f"{kind}: embeddings of outputs are not replaced")
    return wrong[:4]


def _left_out(model_class: Any) -> list[Any]:
    """Return tensors that are saved of a class that leaves some out, and what is said of them after a reload."""

    class Leaving(model_class):  # type: ignore[misc]
        _keys_to_ignore_on_save = ["model.norm.weight"]  # noqa: RUF012
        _keys_to_ignore_on_load_missing = [r"model\.norm"]  # noqa: RUF012
        _keys_to_ignore_on_load_unexpected = [r"^old\."]  # noqa: RUF012

    config = of_name("LlamaConfig")(**SIZES)
    model = made_model(Leaving, config, 0)
    path = saved(model)
    names = {*model.state_dict()} - {*tensors(path)}
    try:
        read, said = Leaving.from_pretrained(path, output_loading_info=True)
    except AttributeError as error:
        raise NotServed(f"lists of names are not taken: {error}") from error
    return [sorted(names), sorted(said["missing_keys"]), bool((read.model.norm.weight == 1).all())]


def _within(config_class: Any) -> list[Any]:
    """Return options of generation of a folder within a folder, where the outer one has options too, and has none."""
    found = []
    path = folder()
    config_class(max_new_tokens=7).save_pretrained(path / "inner")
    for outer in (False, True):
        if outer:
            config_class(max_new_tokens=9).save_pretrained(path)
        found.append(config_class.from_pretrained(str(path), subfolder="inner").max_new_tokens)
    return found


CAUSAL = "transformers:LlamaForCausalLM"
# Sources: the documentation of save_pretrained, num_parameters and get_memory_footprint.
SAVED_ROWS: Sequence[Row] = (
    Row("files", CAUSAL, "shards", _shards, []),
    Row(
        "files",
        CAUSAL,
        "variants",
        _variants,
        [
            ["model.other.safetensors", "model.safetensors"],
            1.0,
            2.0,
            ["model.other-00001-of-00003.safetensors", True, True],
            [],
            True,
        ],
        since="4.56",
    ),
    Row("files", CAUSAL, "tensors that are given, and views", _given, [[], [], False], since="4.56"),
    Row(
        "files",
        CAUSAL,
        "its configurations",
        _described,
        ["bfloat16", ["LlamaForCausalLM"], 3, False, [], 0.5, 0.5, True],
        since="4.56",
    ),
    Row("calls", CAUSAL, "numbers of weights and bytes", _counts, [0] * 14, since="4.56"),
    Row(
        "calls",
        CAUSAL,
        "conversions",
        _converted,
        ["torch.float16", "torch.float32", "torch.float64", "torch.bfloat16", "torch.bfloat16", "cpu"],
    ),
    Row("calls", CAUSAL, "embeddings of inputs and outputs", _embeddings, [], since="4.57.6"),
    Row(
        "files",
        "transformers:GenerationConfig",
        "a folder within a folder",
        _within,
        [7, 7],
        since="4.57",
        known=KnownFailure(
            "the file of the outer folder is read",
            finding="Transformers: options of generation in a folder within a folder",
        ),
    ),
    Row(
        "files",
        CAUSAL,
        "tensors that are left out",
        _left_out,
        [["model.norm.weight"], [], True],
        since="4.57",
    ),
)
