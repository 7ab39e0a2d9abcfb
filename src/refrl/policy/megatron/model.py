"""A Megatron-core GPTModel with this rank's share of the weights of a Hugging Face directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch import Tensor, nn
from torch.nn import functional

from refrl.config import PolicyConfig
from refrl.policy.megatron.architecture import Architecture, rotary_buffers
from refrl.policy.megatron.checkpoint_files import TensorFiles
from refrl.policy.megatron.context import gather_context, positions_of_context
from refrl.policy.megatron.conversion import (
    ConversionError,
    Link,
    check_names,
    links,
    padded_vocabulary,
    tied_head,
)
from refrl.policy.megatron.parallel import Parallel


class RMSNorm(nn.Module):
    """Root-mean-square norm in float32, its result rounded before it meets the weight."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        """Make the weight; under sequence parallelism its gradient is of this rank's tokens, and marked so."""
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        """Return the normalised states, [..., hidden_size]."""
        wide = states.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(states.dtype)


class CoreAttention(nn.Module):
    """Causal attention between the heads of this rank, over the tokens of all context-parallel ranks."""

    def __init__(self, config: TransformerConfig, pg_collection: Any = None, **layer: Any) -> None:
        """Take what Megatron-core gives a core attention.

        Args:
            config: of the model.
            pg_collection: the process groups.
            layer: its number and kind; every layer is causal self-attention here.
        """
        super().__init__()
        self._context = pg_collection.cp
        self._scale = layer.get("softmax_scale")
        self.config = config

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
    ) -> Tensor:
        """Attend (n tokens, b rows).

        Args:
            query: [n, b, heads, head_dim].
            key: [n, b, key heads, head_dim].
            value: as `key`.
            attention_mask: added to the scores, [b, 1, n, n]; None lets every token see those before it.
            options: what other forms of attention take.

        Returns:
            [n, b, heads * head_dim].
        """
        num_tokens = query.shape[0]
        if self._context.size() > 1:
            key, value = gather_context(key, self._context), gather_context(value, self._context)
            if attention_mask is None and num_tokens:
                attention_mask = self._causal_mask(num_tokens, key.shape[0], query)
        heads_first = (1, 2, 0, 3)
        attended = functional.scaled_dot_product_attention(
            query.permute(heads_first),
            key.permute(heads_first),
            value.permute(heads_first),
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=self._scale,
            enable_gqa=query.shape[2] != key.shape[2],
        )
        return attended.permute(2, 0, 1, 3).flatten(2)

    def _causal_mask(self, num_own: int, num_all: int, like: Tensor) -> Tensor:
        """Return which of all tokens each of this rank's may see, [own, all]."""
        own_N = positions_of_context(num_all, self._context.rank(), self._context.size(), like.device)
        assert len(own_N) == num_own
        return own_N[:, None] >= torch.arange(num_all, device=like.device)


def layer_spec(config: TransformerConfig, *, experts: bool) -> ModuleSpec:
    """Return what a layer of the model is made of, with or without experts."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts if experts else None,
        moe_grouped_gemm=False,
        qk_layernorm=config.qk_layernorm,
        normalization="RMSNorm",
    )
    attention = spec.submodules.self_attention
    per_head = RMSNorm if config.qk_layernorm else IdentityOp
    spec.submodules = replace(
        spec.submodules,
        input_layernorm=RMSNorm,
        pre_mlp_layernorm=RMSNorm,
        self_attention=replace(
            attention,
            submodules=replace(
                attention.submodules,
                core_attention=CoreAttention,
                q_layernorm=per_head,
                k_layernorm=per_head,
            ),
        ),
    )
    return spec


@dataclass(frozen=True)
class LocalModel:
    """What this rank has of the model."""

    module: GPTModel
    architecture: Architecture
    parallel: Parallel
    links: Mapping[str, Link]
    """Of every parameter of this rank, under its name over the whole model."""
    parameters: Mapping[str, nn.Parameter]
    """By the same names, in the order of the module's own."""
    every: Sequence[Link]
    """Of every parameter of the whole model, in the order of the Hugging Face model."""

    def trained(self) -> DistributedDataParallel:
        """Return the module as it is trained: gradients are added up in float32, in each parameter's `main_grad`."""
        options = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False)
        return DistributedDataParallel(self.module.config, options, self.module).eval()


