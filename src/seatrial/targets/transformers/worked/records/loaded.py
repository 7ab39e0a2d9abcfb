"""What small models of every module keep when they are written, read, read in part, narrowed and resized, on record.

Files hold tensors that are drawn by their names; starts are compared with those of a fresh model, so that no stream of
torch is on record.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.class_configs import class_config
from seatrial.targets.transformers.small_models import fresh_model
from seatrial.targets.transformers.worked.every_class import FEWEST, _error, crc, files_of
from seatrial.targets.transformers.worked.records.answers import REFUSED, answered, record, unlike_record
from seatrial.targets.transformers.worked.weights import rewrite, saved, tensors

RECORD = "loaded_record"
LARGEST = 3_000_000
"""Parameters of a model that is judged."""
HEADS = (
    "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice",
    "ForNextSentencePrediction", "ForQuestionAnsweringSimple", "ForQuestionAnsweringWithTopK",
)  # fmt: skip
"""Ends of names of classes that differ from others of their module in a head alone, which are not judged."""
MORE_TOKENS = 5
STAGES: Mapping[str, Any] = {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]}
WINDOWS: Mapping[str, Any] = {
    "embed_dim": 8, "depths": [1, 1, 1, 1], "num_heads": [1, 1, 2, 2], "image_size": 32, "patch_size": 4,
    "window_size": 4,
}  # fmt: skip
SERIES: Mapping[str, Any] = {
    "prediction_length": 4, "context_length": 8, "d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16,
}  # fmt: skip
QUERIES: Mapping[str, Any] = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "num_queries": 5, "use_timm_backbone": False, "backbone": None,
    "use_pretrained_backbone": False, "num_labels": 3, "hidden_size": 32, "num_attention_heads": 4,
}  # fmt: skip
"""Options of models that look for objects."""
BLOCKS: Mapping[str, Any] = {"encoder_hidden_dim": 32, "encoder_in_channels": [16, 16, 32], "feat_strides": [8, 16, 32],
                             "encoder_ffn_dim": 16, "decoder_in_channels": [32, 32, 32], "hidden_expansion": 1.0,
                             "feature_strides": [8, 16, 32], "num_feature_levels": 3}  # fmt: skip
ALONE: Mapping[str, Mapping[str, Any]] = {
    "autoformer": {**SERIES, "label_length": 4, "moving_average": 3},
    "informer": SERIES,
    "time_series_transformer": SERIES,
    "convnext": STAGES,
    "convnextv2": STAGES,
    "dinov3_convnext": STAGES,
    "poolformer": {**STAGES, "num_encoder_blocks": 4},
    "resnet": {**STAGES, "embedding_size": 8},
    "rt_detr_resnet": {**STAGES, "embedding_size": 8},
    "regnet": {**STAGES, "embedding_size": 8, "groups_width": 4},
    "bit": {**STAGES, "embedding_size": 32, "hidden_sizes": [32, 32, 64, 64], "num_groups": 4},
    "levit": {
        "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8],
    },
    "pvt": {**STAGES, "num_attention_heads": [1, 1, 2, 2], "image_size": 32},
    "efficientnet": {"width_coefficient": 0.1, "depth_coefficient": 0.1, "hidden_dim": 32},
    "swinv2": WINDOWS,
    "swin2sr": {**WINDOWS, "embed_dim": 16, "num_heads": [2, 2, 2, 2]},
    "maskformer-swin": WINDOWS,
    "donut-swin": WINDOWS,
    "dinat": {**WINDOWS, "kernel_size": 3, "dilations": [[1], [1], [1], [1]]},
    "textnet": {
        "conv_layer_kernel_sizes": [[[3, 3]], [[3, 3]], [[3, 1]], [[1, 3]]], "hidden_sizes": [8, 8, 8, 16, 16],
        "conv_layer_strides": [[1], [2], [1], [2]], "stem_out_channels": 8,
    },
    "hgnet_v2": {
        "embedding_size": 8, "stem_channels": [3, 8, 8], "stage_in_channels": [8, 16, 16, 16],
        "stage_mid_channels": [8, 8, 8, 8], "stage_out_channels": [16, 16, 16, 32], "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
    },
    "encodec": {"num_filters": 2, "hidden_size": 8, "codebook_size": 8, "codebook_dim": 8, "upsampling_ratios": [4, 2]},
    "dac": {
        "encoder_hidden_size": 4, "decoder_hidden_size": 32, "n_codebooks": 2, "codebook_size": 8, "codebook_dim": 4,
        "hidden_size": 64,
    },
    "univnet": {"model_hidden_channels": 8, "kernel_predictor_hidden_channels": 8},
    "mamba2": {"hidden_size": 32, "num_heads": 8, "head_dim": 8, "state_size": 8, "n_groups": 2, "vocab_size": 61,
               "num_hidden_layers": 2, "chunk_size": 8},
    **{kind: {**QUERIES, "of": "resnet"} for kind in (
        "detr", "conditional_detr", "dab-detr", "deformable_detr", "table-transformer")},
    **{kind: {**QUERIES, **BLOCKS, "of": "rt_detr_resnet"} for kind in ("rt_detr", "rt_detr_v2")},
    **{kind: {**QUERIES, **BLOCKS, "of": "hgnet_v2"} for kind in ("d_fine", "deimv2")},
    **{kind: {
        "of": "swin", "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 16,
        "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4, "dim_feedforward": 16, "num_queries": 5,
        "use_timm_backbone": False, "num_labels": 3, "text_encoder_width": 16, "text_encoder_num_layers": 1,
        "text_encoder_vocab_size": 61, "conv_dim": 32, "encoder_dim_feedforward": 16, "fpn_feature_size": 32,
    } for kind in ("mask2former", "maskformer", "oneformer")},
    "upernet": {
        "of": "convnext", "hidden_size": 16, "auxiliary_channels": 8, "auxiliary_in_channels": 16,
        "pool_scales": [1, 2],
    },
}  # fmt: skip
"""Options by kind of configurations that have no small form otherwise; `of` says which kind its backbone is."""
Stat = tuple[int, float, float]
"""Number of values, mean, spread."""


def modules() -> list[str]:
    """Return the names of all modules of models of the installed release."""
    import transformers.models as package

    return [
        one.name for one in pkgutil.iter_modules(package.__path__) if one.name not in ("auto", "deprecated")
    ]


def classes_of(kind: str) -> dict[str, type[Any]]:
    """Return the classes of models of a module by name, those that compute alone."""
    import transformers

    package = importlib.import_module(f"transformers.models.{kind}")
    found: dict[str, type[Any]] = {}
    for one in pkgutil.iter_modules(package.__path__):
        if one.name.startswith("modeling_") and not one.name.startswith(("modeling_tf_", "modeling_flax_")):
            place = f"{package.__name__}.{one.name}"
            for name, made in vars(importlib.import_module(place)).items():
                own = isinstance(made, type) and issubclass(made, transformers.PreTrainedModel)
                if own and made.__module__ == place and getattr(made, "config_class", None) is not None:
                    found[name] = made
    return found


def judged(kind: str) -> list[str]:
    """Return the names of the classes of a module that are judged."""
    return [
        name
        for name, made in classes_of(kind).items()
        if not name.endswith(("PreTrainedModel", *HEADS)) and made.forward is not nn.Module.forward
    ]


def config_of(made: Any) -> Any:
    """Return a small configuration of a class of models.

    Raises:
        Exception: the configuration refuses these sizes.
    """
    from transformers import AutoConfig

    kind = getattr(made.config_class, "model_type", "")
    if kind not in ALONE:
        return class_config(made.config_class)
    options = dict(ALONE[kind])
    backbone = options.pop("of", None)
    if backbone is not None:
        own = {**ALONE.get(backbone, WINDOWS)}
        num = len(own.get("depths", ())) or 4
        names = {"out_indices": list(range(1, num + 1)) if num == 4 and kind not in ("rt_detr", "rt_detr_v2", "d_fine")
                 else list(range(num - 2, num + 1))}  # fmt: skip
        options["backbone_config"] = AutoConfig.for_model(backbone, **own, **names)
    known = {*vars(made.config_class())} | {*inspect.signature(made.config_class.__init__).parameters}
    config = made.config_class(
        **{name: copy.deepcopy(value) for name, value in options.items() if name in known}
    )
    for name, value in vars(config).items():
        if isinstance(value, float) and "drop" in name:
            setattr(config, name, 0.0)
    return config


@lru_cache(maxsize=1)
def _fresh(kind: str, name: str) -> tuple[Any, Any]:
    made = classes_of(kind)[name]
    config = config_of(made)
    return fresh_model(made, copy.deepcopy(config), LARGEST).eval(), config


def _named(name: str) -> str:
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def _read(model: Any, path: Path, **options: Any) -> tuple[Any, Any]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        found: tuple[Any, Any] = type(model).from_pretrained(
            path, attn_implementation="eager", output_loading_info=True, **options
        )
        return found


def _files(model: Any, config: Any) -> Any:
    """Return checksums of files, of what is read and written again, of names that are missed, and numbers of ties."""
    return files_of(type(model), config)


def _buffers(model: Any, config: Any) -> Any:
    """Return buffers of a model that is read, and which of them are not those of the fresh one."""
    read, _ = _read(model, saved(model))
    before, after = dict(model.named_buffers()), dict(read.named_buffers())
    wrong = [
        name
        for name, value in before.items()
        if name not in after or not torch.equal(torch.nan_to_num(value), torch.nan_to_num(after[name]))
    ]
    first: dict[str, Tensor] = {}
    for name, value in after.items():
        first.setdefault(_named(name), value)
    kept = {name: _bounded(value) for name, value in sorted(first.items())}
    return [wrong[:3], [name.rpartition(".")[2] for name in kept], list(kept.values())]


def _bounded(value: Tensor) -> list[float]:
    """Return the number of values, and two sums of them, each value within bounds."""
    numbers = torch.nan_to_num(value.detach().double().flatten(), nan=7.0).clamp(-1e3, 1e3)
    places = torch.arange(len(numbers), dtype=torch.float64)
    return [float(len(numbers)), *(float((numbers * torch.cos(step * places)).mean()) for step in (0.0, 0.7))]


def _stats(model: Any, names: set[str]) -> dict[str, Stat]:
    values: dict[str, list[Tensor]] = {}
    for name, value in model.named_parameters():
        if name in names:
            values.setdefault(_named(name), []).append(value.detach().double().flatten())
    joined = {name: torch.cat(some) for name, some in values.items()}
    return {
        name: (len(one), float(one.mean()), float(one.std(correction=0)))
        for name, one in joined.items()
        if len(one)
    }


def _partly(model: Any, config: Any) -> Any:
    """Return what is said of names of which files lack half, which of these start otherwise, and what is not read."""
    path = saved(model)
    written = tensors(path)
    groups = sorted({_named(name) for name in written})
    kept = {name: value for name, value in written.items() if groups.index(_named(name)) % 2}
    shifted = {name: value + 3 if value.is_floating_point() else value for name, value in kept.items()}
    read, said = _read(model, rewrite(path, shifted))
    missing = set(map(str, said["missing_keys"]))
    due, found = _stats(model, missing), _stats(read, missing)
    wrong = []
    for name, (count, mean, spread) in due.items():
        other = found.get(name, (0, 0.0, 0.0))
        noise = _error(count, mean, spread) * 2
        small = count < FEWEST and spread
        if (other[2] == 0) != (spread == 0) or (
            not small and not (abs(other[1] - mean) <= noise and abs(other[2] - spread) <= noise)
        ):
            wrong.append(name)
    whole = {name: value for name, value in read.named_parameters() if name not in missing}
    left = [
        name for name, value in model.named_parameters() if name in whole and torch.equal(whole[name], value)
    ]
    unexpected = sorted(map(str, said["unexpected_keys"]))
    return [crc(sorted(missing)), crc(unexpected), sorted(wrong)[:6], crc(sorted(left)), len(left)]


def _narrow(model: Any, config: Any) -> Any:
    """Return how many parameters and buffers have which type, by the type that is given, and which."""
    found: list[Any] = []
    path = saved(model)
    for kind in (torch.float16, torch.bfloat16):
        read, _ = _read(model, path, dtype=kind)
        types: dict[str, list[str]] = {}
        for name, value in (*read.named_parameters(), *read.named_buffers()):
            types.setdefault(str(value.dtype).removeprefix("torch."), []).append(name)
        found.append({name: [len(names), crc(sorted(names))] for name, names in types.items()})
    return found


def _resized(model: Any, config: Any) -> Any:
    """Return sizes of tables, heads, biases and configurations of another vocabulary, its ties, and what else differs.

    Raises:
        NotServed: it has no table of tokens.
    """
    table = model.get_input_embeddings()
    if not isinstance(table, nn.Embedding):
        raise NotServed("no table of tokens")
    other, size = copy.deepcopy(model), table.num_embeddings
    found: list[Any] = []
    for number in (size + MORE_TOKENS, size - MORE_TOKENS):
        other.resize_token_embeddings(number, mean_resizing=False)
        head, new = other.get_output_embeddings(), other.get_input_embeddings()
        sizes = {
            name: [list(value.shape), list(after.shape)]
            for (name, value), after in zip(
                model.named_parameters(), dict(other.named_parameters()).values(), strict=False
            )
            if value.shape != after.shape
        }
        bias = getattr(head, "bias", None)
        found.append([
            list(new.weight.shape), [name for name in sizes if name][:6],
            None if head is None else [list(head.weight.shape), getattr(head, "out_features", None)],
            None if bias is None else len(bias), head is not None and head.weight is new.weight,
            getattr(other.config, "vocab_size", None), getattr(other.config.get_text_config(), "vocab_size", None),
            new.padding_idx, _changed(model, other),
        ])  # fmt: skip
    return found


def _changed(model: Any, other: Any) -> list[str]:
    """Return names of parameters that are other ones in the part that both have."""
    after = dict(other.named_parameters())
    wrong = []
    for name, value in model.named_parameters():
        if name in after and after[name].dim() == value.dim():
            part = tuple(
                slice(min(one, two)) for one, two in zip(value.shape, after[name].shape, strict=True)
            )
            if not torch.equal(value[part], after[name][part]):
                wrong.append(name)
    return wrong[:4]


CASES: Mapping[str, Callable[[Any, Any], Any]] = {
    "files": _files, "buffers": _buffers, "files in part": _partly, "narrow types": _narrow, "a vocabulary": _resized,
}  # fmt: skip
"""What is on record of a class."""


def _ask(kind: str, case: str) -> Any:
    name, _, what = case.partition(": ")
    model, config = _fresh(kind, name)
    return CASES[what](model, config)


def ask_of(kind: str) -> Callable[[Any, str], Any]:
    """Return what answers cases of a module."""
    return lambda made, case: _ask(kind, case)


def cases_of(kind: str) -> Iterator[str]:
    """Yield the cases of a module."""
    for name in judged(kind):
        for what in CASES:
            yield f"{name}: {what}"


def given_now(only: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the installed release gives, of all modules or those that are named."""
    found: dict[str, Any] = {}
    for kind in only or modules():
        start = time.process_time()
        try:
            cases = list(cases_of(kind))
        except REFUSED as error:
            print(f"{kind}: {error!r}"[:200], file=sys.stderr, flush=True)
            continue
        broken: set[str] = set()
        for case in cases:
            name = case.partition(":")[0]
            if name in broken:
                continue
            try:
                _fresh(kind, name)
            except REFUSED as error:
                broken.add(name)
                print(f"{kind}, {name}: {error!r}"[:200], file=sys.stderr, flush=True)
                continue
            try:
                found.setdefault(kind, {})[case] = answered(ask_of(kind), None, case)
            except REFUSED as error:
                print(f"{kind}, {case}: {error!r}"[:200], file=sys.stderr, flush=True)
        print(f"{kind} {time.process_time() - start:.1f} s", file=sys.stderr, flush=True)
    return found


def _unlike(kind: str, made: Any) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return unlike_record(RECORD, kind, ask_of(kind), False, made)


# Source: what releases 4.57.6 and 5.24 give; `given_now` makes an entry.
LOADED_ROWS: Sequence[Row] = tuple(
    Row(
        "states",
        "transformers:PreTrainedModel",
        f"{kind} that is read",
        partial(_unlike, kind),
        [],
        since="4.57.6",
    )
    for kind in record(RECORD)
)
