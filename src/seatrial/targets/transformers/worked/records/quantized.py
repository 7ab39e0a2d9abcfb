"""Configurations of quantization, what they choose to convert, and numbers of packed weights, on record."""

from __future__ import annotations

import contextlib
import copy
import importlib.metadata
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import made_model
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.every_class import crc
from seatrial.targets.transformers.worked.records.answers import REFUSED, given, record, unlike_record
from seatrial.targets.transformers.worked.weights import GPT2, T5, llama

RECORD = "quantized_record"
MODULE = "transformers.utils.quantization_config"
QUANTIZERS = "transformers.quantizers"
VALUES: Sequence[Any] = (
    2, 4, 8, 3, 0.5, True, False, "float16", "bfloat16", torch.float16, "nf4", "fp8", "int8", "int4", "static", "gemm",
    ["lm_head"], ["model.layers.0"], {"a": 1}, None,
)  # fmt: skip
"""Values of options, of which a class refuses most."""
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "GPTQConfig": {"bits": 4},
    "TorchAoConfig": {"quant_type": "int8_weight_only"},
}
SAVED: Sequence[Mapping[str, Any]] = (
    {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    {"quant_method": "bitsandbytes", "load_in_8bit": True, "llm_int8_threshold": 3.0, "llm_int8_skip_modules": ["a"]},
    {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": True, "sym": False},
    {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    {"quant_method": "fp8", "weight_block_size": [4, 8], "activation_scheme": "dynamic", "ignored_layers": ["b"]},
    {"quant_method": "fp8", "weight_block_size": [4, 8], "modules_to_not_convert": ["c"]},
    {"quant_method": "mxfp4", "modules_to_not_convert": ["d"]},
    {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online", "use_rms_norm": True},
    {"quant_method": "aqlm", "num_codebooks": 2}, {"quant_method": "eetq", "weights": "int8"},
    {"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 4}}, "skip_modules": ["e"]},
    {"quant_method": "quanto", "weights": "int4"}, {"quant_method": "fbgemm_fp8", "activation_scale_ub": 7.0},
    {"quant_method": "higgs", "bits": 2, "p": 1, "group_size": 128}, {"quant_method": "spqr", "bits": 3},
    {"quant_method": "vptq", "config_for_layers": {}}, {"quant_method": "auto-round", "bits": 4, "group_size": 32},
    {"quant_method": "none"}, {},
)  # fmt: skip
"""What files of configurations say."""


def _options(made: Any) -> Mapping[str, Any]:
    return {
        name: one
        for name, one in inspect.signature(made.__init__).parameters.items()
        if name not in ("self", "kwargs", "quant_config") and one.kind is not one.VAR_KEYWORD
    }


def _config_cases(made: Any) -> Iterator[str]:
    yield json.dumps({})
    for name in _options(made):
        for place in range(len(VALUES)):
            yield json.dumps({name: place})
    yield json.dumps({"file": True})


def _properties(config: Any) -> dict[str, Any]:
    """Return what a configuration says of itself."""
    found: dict[str, Any] = {"table": _plain(config.to_dict())}
    for name in ("to_diff_dict", "get_loading_attributes", "is_quantizable", "quantization_method", "is_quantized",
                 "is_quantization_compressed", "to_dict_optimum"):  # fmt: skip
        if hasattr(config, name):
            found[name] = _plain(getattr(config, name)())
    for name in ("load_in_4bit", "load_in_8bit", "dequantize", "pre_quantized", "modules_to_not_convert"):
        found[name] = _plain(getattr(config, name, None))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    known = value is None or isinstance(value, (bool, int, float))
    return value if known else str(getattr(value, "value", value)).partition(" at 0x")[0]


def _of_config(made: Any, case: str) -> Any:
    asked = json.loads(case)
    options = dict(NEEDED.get(made.__name__, {}))
    if "file" in asked:
        config = made(**options)
        again = made.from_dict(config.to_dict())
        changed, rest = made.from_dict(
            {**config.to_dict()}, return_unused_kwargs=True, modules_to_not_convert=["lm_head"], none=3
        )
        return [_properties(again), _properties(changed), _plain(rest), _plain(config.update(bits=8, none=1))]
    config = made(**{**options, **{name: copy.deepcopy(VALUES[place]) for name, place in asked.items()}})
    return crc(_properties(config)) if asked else _properties(config)


def _auto(made: Any, case: str) -> Any:
    """Return the configuration of what a file says, whether it is known, and one that is merged with another."""
    number, _, of_quantizer = case.partition(" ")
    table = SAVED[int(number)]
    quantizer = find_name("transformers", ["transformers.quantizers.auto:AutoHfQuantizer"])
    if of_quantizer:
        return _quantizer(quantizer, made.from_dict(dict(table)))
    found: list[Any] = []
    for call in (
        lambda: quantizer.supports_quant_method(dict(table)),
        lambda: [type(made.from_dict(dict(table))).__name__, _properties(made.from_dict(dict(table)))],
        lambda: _properties(quantizer.merge_quantization_configs(dict(table), None)),
        lambda: _merged(quantizer, made, table),
    ):
        try:
            found.append(call())
        except (ValueError, TypeError, KeyError) as error:
            found.append(type(error).__name__)
    return found


def _merged(quantizer: Any, made: Any, table: Mapping[str, Any]) -> Any:
    """Return a configuration of a file after that of a call, of the same class with other options, was merged."""
    other = made.from_dict(
        {**table, "bits": 4, "max_input_length": 77, "dequantize": True, "use_exllama": False}
    )
    return _properties(quantizer.merge_quantization_configs(dict(table), other))


def _quantizer(quantizer: Any, config: Any) -> Any:
    """Return what a quantizer says of itself, before any model."""
    made = quantizer.from_config(config)
    found: list[Any] = [type(made).__name__]
    for name in ("requires_calibration", "requires_parameters_quantization", "modules_to_not_convert", "pre_quantized",
                 "is_trainable", "is_qat_trainable", "is_compileable"):  # fmt: skip
        found.append(_plain(getattr(made, name, None)))
    for call in (
        lambda: made.adjust_max_memory({"cpu": 1000}), lambda: made.update_dtype(torch.float16),
        lambda: made.update_dtype(None), lambda: made.adjust_target_dtype(torch.int8), lambda: made.is_serializable(),
    ):  # fmt: skip
        try:
            found.append(_plain(call()))  # type: ignore[no-untyped-call]
        except (AttributeError, TypeError, ValueError) as error:
            found.append(type(error).__name__)
    return found


def _skipped(made: Any, case: str) -> Any:
    """Return modules that are not converted: of models whose heads are tied or not, with other lists of modules."""
    kind, skips, wide, add = json.loads(case)
    model = _models()[kind]()
    return sorted(made.get_modules_to_not_convert(model, skips, wide, add))


def _models() -> Mapping[str, Callable[[], Any]]:
    return {
        "llama": llama,
        "tied": lambda: llama(tie_word_embeddings=True),
        "base": lambda: llama("LlamaModel"),
        "classes": lambda: llama("LlamaForSequenceClassification"),
        "t5": lambda: made_model(of_name("T5ForConditionalGeneration"), of_name("T5Config")(**T5), 0),
        "gpt2": lambda: made_model(of_name("GPT2LMHeadModel"), of_name("GPT2Config")(**GPT2), 0),
    }


def _skip_cases(made: Any) -> Iterator[str]:
    for kind in _models():
        for skips, wide, add in (
            (None, None, False),
            (["a"], None, False),
            (["a"], ["wo"], True),
            (None, ["wo"], False),
        ):
            yield json.dumps([kind, skips, wide, add])


NAMES = (
    "model.layers.1.mlp.gate",
    "model.layers.11.mlp.gate_proj",
    "lm_head",
    "model.lm_head",
    "fc1",
    "a.fc1",
)
PATTERNS: Sequence[Any] = (
    None, [], ["lm_head"], ["model.layers.1"], ["layers.1"], ["fc1"], ["mlp.gate"], [r"model.layers.\d+.mlp.gate"],
    ["a|lm_head"], ["model.layers.*"],
)  # fmt: skip


def _converted(made: Any, case: str) -> Any:
    return [made(name, PATTERNS[int(case)]) for name in NAMES]


REPLACED: Mapping[str, Mapping[str, Any]] = {
    "transformers.integrations.bitnet:replace_with_bitnet_linear": {"quant_method": "bitnet"},
    "transformers.integrations.finegrained_fp8:replace_with_fp8_linear": {
        "quant_method": "fp8",
        "weight_block_size": [4, 4],
    },
    "transformers.integrations.eetq:replace_with_eetq_linear": {"quant_method": "eetq"},
    "transformers.integrations.metal_quantization:replace_with_metal_linear": {"quant_method": "metal"},
    "transformers.integrations.fbgemm_fp8:replace_with_fbgemm_fp8_linear": {"quant_method": "fbgemm_fp8"},
    "transformers.integrations.higgs:replace_with_higgs_linear": {"quant_method": "higgs", "bits": 4},
    "transformers.integrations.spqr:replace_with_spqr_linear": {"quant_method": "spqr"},
    "transformers.integrations.quanto:replace_with_quanto_layers": {"quant_method": "quanto"},
}
"""Functions that replace linear layers, and the configuration that they take."""


def _replaced(made: Any, case: str) -> Any:
    """Return classes of modules after linear layers of a model without values were replaced, and sizes of weights."""
    place, skips = json.loads(case)
    auto = find_name("transformers", ["transformers.quantizers.auto:AutoQuantizationConfig"])
    config = auto.from_dict(dict(REPLACED[place]))
    with torch.device("meta"):
        model = of_name("LlamaForCausalLM")(llama().config)
    named = {"modules_to_not_convert": skips, "quantization_config": config, "pre_quantized": True}
    takes = inspect.signature(made).parameters
    found = made(model, **{name: value for name, value in named.items() if name in takes})
    model = found[0] if isinstance(found, tuple) else found or model
    kinds = sorted({f"{name.rpartition('.')[2]} {type(one).__name__}" for name, one in model.named_modules()})
    sizes = {name: [list(value.shape), str(value.dtype)] for name, value in model.state_dict().items()
             if ".1.mlp.up" in name or "lm_head" in name}  # fmt: skip
    return [kinds, sizes]


def _bytes(*shape: int) -> Tensor:
    size = int(torch.tensor(shape).prod())
    return ((torch.arange(size) * 37 + 11) % 251).to(torch.uint8).reshape(shape)


def _numbers(made: Any, case: str) -> Any:
    """Return what comes of packed numbers, or of numbers that are packed, by the name of a function."""
    name = getattr(made, "__name__", type(made).__name__)
    with contextlib.suppress(AttributeError):
        made = inspect.unwrap(made)
    if name == "pack_weights":
        return [made(torch.tensor([[1, 0, -1], [0, 0, 1], [-1, 1, 1], [1, 1, 0], [0, -1, 1]][: int(case)]))]
    if name == "unpack_weights":
        return made(_bytes(int(case), 3) % 171, torch.float32)
    if name == "convert_moe_packed_tensors":
        return made(_bytes(2, 3, 2, 4), 120 + _bytes(2, 3, 2) % 12, dtype=torch.float32)
    if name in ("_unpack_int4", "_unpack_int2"):
        return made(_bytes(3, 4), int(case) * (1 if name == "_unpack_int4" else 2))
    if name == "apply_srq":
        return made(torch.linspace(-3, 3, 20).reshape(4, 5), torch.tensor(0.03), int(case))
    if name == "_affine_quantize_tensor":
        weight = torch.linspace(-2, 3, 128).reshape(2, 64).sin()
        packed = made(weight, 32, int(case))
        back = find_name(
            "transformers", ["transformers.integrations.metal_quantization:_affine_dequantize_tensor"]
        )
        return [*packed, back(*packed, 32, int(case))]
    if name == "_dequantize_fp8_weight":
        raise NotServed("its arguments differ between releases")
    raise NotServed(f"no numbers of {name}")


def _dequantized(made: Any, case: str) -> Any:
    """Return weights in eight or four bits times the scales of their blocks."""
    rows, columns = json.loads(case)
    operation = made(None)
    weight = torch.linspace(-2, 2, 64).reshape(8, 8)
    scales = 1 + torch.arange(float(rows * columns)).reshape(rows, columns)
    found = [operation._dequantize_one(weight.to(torch.float8_e4m3fn), scales, torch.float32)]
    with contextlib.suppress(AttributeError, ValueError):
        found.append(operation._dequantize_one(_bytes(8, 4).to(torch.int8), scales, torch.float32))
    return found


Table = Mapping[str, tuple[str, Callable[[Any], Iterator[str]], Callable[[Any, str], Any]]]


def _several(*cases: Any) -> Callable[[Any], Iterator[str]]:
    return lambda made: iter([case if isinstance(case, str) else json.dumps(case) for case in cases])


TABLE: Table = {
    "AutoQuantizationConfig": ("transformers.quantizers.auto:AutoQuantizationConfig",
                               _several(*(f"{one}{more}" for more in ("", " quantizer") for one in range(len(SAVED)))),
                               _auto),
    "HfQuantizer": ("transformers.quantizers.base:HfQuantizer", _skip_cases, _skipped),
    "should_convert_module": ("transformers.quantizers.quantizers_utils:should_convert_module",
                              _several(*map(str, range(len(PATTERNS)))), _converted),
    **{place.rpartition(":")[2]: (place, _several(*([place, skips] for skips in (None, [], ["lm_head"], ["mlp"], [
        "model.layers.1.mlp.up_proj"]))), _replaced) for place in REPLACED},
    **{name: (f"transformers.integrations.{module}:{name}", _several(*cases), _numbers) for module, name, cases in (
        ("bitnet", "pack_weights", ("3", "4", "5")), ("bitnet", "unpack_weights", ("1", "2")),
        ("mxfp4", "convert_moe_packed_tensors", ("",)), ("gemma_quant", "_unpack_int4", ("8", "7")),
        ("gemma_quant", "_unpack_int2", ("8", "7")), ("gemma_quant", "apply_srq", ("8", "4")),
        ("metal_quantization", "_affine_quantize_tensor", ("2", "4", "8")))},
    "Fp8Dequantize": ("transformers.integrations.finegrained_fp8:Fp8Dequantize",
                      _several([1, 1], [2, 2], [4, 1], [1, 8], [3, 2]), _dequantized),
}  # fmt: skip


@contextlib.contextmanager
def _with_packages() -> Iterator[None]:
    """Have packages that are missing, such as those with kernels of a quantization, be of a late release."""
    version = importlib.metadata.version

    def found(name: str) -> str:
        try:
            return version(name)
        except importlib.metadata.PackageNotFoundError:
            return "99.0"

    with patch("importlib.metadata.version", found):
        yield


def _of(kind: str) -> Callable[[Any, str], Any]:
    ask = TABLE[kind][2] if kind in TABLE else _of_config

    def asked(made: Any, case: str) -> Any:
        with _with_packages():
            return ask(made, case)

    return asked


def places_of(kind: str) -> str:
    """Return where a class or a function is."""
    return TABLE[kind][0] if kind in TABLE else f"{MODULE}:{kind}"


def given_now(only: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the installed release gives."""
    import transformers.utils.quantization_config as module

    found: dict[str, Any] = {}
    mixin = module.QuantizationConfigMixin
    names = [name for name, one in vars(module).items()
             if inspect.isclass(one) and issubclass(one, mixin) and one is not mixin]  # fmt: skip
    for kind in sorted(only or (*names, *TABLE)):
        try:
            cases = TABLE[kind][1] if kind in TABLE else _config_cases
            found |= given({kind: places_of(kind)}, cases, _of(kind))
        except REFUSED as error:
            print(kind, repr(error)[:200], flush=True)
    return found


# Source: what releases 4.57.6 and 5.24 give; `given_now` makes an entry.
QUANTIZED_ROWS: Sequence[Row] = tuple(
    Row(
        "options",
        places_of(kind),
        f"answers of {kind}",
        partial(unlike_record, RECORD, kind, _of(kind), False),
        [],
    )
    for kind in record(RECORD)
)
