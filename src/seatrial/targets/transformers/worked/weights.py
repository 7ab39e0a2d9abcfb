"""Worked examples of Transformers' loading of models: types, names that are missing, other names, other sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name

SIZES: Mapping[str, Any] = {
    "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
T5: Mapping[str, Any] = {
    "vocab_size": 23, "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.0,
}  # fmt: skip
GPT2: Mapping[str, Any] = {"vocab_size": 23, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}
BERT: Mapping[str, Any] = {
    "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip


def llama(kind: str = "LlamaForCausalLM", **options: Any) -> Any:
    """Return a tiny Llama with the same weights every time, in evaluation mode."""
    return made_model(of_name(kind), of_name("LlamaConfig")(**{**SIZES, **options}), 0).eval()


def folder() -> Path:
    """Return a new folder."""
    return Path(new_folder())


def saved(model: Any, **options: Any) -> Path:
    """Return a folder with a model's files."""
    found = folder()
    model.save_pretrained(found, **options)
    return found


def tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors in the files of a folder."""
    from safetensors.torch import load_file

    return {
        name: value for file in sorted(path.glob("*.safetensors")) for name, value in load_file(file).items()
    }


def rewrite(path: Path, values: Mapping[str, Tensor]) -> Path:
    """Replace the tensors in the only file of a folder."""
    from safetensors.torch import save_file

    save_file(
        {name: value.contiguous() for name, value in values.items()},
        path / "model.safetensors",
        {"format": "pt"},
    )
    return path


def same(one: Any, other: Any, but: Sequence[str] = ()) -> list[str]:
    """Return names of tensors that differ between two models, or between tensors by name."""
    left, right = (value if isinstance(value, dict) else value.state_dict() for value in (one, other))
    names = [name for name in {**left, **right} if not name.startswith(tuple(but) or ("?",))]
    return [
        name
        for name in sorted(names)
        if name not in left
        or name not in right
        or left[name].shape != right[name].shape
        or not torch.equal(left[name].double(), right[name].double())
    ]


def _word() -> str:
    return "dtype" if Version(release("transformers")) >= Version("4.56") else "torch_dtype"


def _types(model_class: Any) -> list[list[str]]:
    """Return the types of weights, of the configuration, and torch's default, by the form of the type that is given."""
    path = saved(llama().bfloat16())
    config = json.loads((path / "config.json").read_text())
    for name in ("dtype", "torch_dtype"):
        config.pop(name, None)
    bare = saved(llama().bfloat16())
    (bare / "config.json").write_text(json.dumps(config))
    found = []
    for where, options in (
        (path, {"dtype": "auto"}), (path, {"dtype": torch.float16}), (path, {"dtype": "float16"}),
        (path, {"torch_dtype": torch.float16}), (path, {"torch_dtype": "float64"}), (path, {"dtype": torch.float32}),
        (bare, {"dtype": "auto"}), (bare, {"dtype": torch.float64}), (path, {"dtype": {"": torch.float16}}),
    ):  # fmt: skip
        model = model_class.from_pretrained(where, **options)
        kinds = {str(value.dtype) for value in model.parameters()}
        found.append(
            [*sorted(kinds), str(model.config.dtype), str(model.dtype), str(torch.get_default_dtype())]
        )
    return [[one.replace("torch.", "") for one in row] for row in found]


def _right_types(*names: str) -> list[list[str]]:
    return [[name, name, name, "float32"] for name in names]


def _usual_types(model_class: Any) -> list[str]:
    """Return the type of weights without a type that is given: of files with and without one in the configuration."""
    found = []
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        found.append(str(model_class.from_pretrained(saved(llama().to(kind))).dtype))
    return found


def _kept_wide(model_class: Any) -> list[Any]:
    """Return the types of a T5 by that which is given: its last matrix of an MLP stays wide in float16 alone."""
    config = of_name("T5Config")(**T5)
    path = saved(made_model(model_class, config, 0))
    found = []
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        model = model_class.from_pretrained(path, **{_word(): kind})
        wide = {name for name, value in model.named_parameters() if value.dtype is torch.float32}
        found.append([len(wide), all(".wo." in name for name in wide), str(model.lm_head.weight.dtype)])
    return found


def _unknown_type(model_class: Any) -> str:
    try:
        model_class.from_pretrained(saved(llama()), **{_word(): "float17"})
    except ValueError as error:
        return "dtype" if "dtype" in str(error) else str(error)
    return "taken"


