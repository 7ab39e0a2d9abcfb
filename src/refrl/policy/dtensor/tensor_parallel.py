"""Tensor and sequence parallelism: which layer is cut how, from the plan that Transformers has for the architecture.

A plain plan of column and row layers leaves the gradient of a norm within attention (Qwen3's `q_norm`, `k_norm`)
partial, for each process has only its own heads, and nothing says so; here such a norm is replicated over its heads,
and DTensor sums its gradient. The residual stream is the same on every process; with sequence parallelism each has a
part of it, and the norms between the layers take part.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from transformers import PreTrainedModel

from refrl.config import ConfigError
from refrl.policy.lora import LoraLinear


def with_adapters(model: nn.Module, plan: Mapping[str, ParallelStyle]) -> dict[str, ParallelStyle]:
    """Return a plan in which the layers with an adapter are cut with it."""
    return {
        name: Adapted(style)
        if isinstance(model.get_submodule(name), LoraLinear)
        and isinstance(style, ColwiseParallel | RowwiseParallel)
        else style
        for name, style in plan.items()
    }


class Adapted(ParallelStyle):
    """A style of plain linear layers, for one with an adapter."""

    def __init__(self, style: ColwiseParallel | RowwiseParallel) -> None:
        """Take over what goes in and what comes out."""
        super().__init__()
        self._given: Placement = style.input_layouts[0]
        self._returned: Placement = style.output_layouts[0]
        cut: dict[str, Placement]
        if isinstance(style, ColwiseParallel):
            self._input: Placement = Replicate()
            cut = {"weight": Shard(0), "bias": Shard(0), "lora_B.weight": Shard(0)}
        else:
            self._input = Shard(-1)
            cut = {"weight": Shard(1), "lora_A.weight": Shard(1)}
        self._cut: Mapping[str, Placement] = cut

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, whole in list(module.named_parameters()):
            owner, _, key = name.rpartition(".")
            part = distribute_tensor(
                whole.detach(), device_mesh, [self._cut.get(name, Replicate())], src_data_rank=None
            )
            module.get_submodule(owner).register_parameter(
                key, nn.Parameter(part, requires_grad=whole.requires_grad)
            )
        module.register_forward_pre_hook(lambda _, inputs: (self._taken(inputs[0], device_mesh),))
        module.register_forward_hook(lambda _, inputs, output: self._left(output))
        return module

    def _taken(self, states: Tensor, mesh: DeviceMesh) -> DTensor:
        spread: Any = states
        if not isinstance(states, DTensor):
            spread = DTensor.from_local(states, mesh, [self._given], run_check=False)
        taken: DTensor = spread.redistribute(placements=[self._input])
        return taken

    def _left(self, output: DTensor) -> Tensor:
        return output.redistribute(placements=[self._returned]).to_local()


SEQUENCE = Shard(1)
"""How the residual stream [B, S, D] is cut with sequence parallelism."""
_WHOLE = ("packed_colwise", "moe_tp_experts")
"""Styles of experts, which stay whole here: policy.dtensor_cfg.expert_parallel_size spreads them."""


def parallelize(model: PreTrainedModel, mesh: DeviceMesh, *, sequence_parallel: bool) -> None:
    """Cut a model's layers over a mesh, in place.

    Raises:
        ConfigError: the architecture has no plan, one with styles that are not known here, or sizes that the mesh
            does not divide.
    """
    _check_sizes(model, mesh.size())
    blocks = _expert_blocks(model)
    plan: dict[str, ParallelStyle] = {}
    residual = SEQUENCE if sequence_parallel else Replicate()
    for name, module in model.named_modules():
        style = _planned(model, name)
        if style is None or any(name.startswith(f"{block}.") for block in blocks):
            continue
        if style == "colwise":
            plan[name] = ColwiseParallel()
        elif style == "rowwise":
            plan[name] = RowwiseParallel(output_layouts=residual)
        elif style == "replicated_with_grad_allreduce":
            plan[name] = _head_norm(model, name, module)
        else:
            raise ConfigError(
                f"policy.dtensor_cfg.tensor_parallel_size: {type(model).__name__} cuts {name} as {style!r}, which is "
                "not built: set it to 1"
            )
    embedding, head = (
        _name_of(model, model.get_input_embeddings()),
        _name_of(model, model.get_output_embeddings()),
    )
    plan[embedding] = RowwiseParallel(input_layouts=Replicate(), output_layouts=residual)
    plan[head] = ColwiseParallel(input_layouts=residual, output_layouts=Replicate())
    if sequence_parallel:
        plan |= dict.fromkeys(_residual_norms(model, plan), SequenceParallel(use_local_output=True))
    is_tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    parallelize_module(model, mesh, with_adapters(model, plan))
    for name in frozen:  # torch 2.13 makes norms under sequence parallelism trainable, even frozen ones
        model.get_parameter(name).requires_grad_(False)
    if is_tied:  # each got a DTensor of its own
        model.get_output_embeddings().weight = model.get_input_embeddings().weight
    if sequence_parallel:
        _gather_sequences(model, mesh, plan, blocks)


def _planned(model: PreTrainedModel, name: str) -> str | None:
    """Return the style that the architecture's plan gives a module."""
    base = model.base_model_prefix
    for pattern, style in (model.config.get_text_config().base_model_tp_plan or {}).items():
        form = re.escape(f"{base}.{pattern}").replace(r"\*", r"\d+")
        if re.fullmatch(form, name) and style not in _WHOLE:
            return str(style)
    return None


