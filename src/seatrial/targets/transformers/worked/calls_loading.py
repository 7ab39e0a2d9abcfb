"""Calls of Transformers' loading and saving of models, whose results are on record; see `recorded_calls`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.targets.common.tiny import made_model
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of
from seatrial.targets.transformers.worked.weights import (
    BERT,
    GPT2,
    SIZES,
    T5,
    _word,
    folder,
    llama,
    rewrite,
    same,
    saved,
    tensors,
)

IDS = torch.arange(3, 15).reshape(2, 6)
UTILITIES = "transformers.modeling_utils"
CAUSAL = "transformers:LlamaForCausalLM"


def _logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def _names(path: Path) -> list[str]:
    return sorted(
        one.name for one in path.iterdir() if one.suffix in (".bin", ".safetensors") or "index" in one.name
    )


def _bins(path: Path, model: Any, shards: bool) -> Path:
    """Write weights as files of torch, next to those of safetensors."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    if not shards:
        torch.save(state, path / "pytorch_model.bin")
        return path
    names = sorted(state)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, own in halves.items():
        torch.save({name: state[name] for name in own}, path / file)
    index = {"metadata": {}, "weight_map": {name: file for file, own in halves.items() for name in own}}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    return path


def _read(model_class: Any) -> Any:
    """Return what differs of files of torch, in one and in shards, with others, and what is preferred."""
    found: list[Any] = []
    model, other = llama(), llama()
    with torch.no_grad():
        other.model.norm.weight.add_(1)
    for shards in (False, True):
        path = _bins(saved(model), other, shards)
        options: dict[str, Any]
        for options in ({}, {"use_safetensors": True}, {"use_safetensors": False}):
            read = model_class.from_pretrained(path, **options)
            found.append([float(read.model.norm.weight[0]), same(read.lm_head, model.lm_head)])
        (path / "model.safetensors").unlink()
        for options in ({}, {"use_safetensors": True}, {_word(): torch.bfloat16}):
            found.append(refusal(lambda path=path, options=options: [
                float(model_class.from_pretrained(path, **options).model.norm.weight[0]),
                same(model_class.from_pretrained(path, **options), other)[:2]]))  # fmt: skip
    return found


def _written(model_class: Any) -> Any:
    """Return files by the form and the process that saves, and what an own function is given."""
    model, given = llama(), []
    found: list[Any] = [_names(saved(model, is_main_process=False))]
    found.append(refusal(lambda: _names(saved(model, safe_serialization=False))))
    found.append(
        refusal(lambda: _names(saved(model, safe_serialization=False, max_shard_size="6KB", variant="v")))
    )

    def own(state: Mapping[str, Tensor], path: Any, *more: Any, **named: Any) -> None:
        given.append([len(state), Path(path).name])

    refusal(lambda: saved(model, save_function=own, safe_serialization=False))
    path = saved(model, max_shard_size="4KB")
    first = len(_names(path))
    model.save_pretrained(path, max_shard_size="6KB")
    second = _names(path)
    refusal(lambda: model.save_pretrained(path / "file"))
    (folder() / "x").write_text("a")
    return [*found, given, first > len(second), len(second)]


def _subfolder(model_class: Any) -> Any:
    path, model = folder(), llama(rms_norm_eps=0.25)
    model.generation_config.temperature, model.generation_config.do_sample = 0.25, True
    model.save_pretrained(path / "inner")
    llama().save_pretrained(path)
    (path / "generation_config.json").unlink()
    read = model_class.from_pretrained(path, subfolder="inner")
    return [read.config.rms_norm_eps, read.generation_config.temperature, same(read, model),
            model_class.from_pretrained(path).config.rms_norm_eps]  # fmt: skip


MAP = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu",
       "model.rotary_emb": "cpu", "lm_head": "disk"}  # fmt: skip


