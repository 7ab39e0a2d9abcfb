"""Worked examples of verl's options and what its tokenizers and processors give: objects, forms of ids, media."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy
import torch

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.tools import raised
from seatrial.targets.verl.worked.values import refused_calls

OPTIONS = "verl.utils.config:"
TOKENIZER = ("verl.utils.tokenizer:", "verl.utils.tokenizer.tokenizer:")


@dataclasses.dataclass
class _Inner:
    """Options of a part."""

    size: int = 1
    name: str = "a"


@dataclasses.dataclass
class _Outer:
    """Options with those of a part."""

    inner: _Inner = dataclasses.field(default_factory=_Inner)
    rate: float = 0.5


def _to_object(convert: Callable[..., Any]) -> list[Any]:
    from omegaconf import OmegaConf

    made = convert(OmegaConf.create({"inner": {"size": 3}}), _Outer)
    other = convert({"rate": 2}, _Outer)
    kept = _Outer(rate=9.0)
    target = OmegaConf.create({"_target_": "builtins.dict", "a": 1})
    return [
        [type(made).__name__, type(made.inner).__name__, made.inner.size, made.inner.name, made.rate],
        [other.rate, other.inner.size],
        [convert({}, _Outer).rate, convert(None, _Outer).rate, convert(None)],
        convert(kept, _Outer) is kept,
        dict(convert(target)),
        [raised(convert, {"a": 1}), raised(convert, {"a": 1}, dict), raised(convert, {"none": 1}, _Outer)],
    ]


def _updated(update: Callable[..., Any]) -> dict[str, Any]:
    given = {"a": 1, "b": 2}
    update(given, SimpleNamespace(a=5, c=6))
    return given


def _mapped(base: Any) -> list[Any]:
    """Return what options are as a mapping: read, listed, frozen."""
    made = dataclasses.make_dataclass(
        "Made", [("one", int, 1), ("two", int, 2)], bases=(base,), namespace={"_mutable_fields": {"two"}}
    )()
    made.two = 5
    return [
        made["one"],
        made.get("two"),
        made.get("none", 7),
        list(made) == ["_target_", "one", "two"],
        len(made),
        dict(made)["two"],
        raised(setattr, made, "one", 3),
        raised(lambda: made["none"]),
    ]


def _ids(normalize: Callable[..., Any]) -> list[Any]:
    """Return ids of each form that a tokenizer gives, and what is refused."""
    from transformers import BatchEncoding

    given: Sequence[Any] = (
        [1, 2],
        (1, 2),
        [[1, 2]],
        [(1, 2)],
        torch.tensor([1, 2]),
        torch.tensor([[1, 2]]),
        numpy.array([1, 2]),
        {"input_ids": [1, 2]},
        BatchEncoding({"input_ids": [[1, 2]]}),
        SimpleNamespace(input_ids=(1, 2)),
        [torch.tensor(1), numpy.int64(2)],
    )
    return [
        [normalize(one) for one in given],
        normalize([]),
        refused_calls(normalize, ("ab",), (5,), ([[1], [2]],)),
    ]


def _token_of(find: Callable[..., Any]) -> list[Any]:
    tokenizer = SimpleNamespace(convert_tokens_to_ids={"<i>": 7}.get)
    return [
        find(None, "image"),
        find(SimpleNamespace(image_token_id=5, image_token="<i>", tokenizer=tokenizer), "image"),
        find(SimpleNamespace(image_token="<i>", tokenizer=tokenizer), "image"),
        find(SimpleNamespace(image_token="<o>", tokenizer=tokenizer), "image"),
        find(SimpleNamespace(image_token_id=5), "video"),
    ]


def _media(build: Callable[..., Any]) -> list[Any]:
    """Return what a processor is given: texts alone, sounds with a rate, videos with what is known of them."""

    class _Processor:
        feature_extractor = SimpleNamespace(sampling_rate=16000)

        def __call__(self, **given: Any) -> Any:
            return given

    one = _Processor()
    return [
        build(one, text=["a"]),
        build(one, text=["a"], audio=["s"], images=["i"]),
        build(one, text=["a"], audio=["s"], mm_processor_kwargs={"sampling_rate": 8000, "more": 1}),
        build(one, text=["a"], videos=[("v", {"fps": 2}), ("w", {"fps": 3})], return_tensors="np"),
        build(one, text=["a"], videos=["v"]),
        build(one, text=["a"], videos=[]),
    ]


_TEXT: Mapping[str, Any] = {"text": ["a"], "images": None, "videos": None, "return_tensors": "pt"}


MEDIA: Sequence[Any] = [
    _TEXT,
    {**_TEXT, "images": ["i"], "audio": ["s"], "sampling_rate": 16000},
    {**_TEXT, "audio": ["s"], "sampling_rate": 8000, "more": 1},
    {
        **_TEXT,
        "videos": ["v", "w"],
        "video_metadata": [{"fps": 2}, {"fps": 3}],
        "do_sample_frames": False,
        "return_tensors": "np",
    },
    {**_TEXT, "videos": ["v"]},
    {**_TEXT, "videos": []},
]


def _padded(set_pad: Callable[..., Any]) -> list[Any]:
    found = []
    for pad in (None, 3):
        one = SimpleNamespace(
            pad_token_id=pad, pad_token=None if pad is None else "<p>", eos_token_id=1, eos_token="<e>"
        )
        set_pad(one)
        found.append([one.pad_token_id, one.pad_token])
    return found


def _precisions(kinds: Any) -> list[Any]:
    names = [16, "16", "fp16", "float16", torch.float16, 32, "32", "fp32", "float32", torch.float32]
    names += ["bf16", "bfloat16", torch.bfloat16]
    return [
        [str(kinds.to_dtype(name)).removeprefix("torch.") for name in names],
        [kinds.to_str(dtype) for dtype in (torch.float16, torch.float32, torch.bfloat16)],
        [kinds.is_fp16("fp16"), kinds.is_fp32("fp16"), kinds.is_bf16("bf16"), kinds.is_bf16("fp32")],
        [raised(kinds.to_dtype, "64"), raised(kinds.to_str, torch.float64)],
    ]


ROWS: Sequence[Row] = (
    Row(
        "options",
        f"{OPTIONS}omega_conf_to_dataclass",
        "objects of options",
        _to_object,
        [
            ["_Outer", "_Inner", 3, "a", 0.5],
            [2.0, 1],
            [0.5, 0.5, None],
            True,
            {"a": 1},
            ["AssertionError", "ValueError", "ConfigKeyError"],
        ],
    ),
    Row("options", f"{OPTIONS}update_dict_with_config", "values", _updated, {"a": 5, "b": 2}),
    Row(
        "options",
        "verl.base_config:BaseConfig",
        "a mapping",
        _mapped,
        [1, 5, 7, True, 3, 5, "FrozenInstanceError", "AttributeError"],
        since="0.6",
    ),
    Row(
        "texts",
        " ".join(f"{place}normalize_token_ids" for place in TOKENIZER),
        "forms",
        _ids,
        [[[1, 2]] * 11, [], [True] * 3],
    ),
    Row(
        "texts",
        " ".join(f"{place}get_processor_token_id" for place in TOKENIZER),
        "names",
        _token_of,
        [None, 5, 7, None, None],
    ),
    Row(
        "texts",
        " ".join(f"{place}build_multimodal_processor_inputs" for place in TOKENIZER),
        "media",
        _media,
        MEDIA,
    ),
    Row(
        "texts",
        " ".join(f"{place}set_pad_token_id" for place in TOKENIZER),
        "with and without padding",
        _padded,
        [[1, "<e>"], [3, "<p>"]],
    ),
    Row(
        "options",
        "verl.utils.torch_dtypes:PrecisionType",
        "names",
        _precisions,
        [
            ["float16"] * 5 + ["float32"] * 5 + ["bfloat16"] * 3,
            ["fp16", "fp32", "bf16"],
            [True, False, True, False],
            ["RuntimeError", "RuntimeError"],
        ],
        since="0.4",
    ),
)
