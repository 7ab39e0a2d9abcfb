"""A Hugging Face causal language model sharded over processes: the policy, and how it is built."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, PolicyConfig
from refrl.distributed import DivergenceError, World
from refrl.models.loading import load_model
from refrl.policy.adapter_files import make_adapters
from refrl.policy.auxiliaries import make_auxiliary
from refrl.policy.auxiliary import Auxiliary
from refrl.policy.backends import PolicyRequest
from refrl.policy.base import Backend
from refrl.policy.dtensor.meshes import Meshes, make_meshes
from refrl.policy.dtensor.scoring import OwnPositions, SharedForward
from refrl.policy.dtensor.spread_model import SpreadModel, spread
from refrl.policy.lora import Adapters
from refrl.policy.module_policy import ModulePolicy, Pass
from refrl.policy.optimizer import ClippedAdamW, clip_spread_gradients
from refrl.policy.scoring import (
    PROBE_TOLERANCE,
    Scoring,
    assemble_scoring,
    check_window,
    make_scoring,
    padded_forward,
    probe_batch,
)
from refrl.policy.tensors import class_name, forms, whole


@torch.no_grad()
def check_replicas(norm: float, weights: Mapping[str, Tensor], meshes: Meshes, world: World) -> None:
    """Hold the gradient norm, and the sum of each weight, against those of the processes that must have the same.

    Both come from sums that all of them have received alike, so they are equal to the bit or something is wrong.

    Raises:
        DivergenceError: names the first weight that differs.
    """
    first, *others = world.gather([repr(norm)])  # as text: NaN is not equal to itself
    for rank, other in enumerate(others, start=1):
        if other != first:
            raise DivergenceError(
                f"after an update rank {rank} has gradient norm {other}, and rank 0 has {first}"
            )
    for mesh in (meshes.tensor, meshes.expert_copies):
        _compare({name: weight for name, weight in weights.items() if not _is_cut(weight, mesh)}, mesh)


def _is_cut(weight: Tensor, mesh: DeviceMesh) -> bool:
    """Return whether the processes of a mesh hold different parts of a weight."""
    if not isinstance(weight, DTensor):
        return False
    names = weight.device_mesh.mesh_dim_names or ()
    own, cut = set(mesh.mesh_dim_names or ()), dict(zip(names, weight.placements, strict=True))
    if any(name in own and not placement.is_replicate() for name, placement in cut.items()):
        return True
    # Shared experts are no part of `shards`, and everything else is spread over the processes of expert copies.
    return "expert_copies" in own and "experts" not in names


def _compare(weights: Mapping[str, Tensor], mesh: DeviceMesh) -> None:
    if mesh.size() == 1 or not weights:
        return
    local = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights.values()]
    own_W = torch.stack([weight.double().sum() for weight in local])
    parts = [torch.empty_like(own_W) for _ in range(mesh.size())]
    dist.all_gather(parts, own_W, group=mesh.get_group())
    for other, part_W in enumerate(parts):
        differs_W = (part_W != parts[0]) & ~(part_W.isnan() & parts[0].isnan())
        if bool(differs_W.any()):
            name = list(weights)[int(differs_W.nonzero()[0])]
            raise DivergenceError(
                f"after an update {name} is no longer the same on processes {other} and 0 of those that hold it alike "
                f"({', '.join(mesh.mesh_dim_names or ())}): {int(differs_W.sum())} of {len(weights)} weights differ"
            )


class DTensorPolicy(ModulePolicy):
    """A `refrl.policy.base.Policy`; `refrl.training.build.build_policy` makes one from a configuration."""

    shares_weights = False

    def __init__(
        self,
        spread: SpreadModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        scoring: Scoring,
        optimizer: ClippedAdamW,
        reference: SpreadModel | None,
        global_batch_size: int,
        world: World,
        auxiliary: Auxiliary,
    ) -> None:
        """Put the parts together.

        Args:
            spread: the model that is trained; it stays in evaluation mode.
            tokenizer: exported with the model.
            scoring: how rows are cut into micro-batches and scored.
            optimizer: of the model's own parts of the weights.
            reference: a frozen copy, spread alike, or with adapters `spread` itself; None where no KL is asked for.
            global_batch_size: rows of an optimizer step.
            world: all processes of the run.
            auxiliary: what is trained or measured in addition to the policy loss.
        """
        super().__init__(
            spread.model,
            scoring=scoring,
            optimizer=optimizer,
            auxiliary=auxiliary,
            global_batch_size=global_batch_size,
            data=spread.meshes.data,
        )
        self._spread = spread
        self._tokenizer = tokenizer
        self._reference = reference
        self._world = world

    @property
    def backend(self) -> Backend:
        """What serves it."""
        return Backend(
            name="dtensor",
            model=class_name(self.model),
            mesh=self._spread.meshes.sizes(),
            weights=forms(self._optimizer.weights),
        )

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Gather and yield every parameter and buffer under its Hugging Face name, merged, in `policy.precision`."""
        return self._spread.named_weights()

    def trained_weights(self) -> Mapping[str, Tensor]:
        """Gather and return every weight that training changes, float32."""
        return {name: whole(weight.detach()) for name, weight in self._trained()}

    def reference_weights(self) -> Iterator[tuple[str, Tensor]] | None:
        """Gather and yield the weights of the frozen reference; None where none is kept."""
        return None if self._reference is None else self._reference.base_weights()

    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return logprobs_BT under the frozen reference; None where none is kept."""
        if self._reference is None:
            return None
        with self._reference.as_loaded():
            return self._score(self._reference.model, batch)

    def named_gradients(self) -> dict[str, Tensor]:
        """Gather and return the raw gradient of each trainable weight; zero where there is none."""
        return {
            name: torch.zeros_like(whole(weight.detach()))
            if weight.grad is None
            else whole(weight.grad).clone()
            for name, weight in self._trained()
        }

    def step(self) -> tuple[float, float]:
        """Clip, update, clear the gradients; return (gradient norm before clipping, learning rate).

        Raises:
            refrl.distributed.DivergenceError: weights that processes hold alike are no longer the same.
        """
        norm, rate = self._optimizer.step()
        self._auxiliary.step()
        if self._auxiliary.weights:
            self._world.check_agreement(norm, self._auxiliary.weights)
        check_replicas(norm, dict(self._trained()), self._spread.meshes, self._world)
        return norm, rate

    def save(self, directory: Path) -> None:
        """Export weights, configuration and tokenizer, and adapters in PEFT's format; the first process writes them."""
        self._spread.save(self._tokenizer, directory, self._auxiliary.write, writes=self._world.rank == 0)

    def _sum_gradients(self) -> None:
        """Sum the gradients of shared experts over the processes that have the same ones, and auxiliary gradients."""
        copies = self._spread.meshes.expert_copies
        for weight in self._spread.experts:
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if copies.size() > 1:
                assert isinstance(weight.grad, DTensor)
                dist.all_reduce(weight.grad.to_local(), group=copies.get_group())
        self._data.sum_gradients(self._auxiliary.weights)

    def _even(self, passes: Sequence[Pass], batch: Batch) -> Sequence[Pass]:
        """Add passes of a masked row where other processes have more: the model exchanges weights in each."""
        most = max(self._data.gather([len(passes)]))
        masked = batch.rows(slice(0, 1))
        masked.mask_BT = torch.zeros_like(masked.mask_BT)
        return [*passes, *[(None, masked)] * (most - len(passes))]

    def _own_weights(self) -> Iterator[tuple[str, Tensor]]:
        return self._spread.own_weights()

    def _frozen_weights(self) -> Iterator[tuple[str, Tensor]]:
        return iter(()) if self._spread.adapters is None else self._spread.base_weights()

    def _trained(self) -> Iterator[tuple[str, Tensor]]:
        return ((name, weight) for name, weight in self.model.named_parameters() if weight.requires_grad)