def _offloaded(model_class: Any) -> Any:
    """Return what differs in logits of a model of which a part stays on disk, by files, types, and names."""
    found: list[Any] = []
    model = llama()
    right = _logits(model)
    for form in ("one", "shards", "bin", "narrow", "renamed"):
        path = saved(model, **({"max_shard_size": "6KB"} if form == "shards" else {}))
        options: dict[str, Any] = {"device_map": dict(MAP), "offload_folder": str(folder())}
        if form == "bin":
            _bins(path, model, False)
            (path / "model.safetensors").unlink()
        if form == "narrow":
            options[_word()] = torch.bfloat16
        if form == "renamed":
            rewrite(
                path, {name.replace("model.layers", "old"): one for name, one in model.state_dict().items()}
            )
            options["key_mapping"] = {"^old": "model.layers"}
        read = model_class.from_pretrained(path, **options)
        kinds = {name: str(value.device) for name, value in read.named_parameters()}
        names = [name for name, one in kinds.items() if one == "meta"]
        away = sorted({name.rpartition(".layers.")[2].partition(".")[0] for name in names})
        near = float((_logits(read).float() - right).abs().max()) < (0.2 if form == "narrow" else 1e-4)
        again = tensors(saved(read))
        found.append([form, away, near, same(again, model.state_dict()) if form != "narrow" else len(again)])
    return found


def of_two_parts(**options: Any) -> Any:
    """Return a small configuration of Gemma 3, with a part of texts and one of pictures."""
    return of_name("Gemma3Config")(
        text_config={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                     "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 61},
        vision_config={"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "image_size": 8, "patch_size": 4},
        **options,
    )  # fmt: skip


def _of_parts(model_class: Any) -> Any:
    """Return types of parts by one for all, one for each, and a text; and types that the files have."""
    config = of_two_parts(mm_tokens_per_image=4, image_token_index=50, boi_token_index=51, eoi_token_index=52)
    path = saved(model_class(config).to(torch.bfloat16))
    found: list[Any] = []
    for given in (
        torch.float16, "float16", "auto", {"text_config": "float16", "vision_config": torch.float32, "": "bfloat16"},
        {"text_config": torch.float32}, None,
    ):  # fmt: skip
        model = model_class.from_pretrained(path, **({} if given is None else {_word(): given}))
        places = {"text": model.model.language_model, "vision": model.model.vision_tower, "head": model.lm_head,
                  "joint": model.model.multi_modal_projector}  # fmt: skip
        found.append({name: str(next(one.parameters()).dtype) for name, one in places.items()})
        found.append(
            [str(one.dtype) for one in (model.config, model.config.text_config, model.config.vision_config)]
        )
    return [*found, str(torch.get_default_dtype())]


def _types(model_class: Any) -> Any:
    found: list[Any] = []
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        read = model_class.from_pretrained(saved(llama().to(kind)))
        found.append([str(read.dtype), str(read.config.dtype)])
    path = saved(llama().bfloat16())
    for given in ("auto", "float32", torch.float64, {"": torch.float16}):
        read = model_class.from_pretrained(path, **{_word(): given})
        found.append(
            [str(read.dtype), str(read.config.dtype), sorted({str(one.dtype) for one in read.buffers()})]
        )
    return found


def _heads(model_class: Any) -> Any:
    """Return what is said and read between bases and heads of several kinds."""
    found: list[Any] = []
    for kind, sizes, base, heads in (
        ("GPT2", GPT2, "GPT2Model", ("GPT2LMHeadModel", "GPT2ForSequenceClassification", "GPT2DoubleHeadsModel")),
        ("Bert", BERT, "BertModel", ("BertForMaskedLM", "BertForTokenClassification", "BertForPreTraining")),
        ("T5", T5, "T5EncoderModel", ("T5ForConditionalGeneration",)),
        ("Qwen2", SIZES, "Qwen2Model", ("Qwen2ForCausalLM", "Qwen2ForTokenClassification")),
    ):  # fmt: skip
        config = of_name(f"{kind}Config")(**sizes)
        plain = made_model(of_name(base), config, 0)
        for head in heads:
            whole, said = of_name(head).from_pretrained(saved(plain), output_loading_info=True)
            prefix = whole.base_model_prefix
            inner = getattr(whole, prefix, whole)
            shared = [name for name in plain.state_dict() if name in inner.state_dict()]
            wrong = [
                name for name in shared if not torch.equal(inner.state_dict()[name], plain.state_dict()[name])
            ]
            back, other = of_name(base).from_pretrained(saved(whole), output_loading_info=True)
            found.append([head, len(shared), wrong, sorted(map(str, said["missing_keys"])),
                          sorted(map(str, said["unexpected_keys"])), sorted(map(str, other["missing_keys"])),
                          len(other["unexpected_keys"]), same(back, plain)])  # fmt: skip
    return found


def _buffers(model_class: Any) -> Any:
    """Return which buffers of a model that is read are not those of a fresh one."""
    found: list[Any] = []
    for kind, config, sizes in (
        ("LlamaForCausalLM", "LlamaConfig", {**SIZES, "rope_theta": 77.0}), ("BertModel", "BertConfig", BERT),
        ("GPT2LMHeadModel", "GPT2Config", GPT2), ("T5Model", "T5Config", T5),
        ("ViTModel", "ViTConfig", {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
                                   "intermediate_size": 24, "image_size": 8, "patch_size": 4}),
        ("CLIPTextModel", "CLIPTextConfig", {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1,
                                             "intermediate_size": 24, "vocab_size": 61}),
        ("GPTJForCausalLM", "GPTJConfig", {"n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 23, "n_positions": 32,
                                           "rotary_dim": 4}),
    ):  # fmt: skip
        fresh = made_model(of_name(kind), of_name(config)(**sizes), 0).eval()
        read = of_name(kind).from_pretrained(saved(fresh))
        left, right = dict(fresh.named_buffers()), dict(read.named_buffers())
        found.append([kind, len(left), same(left, right)])
        wide = of_name(kind).from_pretrained(saved(fresh), **{_word(): torch.bfloat16})
        found.append(sorted({f"{name.rpartition('.')[2]} {one.dtype}" for name, one in wide.named_buffers()}))
    return found


def _configured(model_class: Any) -> Any:
    """Return whether a configuration that is given stays as it is, and the configuration and options of the model."""
    path = saved(llama())
    config = of_name("LlamaConfig")(**SIZES, use_cache=False)
    before = config.to_dict()
    read = model_class.from_pretrained(
        path, config=config, attn_implementation="eager", **{_word(): torch.float16}
    )
    found: list[Any] = [
        config.to_dict() == before,
        read.config is config,
        read.config.use_cache,
        str(read.dtype),
    ]
    other = folder()
    config.save_pretrained(other)
    found.append(model_class.from_pretrained(path, config=str(other)).config.use_cache)
    found.append(model_class.from_pretrained(path, config=other / "config.json").config.use_cache)
    own = of_name("GenerationConfig")(max_new_tokens=7)
    found.append(model_class.from_pretrained(path, generation_config=own).generation_config.max_new_tokens)
    (path / "generation_config.json").unlink()
    words = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**words, "eos_token_id": 9}))
    found.append(model_class.from_pretrained(path).generation_config.eos_token_id)
    found.append([read.name_or_path == str(path), read.training, read.config._attn_implementation])
    return found


