"""Models and configurations that are composed of others, backbones, and layers that are cut, on record."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.every_class import crc
from seatrial.targets.transformers.worked.records.answers import REFUSED, given, record, unlike_record
from seatrial.targets.transformers.worked.records.declared import options_of
from seatrial.targets.transformers.worked.records.loaded import ALONE
from seatrial.targets.transformers.worked.weights import BERT, GPT2, T5, same, saved, tensors

RECORD = "composed_record"
PICTURES: Mapping[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8,
    "patch_size": 4, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
SOUNDS: Mapping[str, Any] = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "conv_dim": [8, 8],
    "conv_kernel": [4, 3], "conv_stride": [4, 2], "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4,
    "num_feat_extract_layers": 2, "vocab_size": 23,
}  # fmt: skip
PARTS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "bert": ("BertModel", "BertConfig", BERT),
    "masked bert": ("BertForMaskedLM", "BertConfig", BERT),
    "bert that generates": ("BertLMHeadModel", "BertConfig", {**BERT, "is_decoder": True}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", GPT2),
    "vit": ("ViTModel", "ViTConfig", PICTURES),
    "clip": ("CLIPVisionModel", "CLIPVisionConfig", PICTURES),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", SOUNDS),
}
"""Models that others are composed of: class, class of the configuration, sizes."""
PAIRS: Mapping[str, tuple[str, Sequence[tuple[str, str]], Sequence[Mapping[str, Any]]]] = {
    "EncoderDecoderModel": ("encoder_decoder", (
        ("bert", "bert that generates"), ("masked bert", "gpt2"), ("bert", "bert")), (
        {}, {"decoder_add_cross_attention": False}, {"encoder_hidden_act": "relu", "decoder_use_cache": False},
        {"tie_encoder_decoder": True}, {"decoder_start_token_id": 5})),
    "VisionEncoderDecoderModel": ("encoder_decoder", (("vit", "gpt2"), ("vit", "bert that generates")), (
        {}, {"encoder_qkv_bias": False}, {"decoder_scale_attn_weights": False})),
    "SpeechEncoderDecoderModel": ("encoder_decoder", (("wav2vec2", "gpt2"), ("wav2vec2", "bert that generates")), (
        {}, {"encoder_add_adapter": True}, {"encoder_feat_proj_dropout": 0.0})),
    "VisionTextDualEncoderModel": ("vision_text", (("vit", "bert"), ("clip", "bert")), (
        {}, {"projection_dim": 12}, {"text_hidden_act": "relu"}, {"vision_hidden_act": "relu"})),
}  # fmt: skip
"""Composed classes: the end of the method that reads their parts, pairs of parts, and options."""


def _part(name: str) -> Any:
    kind, config, sizes = PARTS[name]
    model = made_model(of_name(kind), of_name(config)(**sizes), 0)
    return saved(model), model


def _pair_cases(made: Any) -> Iterator[str]:
    for pair in range(len(PAIRS[made.__name__][1])):
        for options in range(len(PAIRS[made.__name__][2])):
            yield json.dumps([pair, options])


def _composed(made: Any, case: str) -> Any:
    """Return what a composed model has of its parts, its configuration, and what is read from its own files."""
    end, pairs, several = PAIRS[made.__name__]
    pair, number = json.loads(case)
    first, second = (_part(name) for name in pairs[pair])
    options = dict(several[number])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = getattr(made, f"from_{end}_pretrained")(str(first[0]), str(second[0]), **options)
    state = model.state_dict()
    found: list[Any] = []
    for (_, part), place in zip((first, second), end.split("_"), strict=True):
        inner = getattr(model, f"{place}_model", None) or getattr(model, place)
        own = inner.state_dict()
        known = part.state_dict()
        shared = {name.partition(".")[2] if name not in own else name: value for name, value in known.items()}
        read = [name for name, value in shared.items() if name in own and torch.equal(own[name], value)]
        found.append(
            [type(inner).__name__, len(own), len(read), crc(sorted(read)), crc(sorted(set(own) - set(read)))]
        )
    config = model.config
    words = {name: value for name, value in options_of(config).items() if "dtype" not in name}
    for place in end.split("_"):
        part_config = getattr(config, f"{place}_config", None) or getattr(config, place)
        found.append([getattr(part_config, name, None) for name in (
            "is_decoder", "add_cross_attention", "hidden_act", "use_cache", "model_type")])  # fmt: skip
    path = saved(model)
    again, said = made.from_pretrained(path, output_loading_info=True)
    dual = made.__name__ == "VisionTextDualEncoderModel"
    inputs, outputs = (None, None) if dual else (model.get_input_embeddings(), model.get_output_embeddings())
    return [
        *found, crc(sorted(words)), crc(sorted(tensors(path))), same(again, model)[:4],
        sorted(map(str, said["missing_keys"]))[:4], sorted(map(str, said["unexpected_keys"]))[:4],
        crc(sorted(state)), type(inputs).__name__, type(outputs).__name__, model.main_input_name,
        len({value.data_ptr() for value in model.parameters()}), model.training,
        getattr(config, "is_encoder_decoder", None), getattr(config, "decoder_start_token_id", None),
        getattr(config, "tie_word_embeddings", None), getattr(config, "projection_dim", None),
    ]  # fmt: skip


def _of_configs(made: Any) -> Iterator[str]:
    for name, one in inspect.getmembers(made):
        if (
            name.startswith("from_")
            and "config" in name
            and inspect.ismethod(one)
            and name != "from_model_config"
        ):
            yield name


def _from_parts(made: Any, case: str) -> Any:
    """Return a checksum of a configuration that is made of those of its parts, with an option at another value."""
    method = getattr(made, case)
    known: Any = getattr(made, "sub_configs", None) or {}
    parts: list[Any] = []
    base = made()
    for name, one in inspect.signature(method).parameters.items():
        if one.kind is not one.VAR_KEYWORD:
            part = getattr(base, name, None) or known[name]()
            part = copy.deepcopy(part)
            if hasattr(part, "num_hidden_layers"):
                part.num_hidden_layers = 3 + len(parts)
            parts.append(part)
    if not parts:
        raise NotServed("it takes no parts")
    config = method(*parts, initializer_factor=0.5)
    return [crc(options_of(config)), getattr(config, "initializer_factor", None)]


STAGES: Sequence[Mapping[str, Any]] = (
    {}, {"out_indices": [1, 2]}, {"out_indices": [0, -1]}, {"out_indices": [-2]}, {"out_indices": (2, 1)},
    {"out_indices": [1, 1]}, {"out_indices": [99]}, {"out_features": ["stem"]}, {"out_features": ["stage1", "stage2"]},
    {"out_features": ["stage2", "stage1"]}, {"out_features": ["no_such"]}, {"out_features": "stage1"},
    {"out_features": ["stage1"], "out_indices": [1]}, {"out_features": ["stage1"], "out_indices": [2]},
    {"set_features": ["stage1", "stage2"]}, {"set_indices": [2]}, {"set_indices": [1, 9]},
)  # fmt: skip
"""Stages of a backbone that are given, or set afterwards."""


def _stages(made: Any, case: str) -> Any:
    """Return stages of a backbone by name and number: as they are given, written and read again."""
    options = dict(STAGES[int(case)])
    features, indices = options.pop("set_features", None), options.pop("set_indices", None)
    try:
        config = made(**options)
        if features is not None:
            config.out_features = features
        if indices is not None:
            config.out_indices = indices
    except (ValueError, TypeError) as error:
        return type(error).__name__
    table = config.to_dict()
    again = made.from_dict(copy.deepcopy(table))
    found = [[list(one.out_features), [int(place) for place in one.out_indices]] for one in (config, again)]
    return [
        found,
        list(config.stage_names),
        sorted(name for name in table if "stage" in name or "out_" in name),
    ]


def _backbone(made: Any, case: str) -> Any:
    """Return the maps of a backbone's stages: their number, sizes and channels."""
    config = made.config_class(**{**ALONE[made.config_class.model_type], "out_features": json.loads(case)})
    model = made_model(made, config, 0).eval()
    with torch.no_grad():
        maps = model(torch.linspace(-1, 1, 3 * 32 * 32).sin().reshape(1, 3, 32, 32)).feature_maps
    return [
        [list(one.shape) for one in maps],
        list(model.channels),
        list(model.out_features),
        list(model.out_indices),
    ]