def _missing(model_class: Any) -> list[Any]:
    """Return what is said of names, and how missing weights begin: norms at one, others around zero, biases at zero."""
    config = of_name("Qwen2Config")(**SIZES, initializer_range=0.5)
    model = made_model(of_name("Qwen2ForCausalLM"), config, 0)
    path = saved(model)
    gone = [
        "model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.q_proj.bias", "model.norm.weight",
        "model.layers.0.mlp.down_proj.weight", "model.layers.0.input_layernorm.weight",
    ]  # fmt: skip
    kept = {name: value + 7 for name, value in tensors(path).items() if name not in gone}
    rewrite(
        path, {**kept, "extra.weight": torch.ones(2), "model.layers.0.rotary_emb.inv_freq": torch.ones(2)}
    )
    found, said = of_name("Qwen2ForCausalLM").from_pretrained(path, output_loading_info=True)
    values = found.state_dict()
    drawn = values[gone[0]].double().std(), values[gone[3]].double().std()
    return [
        sorted(said["missing_keys"]) == sorted(gone), sorted(said["unexpected_keys"]), list(said["mismatched_keys"]),
        [bool(0.4 < one < 0.6) for one in drawn], [bool((values[gone[place]] == 1).all()) for place in (2, 4)],
        bool((values[gone[1]] == 0).all()), same(values, kept, gone),
    ]  # fmt: skip


def _other_sizes(model_class: Any) -> list[Any]:
    """Return what is said and done of a weight of another size: refused, or begun again while others are read."""
    path = saved(llama(vocab_size=23))
    config = of_name("LlamaConfig")(**{**SIZES, "vocab_size": 29})
    found: list[Any] = []
    try:
        model_class.from_pretrained(path, config=config)
    except RuntimeError as error:
        found.append("ignore_mismatched_sizes" in str(error))
    model, said = model_class.from_pretrained(
        path, config=config, ignore_mismatched_sizes=True, output_loading_info=True
    )
    names = {one[0]: [tuple(two) for two in one[1:]] for one in said["mismatched_keys"]}
    new = model.lm_head.weight
    return [
        *found, names, sorted(said["missing_keys"]), same(model, llama(), ["lm_head", "model.embed"]),
        tuple(new.shape), bool(0.01 < float(new.std()) < 0.03),
    ]  # fmt: skip


def _named_otherwise(model_class: Any) -> list[Any]:
    """Return what differs of files with other names: by a mapping that is given, and by a prefix of another class."""
    model = llama()
    path = rewrite(
        saved(model),
        {name.replace("model.layers", "old.blocks"): value for name, value in model.state_dict().items()},
    )
    found, said = model_class.from_pretrained(
        path, key_mapping={r"^old\.blocks": "model.layers"}, output_loading_info=True
    )
    return [same(found, model), sorted(said["missing_keys"]), sorted(said["unexpected_keys"])]


def _from_state(model_class: Any) -> list[Any]:
    """Return what differs of a model of given tensors, with a configuration and no files, in another type."""
    model = llama()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = model_class.from_pretrained(
        None, config=model.config, state_dict=state, **{_word(): torch.float32}
    )
    narrow = model_class.from_pretrained(
        None, config=model.config, state_dict=state, **{_word(): torch.bfloat16}
    )
    refused = False
    try:
        model_class.from_pretrained(saved(model), state_dict=state)
    except ValueError:
        refused = True
    return [
        same(found, model), str(narrow.dtype), same(narrow, model.bfloat16()), same(state, llama()), refused,
        found.training,
    ]  # fmt: skip


def _headless(model_class: Any) -> list[Any]:
    """Return what is said and read of a model's base by a model with a head, and of the whole by its base."""
    whole, said = model_class.from_pretrained(saved(llama("LlamaModel")), output_loading_info=True)
    base, other = of_name("LlamaModel").from_pretrained(saved(llama()), output_loading_info=True)
    classes, third = of_name("LlamaForSequenceClassification").from_pretrained(
        saved(llama()), num_labels=3, output_loading_info=True
    )
    right = llama("LlamaModel").state_dict()
    return [
        sorted(said["missing_keys"]), sorted(other["missing_keys"]), sorted(third["missing_keys"]),
        sorted(said["unexpected_keys"]), same(whole.model, right), same(base, llama().model),
        same(classes.model, llama().model), tuple(classes.score.weight.shape),
    ]  # fmt: skip


def _without_values(model_class: Any) -> list[Any]:
    """Return the type, attention and class of models of a configuration, and which of its options have changed."""
    auto: Any = of_name("AutoModelForCausalLM")
    found: list[Any] = []
    for kind in (torch.bfloat16, "float16", None):
        config = of_name("LlamaConfig")(**SIZES)
        before = {name: value for name, value in config.to_dict().items() if "dtype" not in name}
        model = auto.from_config(
            config, attn_implementation="eager", **({} if kind is None else {_word(): kind})
        )
        changed = [name for name, value in before.items() if config.to_dict().get(name) != value]
        found.append([str(model.dtype), model.config._attn_implementation, changed, type(model).__name__])
    return [*found, str(torch.get_default_dtype())]


