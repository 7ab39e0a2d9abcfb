"""Worked examples of every kind of adapter that a Transformers model adds itself: it computes what PEFT's own does."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from packaging.version import Version
from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.adapters import CAUSAL, IDS, with_any_peft
from seatrial.targets.transformers.worked.every_class import release_on_record
from seatrial.targets.transformers.worked.weights import llama

CLOSE = 1e-4
SCORES = "LlamaForSequenceClassification"
Q: Mapping[str, Any] = {"target_modules": ["q_proj"]}
KINDS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "LoRA": ("LlamaForCausalLM", "LoraConfig", {"r": 2, **Q}),
    "LoRA and a head": ("LlamaForCausalLM", "LoraConfig", {"r": 2, **Q, "modules_to_save": ["lm_head"]}),
    "LoRA and scores": (SCORES, "LoraConfig", {"r": 2, **Q, "modules_to_save": ["score"]}),
    "LoRA and two modules": (SCORES, "LoraConfig", {"r": 2, **Q, "modules_to_save": ["score", "embed_tokens"]}),
    "LoRA and tokens": ("LlamaForCausalLM", "LoraConfig", {"r": 2, **Q, "trainable_token_indices": [3, 5, 7]}),
    "LoRA of embeddings": ("LlamaForCausalLM", "LoraConfig", {"r": 2, "target_modules": ["embed_tokens", "q_proj"]}),
    "LoRA of two ranks": (
        "LlamaForCausalLM", "LoraConfig",
        {"r": 2, "target_modules": ["q_proj", "down_proj"], "rank_pattern": {"q_proj": 4},
         "alpha_pattern": {"q_proj": 2}},
    ),
    "LoRA of one layer": ("LlamaForCausalLM", "LoraConfig", {"r": 2, **Q, "layers_to_transform": [1]}),
    "DoRA": ("LlamaForCausalLM", "LoraConfig", {"r": 2, **Q, "use_dora": True}),
    "DoRA and a head": (
        "LlamaForCausalLM", "LoraConfig", {"r": 2, **Q, "use_dora": True, "modules_to_save": ["lm_head"]},
    ),
    "IA3": ("LlamaForCausalLM", "IA3Config", {
        "target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]
    }),
    "IA3 and scores": (SCORES, "IA3Config", {
        "target_modules": ["k_proj"], "feedforward_modules": [], "modules_to_save": ["score"]
    }),
    "LoHa": ("LlamaForCausalLM", "LoHaConfig", {"r": 2, **Q}),
    "LoKr": ("LlamaForCausalLM", "LoKrConfig", {"r": 2, **Q}),
    "LoKr and scores": (SCORES, "LoKrConfig", {"r": 2, **Q, "modules_to_save": ["score"]}),
    "OFT": ("LlamaForCausalLM", "OFTConfig", {"r": 0, "oft_block_size": 4, **Q}),
    "HRA": ("LlamaForCausalLM", "HRAConfig", {"r": 2, **Q}),
}  # fmt: skip
"""By name: the class of the model, and PEFT's configuration."""


def need_own_peft() -> None:
    """Continue if PEFT is of a release with which this one of Transformers loads every name.

    Raises:
        NotServed: it is older than the release requires.
    """
    import peft
    import transformers.integrations.peft as module

    least = getattr(module, "MIN_PEFT_VERSION", "0")
    if Version(peft.__version__) < Version(least):
        raise NotServed(f"names of this kind need PEFT {least}")


def _config(kind: str) -> Any:
    import peft

    _, name, options = KINDS[kind]
    if not hasattr(peft, name):
        raise NotServed(f"this PEFT has no {name}")
    return getattr(peft, name)(**options)


def _base(kind: str) -> Any:
    release_on_record()
    return llama(KINDS[kind][0]).eval()


def _draw(model: Any) -> Any:
    """Draw the tensors of all adapters by their names, as they are in a model without PEFT's own around it."""
    with torch.no_grad():
        for name, value in model.named_parameters():
            own = name.removeprefix("base_model.model.")
            if any(f".{one}" in own for one in ("one", "two")) and value.is_floating_point():
                generator = torch.Generator().manual_seed(zlib.crc32(own.encode()))
                value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    return model.eval()


def _own(kind: str, name: str) -> Any:
    """Return PEFT's own model of an adapter."""
    import peft

    return _draw(peft.get_peft_model(_base(kind), _config(kind), adapter_name=name))


def _added(kind: str, *names: str) -> Any:
    model = _base(kind)
    for name in names:
        model.add_adapter(_config(kind), adapter_name=name)
    return _draw(model)


def _logits(model: Any) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(input_ids=IDS, use_cache=False).logits
    return found


def _same(found: Any, due: Any) -> bool:
    return bool((_logits(found) - _logits(due)).abs().max() <= CLOSE)


def _names(model: Any, trains: bool) -> list[str]:
    return sorted(
        name.removeprefix("base_model.model.")
        for name, value in model.named_parameters()
        if value.requires_grad or not trains
    )


def _used(kind: str, model_class: Any) -> list[str]:
    """Return what differs from PEFT's own model: logits, what trains, the state."""
    import peft

    wrong = []
    one, model = _own(kind, "one"), _added(kind, "one")
    if _same(one, _base(kind)):
        raise NotServed("the adapter changes nothing")
    wrong += [] if _same(model, one) else ["logits"]
    wrong += [] if _names(model, True) == _names(one, True) else ["what trains"]
    given: Mapping[str, Tensor] = model.get_adapter_state_dict("one")
    due = {
        name.removeprefix("base_model.model."): value
        for name, value in peft.get_peft_model_state_dict(one, adapter_name="one").items()
    }
    if sorted(given) != sorted(due):
        wrong.append(f"names of the state: {sorted({*given} ^ {*due})[:3]}")
    else:
        wrong += [
            f"{name} of the state" for name, value in due.items() if not torch.equal(given[name], value)
        ][:2]
    return wrong


