"""Worked examples of Transformers' configurations: names of options, labels, types, parts, and what is written."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure, between
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.weights import SIZES, folder


def _reloaded(config: Any, **options: Any) -> Any:
    path = folder()
    config.save_pretrained(path)
    return type(config).from_pretrained(path, **options)


def _file(config: Any) -> dict[str, Any]:
    path = folder()
    config.save_pretrained(path)
    found: dict[str, Any] = json.loads((path / "config.json").read_text())
    return found


def _names(config_class: Any) -> list[Any]:
    """Return sizes by both of their names: given by either, set by either, written, and read from a file."""
    found = []
    for name, other in (("hidden_size", "n_embd"), ("n_embd", "hidden_size")):
        config = config_class(**{name: 48})
        written = _file(config)
        found.append([config.hidden_size, config.n_embd, written.get("n_embd"), "hidden_size" in written])
        setattr(config, other, 60)
        again = _reloaded(config)
        path = folder()
        (path / "config.json").write_text(json.dumps({"model_type": "gpt2", name: 24}))
        found.append(
            [config.hidden_size, config.n_embd, again.n_embd, config_class.from_pretrained(path).hidden_size]
        )
    found.append(
        [config_class(n_embd=8).to_dict()["n_embd"], config_class.from_dict({"hidden_size": 4}).n_embd]
    )
    return found


def _labels(config_class: Any) -> list[Any]:
    """Return numbers and names of labels: given by number, by names, read again, and given with a file."""
    names = {0: "bad", 1: "good", 2: "none"}
    of_names = config_class(id2label=names, label2id={name: number for number, name in names.items()})
    of_words = config_class.from_dict({"id2label": {str(number): name for number, name in names.items()}})
    two = config_class(id2label={0: "no", 1: "yes"}, label2id={"no": 0, "yes": 1})
    changed = _reloaded(of_names)
    changed.num_labels = 2
    return [
        [
            config_class().num_labels,
            config_class(num_labels=5).num_labels,
            len(config_class(num_labels=5).id2label),
        ],
        [of_names.num_labels, of_words.num_labels, of_words.id2label == names],
        [_reloaded(of_names).id2label == names, _reloaded(two).id2label, _reloaded(two).label2id],
        [
            _reloaded(config_class(num_labels=5)).num_labels,
            _reloaded(config_class(), num_labels=4).num_labels,
        ],
        [config_class.from_dict({}, num_labels=3).num_labels, changed.num_labels, sorted(changed.id2label)],
    ]


def _types(config_class: Any) -> list[Any]:
    """Return types of weights: given as words or types, by the earlier name, by both, written and read."""
    given: Sequence[dict[str, Any]] = (
        {"dtype": "float16"}, {"dtype": torch.bfloat16}, {"torch_dtype": "bfloat16"}, {"torch_dtype": torch.float16},
        {"dtype": "float16", "torch_dtype": "bfloat16"}, {},
    )  # fmt: skip
    found = []
    for options in given:
        config = config_class(**options)
        found.append([str(config.dtype), _file(config).get("dtype"), str(_reloaded(config).dtype)])
    path = folder()
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "torch_dtype": "float16"}))
    return [*found, str(config_class.from_pretrained(path).dtype)]


def _further(config_class: Any) -> list[Any]:
    """Return options that the class does not know, after a file, and those that are changed by words."""
    config = _reloaded(config_class(some_option={"a": [1, 2]}, other=None))
    config.update({"rms_norm_eps": 0.5, "new": 7})
    config.update_from_string("use_cache=false,hidden_size=12,rms_norm_eps=0.25,hidden_act=gelu")
    refused = []
    for words in ("no_such=1", "use_cache=perhaps"):
        try:
            config.update_from_string(words)
        except ValueError:
            refused.append(words)
    return [
        config.some_option, config.other, config.new, [config.use_cache, config.hidden_size, config.rms_norm_eps],
        config.hidden_act, refused,
    ]  # fmt: skip


def _defaults(config_class: Any) -> list[Any]:
    """Return whether options are written and read that are the default of all classes, and not of their own."""
    gemma: Any = of_name("GemmaConfig")
    found: list[Any] = []
    config = gemma(tie_word_embeddings=False, hidden_size=48, return_dict=True)
    found.append([_reloaded(config).tie_word_embeddings, _file(config).get("hidden_size")])
    found.append(
        [_reloaded(gemma(tie_word_embeddings=True)).tie_word_embeddings, gemma().tie_word_embeddings]
    )
    llama = config_class(tie_word_embeddings=True)
    found.append([_reloaded(llama).tie_word_embeddings, _reloaded(config_class()).tie_word_embeddings])
    whole = json.loads(llama.to_json_string(use_diff=False))
    part = json.loads(llama.to_json_string())
    found.append(["is_encoder_decoder" in whole, "is_encoder_decoder" in part, part["model_type"]])
    return found


def _parts(config_class: Any) -> list[Any]:
    """Return options of parts: given as words or as objects, changed with a file, written, and left alone."""
    text: Any = of_name("Gemma3TextConfig")
    own = {"hidden_size": 48, "num_hidden_layers": 3, "tie_word_embeddings": False}
    found: list[Any] = []
    for part in (dict(own), text(**own)):
        config = config_class(text_config=part)
        again = _reloaded(config)
        changed = _reloaded(config, text_config={"num_attention_heads": 2})
        found.append(
            [
                [
                    one.text_config.hidden_size,
                    one.text_config.num_hidden_layers,
                    type(one.text_config).__name__,
                ]
                for one in (config, again, changed)
            ]
        )
        found.append([again.text_config.tie_word_embeddings, changed.text_config.num_attention_heads])
    plain = config_class()
    found.append([type(plain.vision_config).__name__, plain.text_config.hidden_size == text().hidden_size])
    written = _file(config_class(text_config=own))
    found.append([written["text_config"]["model_type"], "transformers_version" in written["text_config"]])
    return found


def _of_texts(config_class: Any) -> list[Any]:
    """Return which part is that of texts: of one, of a whole with pictures, of encoders and decoders."""
    llama, gemma = of_name("LlamaConfig")(), of_name("Gemma3Config")()
    bart: Any = of_name("BartConfig")(encoder_layers=3, decoder_layers=5, decoder_attention_heads=2)
    before = bart.to_dict()
    decoder, encoder = bart.get_text_config(decoder=True), bart.get_text_config(encoder=True)
    return [
        llama.get_text_config() is llama, gemma.get_text_config() is gemma.text_config,
        gemma.get_text_config(decoder=True) is gemma.text_config, bart.get_text_config() is bart,
        [decoder.num_hidden_layers, decoder.num_attention_heads, encoder.num_hidden_layers], bart.to_dict() == before,
    ]  # fmt: skip


def _attention(config_class: Any) -> list[Any]:
    """Return kinds of attention of a whole and its parts: for all, by part, set later, and whether they are written."""
    found = []
    for given in (
        "eager",
        {"text_config": "sdpa", "vision_config": "eager"},
        {"": "eager", "text_config": "sdpa"},
    ):
        config = config_class(attn_implementation=given)
        found.append([one._attn_implementation for one in (config, config.text_config, config.vision_config)])
    config = config_class()
    config._attn_implementation = "eager"
    found.append([one._attn_implementation for one in (config, config.text_config, config.vision_config)])
    words = json.dumps(_file(config))
    return [*found, "attn_implementation" in words, _reloaded(config).text_config._attn_implementation]


def _with_a_file(config_class: Any) -> list[Any]:
    """Return options that are given with a file, and those that are not taken."""
    config, rest = _reloaded(config_class(), rms_norm_eps=0.5, foo=3, return_unused_kwargs=True)
    plain = _reloaded(config_class(), vocab_size=12)
    return [
        config.rms_norm_eps,
        rest,
        hasattr(config, "foo"),
        plain.vocab_size,
        hasattr(config, "return_unused_kwargs"),
    ]


def _endless(config_class: Any) -> list[Any]:
    """Return options that are no finite numbers, after a file that is valid JSON."""
    path = folder()
    config_class(
        high=math.inf, low=-math.inf, none=math.nan, more=[math.inf, {"a": -math.inf}]
    ).save_pretrained(path)

    def refuse(word: str) -> Any:
        raise ValueError(word)

    json.loads((path / "config.json").read_text(), parse_constant=refuse)
    read = config_class.from_pretrained(path)
    return [read.high, read.low, read.none, read.more]


def _copies(config_class: Any) -> list[bool]:
    """Return whether copies are equal and apart, and options of one do not reach another."""
    config = config_class(**SIZES, list_option=[1])
    found = []
    for one in (
        copy.deepcopy(config),
        copy.copy(copy.deepcopy(config)),
        config_class.from_dict(config.to_dict()),
    ):
        found.append(one == config or one.to_dict() == config.to_dict())
        one.list_option.append(2)
        one.hidden_size = 4
        found.append(config.list_option == [1] and config.hidden_size == 16)
    config.to_dict()["list_option"].append(3)
    return [*found, config.list_option == [1]]


def _equal(config_class: Any) -> list[bool]:
    """Return whether configurations are equal: to one of the same options, of another one, and of one more."""
    config = config_class(**SIZES, more=1)
    others = ({**SIZES, "more": 1}, {**SIZES, "hidden_size": 32, "more": 1}, {**SIZES, "more": 2}, SIZES)
    return [config == config_class(**options) for options in others]


def _windows(config_class: Any) -> list[Any]:
    """Return kinds of layers by the options of a window, by a list, and the refusal of a list of another length."""
    found: list[Any] = []
    for options in (
        {}, {"use_sliding_window": True, "max_window_layers": 1}, {"use_sliding_window": True, "max_window_layers": 9},
        {"layer_types": ["sliding_attention", "full_attention", "full_attention"], "use_sliding_window": True},
    ):  # fmt: skip
        config = config_class(num_hidden_layers=3, sliding_window=7, **options)
        found.append([*(name[0] for name in config.layer_types), config.sliding_window])
        if _reloaded(config).layer_types != config.layer_types:
            found.append("other layers after a reload")
    try:
        config_class(num_hidden_layers=3, layer_types=["full_attention"])
    except Exception as error:  # noqa: BLE001  releases wrap the error
        found.append("num_hidden_layers" in str(error))
    return found


def _kinds(auto: Any) -> list[Any]:
    """Return configurations by the type of model: by its name, of a file, of a class that is registered, unknown."""

    class Made(of_name("PretrainedConfig")):  # type: ignore[misc]
        model_type = "made-for-a-test"

    found: list[Any] = [
        type(auto.for_model("gpt2", n_embd=4)).__name__,
        auto.for_model("gpt2", n_embd=4).n_embd,
    ]
    path = folder()
    of_name("GPT2Config")(n_layer=3).save_pretrained(path)
    found += [type(auto.from_pretrained(path)).__name__, auto.from_pretrained(path, n_head=2).n_head]
    auto.register("made-for-a-test", Made)
    Made(size=3).save_pretrained(path)
    found += [type(auto.from_pretrained(path)).__name__, auto.from_pretrained(path).size]
    (path / "config.json").write_text('{"model_type": "no-such-type"}')
    try:
        auto.from_pretrained(path)
    except ValueError as error:
        found.append("no-such-type" in str(error))
    return found


LLAMA, GEMMA = "transformers:LlamaConfig", "transformers:Gemma3Config"
# Sources: the documentation of PretrainedConfig: attribute_map, num_labels, to_diff_dict, from_dict, get_text_config.
CONFIGURATION_ROWS: Sequence[Row] = (
    Row(
        "options",
        "transformers:GPT2Config",
        "other names of options",
        _names,
        [[48, 48, 48, False], [60, 60, 60, 24], [48, 48, 48, False], [60, 60, 60, 24], [8, 4]],
    ),
    Row(
        "options",
        LLAMA,
        "labels",
        _labels,
        [
            [2, 5, 5],
            [3, 3, True],
            [True, {0: "no", 1: "yes"}, {"no": 0, "yes": 1}],
            [5, 4],
            [3, 2, [0, 1]],
        ],
    ),
    Row(
        "options",
        LLAMA,
        "types of weights",
        _types,
        [
            ["torch.float16", "float16", "torch.float16"],
            ["torch.bfloat16", "bfloat16", "torch.bfloat16"],
            ["torch.bfloat16", "bfloat16", "torch.bfloat16"],
            ["torch.float16", "float16", "torch.float16"],
            ["torch.float16", "float16", "torch.float16"],
            ["None", None, "None"],
            "torch.float16",
        ],
        since="4.56",
    ),
    Row(
        "options",
        LLAMA,
        "options that it does not know",
        _further,
        [{"a": [1, 2]}, None, 7, [False, 12, 0.25], "gelu", ["no_such=1", "use_cache=perhaps"]],
    ),
    Row(
        "options",
        LLAMA,
        "options with the default of all classes",
        _defaults,
        [[False, 48], [True, True], [True, False], [True, False, "llama"]],
    ),
    Row(
        "options",
        GEMMA,
        "options of parts",
        _parts,
        [
            [[48, 3, "Gemma3TextConfig"]] * 3,
            [False, 2],
            [[48, 3, "Gemma3TextConfig"]] * 3,
            [False, 2],
            ["SiglipVisionConfig", True],
            ["gemma3_text", False],
        ],
        since="4.56",
    ),
    Row(
        "options",
        LLAMA,
        "the part of texts",
        _of_texts,
        [True, True, True, True, [5, 2, 3], True],
        since="4.57.6",
    ),
    Row(
        "options",
        GEMMA,
        "kinds of attention",
        _attention,
        [["eager"] * 3, [None, "sdpa", "eager"], ["eager", "sdpa", None], ["eager"] * 3, False, None],
        since="4.57.6",
    ),
    Row("options", LLAMA, "options with a file", _with_a_file, [0.5, {"foo": 3}, False, 12, False]),
    Row(
        "options",
        LLAMA,
        "numbers that are not finite",
        _endless,
        [math.inf, -math.inf, math.nan, [math.inf, {"a": -math.inf}]],
        since="5",
    ),
    Row("options", LLAMA, "copies", _copies, [True] * 7),
    Row(
        "options",
        LLAMA,
        "configurations that are equal",
        _equal,
        [True, False, False, False],
        known=KnownFailure(
            "options that the class does not know are not compared",
            finding="Transformers: equal configurations",
            releases=between("transformers", "5", "99"),
        ),
    ),
    Row(
        "options",
        "transformers:Qwen2Config",
        "windows of layers",
        _windows,
        [["f", "f", "f", None], ["f", "s", "s", 7], ["f", "f", "f", 7], ["s", "f", "f", 7], True],
        since="4.57.6",
    ),
    Row(
        "options",
        "transformers:AutoConfig",
        "types of models",
        _kinds,
        ["GPT2Config", 4, "GPT2Config", 2, "Made", 3, True],
    ),
)