def _expert_blocks(model: PreTrainedModel) -> list[str]:
    """Return the names of the modules that hold a router and its experts."""
    return [name.removesuffix(".experts") for name, _ in model.named_modules() if name.endswith(".experts")]


def _head_norm(model: PreTrainedModel, name: str, module: nn.Module) -> ParallelStyle:
    """Return the style of a norm that runs over each head of [B, S, heads, width] alone."""
    config = model.config.get_text_config()
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if any(weight.shape != (width,) for weight in module.parameters()):
        raise ConfigError(
            f"policy.dtensor_cfg.tensor_parallel_size: {name} normalises over several heads of {type(model).__name__}, "
            "which processes do not share: set it to 1"
        )
    return SequenceParallel(sequence_dim=2, use_local_output=True)


def _residual_norms(model: PreTrainedModel, plan: dict[str, ParallelStyle]) -> list[str]:
    """Return the norms between the layers: those that are no part of attention."""
    return [
        name
        for name, module in model.named_modules()
        if type(module).__name__.endswith("Norm") and name not in plan and ".self_attn." not in name
    ]


def _gather_sequences(
    model: PreTrainedModel, mesh: DeviceMesh, plan: dict[str, ParallelStyle], blocks: list[str]
) -> None:
    """Give attention and feed-forward layers whole sequences; their last layer cuts them again."""
    cut = {name.rpartition(".")[0] for name, style in plan.items() if isinstance(style, ColwiseParallel)} - {
        ""
    }
    for name in cut:
        model.get_submodule(name).register_forward_pre_hook(_Gather(mesh, local=False), with_kwargs=True)
    for name in blocks:
        block = model.get_submodule(name)
        block.register_forward_pre_hook(_Gather(mesh, local=True), with_kwargs=True)
        block.register_forward_hook(_Cut(mesh))


class _Gather:
    """A hook that replaces a part of the hidden states by the whole, the module's first argument."""

    def __init__(self, mesh: DeviceMesh, *, local: bool) -> None:
        self._mesh = mesh
        self._local = local
        """Every process computes the same with them: the gradient comes back whole on each, and is not summed."""

    def __call__(
        self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if arguments:
            return (self._whole(arguments[0]), *arguments[1:]), keywords
        return (), {**keywords, "hidden_states": self._whole(keywords["hidden_states"])}

    def _whole(self, part: Tensor) -> Tensor:
        whole = DTensor.from_local(part, self._mesh, [SEQUENCE], run_check=False).redistribute(
            placements=[Replicate()]
        )
        return whole.to_local(grad_placements=[Replicate()]) if self._local else whole


class _Cut:
    """A hook that leaves each process its part of what all have computed alike."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self._mesh = mesh

    def __call__(self, module: nn.Module, arguments: tuple[Any, ...], output: Any) -> Any:
        if isinstance(output, tuple):
            return (self._part(output[0]), *output[1:])
        return self._part(output)

    def _part(self, whole: Tensor) -> Tensor:
        spread = DTensor.from_local(whole, self._mesh, [Replicate()], run_check=False)
        return spread.redistribute(placements=[SEQUENCE]).to_local(grad_placements=[SEQUENCE])


def _check_sizes(model: PreTrainedModel, size: int) -> None:
    config = model.config.get_text_config()
    if not config.base_model_tp_plan:
        raise ConfigError(
            f"policy.dtensor_cfg.tensor_parallel_size={size}: Transformers has no plan for {type(model).__name__}; set "
            "it to 1: the weights are spread over cluster.num_processes in any case"
        )
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        number = getattr(config, name, None)
        if number is not None and number % size:
            raise ConfigError(
                f"policy.dtensor_cfg.tensor_parallel_size={size} does not divide the model's {name}={number}: lower it"
            )


def _name_of(model: PreTrainedModel, wanted: nn.Module | None) -> str:
    return next(name for name, module in model.named_modules() if module is wanted)
