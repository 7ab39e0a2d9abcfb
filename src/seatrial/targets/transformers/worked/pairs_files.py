"""Worked examples of models that are saved and read with every pair of options: what is read is what was saved."""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, between, since
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.pairs_models import (
    KINDS,
    Kind,
    other_options,
    ties,
    unlike_tensors,
    wide,
)
from seatrial.targets.transformers.worked.weights import LATER, folder

OPTIONS: Mapping[str, Sequence[str]] = {
    "kind": tuple(KINDS),
    "type": ("float32", "bfloat16", "float16", "float64"),
    "before": (
        "",
        "resized",
        "grown and cut",
        "training",
        "frozen",
        "generation options",
        "own option",
        "a copy",
    ),
    "shards": ("", "in shards", "in small shards"),
    "variant": ("", "variant"),
    "given": ("", "tensors given", "tensors in another type", "files of torch"),
    "place": ("", "subfolder"),
    "read": ("by its class", "by an Auto class", "by its base"),
    "dtype": ("", "auto", "float32 by name", "as bfloat16", "as float16", "torch_dtype", "by part"),
    "config": ("", "options", "a configuration", "a configuration's folder"),
    "attention": ("", "eager", "sdpa", "attention by part"),
    "device": ("", "cpu", "a map", "low memory"),
    "default": ("", "default bfloat16", "default float64"),
    "twice": ("", "twice"),
}
"""Values of each option, in words."""
OLD = "torch_dtype"


NO_TABLES = ("ResNet", "CLIP", "two Berts", "a list of Llamas")
ONE_ATTENTION = ("ResNet", "a list of Llamas", "two Berts", "GPT-OSS")
NO_BASE = ("CLIP", "two Berts", "Llava")


def _fitted(chosen: Mapping[str, str]) -> dict[str, str]:
    """Return a choice whose options fit one another and the model: those that do not are left out."""
    kind, found = chosen["kind"], dict(chosen)
    parts, listed = KINDS[kind].parts, kind == "a list of Llamas"
    unfit = {
        "dtype": chosen["dtype"] == "by part" and not parts,
        "attention": (chosen["attention"] == "attention by part" and not parts)
        or kind in ONE_ATTENTION
        or (chosen["attention"] == "sdpa" and kind == "T5"),
        "before": (chosen["before"] in ("resized", "grown and cut") and kind in NO_TABLES)
        or (chosen["before"] == "generation options" and not KINDS[kind].makes),
        "read": listed or (chosen["read"] == "by its base" and kind in NO_BASE),
        "default": chosen["type"] == "float16",
    }
    return found | {name: OPTIONS[name][0] for name, is_unfit in unfit.items() if is_unfit}


def cases() -> Iterator[dict[str, str]]:
    """Yield choices that together have nearly every pair of values of two options."""
    seen = set()
    for row in pairwise({name: len(values) for name, values in OPTIONS.items()}, lambda row: True):
        chosen = _fitted({name: OPTIONS[name][index] for name, index in row.items()})
        if (key := (*chosen.values(),)) not in seen:
            seen.add(key)
            yield chosen


