"""Adapters that a model of Transformers adds and loads itself; see `relations.laws.utilities.own_adapters`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.own_adapters import SIZES, Added, Operation, Owner
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between, since
from seatrial.targets.common.target import Gone
from seatrial.targets.common.trainers import new_folder

LAYERS = ["q_proj", "up_proj"]
IDS_BS = ((3, 7, 9, 4, 5), (6, 2, 8, 8, 1))
BASE: Mapping[str, int] = {
    "vocab_size": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
}


def _plain() -> Any:
    import transformers

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        sizes: dict[str, Any] = {**BASE, "tie_word_embeddings": False}
        made: Any = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    return made.eval()


def _config(name: str) -> Any:
    import peft

    rank, alpha = SIZES[name]
    more: dict[str, Any] = {"modules_to_save": ["lm_head"]} if name == "head" else {}
    return peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules=LAYERS, **more)


def _layers(model: Any) -> dict[str, Any]:
    return {name: layer for name, layer in model.named_modules() if hasattr(layer, "lora_A")}


def _drawn(name: str) -> Added:
    """Return the tensors of an adapter, by its name."""
    rank, _ = SIZES[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name)))
    factors = {}
    for layer, module in _plain().named_modules():
        if layer.endswith(tuple(LAYERS)):
            out, size = module.weight.shape
            factors[layer] = (
                torch.randn(rank, size, generator=generator) * 0.3,
                torch.randn(out, rank, generator=generator) * 0.3,
            )
    head = (
        torch.randn(BASE["vocab_size"], BASE["hidden_size"], generator=generator) if name == "head" else None
    )
    return Added(factors, head)


def _fill(model: Any, name: str, prefix: str = "") -> None:
    """Set the tensors of an adapter that was added."""
    own = _drawn(name)
    with torch.no_grad():
        for layer, (a, b) in own.factors.items():
            found = model.get_submodule(prefix + layer)
            found.lora_A[name].weight.copy_(a)
            found.lora_B[name].weight.copy_(b)
        if own.head is not None:
            model.get_submodule(f"{prefix}lm_head").modules_to_save[name].weight.copy_(own.head)


def _file(name: str) -> str:
    """Return the folder of the adapter, which PEFT wrote."""
    import peft

    folder = new_folder()
    model = peft.get_peft_model(_plain(), _config(name), adapter_name=name)
    _fill(model, name, "base_model.model.")
    model.save_pretrained(folder)
    return f"{folder}/{name}"


class _Model:
    """One model, on which operations are done."""

    def __init__(self) -> None:
        self.model = _plain()

    def apply(self, operation: Operation) -> None:
        what, *given = operation
        model = self.model
        if what == "add":
            model.add_adapter(_config(given[0]), adapter_name=given[0])
            _fill(model, given[0])
        elif what == "use":
            model.set_adapter(given[0] if len(given[0]) > 1 else given[0][0])
        elif what == "load":
            self._load(_file(given[0]), given[0], is_trainable=given[1])
        elif what == "prepare":
            if not hasattr(model, "enable_peft_hotswap"):
                raise NotServed("models of this release swap no adapters")
            model.enable_peft_hotswap(target_rank=8)
        elif what == "swap":
            self._load(_file(given[1]), given[0], hotswap=True)
        elif what == "delete":
            if not hasattr(model, "delete_adapter"):
                raise NotServed("models of this release delete no adapters")
            model.delete_adapter(given[0])
        elif what == "reload":
            self._reload()
        else:
            (model.enable_adapters if what == "enable" else model.disable_adapters)()
        self.model.eval()

    def _load(self, folder: str, name: str, **options: Any) -> None:
        try:
            self.model.load_adapter(folder, adapter_name=name, **options)
        except TypeError as error:
            if "unexpected keyword" not in str(error):
                raise
            raise NotServed(str(error)) from error

    def _reload(self) -> None:
        names = list(self.model.active_adapters())
        if len(names) != 1:
            raise NotServed("one adapter is saved")
        folder = new_folder()
        self.model.save_pretrained(folder)
        self.model = _plain()
        self.model.load_adapter(folder, adapter_name=names[0])

    def outputs(self) -> Tensor:
        with torch.no_grad():
            logits_BSV: Tensor = self.model(input_ids=torch.tensor(IDS_BS), use_cache=False).logits
        return logits_BSV

    def tensors(self, name: str) -> dict[str, tuple[Tensor, Tensor]]:
        state = self.model.get_adapter_state_dict(name)
        return {
            layer: (state[f"{layer}.lora_A.weight"], state[f"{layer}.lora_B.weight"])
            for layer in _layers(self.model)
        }

    def trains(self) -> frozenset[str]:
        found = set()
        for name, value in self.model.named_parameters():
            if value.requires_grad:
                parts = [part for part in name.split(".") if part in SIZES]
                found.add(parts[0] if parts else "base")
        return frozenset(found)

    def active(self) -> Sequence[str]:
        return list(self.model.active_adapters())


def _plain_logits(added: Mapping[str, Callable[[Tensor], Tensor]], head: Tensor | None) -> Tensor:
    model = _plain()
    for name, add in added.items():
        model.get_submodule(name).register_forward_hook(
            lambda layer, given, made, add=add: made + add(given[0])
        )
    with torch.no_grad():
        if head is not None:
            model.lm_head.weight.copy_(head)
        logits_BSV: Tensor = model(input_ids=torch.tensor(IDS_BS), use_cache=False).logits
    return logits_BSV


def own_adapters() -> Owner:
    """Return a model that has no adapter yet."""
    made = _Model()
    return Owner(
        apply=made.apply,
        outputs=made.outputs,
        plain=_plain_logits,
        drawn=_drawn,
        tensors=made.tensors,
        trains=made.trains,
        active=made.active,
        freezes="is_trainable" in inspect.signature(made.model.load_adapter).parameters,
    )


class OwnAdapters(KnowsFailures):
    """Adapters that a model adds, loads, chooses and saves itself."""

    known_failures = (
        KnownFailure(
            "a module that is saved whole stays disabled",
            finding="Transformers: modules that are saved whole, enabled again",
        ).of("R31.own_adapters/a head of its own, enabled again"),
        KnownFailure(
            "the head of the base trains",
            finding="Transformers: modules that are saved whole, enabled again",
            releases=before("peft", "0.19"),
        ).of("R31.own_adapters/a head of its own, enabled again: what trains and is active"),
        KnownFailure(
            "an adapter that is swapped has the scale of the one before, and another rank raises an error",
            finding="Transformers: adapters that a model loads in later releases",
            releases=since("transformers", "5"),
        ).of(
            "R31.own_adapters/swapped for another scale",
            "R31.own_adapters/swapped for another rank",
            "R31.own_adapters/swapped for another rank: what trains and is active",
        ),
        KnownFailure(
            "an adapter trains that is loaded for inference",
            finding="Transformers: adapters that a model loads in later releases",
            releases=between("transformers", "5", "5.8"),
        ).of(
            *(
                f"R31.own_adapters/{law}: what trains and is active"
                for law in (
                    *("added and used", "loaded", "loaded next to one that trains", "saved with two"),
                    *("swapped", "swapped for another scale"),
                )
            )
        ),
        KnownFailure(
            "a module that is saved whole is not loaded",
            finding="Transformers: adapters that a model loads in later releases",
            releases=between("transformers", "5", "5.17"),
        ).of("R31.own_adapters/a head of its own, saved"),
        KnownFailure(
            "a module that is saved whole trains after a load for inference",
            finding="Transformers: adapters that a model loads in later releases",
            releases=since("transformers", "5"),
        ).of("R31.own_adapters/a head of its own, saved: what trains and is active"),
    )
    utilities: Mapping[str, Callable[..., Any]] = {"own adapters": own_adapters}
    thorough = True
    """Not tried on every release: Transformers 5.24 refuses PEFT 0.21."""

    def __init__(self) -> None:
        """Find PEFT."""
        try:
            import peft  # noqa: F401
        except ModuleNotFoundError as error:
            raise Gone("PEFT is not installed") from error


ADAPTERS: dict[str, type[Any]] = {"own-adapters": OwnAdapters}
