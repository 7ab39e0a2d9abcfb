"""Low-rank adapters (LoRA, arXiv 2106.09685): a frozen linear layer W computes in addition `alpha / dim * B A`.

B starts at zero, so new adapters change nothing. A layer scores unmerged, with W and its adapter separate. The sampler
and the export get merged weights under Hugging Face names; the export also has the adapters in PEFT's format
(`refrl.policy.adapter_files`). Names, initial values and merging are the same on every backend.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from refrl.config import ConfigError, LoraConfig
from refrl.policy.tensors import named_weights
from refrl.streams import random_stream


class LoraLinear(nn.Module):
    """A frozen linear layer [out, in] with an adapter of rank r: `lora_A` [r, in], `lora_B` [out, r]."""

    def __init__(self, base: nn.Linear, *, dim: int, alpha: float, stream: torch.Generator) -> None:
        """Take over the weight and the bias of a layer; A is uniform as PEFT's is, B zero.

        Args:
            base: the layer; its tensors are used, not copied.
            dim: r.
            alpha: the adapter's output is multiplied by `alpha / dim`.
            stream: A is drawn from it.
        """
        super().__init__()
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        like = {"device": base.weight.device, "dtype": base.weight.dtype}
        self.lora_A = nn.Linear(base.in_features, dim, bias=False, **like)
        self.lora_B = nn.Linear(dim, base.out_features, bias=False, **like)
        self.scaling = alpha / dim
        self.adapts = True
        with torch.no_grad():
            self.lora_A.weight.copy_(first_low(dim, base.in_features, stream))
            self.lora_B.weight.zero_()
        self.train(base.training)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return [..., out] of [..., in]."""
        outputs = functional.linear(inputs, self.weight, self.bias)
        if not self.adapts:
            return outputs
        adapted: Tensor = self.lora_B(self.lora_A(inputs))
        return outputs + adapted * self.scaling

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return W + alpha / dim * B A (see `merge`)."""
        return merge(self.weight, self.lora_A.weight, self.lora_B.weight, self.scaling)


@torch.no_grad()
def merge(base: Tensor, low: Tensor, high: Tensor, scaling: float) -> Tensor:
    """Return W + scaling * B A, added up in float32 and rounded once.

    Args:
        base: W [out, in]; its type is that of the result.
        low: A [r, in].
        high: B [out, r].
        scaling: `alpha / r`.
    """
    product = high.float() @ low.float()
    return (base.float() + product * scaling).to(base.dtype)


def first_low(dim: int, in_features: int, stream: torch.Generator) -> Tensor:
    """Return the first A [r, in]: uniform within 1 / sqrt(in), as PEFT's is."""
    drawn = torch.rand((dim, in_features), generator=stream, dtype=torch.float32)
    return (2 * drawn - 1) * (1 / math.sqrt(in_features))


def stream_of(layer: str, config: LoraConfig) -> torch.Generator:
    """Return what the first A of a layer (its Hugging Face name) is drawn from."""
    return random_stream(config.seed, f"lora_A of {layer}", 0)


class Adapters:
    """The adapters of a model, and the merged weights that others read."""

    def __init__(self, model: PreTrainedModel, layers: Mapping[str, LoraLinear], config: LoraConfig) -> None:
        """Manage the adapters of a model that has them (`add_adapters`)."""
        self.model = model
        self.layers = layers
        self.config = config
        self._merged: dict[str, Tensor] = {}

    @contextmanager
    def off(self) -> Iterator[None]:
        """Disable the adapters within the block."""
        for layer in self.layers.values():
            layer.adapts = False
        try:
            yield
        finally:
            for layer in self.layers.values():
                layer.adapts = True

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the merged weights of the model and its buffers by Hugging Face name.

        The same tensors each time; `refresh` brings them up to date.
        """
        if not self._merged:
            self._merged = {f"{name}.weight": layer.merged() for name, layer in self.layers.items()}
        for name, tensor in self.base_weights():
            yield name, self._merged.get(name, tensor)

    def base_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the frozen weights and the buffers, live, by Hugging Face name."""
        own = {id(weight) for weight in self.weights().values()}
        for name, tensor in named_weights(self.model):
            if id(tensor) not in own:
                yield name, tensor

    def weights(self) -> dict[str, Tensor]:
        """Return the adapters, live: `<layer>.lora_A.weight` and `<layer>.lora_B.weight`."""
        return {
            f"{name}.{part}.weight": getattr(layer, part).weight
            for name, layer in self.layers.items()
            for part in ("lora_A", "lora_B")
        }

    def refresh(self) -> None:
        """Update the merged weights if they are in use; call it after every change of the adapters."""
        for name in self._merged:
            self._merged[name].copy_(self.layers[name.removesuffix(".weight")].merged())