def make_policy(request: PolicyRequest) -> DTensorPolicy:
    """Return the policy; before anything is trained it is held against the model as one process scores it.

    Raises:
        ConfigError: the model cannot be loaded, sharded or scored as configured.
    """
    config, device, temperature = request.config, request.device, request.temperature
    model = load_model(Path(config.model_name))
    _check_language(config, model)
    meshes = make_meshes(config.dtensor_cfg, request.world, device)
    dtype = getattr(torch, config.precision)
    adapters = make_adapters(model, config.lora_cfg)
    probe = probe_batch(model)
    with torch.no_grad():
        expected_BT = padded_forward(temperature)(model, probe)[0]
    spread_model = _spread(model, config, meshes, device, dtype, adapters)
    optimizer = ClippedAdamW(
        model, config, request.num_updates, clip_spread_gradients, precision=torch.float32
    )
    reference = spread_model if request.with_reference and adapters is not None else None
    if request.with_reference and adapters is None:
        frozen = load_model(Path(config.model_name)).requires_grad_(False)
        reference = _spread(frozen, config, meshes, device, dtype)
    positions = OwnPositions(meshes, config.dtensor_cfg.sequence_parallel)
    scoring = _make_scoring(config, model, positions, temperature)
    with torch.no_grad():
        found_BT = scoring.forward(model, probe.to(device))[0].cpu()
    _check_probe(config, found_BT, expected_BT)
    return DTensorPolicy(
        spread_model,
        request.tokenizer,
        scoring=scoring,
        optimizer=optimizer,
        reference=reference,
        global_batch_size=config.train_global_batch_size,
        world=request.world,
        auxiliary=make_auxiliary(
            config,
            model,
            num_updates=request.num_updates,
            temperature=temperature,
            positions=positions,
            read=spread_model.whole,
        ),
    )


