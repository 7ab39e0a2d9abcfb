"""Worked examples of models: tiny ones that are made, and directories of models and tokenizers."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from refrl.models.loading import (
    _of_further_layers,
    check_model_directory,
    end_ids,
    load_model,
    media_token_id,
    save_directory,
)
from refrl.models.tiny import (
    Family,
    TinyModelSpec,
    draft_weights,
    make_model,
    media_shapes,
    model_config,
    weights,
)
from refrl.models.tokenization import load_tokenizer, make_byte_tokenizer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.worked.made import example, refused

SMALL_SPEC: dict[str, Any] = {
    "hidden_size": 8,
    "num_layers": 1,
    "num_heads": 4,
    "num_kv_heads": 2,
    "intermediate_size": 6,
}


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_weights()
    yield from _of_configurations()
    yield from _of_directories()
    yield from _of_tokenizers()


def _spec(**changes: Any) -> TinyModelSpec:
    return TinyModelSpec(**{**SMALL_SPEC, **changes})


def _in_folder(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call with an empty folder as its first argument."""

    def called(*words: Any, **options: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            return call(Path(folder), *words, **options)

    return called


def _of_weights() -> Iterator[WorkedExample]:
    layer = {
        "input_layernorm": (8,),
        "self_attn.q_proj": (128, 8),
        "self_attn.k_proj": (64, 8),
        "self_attn.v_proj": (64, 8),
        "self_attn.o_proj": (8, 128),
        "self_attn.q_norm": (32,),
        "self_attn.k_norm": (32,),
        "post_attention_layernorm": (8,),
    }
    dense = {"mlp.gate_proj": (6, 8), "mlp.up_proj": (6, 8), "mlp.down_proj": (8, 6)}
    ends = {"model.embed_tokens": (259, 8), "model.norm": (8,), "lm_head": (259, 8)}
    for family, changes, parts, left_out in (
        ("qwen3", {}, dense, ()),
        ("qwen3", {"tie_word_embeddings": True}, dense, ("lm_head",)),
        ("llama", {}, dense, ("self_attn.q_norm", "self_attn.k_norm")),
        (
            "qwen3_moe",
            {"num_experts": 2, "experts_per_token": 2},
            {
                "mlp.gate": (2, 8),
                **{f"mlp.experts.{n}.{name}": (3, 8) for n in (0, 1) for name in ("gate_proj", "up_proj")},
                **{f"mlp.experts.{n}.down_proj": (8, 3) for n in (0, 1)},
            },
            (),
        ),
    ):
        due = {
            f"model.layers.0.{name}.weight": shape
            for name, shape in {**layer, **parts}.items()
            if name not in left_out
        }
        due |= {f"{name}.weight": shape for name, shape in ends.items() if name not in left_out}
        spec = _spec(family=family, **changes)
        yield example(
            f"weights of a {family} with {changes}",
            due,
            lambda of=spec: {name: one.shape for name, one in weights(of)},
        )
    draft = {
        "hidden_proj": (8, 8),
        "embed_proj": (8, 8),
        "norm": (8,),
        "up_proj": (6, 8),
        "down_proj": (8, 6),
    }
    due = {f"{name}.weight": shape for name, shape in {**draft, "final_norm": (8,)}.items()}
    yield example(
        "weights of a draft head", due, lambda: {name: one.shape for name, one in draft_weights(_spec())}
    )
    # A layer of the tower has 2 norms, 4 and 3 matrices; of the audio tower 5 biases and norms of 2 more.
    for family, num, layers in (("llava", 2 + 2 * 9 + 4, 18), ("qwen2_audio", 5 + 2 * 15 + 2 + 2, 30)):
        yield example(f"weights of the tower of a {family}", (num, num, layers), _tower, family)
    for family in ("qwen3", "llava"):
        yield example(f"values of the weights of a {family}", [], _misdrawn, family)
    yield example("weights of seeds", (True, False), lambda: (_first(0) == _first(0), _first(0) == _first(1)))
    yield example("draft heads of seeds", (True, False), _draft_heads)
    yield example("small elements of norms", [[1e-3, 1.0, 1.0, 1.0, 1e-3, 1.0, 1.0, 1.0]] * 3, _norms)


def _tower(family: str) -> Any:
    names = [name for name, _ in media_shapes(family, 8)]
    return len(names), len(set(names)), sum(".layers." in name for name in names)


def _misdrawn(family: Family) -> list[str]:
    """Return weights whose type, mean or spread is not that of their kind."""
    wrong, spec = [], _spec(family=family, initializer_range=0.05)
    for name, one in weights(spec):
        spread = 0.05 if "tower" not in name and "projector" not in name else 0.2
        plain = 0.0 if name.endswith("bias") else 1.0
        right = (
            bool((one == plain).all())
            if one.ndim == 1
            else abs(one.std() / spread - 1) < 3 / math.sqrt(one.size)
        )
        wrong += [f"{name}: {one.mean()}, {one.std()}"] * (not right or one.dtype != np.float32)
    return wrong


def _first(seed: int) -> list[float]:
    _, tensor = next(weights(_spec(seed=seed)))
    return list(tensor[0].tolist())


def _norms() -> list[list[float]]:
    made = weights(_spec(family="llama", small_norms=True))
    return [[round(value, 6) for value in one.tolist()] for _, one in made if one.ndim == 1]


def _of_configurations() -> Iterator[WorkedExample]:
    ids = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}
    of_all = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "vocab_size": 259,
        "hidden_size": 8, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 34, "max_position_embeddings": 77, "initializer_range": 0.3,
        "tie_word_embeddings": True, **ids,
    }  # fmt: skip
    changes = {"head_dim": 34, "max_positions": 77, "initializer_range": 0.3, "tie_word_embeddings": True}
    yield example(
        "a configuration",
        of_all,
        lambda: model_config(_spec(family="llama", intermediate_size=None, **changes)),
    )
    experts = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 3, "norm_topk_prob": True}
    made = _spec(family="qwen3_moe", num_experts=5, experts_per_token=2)
    yield example(
        "experts",
        experts,
        lambda: {name: value for name, value in model_config(made).items() if name in experts},
    )
    for family, key in (("llava", "image_token_index"), ("qwen2_audio", "audio_token_index")):
        yield example(
            f"the text part of a {family}", (259, 260, "qwen3", "float32", 258), _text_part, family, key
        )
    for words, bad in (
        ("hidden_size=0", {"hidden_size": 0}), ("num_layers=0", {"num_layers": 0}),
        ("max_positions=0", {"max_positions": 0}), ("head_dim=30", {"head_dim": 30}),
        ("head_dim=33", {"head_dim": 33}), ("experts_per_token=13", {"experts_per_token": 13}),
        ("experts_per_token=0", {"experts_per_token": 0}), ("num_kv_heads=3", {"num_kv_heads": 3}),
        ("seed=-1", {"seed": -1}),
    ):  # fmt: skip
        yield refused(words, f"a model with {bad}", _spec, **bad)
    yield example(
        "the size of experts",
        [8, 2, 1],
        lambda: [_spec(experts_per_token=n, intermediate_size=8).expert_size for n in (1, 3, 12)],
    )