def add_adapters(model: PreTrainedModel, config: LoraConfig) -> Adapters:
    """Freeze a model, and add an adapter to its linear layers, in place.

    Raises:
        ConfigError: no layer is meant, or one that shares its weight with another.
    """
    model.requires_grad_(False)
    layers = {}
    for name, linear in chosen_layers(model, config).items():
        layer = LoraLinear(linear, dim=config.dim, alpha=config.alpha, stream=stream_of(name, config))
        model.set_submodule(name, layer)
        layers[name] = layer
    return Adapters(model, layers, config)


def chosen_layers(model: PreTrainedModel, config: LoraConfig) -> dict[str, nn.Linear]:
    """Return the linear layers of a model that get an adapter, by name.

    Raises:
        ConfigError: as `add_adapters`.
    """
    _refuse_transposed(model, config)
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    head = model.get_output_embeddings()
    if config.target_modules is None:
        chosen = {name: linear for name, linear in linears.items() if linear is not head}
    else:
        for target in config.target_modules:
            if not any(_ends(name, (target,)) for name in linears):
                known = ", ".join(sorted({name.rpartition(".")[2] for name in linears}))
                transposed = ", ".join(sorted({name.rpartition(".")[2] for name in _transposed(model)}))
                note = f"; {transposed} are Conv1D layers, which have no adapters here" if transposed else ""
                raise ConfigError(
                    f"policy.lora_cfg.target_modules: no linear layer of {type(model).__name__} is called {target}; "
                    f"there are {known}{note}"
                )
        chosen = {name: linear for name, linear in linears.items() if _ends(name, config.target_modules)}
    chosen = {name: linear for name, linear in chosen.items() if not _ends(name, config.exclude_modules)}
    if not chosen:
        raise ConfigError("policy.lora_cfg: no linear layer is left to adapt; name some in target_modules")
    embedding = model.get_input_embeddings()
    for name, linear in chosen.items():
        if linear.weight is getattr(embedding, "weight", None):
            raise ConfigError(
                f"policy.lora_cfg.target_modules: {name} shares its weight with the embedding, which its adapter "
                "would not change; leave it out"
            )
    return chosen


def _refuse_transposed(model: PreTrainedModel, config: LoraConfig) -> None:
    """Raise if the chosen layers are transposed ones (`Conv1D`, as GPT-2 has), which have no adapter here.

    Raises:
        ConfigError: names some of the layers.
    """
    targets = config.target_modules
    chosen = [name for name in _transposed(model) if targets is None or _ends(name, targets)]
    if chosen:
        kinds = ", ".join(sorted({name.rpartition(".")[2] for name in chosen}))
        raise ConfigError(
            f"policy.lora_cfg: {type(model).__name__} keeps {kinds} as Conv1D layers, whose weights are transposed; "
            "adapters are for linear layers: set policy.lora_cfg.enabled=false, or take a model with linear layers"
        )


def _transposed(model: PreTrainedModel) -> list[str]:
    """Return the names of a model's `Conv1D` layers."""
    return [name for name, module in model.named_modules() if isinstance(module, Conv1D)]


def _ends(name: str, targets: Sequence[str]) -> bool:
    """Return whether a name is one of the targets, or ends with one after a dot: PEFT's rule."""
    return any(name == target or name.endswith(f".{target}") for target in targets)
