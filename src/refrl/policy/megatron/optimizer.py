"""The `hf` backend's AdamW over this rank's part of the weights: clipped by the norm of the whole gradient."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from refrl.config import PolicyConfig
from refrl.policy.megatron.model import LocalModel
from refrl.policy.optimizer import ClippedAdamW


@dataclass(frozen=True)
class WholeNorm:
    """Clips by the norm over all ranks, where every number of the model counts once."""

    local: LocalModel

    def __call__(self, weights: Sequence[Tensor], limit: float) -> float:
        """Scale the gradients down to a norm of at most `limit`; return the norm before."""
        parallel = self.local.parallel
        dense, experts = (torch.zeros((), dtype=torch.float64, device=weights[0].device) for _ in range(2))
        for (name, link), weight in zip(self.local.links.items(), weights, strict=True):
            if weight.grad is None or not self._counts_here(name):
                continue
            square = weight.grad.norm(dtype=torch.float32).double().square()
            if link.expert is None:
                dense += square
            else:
                experts += square
        if parallel.model.size() > 1:
            dist.all_reduce(dense, group=parallel.model)
        if parallel.expert_model.size() > 1:
            dist.all_reduce(experts, group=parallel.expert_model)
        norm = math.sqrt(float(dense + experts))
        if norm > limit:
            for weight in weights:
                if weight.grad is not None:
                    weight.grad.mul_(limit / (norm + 1e-6))
        return norm

    def _counts_here(self, name: str) -> bool:
        """Return whether this rank counts a parameter, of the ranks that hold the same values."""
        parallel, link = self.local.parallel, self.local.links[name]
        if name == "output_layer.weight" and self.local.architecture.tied:
            return False
        return link.split is not None or parallel.tensor_of(link).rank() == 0


class MegatronOptimizer:
    """Steps, and the moments by the name of the parameter over the whole model."""

    def __init__(self, local: LocalModel, config: PolicyConfig, num_updates: int) -> None:
        """Take the float32 weights; cast the module to the precision of the configuration after this.

        Args:
            local: this rank's share of what is trained: of the model, or of its adapters.
            config: of the optimizer.
            num_updates: length of the schedule.
        """
        self.local = local
        self.adamw = ClippedAdamW(local.module, config, num_updates, WholeNorm(local))
        self._names = {name: place for place, name in enumerate(local.parameters)}

    def take_gradients(self) -> None:
        """Take the sums over micro-batches and ranks as the gradients of the next step."""
        for weight, parameter in zip(self.adamw.weights, self.local.parameters.values(), strict=True):
            weight.grad = parameter.main_grad  # type: ignore[attr-defined]

    @property
    def has_gradients(self) -> bool:
        """Whether gradients wait for a step."""
        return any(weight.grad is not None for weight in self.adamw.weights)

    def gradient(self, name: str) -> Tensor | None:
        """Return the gradient of a parameter, zero where there is none; None where another rank has it."""
        if name not in self._names:
            return None
        weight = self.adamw.weights[self._names[name]]
        return torch.zeros_like(weight) if weight.grad is None else weight.grad

    def state(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return what AdamW keeps, live: by kind (`exp_avg`, `master`), then by the name of the parameter.

        Without the numbers of steps, which are those of the run (`set_steps`).
        """
        kinds: dict[str, dict[str, Tensor]] = {}
        for name, kind, tensor in self._state():
            kinds.setdefault(kind, {})[name] = tensor
        return kinds

    def _state(self) -> Iterator[tuple[str, str, Tensor]]:
        ours = {local: name for name, local in zip(self.local.parameters, self._trained_names(), strict=True)}
        for key, tensor in self.adamw.state_tensors().items():
            local, _, kind = key.rpartition(".")
            if kind != "step":
                yield ours[local], kind, tensor

    def _trained_names(self) -> list[str]:
        """Return the module's own names of what is trained."""
        return [name for name, weight in self.local.module.named_parameters() if weight.requires_grad]

    def set_steps(self, num_updates: int) -> None:
        """Continue after so many updates: every weight has seen all of them."""
        self.adamw.num_updates_done = num_updates
        for key, tensor in self.adamw.state_tensors().items():
            if key.endswith(".step"):
                tensor.fill_(float(num_updates))