def _states(model_class: Any) -> list[Any]:
    """Return the mode of a model that was read, whether all trains, its folder, and what its configuration says."""
    model = llama().train()
    model.model.embed_tokens.weight.requires_grad_(False)
    path = saved(model)
    read = model_class.from_pretrained(path)
    config = json.loads((path / "config.json").read_text())
    return [
        read.training, all(value.requires_grad for value in read.parameters()), read.name_or_path == str(path),
        config["architectures"], config.get("dtype", config.get("torch_dtype")), config["model_type"],
    ]  # fmt: skip


def _options_that_are_given(model_class: Any) -> list[Any]:
    """Return options of the configuration that are given with the files, and the refusal of unknown ones."""
    read = model_class.from_pretrained(
        saved(llama()), rms_norm_eps=0.5, use_cache=False, attn_implementation="eager"
    )
    refused = False
    try:
        model_class.from_pretrained(saved(llama()), no_such_option=1)
    except TypeError:
        refused = True
    return [read.config.rms_norm_eps, read.config.use_cache, read.config._attn_implementation, refused]


def _placed(model_class: Any) -> list[Any]:
    """Return what differs of a model that is placed by a map of the CPU."""
    found = []
    for place in ("cpu", {"": "cpu"}, {"model": "cpu", "lm_head": "cpu"}, torch.device("cpu")):
        read = model_class.from_pretrained(saved(llama()), device_map=place)
        found.append([same(read, llama()), str(read.device), read.training])
    return found


CAUSAL = "transformers:LlamaForCausalLM"
LATER = "Transformers: small functions of later releases"
# Sources: the documentation of from_pretrained, of from_config and of weights that are tied.
WEIGHT_ROWS: Sequence[Row] = (
    Row(
        "states",
        CAUSAL,
        "types that are given",
        _types,
        _right_types(
            "bfloat16",
            "float16",
            "float16",
            "float16",
            "float64",
            "float32",
            "bfloat16",
            "float64",
            "float16",
        ),
        since="5",
    ),
    Row(
        "states",
        CAUSAL,
        "types that are not given",
        _usual_types,
        ["torch.float16", "torch.bfloat16", "torch.float32"],
        since="5",
    ),
    Row(
        "states",
        "transformers:T5ForConditionalGeneration",
        "modules that stay wide",
        _kept_wide,
        [[4, True, "torch.float16"], [0, True, "torch.bfloat16"], [47, False, "torch.float32"]],
        known=KnownFailure(
            "they stay wide in bfloat16 too", finding=LATER, releases=between("transformers", "5", "5.8")
        ),
    ),
    Row("states", CAUSAL, "a type that is none", _unknown_type, "dtype", since="5"),
    Row(
        "states",
        CAUSAL,
        "names that are missing",
        _missing,
        [True, ["extra.weight"], [], [True, True], [True, True], True, []],
        since="4.56",
    ),
    Row(
        "states",
        CAUSAL,
        "other sizes",
        _other_sizes,
        [
            True,
            {"lm_head.weight": [(23, 16), (29, 16)], "model.embed_tokens.weight": [(23, 16), (29, 16)]},
            [],
            [],
            (29, 16),
            True,
        ],
        since="5",
    ),
    Row("states", CAUSAL, "a mapping of names", _named_otherwise, [[], [], []], since="4.56"),
    Row(
        "states",
        CAUSAL,
        "tensors that are given",
        _from_state,
        [[], "torch.bfloat16", [], [], True, False],
        since="4.57.6",
    ),
    Row(
        "states",
        CAUSAL,
        "a base and a whole",
        _headless,
        [["lm_head.weight"], [], ["score.weight"], [], [], [], [], (3, 16)],
        since="4.56",
    ),
    Row(
        "states",
        CAUSAL,
        "a configuration alone",
        _without_values,
        [
            ["torch.bfloat16", "eager", [], "LlamaForCausalLM"],
            ["torch.float16", "eager", [], "LlamaForCausalLM"],
            ["torch.float32", "eager", [], "LlamaForCausalLM"],
            "torch.float32",
        ],
        since="4.57.6",
    ),
    Row("states", CAUSAL, "its mode", _states, [False, True, True, ["LlamaForCausalLM"], "float32", "llama"]),
    Row(
        "states",
        CAUSAL,
        "options with the files",
        _options_that_are_given,
        [0.5, False, "eager", True],
        since="4.56",
    ),
    Row("states", CAUSAL, "a map of devices", _placed, [[[], "cpu", False]] * 4, since="4.56"),
)
