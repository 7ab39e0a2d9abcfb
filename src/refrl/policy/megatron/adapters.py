"""Low-rank adapters on Megatron-core's parallel linear layers, by the same names and in the same files as elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    gather_from_sequence_parallel_region,
    reduce_from_tensor_model_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from torch import Tensor, nn

from refrl.config import ConfigError, LoraConfig
from refrl.policy.adapter_files import read_adapters
from refrl.policy.lora import chosen_layers, first_low, merge, stream_of
from refrl.policy.megatron.architecture import Architecture, skeleton
from refrl.policy.megatron.conversion import Link, links
from refrl.policy.megatron.exchange import take
from refrl.policy.megatron.model import LocalModel, global_name, own_parameters
from refrl.policy.megatron.parallel import Parallel


class Adapter(nn.Module):
    """`lora_A` and `lora_B` of one Hugging Face layer: this rank's parts, without values."""

    def __init__(
        self, inputs: int, outputs: int, dim: int, link: Link, parallel: Parallel, like: dict[str, Any]
    ) -> None:
        """Make both halves.

        Args:
            inputs: of this rank.
            outputs: of this rank.
            dim: rank of the adapter.
            link: of the weight that it adapts.
            parallel: the ranks that have the other parts.
            like: device and type.
        """
        super().__init__()
        self.lora_A = nn.Linear(inputs, dim, bias=False, **like)
        self.lora_B = nn.Linear(dim, outputs, bias=False, **like)
        self._cuts_outputs, self._group = link.split == 0, parallel.tensor
        self._sequences = parallel.config.sequence_parallel
        # The half that is whole sees this rank's tokens alone: Megatron-core sums gradients that are marked so.
        whole: Any = self.lora_A if self._cuts_outputs else self.lora_B
        whole.weight.sequence_parallel = self._sequences

    def forward(self, states: Tensor) -> Tensor:
        """Return B A states, [tokens, rows, own outputs] of [tokens, rows, own inputs]."""
        adapted: Tensor = self.lora_B(self._across(self.lora_A(states)))
        return adapted

    def _across(self, low: Tensor) -> Tensor:
        """Return what B takes of what A gives, [tokens, rows, rank of the adapter]."""
        if self._cuts_outputs:
            if self._sequences:
                return gather_from_sequence_parallel_region(low, group=self._group)
            return copy_to_tensor_model_parallel_region(low, group=self._group)
        if self._sequences:
            return reduce_scatter_to_sequence_parallel_region(low, group=self._group)
        return reduce_from_tensor_model_parallel_region(low, group=self._group)


class LayerAdapters(nn.Module):
    """The adapters of the Hugging Face layers in one parallel linear layer, as a hook of its forward pass."""

    def __init__(
        self, weight: Tensor, link: Link, numbers: Sequence[int], config: LoraConfig, parallel: Parallel
    ) -> None:
        """Make them.

        Args:
            weight: this rank's part of the frozen weight.
            link: the Hugging Face tensors in it.
            numbers: places, among the link's tensors, of the layers that are adapted.
            config: rank and scale.
            parallel: the ranks that have the other parts.
        """
        super().__init__()
        self._link, self._scaling = link, config.alpha / config.dim
        size = parallel.tensor.size() if link.split == 0 else 1
        self._outputs = [shape[0] // size for shape in link.shapes]
        self._names = [
            short_name(link.tensors[number]) if number in numbers else None
            for number in range(len(link.tensors))
        ]
        like = {"device": weight.device, "dtype": weight.dtype}
        for name, outputs in zip(self._names, self._outputs, strict=True):
            if name is not None:
                self.add_module(name, Adapter(weight.shape[1], outputs, config.dim, link, parallel, like))
        self.adapts = True

    def forward(self, states: Tensor) -> Tensor:
        """Return what the adapters add to the output of the layer, laid out as it is.

        Args:
            states: what the layer gets, [tokens, rows, own inputs].
        """
        added = [None if name is None else self.get_submodule(name)(states) for name in self._names]
        like = next(part for part in added if part is not None)
        parts = [
            like.new_zeros((*like.shape[:-1], outputs)) if part is None else part
            for part, outputs in zip(added, self._outputs, strict=True)
        ]
        # Outputs are rows of the weight: they lie in the output as in the weight.
        laid_out = self._link.merge([part.movedim(-1, 0) for part in parts]).movedim(0, -1)
        return laid_out * self._scaling

    def add_to(self, layer: nn.Module, inputs: tuple[Any, ...], output: tuple[Tensor, Any]) -> Any:
        """Add to the output of the layer: a hook of its forward pass."""
        del layer
        return (output[0] + self(inputs[0]), output[1]) if self.adapts else output


def short_name(tensor: str) -> str:
    """Return the last part of the name of a Hugging Face layer, of its weight's name."""
    return tensor.removesuffix(".weight").rpartition(".")[2]


def let_gradients_start(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
    """Let the hidden states have a gradient though the embedding is frozen: a hook of its forward pass.

    A layer that is computed again in the backward pass by Megatron-core's own function has no gradient otherwise, and a
    pipeline stage nothing to send back.
    """
    del module, inputs
    return output.requires_grad_() if torch.is_grad_enabled() else output


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