def load_model(
    directory: Path,
    architecture: Architecture,
    parallel: Parallel,
    config: PolicyConfig,
    device: torch.device,
) -> LocalModel:
    """Return this rank's layers with float32 weights; cast them after the optimizer has taken its copies.

    Raises:
        ConfigError: there are no weights, or they cannot be read.
        ConversionError: a tensor or a parameter has no place on the other side, or a wrong shape; it is named.
    """
    settings = transformer_config(architecture, parallel, config)
    stage, stages = parallel.pipeline.rank(), parallel.pipeline.size()
    specs = [layer_spec(settings, experts=experts) for experts in architecture.expert_layers]
    first = get_transformer_layer_offset(settings, pp_rank=stage)
    own = specs[first : first + get_num_layers_to_build(settings, pp_rank=stage)]
    module = GPTModel(
        settings,
        TransformerBlockSubmodules(layer_specs=own, layer_norm=RMSNorm),
        vocab_size=padded_vocabulary(architecture.vocab_size, parallel.tensor.size()),
        max_sequence_length=config.max_total_sequence_length,
        pre_process=stage == 0,
        post_process=stage == stages - 1,
        parallel_output=False,
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope",
    )
    module.to(device=device, dtype=torch.float32).eval()
    padding_id = getattr(architecture.config, "pad_token_id", None)
    if stage == 0 and padding_id is not None:
        module.embedding.word_embeddings.register_forward_hook(_untrained(padding_id, parallel))
    frequencies = rotary_buffers(architecture)["model.rotary_emb.inv_freq"]
    module.rotary_pos_emb.inv_freq = frequencies.detach().to(device, copy=True)
    parameters = own_parameters(module, parallel)
    every = tuple(links(architecture))
    wanted = {link.parameter: link for link in every}
    if architecture.tied and stage:
        wanted["output_layer.weight"] = tied_head(architecture)
    unknown = sorted(parameters.keys() - wanted.keys())
    if unknown:
        raise ConversionError(
            f"the Megatron-core model has parameters without a place: {', '.join(unknown[:3])}"
        )
    local = LocalModel(
        module=module,
        architecture=architecture,
        parallel=parallel,
        links={name: wanted[name] for name in parameters},
        parameters=parameters,
        every=every,
    )
    load_weights(local, directory)
    return local


def _untrained(padding_id: int, parallel: Parallel) -> Callable[..., Tensor]:
    """Return a hook that keeps gradients from the embedding of the padding token.

    So do the models of Hugging Face (`padding_idx` of `torch.nn.Embedding`), also where the token was sampled.
    """
    # Numbers alone: Megatron-core keeps the module, and the groups last as long as `parallel` does.
    rank, size = parallel.tensor.rank(), parallel.tensor.size()

    def hook(module: Any, inputs: tuple[Tensor], states: Tensor) -> Tensor:
        is_padding = inputs[0] == padding_id
        if module.reduce_scatter_embeddings:  # sequence parallel: [S, B, hidden], of this rank's tokens
            # Contiguous, or the gradient is not, which Megatron-core gathers as it is.
            is_padding = is_padding.T.contiguous().chunk(size)[rank]
        return torch.where(is_padding.unsqueeze(-1), states.detach(), states)

    return hook