def _table(*shape: int) -> nn.Parameter:
    size = int(torch.tensor(shape).prod())
    return nn.Parameter(torch.arange(float(size)).reshape(shape))


def _cut_linear(made: Any, case: str) -> Any:
    """Return weights and biases of a layer of which numbers are kept, along a dimension."""
    dim, kept, bias = json.loads(case)
    layer = nn.Linear(4, 3, bias=bias)
    if made.__name__ == "prune_conv1d_layer":
        layer = _conv1d(3, 4)
    layer.weight = _table(*layer.weight.shape)
    if layer.bias is not None:
        layer.bias = _table(3)
    found = made(layer, torch.tensor(kept), dim=dim)
    return [found.weight, found.bias, found.weight.requires_grad, getattr(found, "out_features", None)]


def _conv1d(*sizes: int) -> Any:
    import transformers.pytorch_utils as module

    made: Any = module.Conv1D
    return made(*sizes)


def _heads(made: Any, case: str) -> Any:
    heads, pruned = json.loads(case)
    left, index = made(set(heads), 4, 3, set(pruned))
    return [sorted(left), index]


def _chunked(made: Any, case: str) -> Any:
    """Return what a function of rows gives in parts, with the sizes of the parts."""
    size, dim = json.loads(case)
    seen = []

    def double(one: Any, other: Any) -> Any:
        seen.append(list(one.shape))
        return one * 2 + other

    value = torch.arange(24.0).reshape(2, 6, 2)
    return [made(double, size, dim, value, value + 1), seen]