def _other_shapes(model_class: Any) -> Any:
    """Return what is said and done of other sizes, in one file and in shards, of a table and of layers."""
    found: list[Any] = []
    model = llama()
    for options, sizes in (({}, {"vocab_size": 29}), ({"max_shard_size": "6KB"}, {"intermediate_size": 40})):
        path = saved(model, **options)
        config = of_name("LlamaConfig")(**{**SIZES, **sizes}, initializer_range=0.5)
        found.append(
            refusal(lambda path=path, config=config: model_class.from_pretrained(path, config=config).dtype)
        )
        read, said = model_class.from_pretrained(
            path, config=config, ignore_mismatched_sizes=True, output_loading_info=True
        )
        keys = [one[0] if isinstance(one, tuple) else one for one in said["mismatched_keys"]]
        drawn = [name for name in keys if not 0.4 < float(read.state_dict()[name].std()) < 0.6]
        left = [name for name in same(read, model) if name not in keys]
        found.append(
            [sorted(keys), drawn, left, sorted(said["missing_keys"]), sorted(said["unexpected_keys"])]
        )
    return found


def _mapped(model_class: Any) -> Any:
    """Return what differs of files whose names several patterns change, with a base's names too."""
    found: list[Any] = []
    model = llama()
    for patterns, name in (
        ({r"^a\.(\d+)\.": r"model.layers.\1.", r"^a\.": "wrong.", r"^emb": "model.embed_tokens"}, None),
        ({r"^layers\.(\d+)\.x\.": r"layers.\1.mlp."}, "base"),
        ({r"^a\.(\d+)\.": r"model.layers.\1.", r"layers\.1\.": "layers.0.", r"^emb": "model.embed_tokens"}, None),
    ):  # fmt: skip
        values = {}
        for key, value in (model.model if name else model).state_dict().items():
            key = key.replace("mlp.", "x.") if name else key.replace("model.layers", "a")
            values[key.replace("model.embed_tokens", "emb") if not name else key] = value
        path = rewrite(saved(model), values)
        read, said = model_class.from_pretrained(path, key_mapping=patterns, output_loading_info=True)
        found.append(
            [same(read.model, model.model), sorted(said["missing_keys"]), sorted(said["unexpected_keys"])]
        )
    return found


