"""A tiny model with adapters of PEFT; see `contracts.adapters.AdaptedModel`."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.adapters import Precision, WeightUpdate
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.peft.updates import updates_of

WRAPPERS = ("base_layer", "original_module", "token_adapter")
"""Parts of names that PEFT puts between a module and its weight."""


@contextmanager
def refusing(several: bool = True) -> Iterator[None]:
    """Turn the words with which PEFT refuses several adapters at once into `NotServed`; other errors pass."""
    try:
        yield
    except (ValueError, TypeError) as error:
        if not several or not _is_raised(error):
            raise
        raise NotServed(f"refused: {' '.join(str(error).split())[:200]}") from error


def _is_raised(error: Exception) -> bool:
    """Return whether a statement raised an error: a call with other arguments than its function has is no refusal."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (place.line or "").startswith("raise")


def saved_in(folder: Path) -> Path:
    """Return where the only adapter of a folder is: PEFT gives each one a folder but that of the name `default`."""
    (found,) = folder.rglob("adapter_config.json")
    return found.parent


def without_a_cache(model: Any) -> dict[str, bool]:
    """Return the options with which a forward pass keeps no cache: none where the base takes no such option."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    taken = inspect.signature(base.forward).parameters
    rest = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values())
    return {"use_cache": False} if rest or "use_cache" in taken else {}


class PeftAdapted:
    """One `PeftModel`."""

    def __init__(
        self, model: Any, config: Any, plain_names: frozenset[str], *, closed_form: bool = True
    ) -> None:
        """Keep a model.

        Args:
            model: the `PeftModel`.
            config: of every adapter that is added.
            plain_names: names of the tensors of the base model.
            closed_form: whether `updates` is to return something.
        """
        self._closed_form = closed_form
        self.model, self._config, self._plain_names = model.eval(), config, plain_names

    @property
    def _type(self) -> str:
        return str(getattr(self._config.peft_type, "value", self._config.peft_type))

    def outputs(
        self, ids_BS: Tensor, *, names: Sequence[str] | None = None, mask_BS: Tensor | None = None
    ) -> Tensor:
        self.model.eval()
        given: dict[str, Any] = {}
        if names is not None:
            given["adapter_names"] = ["__base__" if name == "base" else name for name in names]
        if mask_BS is not None:
            given["attention_mask"] = mask_BS
        with torch.no_grad(), refusing(names is not None or self._uses_several()):
            return self._logits(ids_BS, **given)

    def loss(self, ids_BS: Tensor, labels_BS: Tensor, mask_BS: Tensor) -> float:
        causal = getattr(self._config, "task_type", None) == "CAUSAL_LM"
        if not causal or not hasattr(self.model, "generate") or not hasattr(self.model, "get_base_model"):
            raise NotServed("this base gives no loss")
        self.model.eval()
        with torch.no_grad():
            return float(self.model(input_ids=ids_BS, attention_mask=mask_BS, labels=labels_BS).loss)

    def _uses_several(self) -> bool:
        used = self.model.active_adapters
        return len(used) > 1

    def _logits(self, ids_BS: Tensor, **given: Any) -> Tensor:
        options = {"attention_mask": torch.ones_like(ids_BS), **without_a_cache(self.model), **given}
        logits_BSV: Tensor = self.model(input_ids=ids_BS, **options).logits
        return self.read(logits_BSV, ids_BS).detach() if not torch.is_grad_enabled() else logits_BSV

    def read(self, logits_BSV: Tensor, ids_BS: Tensor) -> Tensor:
        """Return the logits of the ids: virtual tokens of a prompt come first."""
        return logits_BSV[:, -ids_BS.shape[1] :]

    def gradients(self, ids_BS: Tensor, *, checkpointing: bool = False) -> Mapping[str, Tensor]:
        self.model.train()
        inner = self.model.get_base_model() if checkpointing else None
        if inner is not None:
            inner.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.model.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            torch.autograd.backward(self._logits(ids_BS).float().pow(2).mean())
        if inner is not None:
            inner.gradient_checkpointing_disable()
        self.model.eval()
        return {
            name: torch.zeros_like(value) if value.grad is None else value.grad.detach().clone()
            for name, value in self.model.named_parameters()
            if value.requires_grad
        }

    def tensors(self) -> Mapping[str, Tensor]:
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        # A direction that VeLoRA keeps of every batch is a statistic, which no optimizer moves.
        return {name: value.detach() for name, value in named if "lora_velora_embed" not in name}

    def trainable(self) -> frozenset[str]:
        return frozenset(name for name, value in self.model.named_parameters() if value.requires_grad)

    def tensors_of(self, name: str) -> frozenset[str]:
        return frozenset(key for key in self.tensors() if name in key.split("."))

    def updates(self, name: str) -> Sequence[WeightUpdate] | None:
        return updates_of(self.model, self._config, name) if self._closed_form else None

    def add(self, name: str) -> None:
        with refusing():
            self.model.add_adapter(name, copy.deepcopy(self._config))

    def use(self, names: Sequence[str], *, trains: bool = True) -> None:
        if not trains:
            self._use_for_inference(names)
        elif len(names) == 1:
            self.model.set_adapter(names[0])
        elif not hasattr(self.model.base_model, "set_adapter"):
            raise NotServed("this type uses one adapter at a time")
        else:
            with refusing():
                self.model.base_model.set_adapter(list(names))

    def _use_for_inference(self, names: Sequence[str]) -> None:
        if "inference_mode" not in inspect.signature(self.model.set_adapter).parameters:
            raise NotServed("set_adapter of this release has no inference_mode")
        self.model.set_adapter(names[0] if len(names) == 1 else list(names), inference_mode=True)

    def delete(self, name: str) -> None:
        try:
            self.model.delete_adapter(name)
        except ValueError as error:
            if "merged" not in str(error):
                raise
            raise NotServed(f"refused: {error}") from error

    @contextmanager
    def disabled(self) -> Iterator[None]:
        generates = hasattr(self.model, "prepare_inputs_for_generation")
        if getattr(self._config, "is_prompt_learning", False) and not generates:
            raise NotServed("disable_adapter raises for virtual tokens of a model that does not generate")
        with self.model.disable_adapter():
            yield

    def set_trainable(self, name: str, trainable: bool) -> None:
        if not hasattr(self.model, "set_requires_grad"):
            raise NotServed("this release has no set_requires_grad")
        with refusing():
            self.model.set_requires_grad(name, trainable)

    def counts(self) -> tuple[int, int]:
        trained, whole = self.model.get_nb_trainable_parameters()
        return int(trained), int(whole)

    @contextmanager
    def rescaled(self, factor: float) -> Iterator[None]:
        from peft.helpers import rescale_adapter_scale

        with rescale_adapter_scale(self.model, factor):
            yield

    def merge(self, *, safe: bool = False, names: Sequence[str] | None = None) -> None:
        given: dict[str, Any] = {} if names is None else {"adapter_names": list(names)}
        if safe:
            if "safe_merge" not in inspect.signature(self.model.base_model.merge_adapter).parameters:
                raise NotServed("merge_adapter of this release has no safe_merge")
            given["safe_merge"] = True
        self.model.merge_adapter(**given)

    def unmerge(self) -> None:
        self.model.unmerge_adapter()

    def cast(self, dtype: Precision) -> None:
        self.model.to(getattr(torch, dtype))

    def optimizer(self, lr: float) -> Callable[[Tensor], None]:
        adam = torch.optim.Adam([value for value in self.model.parameters() if value.requires_grad], lr=lr)

        def step(ids_BS: Tensor) -> None:
            self.gradients(ids_BS)
            adam.step()

        return step

    def base_weights(self) -> Mapping[str, Tensor]:
        named = [*self.model.named_parameters(remove_duplicate=False), *self.model.named_buffers()]
        found = {}
        for name, value in named:
            plain = ".".join(
                part
                for part in name.removeprefix("base_model.").removeprefix("model.").split(".")
                if part not in WRAPPERS
            )
            if plain in self._plain_names:
                found[plain] = value.detach()
        return found

    def merged(self) -> Mapping[str, Tensor]:
        plain = self.model.merge_and_unload()
        return {name: value.detach() for name, value in plain.state_dict().items()}

    def unloaded(self) -> Mapping[str, Tensor]:
        if not hasattr(self.model.base_model, "unload"):
            raise NotServed("this type is not unloaded")
        plain = self.model.unload()
        return {name: value.detach() for name, value in plain.state_dict().items()}

    def save(self, folder: Path, name: str) -> Sequence[str]:
        from safetensors import safe_open

        self.model.save_pretrained(str(folder), selected_adapters=[name])
        with safe_open(str(saved_in(folder) / "adapter_model.safetensors"), framework="pt") as file:
            return list(file.keys())

    def load(self, folder: Path, name: str) -> None:
        inner = saved_in(folder)
        with refusing():
            self.model.load_adapter(str(inner), name, is_trainable=not self._config.is_prompt_learning)

    def swap(self, folder: Path, name: str) -> None:
        from peft.utils.hotswap import hotswap_adapter

        inner = saved_in(folder)
        with refusing():
            hotswap_adapter(self.model, str(inner), adapter_name=name, torch_device="cpu")

    def prepare_swaps(self, more_rank: int) -> None:
        try:
            prepare = find_name("peft", ["peft.utils.hotswap:prepare_model_for_compiled_hotswap"])
        except Gone as gone:
            raise NotServed(str(gone)) from gone
        configs = self.model.peft_config.values()
        largest = max(max(config.r, *(config.rank_pattern or {}).values(), 0) for config in configs)
        with refusing():
            prepare(self.model, target_rank=largest + more_rank)

    def state(self, name: str) -> Mapping[str, Tensor]:
        import peft

        found = peft.get_peft_model_state_dict(self.model, adapter_name=name)
        return {key: value.detach().clone() for key, value in found.items()}

    def set_state(self, name: str, state: Mapping[str, Tensor]) -> None:
        import peft

        peft.set_peft_model_state_dict(self.model, dict(state), adapter_name=name)


class MixedAdapted(PeftAdapted):
    """One `PeftMixedModel`, whose second adapter is of another type."""

    def __init__(self, model: Any, config: Any, plain_names: frozenset[str], *, second: Any) -> None:
        """Keep a model; `second` configures the adapters that are added."""
        super().__init__(model, config, plain_names)
        self._second = second

    def add(self, name: str) -> None:
        self.model.add_adapter(name, copy.deepcopy(self._second))

    def use(self, names: Sequence[str], *, trains: bool = True) -> None:
        if not trains:
            self._use_for_inference(names)
        else:
            self.model.set_adapter(list(names))