def transformer_config(
    architecture: Architecture, parallel: Parallel, config: PolicyConfig
) -> TransformerConfig:
    """Return Megatron-core's configuration of the model: no dropout, no fused kernels, losses as they are given."""
    sizes = parallel.config
    precision = getattr(torch, config.precision)
    recompute = config.activation_checkpointing
    experts = {}
    if architecture.num_experts:
        experts = {
            "num_moe_experts": architecture.num_experts,
            "moe_ffn_hidden_size": architecture.expert_hidden_size,
            "moe_router_topk": architecture.experts_per_token,
            # The other order gives the chosen experts' weights of a softmax over these alone: they add up to 1.
            "moe_router_pre_softmax": not architecture.norm_topk,
            "moe_router_load_balancing_type": "none",
        }
    pipelined = sizes.pipeline_model_parallel_size > 1
    return TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        ffn_hidden_size=architecture.ffn_hidden_size,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_eps,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        qk_layernorm=architecture.qk_norm,
        gated_linear_unit=True,
        activation_func=functional.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=precision,
        bf16=precision == torch.bfloat16,
        use_cpu_initialization=True,
        perform_initialization=False,
        # The loss divides by the counts of the whole batch; Megatron-core divides by nothing more.
        calculate_per_token_loss=True,
        tensor_model_parallel_size=sizes.tensor_model_parallel_size,
        pipeline_model_parallel_size=sizes.pipeline_model_parallel_size,
        context_parallel_size=sizes.context_parallel_size,
        expert_model_parallel_size=sizes.expert_model_parallel_size,
        expert_tensor_parallel_size=sizes.expert_tensor_size,
        sequence_parallel=sizes.sequence_parallel,
        pipeline_dtype=precision if pipelined else None,
        variable_seq_lengths=pipelined,
        moe_token_dispatcher_type="alltoall",
        recompute_granularity="full" if recompute else None,
        recompute_method="uniform" if recompute else None,
        recompute_num_layers=1 if recompute else None,
        **experts,
    )


def load_weights(local: LocalModel, directory: Path) -> None:
    """Read this rank's share of the weights, tensor by tensor.

    Raises:
        ConfigError: there are no files, or one cannot be read.
        ConversionError: a tensor of the files has no place, one is missing, or has another shape; it is named.
    """
    architecture = local.architecture
    with ExitStack() as stack:
        files = TensorFiles(directory, stack)
        known = {name for link in links(architecture) for name in link.tensors}
        # Old checkpoints hold frequencies that follow from the configuration; tied ones may hold the head as well.
        given = {name for name in files.names() if not name.endswith("rotary_emb.inv_freq")}
        if architecture.tied and "lm_head.weight" in given:
            if not torch.equal(files.read("lm_head.weight"), files.read("model.embed_tokens.weight")):
                raise ConversionError(
                    f"{directory}: lm_head.weight differs from model.embed_tokens.weight, to which config.json ties it"
                )
            given.remove("lm_head.weight")
        check_names(given, known, what=f"the weights in {directory}")
        for name, link in local.links.items():
            tensors = [files.read(tensor) for tensor in link.tensors]
            fill(local.parameters[name], link, tensors, local.parallel)


@torch.no_grad()
def fill(parameter: torch.Tensor, link: Link, tensors: Sequence[torch.Tensor], parallel: Parallel) -> None:
    """Put this rank's part of whole Hugging Face tensors into a tensor laid out as a parameter.

    Raises:
        ConversionError: a tensor has another shape than the architecture says.
    """
    for tensor, shape, name in zip(tensors, link.shapes, link.tensors, strict=True):
        if tuple(tensor.shape) != shape:
            raise ConversionError(f"{name} has shape {tuple(tensor.shape)}, and config.json says {shape}")
    group = parallel.tensor_of(link)
    parts = [link.part(tensor, group.rank(), group.size()) for tensor in tensors]
    parameter.copy_(link.merge(parts))


def own_parameters(module: GPTModel, parallel: Parallel) -> dict[str, nn.Parameter]:
    """Return the parameters of this rank by their names over the whole model."""
    return {global_name(name, module, parallel): weight for name, weight in module.named_parameters()}


def global_name(name: str, model: GPTModel, parallel: Parallel) -> str:
    """Return the name over the whole model of a parameter of this rank: layers and experts numbered over all."""
    head, found, rest = name.partition("decoder.layers.")
    if not found:
        return name
    number, _, tail = rest.partition(".")
    layer = model.decoder.layers[int(number)].layer_number - 1
    before, is_expert, after = tail.partition("local_experts.")
    if is_expert:
        own, _, last = after.partition(".")
        per_rank = model.config.num_moe_experts // parallel.expert.size()
        tail = f"{before}{is_expert}{int(own) + parallel.expert.rank() * per_rank}.{last}"
    return f"{head}{found}{layer}.{tail}"