def _text_part(family: Family, key: str) -> Any:
    config = model_config(_spec(family=family))
    text = config["text_config"]
    return config[key], text["vocab_size"], text["model_type"], config["dtype"], config["eos_token_id"]


def _of_directories() -> Iterator[WorkedExample]:
    yield example(
        "a model with a draft head",
        (
            ["config", "draft", "generation_config", "model", "tokenizer", "tokenizer_config"],
            {"hidden_size": 8, "intermediate_size": 6},
            True,
        ),
        _in_folder(_made),
    )
    yield refused("not an empty directory", "a model where something is", _in_folder(_made_twice))
    yield example("a model that is saved", (True, 256, ["more"]), _in_folder(_saved))
    yield refused("holds no weights", "a model that failed half-way leaves nothing", _in_folder(_failed))
    for words, files in (
        ("holds no config.json", {"model.safetensors": ""}),
        ("holds no weights", {"config.json": "{}"}),
        ("is not a directory", None),
    ):
        yield refused(words, f"a model of the files {files and [*files]}", _in_folder(_checked), files)
    yield refused(
        "is not a directory", "a model that is a file", _in_folder(_of_a_file), check_model_directory
    )
    yield refused("does not exist", "a tokenizer that is a file", _in_folder(_of_a_file), load_tokenizer)
    for config, right in (
        ({}, None), ({"image_token_id": 5}, 5), ({"audio_token_index": 6}, 6), ({"image_token_index": None}, None),
        ({"image_token_id": 0}, 0),
    ):  # fmt: skip
        yield example(f"the feature's token of {config}", right, _in_folder(_token), config)
    for own, other, ends in (
        (2, [3, 4], [2, 3, 4]),
        ([2], 2, [2]),
        (None, None, []),
        (None, (5,), [5]),
        (0, None, [0]),
    ):
        made: Any = SimpleNamespace(
            config=SimpleNamespace(eos_token_id=own), generation_config=SimpleNamespace(eos_token_id=other)
        )
        yield example(f"end tokens {own} and {other}", ends, lambda of=made: sorted(end_ids(of)))
    known = ["m.layers.0.w", "m.layers.1.w", "head"]
    yield example(
        "weights of further layers",
        ["m.layers.2.w"],
        _of_further_layers,
        ["m.layers.2.w", "other", "m.layers.2.b"],
        known,
    )
    yield refused("cannot be loaded", "weights that are no weights", _in_folder(_unreadable))
    for words, changes in (
        ("6 weights", {"intermediate_size": 7}),
        ("lack", {"num_hidden_layers": 3}),
        ("of further layers", {"num_hidden_layers": 1}),
        ("has num_hidden_layers: 0, a model without layers", {"num_hidden_layers": 0}),
    ):
        yield refused(words, f"a model whose config.json says {changes}", _in_folder(_altered), changes)
    for name in (*ENDS, WITHIN[0]):
        words = f"lack 1 parameters of the model ({name})"
        yield refused(words, f"a model without {name}", _in_folder(_without_weights), [name])
    words = f"lack {len(WITHIN)} parameters of the model ({', '.join(WITHIN)})"
    yield refused(words, "a model without a layer's weights", _in_folder(_without_weights), WITHIN)
    yield example(
        "a model whose head is its embedding", True, _in_folder(_without_weights), [ENDS[0]], ties=True
    )
    yield example("types of loaded weights", (["float32"], False), _in_folder(_types))


