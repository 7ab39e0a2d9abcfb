"""AdamW on float32 weights, the learning-rate schedule, and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from refrl.config import OptimizerConfig, PolicyConfig, SchedulerConfig


def learning_rate_factor(update: int, config: SchedulerConfig, num_updates: int) -> float:
    """Return what the learning rate is multiplied by at an update (counted from 0).

    Warm-up rises linearly and reaches 1 at update `warmup_steps - 1`; the first update never has rate 0.
    Decay falls from 1 to `min_lr_ratio`, which it would reach at update `num_updates`.
    """
    if update < config.warmup_steps:
        return (update + 1) / config.warmup_steps
    if config.name == "constant":
        return 1.0
    progress = min(1.0, (update - config.warmup_steps) / max(1, num_updates - config.warmup_steps))
    falling = 1 - progress if config.name == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * falling


Clip = Callable[[Sequence[Tensor], float], Tensor | float]
"""(weights with gradients, largest norm) -> norm before; the gradients are scaled down to the largest norm."""


class MasterWeights:
    """Float32 copies of the trainable weights, and float32 sums of their gradients.

    In bfloat16 a small update is lost in rounding, and so is a small micro-batch gradient added to a large sum.
    A model whose weights are float32 is its own master.
    """

    def __init__(self, model: nn.Module, precision: torch.dtype = torch.float32) -> None:
        """Copy the trainable weights, where the model will be trained in another precision than float32.

        Args:
            model: as it was loaded; it is cast after this, so that the copies keep what the cast loses.
            precision: that the model is cast to.
        """
        trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        self.names = list(trained)
        self._live = list(trained.values())
        self.weights: Sequence[Tensor] = [
            parameter
            if parameter.dtype == precision == torch.float32
            else parameter.detach().to(torch.float32, copy=True).requires_grad_()
            for parameter in self._live
        ]

    def add_gradients(self) -> None:
        """Move the gradients of a micro-batch from the model to the sums."""
        for live, master in zip(self._live, self.weights, strict=True):
            if live is master or live.grad is None:
                continue
            gradient = live.grad.float()
            master.grad = gradient if master.grad is None else master.grad.add_(gradient)
            live.grad = None

    def copies(self) -> dict[str, Tensor]:
        """Return the weights that are not the model's own, by name."""
        return {
            name: master.detach()
            for name, live, master in zip(self.names, self._live, self.weights, strict=True)
            if live is not master
        }

    def publish(self) -> None:
        """Round the weights into the model."""
        with torch.no_grad():
            for live, master in zip(self._live, self.weights, strict=True):
                if live is not master:
                    live.copy_(master)


class ClippedAdamW:
    """AdamW with a schedule; a gradient norm that is not finite is reported and changes nothing."""

    def __init__(
        self,
        model: nn.Module,
        config: PolicyConfig,
        num_updates: int,
        clip: Clip = nn.utils.clip_grad_norm_,
        *,
        precision: torch.dtype | None = None,
    ) -> None:
        """Optimize the trainable weights of a model.

        Args:
            model: its weights are updated in place; cast it to `precision` after this.
            config: precision, optimizer, schedule and clipping.
            num_updates: length of the schedule.
            clip: by the norm over all weights, those included that other processes hold.
            precision: that the weights will have; None is the configuration's.
        """
        self._clip = clip
        self._master = MasterWeights(model, precision or getattr(torch, config.precision))
        self._config = config
        self._num_updates = num_updates
        self.num_updates_done = 0
        """Steps that changed the weights."""
        self._optimizer = _make_adamw(self._master.weights, config.optimizer)

    @property
    def weights(self) -> Sequence[Tensor]:
        """The float32 weights, whose `grad` holds the sums."""
        return self._master.weights

    def add_gradients(self) -> None:
        """Take in the gradients of a micro-batch."""
        self._master.add_gradients()

    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients.

        Returns:
            (gradient norm before clipping, learning rate). Where the norm is not finite no weight is changed.
        """
        factor = learning_rate_factor(self.num_updates_done, self._config.scheduler, self._num_updates)
        learning_rate = self._config.optimizer.lr * factor
        limit = self._config.max_grad_norm
        norm = float(self._clip(self._master.weights, math.inf if limit is None else limit))
        if math.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
            self._master.publish()
            self.num_updates_done += 1
        self.clear_gradients()
        return norm, learning_rate

    def clear_gradients(self) -> None:
        """Free the gradients."""
        self._optimizer.zero_grad(set_to_none=True)

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the float32 copies of weights and the moments, live, by the name of the weight.

        A weight that was never updated has the moments that its first update would start from.
        """
        tensors = {f"{name}.master": master for name, master in self._master.copies().items()}
        for name, weight in zip(self._master.names, self._master.weights, strict=True):
            tensors |= {f"{name}.{key}": value for key, value in self._moments(weight).items()}
        return tensors

    def _moments(self, weight: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self._optimizer.state[weight]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=weight.device)
            state["exp_avg"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return state


def clip_spread_gradients(weights: Sequence[Tensor], limit: float) -> Tensor:
    """Scale the gradients down so that their norm is at most the limit; return the norm before.

    It is the norm of the whole gradient, whichever parts of it this process has. Weights on different meshes are
    normed apart, for no operation takes both.
    """
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norms = [nn.utils.get_total_norm(group) for group in _by_mesh(gradients)]
    plain = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = plain[0] if len(plain) == 1 else torch.linalg.vector_norm(torch.stack(plain))
    for group in _by_mesh([weight for weight in weights if weight.grad is not None]):
        nn.utils.clip_grads_with_norm_(group, limit, total)
    return total


def _by_mesh(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the tensors of each mesh that some are spread over; those that are whole are together."""
    groups: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.device_mesh if isinstance(tensor, DTensor) else None, []).append(tensor)
    return list(groups.values())


def _make_adamw(weights: Sequence[Tensor], config: OptimizerConfig) -> torch.optim.AdamW:
    """Decay matrices only: norms and biases keep their size."""
    groups = [
        group
        for same in _by_mesh(weights)
        for group in (
            {"params": [weight for weight in same if weight.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [weight for weight in same if weight.ndim < 2], "weight_decay": 0.0},
        )
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=True,
    )
