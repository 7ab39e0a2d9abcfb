"""Low-rank adapters on Megatron-core's parallel linear layers, by the same names and in the same files as elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from refrl.config import ConfigError, LoraConfig
from refrl.policy.adapter_files import read_adapters
from refrl.policy.lora import chosen_layers, first_low, merge, stream_of
from refrl.policy.megatron.adapter_layers import LayerAdapters, let_gradients_start, short_name
from refrl.policy.megatron.architecture import Architecture, skeleton
from refrl.policy.megatron.conversion import Link, links
from refrl.policy.megatron.exchange import take
from refrl.policy.megatron.model import LocalModel, global_name, own_parameters

LAYERS = ("linear_qkv.weight", "linear_proj.weight", "linear_fc1.weight", "linear_fc2.weight")
"""How the parameters end that can have adapters; those of experts cannot."""


@dataclass(frozen=True)
class MegatronAdapters:
    """The adapters of a model, and this rank's share of them."""

    local: LocalModel
    """The adapters alone: their parameters and links."""
    layers: Sequence[LayerAdapters]
    config: LoraConfig

    @contextmanager
    def off(self) -> Iterator[None]:
        """Let the model be the frozen one."""
        for layer in self.layers:
            layer.adapts = False
        try:
            yield
        finally:
            for layer in self.layers:
                layer.adapts = True

    def merged(
        self, base: Iterator[tuple[str, Tensor]], adapters: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield whole weights with their adapters merged.

        Args:
            base: the frozen weights, named as in a checkpoint.
            adapters: whole, by name.
        """
        for name, weight in base:
            layer = name.removesuffix(".weight")
            low, high = adapters.get(f"{layer}.lora_A.weight"), adapters.get(f"{layer}.lora_B.weight")
            if low is None or high is None:
                yield name, weight
            else:
                yield name, merge(weight, low, high, self.config.alpha / self.config.dim)


def add_adapters(local: LocalModel, config: LoraConfig) -> MegatronAdapters:
    """Freeze a model, and add adapters to its linear layers in place: new ones, or those of `adapter_path`.

    Raises:
        ConfigError: they do not fit the model, or leave a pipeline stage without any.
    """
    chosen = _chosen(local.architecture, config)
    check_stages(chosen, num_layers=local.architecture.num_layers, num_stages=local.parallel.pipeline.size())
    module = local.module.requires_grad_(False)
    if module.pre_process:
        module.embedding.register_forward_hook(let_gradients_start)
    layers = []
    for own_name, weight in list(module.named_parameters()):
        name = global_name(own_name, module, local.parallel)
        if name in chosen:
            adapters = LayerAdapters(weight, local.links[name], chosen[name], config, local.parallel)
            layer = module.get_submodule(own_name.removesuffix(".weight"))
            layer.add_module("adapters", adapters)
            layer.register_forward_hook(adapters.add_to)
            layers.append(adapters)
    every = tuple(
        adapter
        for link in local.every
        for number in chosen.get(link.parameter, ())
        for adapter in _links_of(link, number, config.dim)
    )
    known = {link.parameter: link for link in every}
    trained = {
        name: weight
        for name, weight in own_parameters(module, local.parallel).items()
        if weight.requires_grad
    }
    own = replace(local, links={name: known[name] for name in trained}, parameters=trained, every=every)
    take(_values(every, config), trained, own)
    return MegatronAdapters(own, layers, config)


def _chosen(architecture: Architecture, config: LoraConfig) -> dict[str, list[int]]:
    """Return, by the name of a parameter, which of its Hugging Face tensors get an adapter.

    Raises:
        ConfigError: no layer is meant, or one that cannot have an adapter here.
    """
    wanted = {f"{name}.weight" for name in chosen_layers(skeleton(architecture.config), config)}
    found: dict[str, list[int]] = {}
    for link in links(architecture):
        for number, name in enumerate(link.tensors):
            if name in wanted and link.expert is None and link.parameter.endswith(LAYERS):
                found.setdefault(link.parameter, []).append(number)
                wanted.remove(name)
    if wanted:
        name = min(wanted).removesuffix(".weight")
        raise ConfigError(
            f"policy.lora_cfg: {name} has no adapter on policy.megatron_cfg, where attention and feed-forward layers "
            "without experts have one; name others in target_modules or leave it out by exclude_modules"
        )
    return found


def check_stages(chosen: Iterable[str], *, num_layers: int, num_stages: int) -> None:
    """Look whether each pipeline stage has something to train.

    Args:
        chosen: parameters that get an adapter, by their names over the whole model.
        num_layers: of the model.
        num_stages: that have equal numbers of layers.

    Raises:
        ConfigError: one has no adapter.
    """
    each = num_layers // num_stages
    trained = {int(name.split(".")[2]) // each for name in chosen}
    for stage in sorted(set(range(num_stages)) - trained):
        raise ConfigError(
            f"policy.lora_cfg.target_modules: no layer of pipeline stage {stage} (layers {stage * each} to "
            f"{(stage + 1) * each - 1}) gets an adapter, so that it would have nothing to train; name layers in each, "
            "or lower policy.megatron_cfg.pipeline_model_parallel_size"
        )


def _links_of(link: Link, number: int, dim: int) -> Iterator[Link]:
    """Yield the links of A and B of one Hugging Face layer."""
    layer = link.tensors[number].removesuffix(".weight")
    outputs, inputs = link.shapes[number]
    where = f"{link.parameter.removesuffix('.weight')}.adapters.{short_name(layer)}"
    yield Link(
        f"{where}.lora_A.weight",
        (f"{layer}.lora_A.weight",),
        ((dim, inputs),),
        split=1 if link.split == 1 else None,
    )
    yield Link(
        f"{where}.lora_B.weight",
        (f"{layer}.lora_B.weight",),
        ((outputs, dim),),
        split=0 if link.split == 0 else None,
    )


def _values(every: Sequence[Link], config: LoraConfig) -> dict[str, Tensor]:
    """Return the values that training starts from, whole, by name."""
    shapes = {link.tensors[0]: link.shapes[0] for link in every}
    if config.adapter_path is not None:
        return read_adapters(Path(config.adapter_path), config, shapes)
    values = {}
    for name, shape in shapes.items():
        layer, is_low, _ = name.rpartition(".lora_A.")
        dim, inputs = shape
        values[name] = first_low(dim, inputs, stream_of(layer, config)) if is_low else torch.zeros(shape)
    return values