def _parallel(model_class: Any) -> Any:
    """Return what differs of shards that are read at once."""
    model = llama()
    path = saved(model, max_shard_size="4KB")
    with patch.dict(os.environ, {"HF_ENABLE_PARALLEL_LOADING": "true", "HF_PARALLEL_LOADING_WORKERS": "2"}):
        read, said = model_class.from_pretrained(path, output_loading_info=True)
    return [same(read, model), sorted(said["missing_keys"]), len(_names(path)) > 3]


def _ties(model_class: Any) -> Any:
    """Return what is tied, missing and drawn of tied and untied heads whose files lack one of the two."""
    found: list[Any] = []
    for tied in (True, False):
        model = llama(tie_word_embeddings=tied)
        values = {name: value.clone() for name, value in model.state_dict().items()}
        for gone in ("lm_head.weight", *(() if tied else ("model.embed_tokens.weight",)), ""):
            path = rewrite(saved(model), {name: value for name, value in values.items() if name != gone})
            read, said = model_class.from_pretrained(path, output_loading_info=True)
            one, two = read.lm_head.weight, read.model.embed_tokens.weight
            where = [str(value.device) for value in (one, two)]
            equal = where == ["cpu", "cpu"] and bool(torch.equal(one, values["lm_head.weight"]))
            found.append([tied, gone, one is two, where, equal, sorted(said["missing_keys"])])
    for kind, config, sizes in (("GPT2LMHeadModel", "GPT2Config", GPT2), ("BertForMaskedLM", "BertConfig", BERT),
                                ("T5ForConditionalGeneration", "T5Config", T5)):  # fmt: skip
        for tied in (True, False):
            model = made_model(of_name(kind), of_name(config)(**sizes, tie_word_embeddings=tied), 0)
            read = of_name(kind).from_pretrained(saved(model))
            head = read.get_output_embeddings().weight
            found.append([kind, tied, head is read.get_input_embeddings().weight, same(read, model),
                          sorted(name for name in tensors(saved(model)) if "head" in name or "decoder.weight" in name
                                 or "shared" in name or "embed_tokens" in name)])  # fmt: skip
    return found


CALLS: Sequence[Call] = (
    Call("files", CAUSAL, "files of torch and of safetensors", _read),
    Call("files", CAUSAL, "files by the process and the form", _written),
    Call("files", CAUSAL, "a folder within a folder", _subfolder),
    Call("files", CAUSAL, "parts that stay on disk", _offloaded),
    Call("states", "transformers:Gemma3ForConditionalGeneration", "types of parts", _of_parts),
    Call("states", CAUSAL, "types, given and not", _types),
    Call("states", "transformers:PreTrainedModel", "bases and heads of several kinds", _heads),
    Call("states", "transformers:PreTrainedModel", "buffers of models that are read", _buffers),
    Call("states", CAUSAL, "a configuration that is given", _configured),
    Call("states", CAUSAL, "other sizes, in shards too", _other_shapes),
    Call("states", CAUSAL, "patterns of names", _mapped),
    Call("states", CAUSAL, "shards that are read at once", _parallel),
    Call("states", CAUSAL, "ties of heads and tables", _ties),
)  # fmt: skip
LOADING_CALL_ROWS = rows_of(CALLS)