def _longer(made: Any, case: str) -> Any:
    """Return a model's table of positions after another number of them, and what of it differs."""
    sizes = {"PegasusForConditionalGeneration": "PegasusConfig", "DistilBertModel": "DistilBertConfig"}
    options = {**T5, "d_model": 16, "encoder_layers": 1, "dim": 16, "decoder_layers": 1, "encoder_attention_heads": 2,
               "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
               "max_position_embeddings": 12,
               "vocab_size": 23, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}  # fmt: skip
    model = made_model(made, of_name(sizes[made.__name__])(**options), 0)
    old = copy.deepcopy(model)
    model.resize_position_embeddings(int(case))
    tables = model.get_position_embeddings()
    tables = tables if isinstance(tables, (list, tuple)) else (tables,)
    return [[one.weight for one in tables], model.config.max_position_embeddings, same(model, old)]


Cases = Callable[[Any], Iterator[str]]
Table = Mapping[str, tuple[str, Cases, Callable[[Any, str], Any]]]


def _several(*cases: Any) -> Cases:
    return lambda made: iter([json.dumps(case) for case in cases])


PYTORCH = "transformers.pytorch_utils"
TABLE: Table = {
    **{name: (f"transformers:{name}", _pair_cases, _composed) for name in PAIRS},
    **{name: (f"transformers:{name}", _several(["stem"], ["stage1", "stage3"], ["stem", "stage4"]), _backbone)
       for name in ("ResNetBackbone", "ConvNextBackbone", "ConvNextV2Backbone", "Swinv2Backbone",
                    "MaskFormerSwinBackbone", "BitBackbone", "TextNetBackbone", "HGNetV2Backbone",
                    "RTDetrResNetBackbone")},
    **{name: (f"{PYTORCH}:{name}", _several([0, [2, 0], True], [1, [1, 3], True], [0, [1], False], [1, [0], False]),
              _cut_linear) for name in ("prune_linear_layer", "prune_conv1d_layer")},
    "find_pruneable_heads_and_indices": (f"{PYTORCH}:find_pruneable_heads_and_indices", _several(
        [[1], []], [[1, 2], [0]], [[0, 3], [1]], [[1], [1]]), _heads),
    "apply_chunking_to_forward": (f"{PYTORCH}:apply_chunking_to_forward", _several(
        [0, 1], [2, 1], [3, 1], [1, 0], [6, 1], [4, 1], [2, 2]), _chunked),
    "PegasusForConditionalGeneration": ("transformers:PegasusForConditionalGeneration", _several(8, 20), _longer),
    "DistilBertModel": ("transformers:DistilBertModel", _several(8), _longer),
}  # fmt: skip
OF_CONFIGS: Sequence[tuple[Cases, Callable[[Any, str], Any]]] = (
    (_of_configs, _from_parts),
    (lambda made: iter(map(str, range(len(STAGES)))), _stages),
)
"""Of classes of configurations: of those of parts, and of those of backbones."""


def _of(kind: str) -> Callable[[Any, str], Any]:
    if kind in TABLE:
        return TABLE[kind][2]
    return lambda made, case: OF_CONFIGS[case.isdigit()][1](made, case)


def places_of(kind: str) -> str:
    """Return where a class or a function is."""
    return TABLE[kind][0] if kind in TABLE else f"transformers:{kind}"


def given_now(only: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the installed release gives."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    found: dict[str, Any] = {}
    for kind in [*only] or [*TABLE]:
        found |= given({kind: places_of(kind)}, TABLE[kind][1], _of(kind))
    for made in {one.__name__: one for one in CONFIG_MAPPING.values()}.values():
        stages = any("Backbone" in one.__name__ for one in made.__mro__)
        for wanted, (cases, _) in zip((True, stages), OF_CONFIGS, strict=True):
            if wanted and not only:
                try:
                    own = given({made.__name__: places_of(made.__name__)}, cases, _of(made.__name__))
                except REFUSED as error:
                    print(made.__name__, repr(error)[:200], flush=True)
                    continue
                for name, answers in own.items():
                    found.setdefault(name, {}).update(answers)
    return found


# Source: what releases 4.57.6 and 5.24 give; `given_now` makes an entry.
COMPOSED_ROWS: Sequence[Row] = tuple(
    Row(
        "options",
        places_of(kind),
        f"parts of {kind}",
        partial(unlike_record, RECORD, kind, _of(kind), False),
        [],
    )
    for kind in record(RECORD)
)
