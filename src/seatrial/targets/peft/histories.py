"""A tiny model with several adapters of PEFT, of other options; see `contracts.adapter_histories`."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.contracts.adapter_histories import HistoryModel, Options
from seatrial.relations.contracts.adapters import Combination, WeightUpdate
from seatrial.relations.not_served import NotServed
from seatrial.targets.peft.adapted import PeftAdapted, refusing, saved_in
from seatrial.targets.peft.bases import TASKS
from seatrial.targets.peft.elsewhere import LEFT_OUT, ONE_NAME, SHARED, elsewhere
from seatrial.targets.peft.nets import NETS
from seatrial.targets.peft.updates import has_updates, updates_of
from seatrial.targets.peft.variants import OF_LORA, OWN

SCALED: Mapping[str, Mapping[str, Any]] = {
    "LoraConfig": {
        "r": 3,
        "lora_alpha": 5,
        "use_rslora": False,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"layers.1.self_attn.q_proj": 11},
    },
    "LoHaConfig": {"r": 3, "alpha": 7},
    "LoKrConfig": {"r": 3, "alpha": 8},
    "HiraConfig": {"r": 3},
    "MissConfig": {"r": 4},
    "DeloraConfig": {"r": 3, "delora_lambda": 5},
    "FourierFTConfig": {"scaling": 9.0},
    "GraloraConfig": {"r": 4, "alpha": 6},
    "PsoftConfig": {"r": 4, "psoft_alpha": 3},
    "PeanutConfig": {"r": 2},
    "OFTConfig": {"oft_block_size": 4},
    "BOFTConfig": {"boft_block_size": 8, "boft_n_butterfly_factor": 1},
    "HRAConfig": {"r": 2},
    "VBLoRAConfig": {"topk": 3},
    "AdaLoraConfig": {"init_r": 4, "target_r": 2, "lora_alpha": 9},
    "PromptTuningConfig": {"num_virtual_tokens": 2},
    "PrefixTuningConfig": {"num_virtual_tokens": 2},
    "PromptEncoderConfig": {"num_virtual_tokens": 2},
}
"""Options of another size or scale on the same layers, by the configuration class."""


ALONE = ("LNTuningConfig", "FrodConfig")
"""Types of which a layer needs every adapter."""


def _varied(kind: Any, seed: int) -> dict[str, Any]:
    """Return values of further options of a type on the same layers."""
    name = kind.config.removesuffix("Config").lower()
    variants = OF_LORA if name == "lora" else OWN.get(name, {})
    same = [
        options
        for options in variants.values()
        if "trait" not in options and ("target_modules" not in options or name == "lora")
    ]
    if not same or kind.config in SHARED or kind.trait != "linear" or "target_modules" not in kind.options:
        raise NotServed("no varied options")
    return {name: value for name, value in same[seed % len(same)].items() if name != "dropout"}


def options_of(kind: Any, which: Options, seed: int = 0) -> dict[str, Any]:
    """Return the options of PEFT of an adapter of a kind; the seed chooses among several.

    Raises:
        NotServed: the type has no such options.
    """
    own = dict(kind.options)
    if which == "own":
        return own
    if kind.config in ALONE or (own.get("trainable_token_indices") and kind.trait != "tied"):
        raise NotServed("a layer that one of two adapters alone is on raises: docs/evidence/findings.md")
    if which == "elsewhere":
        return dict(elsewhere(kind).options)
    if kind.config in (*ONE_NAME, *SHARED) and own.get("layers_to_transform"):
        raise NotServed("a tensor of all layers has the name of the first layer that has it, which changes")
    plain = {name: value for name, value in own.items() if name not in LEFT_OUT or name == "exclude_modules"}
    if which == "varied":
        return {**plain, **_varied(kind, seed)}
    if which == "scaled" and kind.config in SCALED and "layer_replication" not in own:
        return {**plain, **SCALED[kind.config]}
    if which == "saved" and kind.trait == "linear" and "target_modules" in own:
        targets = own["target_modules"]
        if "lm_head" not in targets and targets != "all-linear":
            return {**plain, "modules_to_save": ["lm_head"]}
    raise NotServed(f"no {which} options")


class HistoryAdapted(PeftAdapted):
    """One `PeftModel`, whose adapters have options of their own."""

    def __init__(
        self,
        model: Any,
        make: Callable[[Options, int], Any],
        plain_names: frozenset[str],
        given: Options,
        *,
        seed: int,
        combines: bool,
    ) -> None:
        """Keep a model.

        Args:
            model: the `PeftModel`.
            make: returns a new configuration of an adapter, by a seed where there are several.
            plain_names: names of the tensors of the base model.
            given: the options of the first adapter.
            seed: that of the first adapter.
            combines: whether weighted sums of its layers are offered.
        """
        super().__init__(model, make(given, seed), plain_names)
        self._make, self._combines = make, combines

    def updates(self, name: str) -> Sequence[WeightUpdate] | None:
        config = self.model.peft_config[name]
        return updates_of(self.model, config, name) if has_updates(config) else None

    def put(self, options: Options, name: str, *, seed: int) -> None:
        with torch.random.fork_rng(devices=[]), refusing():
            torch.manual_seed(seed)
            config = self._make(options, seed)
            # AdaLoRA refuses a second adapter that trains; all others are frozen until they are in use.
            config.inference_mode = self._type == "ADALORA"
            self.model.add_adapter(name, config)

    def _refuse_parts(self) -> None:
        """Raise NotServed for adapters of which a file has not all that trains."""
        config = self._config
        if getattr(config, "save_only_topk_weights", False):
            raise NotServed("a file has the largest weights alone, of which training goes not on")
        if hasattr(config, "encoder_reparameterization_type") or getattr(config, "prefix_projection", False):
            raise NotServed(
                "the prompt is saved as the encoder computes it, which another encoder does not read"
            )

    def set_state(self, name: str, state: Mapping[str, torch.Tensor]) -> None:
        self._refuse_parts()
        super().set_state(name, state)

    def read_in(self, folder: Path, name: str, *, trainable: bool, low_memory: bool) -> None:
        self._refuse_parts()
        inner = saved_in(folder)
        more = {"low_cpu_mem_usage": True} if low_memory else {}
        with refusing():
            self.model.load_adapter(
                str(inner), name, is_trainable=trainable and not self._config.is_prompt_learning, **more
            )

    def use_one(self, name: str, *, trains: bool) -> None:
        if trains:
            self.model.set_adapter(name)
        elif "inference_mode" not in inspect.signature(self.model.set_adapter).parameters:
            raise NotServed("set_adapter of this release has no inference_mode")
        else:
            self.model.set_adapter(name, inference_mode=True)

    def switch(self, on: bool) -> None:
        if self._config.is_prompt_learning:
            raise NotServed("prompts are disabled in a block alone")
        (self.model.enable_adapter_layers if on else self.model.disable_adapter_layers)()

    def delete(self, name: str) -> None:
        if self._config.is_prompt_learning and self.model.modules_to_save and len(self.model.peft_config) > 2:
            raise NotServed("delete_adapter raises on prompts with heads, of which several are left")
        try:
            super().delete(name)
        except TypeError as error:
            if not self._config.is_prompt_learning:
                raise
            raise NotServed("delete_adapter of this release raises on prompts") from error

    def active(self) -> Sequence[str]:
        return list(self.model.active_adapters)

    def _layers(self) -> Iterator[Any]:
        if self._type != "LORA":
            raise NotServed("the scale of LoRA alone is set")
        return (layer for layer in self.model.modules() if hasattr(layer, "set_scale"))

    def set_scale(self, name: str, factor: float) -> None:
        for layer in self._layers():
            layer.set_scale(name, factor)

    def multiply_scale(self, factor: float) -> None:
        for layer in self._layers():
            layer.scale_layer(factor)

    def divide_scale(self, factor: float | None) -> None:
        for layer in self._layers():
            layer.unscale_layer(factor)

    def weigh(self, names: Sequence[str], weights: Sequence[float], how: Combination, new: str) -> None:
        if self._type != "LORA" or not self._combines:
            raise NotServed("linear layers of LoRA alone are combined")
        whole = sum(
            max(config.r, *(config.rank_pattern or {}).values(), 0)
            for config in (self.model.peft_config[name] for name in names)
        )
        more = {"svd_rank": whole} if how == "svd" else {}
        with refusing():
            self.model.add_weighted_adapter(list(names), list(weights), new, combination_type=how, **more)

    def copied(self) -> HistoryModel:
        try:
            model = copy.deepcopy(self.model)
        except RuntimeError as error:
            if "deepcopy protocol" not in str(error):
                raise
            raise NotServed("torch refuses to copy a weight that is computed from another one") from error
        made = copy.copy(self)
        made.model = model
        return made


def alone(adapters: Any, options: Options, name: str, *, seed: int, dropout: float) -> HistoryAdapted:
    """Return a new model of a kind with one adapter; see `contracts.adapter_histories`."""
    import peft

    kind = adapters.kind

    def make(which: Options, seed: int) -> Any:
        given = copy.deepcopy(options_of(kind, which, seed))
        if dropout and kind.dropout is not None:
            given[kind.dropout] = dropout
        unknown = sorted(set(given) - {option.name for option in dataclasses.fields(adapters._config_class)})
        if unknown:
            raise NotServed(f"{kind.config} of this release has no {unknown[0]}")
        if kind.trait not in NETS:
            given["task_type"] = TASKS.get(kind.trait, "CAUSAL_LM")
        return adapters._config_class(**given)

    with torch.random.fork_rng(devices=[]), refusing():
        torch.manual_seed(seed)
        model = peft.get_peft_model(adapters.given("float32"), make(options, seed), adapter_name=name)
    combines = kind.trait in ("linear", "tied", "conv1d")
    return HistoryAdapted(model, make, adapters._plain_names, options, seed=seed, combines=combines)
