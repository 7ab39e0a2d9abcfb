"""A model that is spread over processes, with its adapters where it has some: whole tensors out of it."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_layers import GradientCheckpointingLayer

from refrl.config import DTensorConfig
from refrl.directories import new_directory
from refrl.models.loading import write_model, writing
from refrl.policy.adapter_files import save_merged
from refrl.policy.dtensor.context_parallel import share_sequences
from refrl.policy.dtensor.expert_parallel import share_experts
from refrl.policy.dtensor.meshes import Meshes
from refrl.policy.dtensor.tensor_parallel import parallelize
from refrl.policy.lora import Adapters, merge
from refrl.policy.tensors import named_weights, whole


def spread(
    model: PreTrainedModel, config: DTensorConfig, meshes: Meshes, dtype: torch.dtype
) -> list[nn.Parameter]:
    """Spread a model with float32 weights; it computes in `dtype`, and sums gradients in float32.

    Returns:
        The trained weights of shared experts: their gradients are not summed over `meshes.expert_copies`.

    Raises:
        ConfigError: it cannot be spread so.
    """
    _silence_warnings()
    experts = share_experts(model, meshes.experts) if config.expert_parallel_size > 1 else []
    if config.tensor_parallel_size > 1:
        parallelize(model, meshes.tensor, sequence_parallel=config.sequence_parallel)
    if config.context_parallel_size > 1:
        share_sequences(model, meshes.context)
    precision = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
    )
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for module in (*layers, model):
        # The outermost too: what it keeps gathered after a pass are copies, and a checkpoint read into them is lost.
        fully_shard(
            module,
            mesh=meshes.shards,
            reshard_after_forward=True,
            mp_policy=precision,
            ignored_params=set(experts),
        )
    for module in model.modules():
        if isinstance(module, FSDPModule):
            # The loss divides by the counts of all rows: gradients are summed, not averaged.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
    return [weight for weight in experts if weight.requires_grad]


def _silence_warnings() -> None:
    """Of gathering along two dimensions in turn, which FSDP needs with tensor parallelism; of views as outputs.

    Nothing here changes logits in place, which is what the second one is about.
    """
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")


@dataclass(frozen=True)
class SpreadModel:
    """A model that is spread, and the meshes it is spread over."""

    model: PreTrainedModel
    meshes: Meshes
    experts: Sequence[Tensor]
    """Trained weights whose gradients the model does not sum over `meshes.expert_copies`."""
    dtype: torch.dtype
    """That it computes in, and its weights have outside."""
    adapters: Adapters | None = None
    """Trained in place of its weights; spread as they are."""

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Gather and yield every parameter and buffer, merged, in the type that the model computes in."""
        layers = {} if self.adapters is None else self.adapters.layers
        for name, weight in self.base_weights():
            layer = layers.get(name.removesuffix(".weight"))
            if layer is None:
                yield name, weight
                continue
            low, high = self.whole(layer.lora_A.weight), self.whole(layer.lora_B.weight)
            yield name, merge(weight, low, high, layer.scaling)

    def base_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Gather and yield every parameter and buffer without adapters."""
        own = named_weights(self.model) if self.adapters is None else self.adapters.base_weights()
        for name, tensor in own:
            yield name, self.whole(tensor)

    def own_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what training changes, live and spread: every parameter and buffer, or the adapters."""
        yield from named_weights(self.model) if self.adapters is None else self.adapters.weights().items()

    def as_loaded(self) -> AbstractContextManager[None]:
        """Let the model be the frozen one, without adapters."""
        return nullcontext() if self.adapters is None else self.adapters.off()

    def save(
        self,
        tokenizer: PreTrainedTokenizerBase,
        output: Path,
        extra: Callable[[Path], None],
        *,
        writes: bool,
    ) -> None:
        """Export weights, configuration and tokenizer; adapters merged, and in `adapter/` in PEFT's format.

        Args:
            tokenizer: exported with the model.
            output: a missing or empty directory.
            extra: writes more files into the folder, if there are no adapters.
            writes: whether this process writes what all of them gather.

        Raises:
            OSError: it cannot be written.
        """
        merged = dict(self.named_weights())
        adapters = self.adapters
        weights = (
            {}
            if adapters is None
            else {name: self.whole(tensor) for name, tensor in adapters.weights().items()}
        )
        if not writes:
            return
        if adapters is not None:
            save_merged(adapters, tokenizer, output, merged=merged.items(), weights=weights)
            return
        names = self.model.state_dict().keys()
        chosen = {name: weight for name, weight in merged.items() if name in names}
        with new_directory(output) as folder, writing(output):
            write_model(self.model, tokenizer, folder, weights=chosen)
            extra(folder)

    def whole(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the model, gathered, in the type that it computes in."""
        own = tensor.detach()
        return whole(own.to(self.dtype) if own.is_floating_point() else own)