def _draft_heads() -> Any:
    """Return whether the first matrices of draft heads are equal under one seed, and under two."""
    first, again, other = (
        next(tensor for _, tensor in draft_weights(_spec(seed=seed))) for seed in (1, 1, 2)
    )
    return np.array_equal(first, again), np.array_equal(first, other)


def _made(folder: Path) -> Any:
    make_model(_spec(draft_head=True), folder)
    config = json.loads((folder / "draft" / "config.json").read_text())
    return (
        sorted(path.stem for path in folder.iterdir()),
        config,
        (folder / "draft" / "model.safetensors").is_file(),
    )


def _made_twice(folder: Path) -> None:
    (folder / "x").touch()
    make_model(_spec(), folder)


def _saved(folder: Path) -> Any:
    model, output = model_of("llama"), folder / "out"
    save_directory(model, make_byte_tokenizer(), output, lambda path: (path / "more").touch())
    again = dict(load_model(output).named_parameters())
    same = [torch.equal(weight, again[name]) for name, weight in model.named_parameters()]
    return (
        all(same),
        load_tokenizer(output).pad_token_id,
        [path.name for path in output.iterdir() if path.name == "more"],
    )


def _failed(folder: Path) -> None:
    def fails(path: Path) -> None:
        raise OSError("no space")

    output = folder / "out"
    try:
        save_directory(model_of("llama"), make_byte_tokenizer(), output, fails)
    except OSError:
        left = [path.name for path in folder.iterdir()]
        raise ValueError(f"holds no weights: {left}" if not left else f"left {left}") from None


def _checked(folder: Path, files: Mapping[str, str] | None) -> None:
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    check_model_directory(folder if files is not None else folder / "missing")


def _of_a_file(folder: Path, call: Callable[[Path], Any]) -> None:
    path = folder / "config.json"
    path.write_text("{}")
    call(path)


def _token(folder: Path, config: Mapping[str, Any]) -> int | None:
    (folder / "config.json").write_text(json.dumps(config))
    return media_token_id(folder)


def _unreadable(folder: Path) -> None:
    make_model(_spec(), folder)
    (folder / "model.safetensors").write_bytes(b"no weights")
    load_model(folder)


def _altered(folder: Path, changes: Mapping[str, Any]) -> None:
    make_model(_spec(num_layers=2), folder)
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(config))
    load_model(folder)


ENDS = ("lm_head.weight", "model.embed_tokens.weight", "model.norm.weight")
WITHIN = tuple(f"model.layers.0.{name}.weight" for name in ("input_layernorm", "mlp.down_proj"))
"""Weights of a Llama, at its ends and in a layer."""


def _without_weights(folder: Path, names: Sequence[str], *, ties: bool = False) -> bool:
    """Load a model whose files lack some weights; return whether its head is its embedding."""
    save_directory(model_of("llama", tie_word_embeddings=ties), make_byte_tokenizer(), folder)
    path = folder / "model.safetensors"
    left = {name: weight for name, weight in load_file(path).items() if name not in names}
    save_file(left, path, {"format": "pt"})
    loaded: Any = load_model(folder)
    return bool(loaded.lm_head.weight is loaded.model.embed_tokens.weight)


def _types(folder: Path) -> Any:
    model = model_of("llama").bfloat16()
    save_directory(model, make_byte_tokenizer(), folder)
    loaded = load_model(folder)
    return sorted({str(one.dtype).removeprefix("torch.") for one in loaded.parameters()}), loaded.training


def _of_tokenizers() -> Iterator[WorkedExample]:
    for words, files in (
        ("does not exist", None),
        ("holds no tokenizer (tokenizer.json)", {"x.json": "{}"}),
        ("no 'model' and no 'added_tokens'", {"tokenizer.json": "{}"}),
        ("no 'model' and no 'added_tokens'", {"tokenizer.json": "[1]"}),
        ("no 'added_tokens'", {"tokenizer.json": '{"model": {}}'}),
        ("cannot be read", {"tokenizer.json": ""}),
    ):
        yield refused(words, f"a tokenizer of {files}", _in_folder(_tokenizer), files)
    yield example("a tokenizer without padding", (258, 258), _in_folder(_without), "pad_token")
    yield refused("names no eos_token", "a tokenizer without an end", _in_folder(_without), "eos_token")


def _tokenizer(folder: Path, files: Mapping[str, str] | None) -> None:
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    load_tokenizer(folder if files is not None else folder / "missing")


def _without(folder: Path, name: str) -> Any:
    make_model(_spec(), folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config[name]
    path.write_text(json.dumps(config))
    loaded = load_tokenizer(folder)
    return loaded.pad_token_id, loaded.eos_token_id