def _chosen(kind: str, model_class: Any) -> list[str]:
    """Return where the one that is chosen of two is not the one in use."""
    wrong, both = [], _added(kind, "one", "two")
    for name in ("two", "one", "two"):
        both.set_adapter(name)
        wrong += [] if _same(both.eval(), _own(kind, name)) else [f"other logits than of {name}"]
        active = list(both.active_adapters())
        wrong += [] if active == [name] else [f"{active} are active, not {name}"]
    return wrong


def _switched(kind: str, model_class: Any) -> list[str]:
    """Return whether an adapter is still in use when it is disabled, or does not when it is enabled again."""
    model, wrong = _added(kind, "one"), []
    model.disable_adapters()
    wrong += [] if _same(model, _base(kind)) else ["it is still in use when it is disabled"]
    model.enable_adapters()
    wrong += [] if _same(model, _own(kind, "one")) else ["it is not in use when it is enabled again"]
    return wrong


def _without(model: Any, kind: str, names: Sequence[str], due: Any) -> list[str]:
    """Return what is left of adapters that were deleted."""
    left = [name for name, _ in model.named_parameters() if any(f".{one}" in name for one in names)]
    wrong = [f"{left[0]} is left"] if left else []
    wrong += [] if _same(model.eval(), due) else ["other logits"]
    kept = sorted({*getattr(model, "peft_config", {})} & {*names})
    return wrong + ([f"configurations of {kept} are left"] if kept else [])


def _deleted(kind: str, model_class: Any) -> list[str]:
    """Return what is left of the last adapter when it is deleted, and of two that are deleted at once or in turn."""
    wrong = []
    for names, calls in (
        (["one"], ["one"]), (["one"], [["one"]]), (["one", "two"], [["one", "two"]]), (["one", "two"], ["two", "one"]),
        (["one", "two"], ["one", "two"]),
    ):  # fmt: skip
        model = _added(kind, *names)
        for call in calls:
            model.delete_adapter(call)
        wrong += [f"{calls} of {names}: {one}" for one in _without(model, kind, names, _base(kind))]
    return wrong[:4]


def _one_of_two(kind: str, model_class: Any) -> list[str]:
    """Return where the other one of two is not in use after one is deleted, or one that is added again is not."""
    wrong = []
    for gone, kept, first in (
        ("one", "two", True),
        ("two", "one", True),
        ("one", "two", False),
        ("two", "one", False),
    ):
        model = _added(kind, "one", "two")
        for call, name in ((model.set_adapter, kept), (model.delete_adapter, gone))[:: 1 if first else -1]:
            call(name)
        what = f"{gone} deleted {'after' if first else 'before'} {kept} is chosen"
        wrong += [f"{what}: {one}" for one in _without(model, kind, [gone], _own(kind, kept))]
    model = _added(kind, "one")
    model.delete_adapter("one")
    model.add_adapter(_config(kind), adapter_name="one")
    wrong += [] if _same(_draw(model), _own(kind, "one")) else ["added again: other logits"]
    return wrong[:4]


def _loaded(kind: str, model_class: Any) -> list[str]:
    """Return where an adapter in PEFT's files, or that the model saved itself, is not the one that was saved."""
    if KINDS[kind][2].get("use_dora"):
        need_own_peft()
    wrong, one = [], _own(kind, "one")
    folder = new_folder()
    one.save_pretrained(folder)
    own = new_folder()
    _added(kind, "one").save_pretrained(own)
    for what, path in (("PEFT's files", f"{folder}/one"), ("its own files", own)):
        model = _base(kind)
        model.load_adapter(str(path), adapter_name="one")
        wrong += [] if _same(model.eval(), one) else [f"{what}: other logits"]
        model.delete_adapter("one")
        wrong += [] if _same(model, _base(kind)) else [f"{what}, deleted: other logits"]
    return wrong


CALLS: Mapping[str, Callable[[str, Any], list[str]]] = {
    "in use": _used,
    "chosen of two": _chosen,
    "disabled and enabled": _switched,
    "deleted": _deleted,
    "one of two deleted": _one_of_two,
    "saved and loaded": _loaded,
}
FINDING = "Transformers: modules that are saved whole, enabled again"
DISABLED = KnownFailure("a module that is saved whole stays disabled", finding=FINDING)
SECOND = KnownFailure(
    "a module that is saved whole is disabled when a second adapter is added",
    finding=FINDING,
    releases=before("peft", "0.19"),
)


def _known(kind: str, what: str) -> KnownFailure | None:
    options = KINDS[kind][2]
    if "modules_to_save" in options and what == "disabled and enabled":
        return DISABLED
    whole = {"modules_to_save", "trainable_token_indices"} & {*options}
    return SECOND if whole and what in ("chosen of two", "one of two deleted") else None


# Sources: the documentation of PeftAdapterMixin's methods, and PEFT's own models of the same configurations.
ADAPTER_KIND_ROWS: Sequence[Row] = tuple(
    Row(
        "states", CAUSAL, f"{kind}, {what}", with_any_peft(partial(call, kind)), [], since="4.57",
        known=_known(kind, what),
    )
    for kind in KINDS
    for what, call in CALLS.items()
)  # fmt: skip