def _spread(
    model: PreTrainedModel,
    config: PolicyConfig,
    meshes: Meshes,
    device: torch.device,
    dtype: torch.dtype,
    adapters: Adapters | None = None,
) -> SpreadModel:
    model.eval().to(device=device)
    experts = spread(model, config.dtensor_cfg, meshes, dtype)
    return SpreadModel(model, meshes, experts, dtype, adapters)


def _check_language(config: PolicyConfig, model: PreTrainedModel) -> None:
    """Refuse layouts that are built for models of language alone."""
    sizes = config.dtensor_cfg
    if model.config.get_text_config() is not model.config and sizes.model_parallel_size > 1:
        raise ConfigError(
            f"policy.dtensor_cfg: {type(model).__name__} takes images or sounds; tensor_parallel_size="
            f"{sizes.tensor_parallel_size} and context_parallel_size={sizes.context_parallel_size} are built for "
            "models of language alone: set them to 1 (rows and weights are spread over cluster.num_processes)"
        )


def _make_scoring(
    config: PolicyConfig, model: PreTrainedModel, positions: OwnPositions, temperature: float
) -> Scoring:
    """Return how rows are cut and scored: as one process does it, unless several have parts of a sequence."""
    dtensor = config.dtensor_cfg
    if dtensor.context_parallel_size == 1 and not dtensor.sequence_parallel:
        return make_scoring(config, model, temperature)
    check_window("policy.dtensor_cfg.context_parallel_size and sequence_parallel", config, model)
    forward = SharedForward(
        positions=positions,
        packed=config.sequence_packing.enabled,
        temperature=temperature,
        dtype=getattr(torch, config.precision),
    )
    return assemble_scoring(config, model, forward)


def _check_probe(config: PolicyConfig, found_BT: torch.Tensor, expected_BT: torch.Tensor) -> None:
    difference = float((found_BT - expected_BT).abs().max())
    tolerance = PROBE_TOLERANCE[getattr(torch, config.precision)]
    if not difference <= tolerance:
        raise ConfigError(
            f"policy.dtensor_cfg: log-probabilities of the spread model differ by {difference:.3g} from those of one "
            f"process, more than {tolerance:g}: the architecture does not allow this layout; set its sizes to 1"
        )