def _prepared(kind: Kind, before: str, dtype: torch.dtype) -> Any:
    """Return a model after what is done to it before it is saved."""
    model = kind.model(**({"own_option": {"a": [1, 2]}} if before == "own option" else {})).to(dtype)
    if before in ("resized", "grown and cut"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model.resize_token_embeddings(29)
            if before == "grown and cut":
                model.resize_token_embeddings(21)
    elif before == "training":
        model.train()
    elif before == "frozen":
        model.requires_grad_(False)
    elif before == "generation options":
        model.generation_config.update(max_new_tokens=7, do_sample=True, temperature=0.5, top_k=3)
    elif before == "a copy":
        model = copy.deepcopy(model)
    return model


def _due_type(chosen: Mapping[str, str], saved: torch.dtype) -> torch.dtype:
    """Return the type that is due by the documentation of from_pretrained."""
    named = {
        "float32 by name": "float32",
        "as bfloat16": "bfloat16",
        "as float16": "float16",
        OLD: "float64",
        "by part": "bfloat16",
    }
    if chosen["dtype"] in named:
        found: torch.dtype = getattr(torch, named[chosen["dtype"]])
        return found
    if not chosen["dtype"] and not since("transformers", "5")(None):
        return torch.get_default_dtype()
    return saved


def _attention_of_parts(kind: Kind) -> dict[str, str]:
    return {"": "eager", **dict(zip(kind.parts, ("eager", "sdpa"), strict=False))}


def _options(chosen: Mapping[str, str], kind: Kind, model: Any, path: Any) -> dict[str, Any]:
    """Return the options of from_pretrained."""
    by_part = dict.fromkeys(("", *kind.parts), torch.bfloat16)
    forms: Mapping[str, Mapping[str, Any]] = {
        "auto": {"dtype": "auto"}, "float32 by name": {"dtype": "float32"}, "as bfloat16": {"dtype": torch.bfloat16},
        "as float16": {"dtype": torch.float16}, OLD: {OLD: torch.float64}, "by part": {"dtype": by_part},
        "eager": {"attn_implementation": "eager"}, "sdpa": {"attn_implementation": "sdpa"},
        "attention by part": {"attn_implementation": _attention_of_parts(kind)},
        "cpu": {"device_map": "cpu"}, "a map": {"device_map": {"": "cpu"}}, "low memory": {"low_cpu_mem_usage": True},
        "options": {"output_hidden_states": True}, "variant": {"variant": "own"}, "subfolder": {"subfolder": "in/it"},
        "files of torch": {"use_safetensors": False},
        "a configuration's folder": {"config": str(path / ("in/it" if chosen["place"] else ""))},
    }  # fmt: skip
    found: dict[str, Any] = {}
    for value in chosen.values():
        found |= forms.get(value, {})
    if chosen["config"] == "a configuration":
        config = copy.deepcopy(model.config)
        config.output_hidden_states = True
        config.dtype = next(value.dtype for value in model.parameters())
        found["config"] = config
    if chosen["config"] == "a configuration's folder":
        found.pop("subfolder", None)
    return found


def _reader(chosen: Mapping[str, str], kind: Kind) -> Any:
    if chosen["read"] == "by an Auto class":
        return of_name(kind.auto)
    return of_name("AutoModel") if chosen["read"] == "by its base" else kind.cls


@contextlib.contextmanager
def _default(chosen: Mapping[str, str]) -> Iterator[None]:
    before = torch.get_default_dtype()
    if chosen["default"]:
        torch.set_default_dtype(getattr(torch, chosen["default"].rpartition(" ")[2]))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of a model's base, by their names in it."""
    return {
        name.removeprefix(f"{prefix}."): value
        for name, value in state.items()
        if name.startswith(f"{prefix}.")
    }


def _output(model: Any, kind: Kind) -> Tensor:
    dtype = next(value.dtype for value in model.parameters())
    given = {
        name: value.to(dtype) if value.is_floating_point() else value for name, value in kind.inputs().items()
    }
    with torch.no_grad():
        found = model(**given)
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if getattr(found, name, None) is not None:
            value: Tensor = getattr(found, name)
            return value
    raise NotServed("it gives no logits")


def _written(chosen: Mapping[str, str], model: Any, path: Any) -> dict[str, Tensor]:
    """Save a model, and return the tensors that are due."""
    options: dict[str, Any] = {}
    state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    if chosen["given"].startswith("tensors"):
        memo: dict[int, Tensor] = {}
        given = {}
        for name, value in model.state_dict(keep_vars=True).items():
            own = value.detach() * 0.5 if value.is_floating_point() else value.detach()
            own = own.to(torch.float32) if "another" in chosen["given"] and own.is_floating_point() else own
            given[name] = memo.setdefault(id(value), own)
        options["state_dict"] = given
        state = {name: value.clone() for name, value in given.items()}
    if chosen["given"] == "files of torch":
        if "safe_serialization" not in inspect.signature(model.save_pretrained).parameters:
            raise NotServed("this release writes no files of torch")
        options["safe_serialization"] = False
    sizes = {"in shards": "12KB", "in small shards": 3000}
    if chosen["shards"]:
        options["max_shard_size"] = sizes[chosen["shards"]]
    if chosen["variant"]:
        options["variant"] = "own"
    where = path / "in/it" if chosen["place"] else path
    model.save_pretrained(where, **options)
    indexes = [*where.glob("*.index*.json")]
    size = sum(value.numel() * value.element_size() for value in state.values())
    if (indexes and not chosen["shards"]) or (
        chosen["shards"] == "in small shards" and not indexes and size > 9000
    ):
        raise AssertionError(f"files: {sorted(one.name for one in where.iterdir())}")
    for index in indexes:
        said = json.loads(index.read_text())
        if missing := {*said["weight_map"].values()} - {one.name for one in where.iterdir()}:
            raise AssertionError(f"files of the index that are not there: {missing}")
    return state


def _saved_and_read(chosen: Mapping[str, str], model_base: Any) -> list[str]:
    """Return what differs of a model that was saved and read: its tensors, ties, types, options, mode, and logits."""
    kind = KINDS[chosen["kind"]]
    dtype = getattr(torch, chosen["type"])
    model = _prepared(kind, chosen["before"], dtype)
    path = folder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mode = (model.training, [value.requires_grad for value in model.parameters()])
    state = _written(chosen, model, path)
    wrong = unlike_tensors(model.state_dict(), before, "the model that was saved")
    if mode != (model.training, [value.requires_grad for value in model.parameters()]):
        wrong.append("the model that was saved: its mode")
    options = _options(chosen, kind, model, path)
    where = path / "in/it" if chosen["place"] and "subfolder" not in options else path
    given = {name: value for name, value in options.items() if name != "config"}
    kept = copy.deepcopy(options)
    with _default(chosen):
        due_type = _due_type(chosen, dtype)
        usual = torch.get_default_dtype()
        read, said = _reader(chosen, kind).from_pretrained(str(where), output_loading_info=True, **options)
        if torch.get_default_dtype() is not usual:
            wrong.append(f"torch's default is {torch.get_default_dtype()}")
        if chosen["twice"]:
            try:
                read.save_pretrained(again := folder())
            except ValueError as error:
                if "GenerationConfig is invalid" not in str(error):
                    raise
                raise NotServed("options of its generation do not fit one another") from error
            read, said = type(read).from_pretrained(
                again,
                output_loading_info=True,
                dtype=due_type,
                **{name: value for name, value in given.items() if name == "attn_implementation"},
            )
    if {name: value for name, value in kept.items() if name != "config"} != given:
        wrong.append("the options of the caller are changed")
    base = chosen["read"] == "by its base"
    prefix = model.base_model_prefix
    # A base that is read of a whole: the names of the head are left over, and none is missing.
    for name in ("missing_keys", "mismatched_keys", *(() if base else ("unexpected_keys",))):
        left = [one for one in map(str, said[name]) if not (base and "pooler" in one)]
        wrong += [f"{name}: {sorted(left)[:2]}"] if left else []
    if base and any(f"{prefix}." in str(one) for one in said["unexpected_keys"]):
        wrong.append(f"left over: {sorted(said['unexpected_keys'])[:2]}")
    due = {
        name: value.to(wide(model, name, due_type)) if value.is_floating_point() else value
        for name, value in state.items()
    }  # fmt: skip
    state = read.state_dict()
    if base:
        inner = getattr(model, prefix, None)
        due = _part(due, prefix) if inner is not None else {name: due[name] for name in state if name in due}
        state = {name: value for name, value in state.items() if "pooler" not in name or name in due}
    wrong += unlike_tensors(state, due, "what is read")
    fresh = kind.model()
    wrong += _of_buffers(read, getattr(fresh, prefix, fresh) if base else fresh)
    wrong += [] if base or ties(read) == ties(model) else [f"ties: {ties(read)}, {ties(model)} are due"]
    wrong += _of_options(chosen, kind, model, read, due_type)
    if not wrong and not base and due_type in (torch.float32, torch.float64):
        right = kind.model()
        if chosen["before"] in ("resized", "grown and cut"):
            right.resize_token_embeddings(len(read.get_input_embeddings().weight))
        right.load_state_dict(due)
        found, logits = _output(read.float(), kind), _output(right.float(), kind)
        wrong += [] if torch.allclose(found, logits, atol=1e-4, rtol=1e-3) else ["its logits differ"]
    return wrong[:3]


def _of_buffers(read: Any, fresh: Any) -> list[str]:
    """Return buffers that are not kept in files and differ from those of a fresh model."""
    kept = {*read.state_dict()}
    right = dict(fresh.named_buffers(remove_duplicate=False))
    found = dict(read.named_buffers(remove_duplicate=False))
    wrong = [f"buffers: {name}" for name in sorted({*right} ^ {*found} - kept) if name not in kept][:2]
    for name, value in found.items():
        if name in kept or name not in right:
            continue
        close = 1e-2 if value.dtype in (torch.bfloat16, torch.float16) else 1e-6
        if value.shape != right[name].shape or not torch.allclose(
            value.double(), right[name].double(), rtol=close
        ):
            wrong.append(f"buffer {name}: {value.flatten()[:3].tolist()}")
    return wrong


def _of_options(
    chosen: Mapping[str, str], kind: Kind, model: Any, read: Any, due_type: torch.dtype
) -> list[str]:
    """Return which options of a model that was read are not those that are due."""
    wrong = []
    if read.training or not all(value.requires_grad for value in read.parameters()):
        wrong.append(f"training {read.training}, or parameters that do not train")
    if chosen["read"] != "by its base" and type(read) is not kind.cls:
        wrong.append(f"it is a {type(read).__name__}")
    for name in ("", *kind.parts):
        config = getattr(read.config, name) if name else read.config
        # Releases of 4 say the type of a part only where one is given.
        unsaid = (
            config.dtype is None
            and name
            and chosen["dtype"] == "auto"
            and not since("transformers", "5")(None)
        )
        if not unsaid and str(config.dtype).removeprefix("torch.") != str(due_type).removeprefix("torch."):
            wrong.append(f"{name} dtype of the configuration: {config.dtype}, {due_type} is due")
        if chosen["attention"]:
            due = chosen["attention"]
            if due == "attention by part":
                due = _attention_of_parts(kind)[name]
            if config._attn_implementation != due:
                wrong.append(f"{name} attention: {config._attn_implementation}, {due} is due")
    found, right = (json.loads(json.dumps(one.config.to_dict(), default=str)) for one in (read, model))
    hidden = chosen["config"] in ("options", "a configuration")
    if bool(found.get("output_hidden_states")) != hidden:
        wrong.append(f"output_hidden_states: {found.get('output_hidden_states')}")
    wrong += [f"configuration: {one}" for one in other_options(found, right)]
    if kind.makes and chosen["read"] != "by its base":
        made = [
            {k: v for k, v in one.generation_config.to_dict().items() if k != "transformers_version"}
            for one in (read, model)
        ]
        names = [name for name in {**made[0], **made[1]} if made[0].get(name) != made[1].get(name)]
        wrong += [
            f"generation: {name} {made[0].get(name)}"
            for name in names
            if not name.startswith(("_", "output_hid"))
        ]
    return wrong


STAY_WIDE = KnownFailure(
    "modules that are to stay wide in float16 are in float32 in every type",
    finding=LATER,
    releases=between("transformers", "5", "5.8"),
)


def _rows() -> Iterator[Row]:
    for chosen in cases():
        index = {name: OPTIONS[name].index(value) for name, value in chosen.items()}
        name = f"saved and read: {chosen['kind']}, {names_of({**index, 'kind': 0}, OPTIONS)}"
        known = STAY_WIDE if chosen["kind"] in ("T5", "GPT-OSS") else None
        call = partial(_saved_and_read, chosen)
        yield Row("files", "transformers:PreTrainedModel", name, call, [], since="4.57", known=known)


# Sources: the documentation of save_pretrained and from_pretrained.
PAIRED_FILE_ROWS: Sequence[Row] = tuple(_rows())
