"""Worked examples of models of Megatron-core: its configuration, its layers, and groups of processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional
from transformers import LlamaConfig

from refrl.config import ConfigError, MegatronConfig
from refrl.distributed import World
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import example, refused

SIZES = {
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 4,
    "context_parallel_size": 3,
    "expert_model_parallel_size": 5,
    "expert_tensor_parallel_size": 1,
}


def of_megatron_models() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_configurations()
    yield from _of_groups()


def _architecture(**changes: Any) -> Any:
    return SimpleNamespace(
        **{
            "num_layers": 4, "hidden_size": 6, "num_heads": 12, "num_kv_heads": 3, "head_dim": 2, "ffn_hidden_size": 5,
            "norm_eps": 1e-5, "qkv_bias": True, "qk_norm": False, "num_experts": 0, "experts_per_token": 2,
            "expert_hidden_size": 7, "norm_topk": True, "vocab_size": 9, "tied": False, "expert_layers": (False, True),
            "config": SimpleNamespace(pad_token_id=None), **changes,
        }
    )  # fmt: skip


def _of_configurations() -> Iterator[WorkedExample]:
    plain: dict[str, Any] = {
        "num_layers": 4, "hidden_size": 6, "num_attention_heads": 12, "num_query_groups": 3, "kv_channels": 2,
        "ffn_hidden_size": 5, "normalization": "RMSNorm", "layernorm_epsilon": 1e-5, "add_bias_linear": False,
        "add_qkv_bias": True, "qk_layernorm": False, "gated_linear_unit": True, "activation_func": functional.silu,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "params_dtype": torch.float32, "bf16": False,
        "use_cpu_initialization": True, "perform_initialization": False, "calculate_per_token_loss": True,
        "tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 1, "context_parallel_size": 1,
        "expert_model_parallel_size": 1, "expert_tensor_parallel_size": 1, "sequence_parallel": False,
        "pipeline_dtype": None, "variable_seq_lengths": False, "moe_token_dispatcher_type": "alltoall",
        "recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None,
    }  # fmt: skip
    experts = {"num_moe_experts": 8, "moe_ffn_hidden_size": 7, "moe_router_topk": 2, "moe_router_pre_softmax": False,
               "moe_router_load_balancing_type": "none"}  # fmt: skip
    half = {"params_dtype": torch.bfloat16, "bf16": True}
    again = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    spread = {**SIZES, "sequence_parallel": True, "variable_seq_lengths": True}
    other = {"add_qkv_bias": False, "qk_layernorm": True}
    for name, changes, sizes, options, right in (
        ("of one process", {}, {}, {}, {}),
        ("of queries that are normalised", {"qkv_bias": False, "qk_norm": True}, {}, {}, other),
        ("in bfloat16", {}, {}, {"precision": "bfloat16"}, half),
        ("computed again", {}, {}, {"activation_checkpointing": True}, again),
        ("spread", {}, {**SIZES, "sequence_parallel": True}, {}, {**spread, "pipeline_dtype": torch.float32}),
        ("spread in bfloat16", {}, {**SIZES, "sequence_parallel": True}, {"precision": "bfloat16"},
         {**spread, **half, "pipeline_dtype": torch.bfloat16}),
        ("with experts", {"num_experts": 8}, {}, {}, experts),
        ("with experts of other weights", {"num_experts": 8, "norm_topk": False}, {}, {},
         {**experts, "moe_router_pre_softmax": True}),
    ):  # fmt: skip
        yield example(f"a model {name}", {**plain, **right}, _configured, changes, sizes, options)
    for tied, stage, stages in ((False, 0, 1), (True, 0, 2), (False, 1, 2)):
        right_model = {
            "layers": (stage * 2, ["layer False", "layer True"][: 2 // stages]), "vocab_size": 10,
            "max_sequence_length": 32, "pre_process": stage == 0, "post_process": stage == stages - 1,
            "parallel_output": False, "share_embeddings_and_output_weights": tied, "position_embedding_type": "rope",
            "moved": ("cpu", torch.float32), "trains": False, "read": True, "turns": [0.5, 0.25],
        }  # fmt: skip
        if stages == 2:
            right_model["layers"] = (stage, ["layer True" if stage else "layer False"])
        name = f"the layers of stage {stage} of {stages}, tied: {tied}"
        yield example(name, right_model, _loaded, tied, stage, stages)
    for base, factor in ((500.0, None), (10000.0, None), (10000.0, 4.0)):
        # Pair i of 4 values a head turns by base^(-2i/4) a token, divided by the factor of linear scaling.
        right_turns = [1 / (factor or 1.0), base**-0.5 / (factor or 1.0)]
        yield example(f"turns of base {base}, scaled by {factor}", right_turns, _turned, base, factor)
    yield refused(
        "parameters without a place: x", "a parameter that has no place", _loaded, False, 0, 1, ["x"]
    )
    head = "output_layer.weight"
    for tied, stage in ((True, 0), (False, 1)):
        words = f"parameters without a place: {head}"
        yield refused(
            words, f"a head of stage {stage}, tied: {tied}", _loaded, tied, stage, 2, ["kept", head]
        )
    right_head = ["kept", head, "model.embed_tokens.weight"]
    yield example("a tied head of the last stage", right_head, _loaded, True, 1, 2, ["kept", head])
    yield example("a head that is tied, of the last stage", right_tied(), _tied)
    norm = "RMSNorm"
    for experts_there in (False, True):
        for per_head in (False, True):
            own = norm if per_head else "IdentityOp"
            right_parts = [norm, norm, "CoreAttention", own, own, experts_there]
            yield example(
                f"parts of a layer, normed: {per_head}, with experts: {experts_there}",
                right_parts,
                _spec,
                experts_there,
                per_head,
            )
    yield example("how gradients are summed", [True, False, False], _trained)
    for shares in (False, True):
        yield example(
            f"norms of large states in bfloat16: {shares}", [[1.0, 1.0], [0.5, 0.5], shares], _normed, shares
        )


def right_tied() -> list[Any]:
    """Return the link of a tied head."""
    return ["output_layer.weight", ["model.embed_tokens.weight"], [(9, 6)], 0, True, None]


def _tied() -> list[Any]:
    from refrl.policy.megatron.conversion import tied_head

    link = tied_head(_architecture())
    return [link.parameter, list(link.tensors), list(link.shapes), link.split, link.padded, link.expert]


def _configured(changes: Mapping[str, Any], sizes: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    from refrl.policy.megatron import model

    config = MegatronConfig.model_construct(**{**MegatronConfig().model_dump(), **sizes})
    with patch.object(model, "TransformerConfig", dict):
        parallel: Any = SimpleNamespace(config=config)
        own = policy_configuration({"megatron_cfg.enabled": True, **options})
        return dict(cast(Any, model.transformer_config(_architecture(**changes), parallel, own)))


def _turned(base: float, factor: float | None) -> Any:
    """Return the frequencies of a loaded model whose configuration has this base, and linear scaling by a factor."""
    scaling = {} if factor is None else {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    config = LlamaConfig(
        vocab_size=9, hidden_size=8, intermediate_size=5, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=4, rope_theta=base, **cast(Any, scaling),
    )  # fmt: skip
    return _loaded(False, 0, 1, config=config)["turns"]


def _loaded(tied: bool, stage: int, stages: int, unknown: list[str] | None = None, config: Any = None) -> Any:
    """Return what a stage's model is made of, where it is put, how it turns, and whether its weights are read."""
    from refrl.policy.megatron import model
    from refrl.policy.megatron.architecture import rotary_buffers

    found: dict[str, Any] = {}

    class Module(nn.Module):
        def __init__(self, settings: str, layers: Any, **options: Any) -> None:
            super().__init__()
            assert settings == "settings" and layers.layer_norm is model.RMSNorm
            found.update(options, layers=(found.pop("first"), layers.layer_specs))
            self.rotary_pos_emb = nn.Module()
            self.rotary_pos_emb.inv_freq = torch.tensor([1.0, 0.01])  # its own, of the base 10,000

        def to(self, *, device: torch.device, dtype: torch.dtype) -> Any:  # type: ignore[override]
            found["moved"] = str(device), dtype
            return self

    def offset(settings: str, *, pp_rank: int) -> int:
        found["first"] = pp_rank * (2 // stages)
        return int(found["first"])

    parallel: Any = SimpleNamespace(
        pipeline=SimpleNamespace(rank=lambda: stage, size=lambda: stages),
        tensor=SimpleNamespace(size=lambda: 2),
    )
    options: Any = SimpleNamespace(max_total_sequence_length=32)
    own = _architecture(tied=tied, **({} if config is None else {"config": config}))
    given: dict[str, Any] = {
        "transformer_config": lambda *words: "settings",
        "layer_spec": lambda settings, *, experts: f"layer {experts}",
        "get_transformer_layer_offset": offset,
        "get_num_layers_to_build": lambda settings, *, pp_rank: 2 // stages,
        "TransformerBlockSubmodules": SimpleNamespace,
        "GPTModel": Module,
        "rotary_buffers": lambda of: (
            {"model.rotary_emb.inv_freq": torch.tensor([0.5, 0.25])} if config is None else rotary_buffers(of)
        ),
        "own_parameters": lambda *words: dict.fromkeys(unknown or ["kept"], "weight"),
        "links": lambda of: [SimpleNamespace(parameter="kept")],
        "load_weights": lambda local, directory: found.update(
            read=directory == Path("there") and local.links.keys() == {"kept"}
        ),
    }
    with ExitStack() as stack:
        for name, function in given.items():
            stack.enter_context(patch.object(model, name, function))
        made = model.load_model(Path("there"), own, parallel, options, torch.device("cpu"))
    if unknown:
        return [*made.links, *made.links["output_layer.weight"].tensors]
    turns: Any = made.module.rotary_pos_emb.inv_freq
    return {**found, "trains": made.module.training, "turns": turns.tolist()}


def _spec(experts: bool, per_head: bool) -> list[Any]:
    """Return the parts of a layer that are not Megatron-core's own, and whether it has experts."""
    from megatron.core.transformer.moe.moe_layer import MoELayer

    from refrl.policy.megatron.model import layer_spec

    config: Any = SimpleNamespace(num_moe_experts=4, qk_layernorm=per_head)
    parts: Any = layer_spec(config, experts=experts).submodules
    own = parts.self_attention.submodules
    found = (
        parts.input_layernorm,
        parts.pre_mlp_layernorm,
        own.core_attention,
        own.q_layernorm,
        own.k_layernorm,
    )
    inner = getattr(parts.mlp, "module", None)
    return [*(one.__name__ for one in found), inner is MoELayer or getattr(inner, "func", None) is MoELayer]


def _trained() -> list[Any]:
    from refrl.policy.megatron import model

    found: list[Any] = []

    class Wrapped(nn.Module):
        def __init__(self, config: Any, options: Any, module: Any) -> None:
            super().__init__()
            assert config == "settings" and module.config == "settings"
            found.extend([options.grad_reduce_in_fp32, options.overlap_grad_reduce])

    local: Any = SimpleNamespace(module=SimpleNamespace(config="settings"))
    with patch.object(model, "DistributedDataParallel", Wrapped):
        made = model.LocalModel.trained(local)
    return [*found, made.training]


def _normed(shares: bool) -> list[Any]:
    """Return states whose squares are too large for half precision, once normed, and if their weight is marked."""
    from refrl.policy.megatron.model import RMSNorm

    config: Any = SimpleNamespace(params_dtype=torch.float16, sequence_parallel=shares)
    norm = RMSNorm(config, 2, 1e-6)
    weight: Any = norm.weight
    small = RMSNorm(config, 2, 3.0)(torch.ones(2)).tolist()  # 1 / sqrt(1 + 3)
    large = norm(torch.tensor([600.0, 600.0], dtype=torch.float16)).tolist()
    return [large, small, weight.sequence_parallel]


def _of_groups() -> Iterator[WorkedExample]:
    groups = {
        "tensor": "tensor_model_parallel", "pipeline": "pipeline_model_parallel", "context": "context_parallel",
        "expert": "expert_model_parallel", "expert_tensor": "expert_tensor_parallel", "data": "data_parallel",
        "model": "model_parallel", "expert_model": "expert_tensor_model_pipeline_parallel",
    }  # fmt: skip
    yield example(
        "groups of processes", {name: f"get_{of}_group" for name, of in groups.items()}, _named, groups
    )
    yield example("the groups of parts of dense layers and experts", ["tensor", "expert_tensor"], _of_links)
    for rank, size, right in ((0, 1, True), (0, 2, False), (1, 2, True), (2, 4, False)):
        yield example(f"whether stage {rank} of {size} is the last", right, _is_last, rank, size)
    sizes = {"data": 7, "tensor": 2, "pipeline": 4, "context": 3, "expert": 5}
    yield example(
        "sizes of groups", [sizes, {**SIZES, "expert_tensor_parallel_size": 6}, (3, 7, "group")], _sizes
    )
    made = [("made", SIZES), "kept"]
    for name, there, living, right_join in (
        ("in a process without groups", None, False, made),
        ("of the same sizes", SIZES, True, []),
        ("of other sizes that no policy has", {**SIZES, "context_parallel_size": 1}, False, ["left", *made]),
    ):
        yield example(f"groups {name}", right_join, _joined, there, living)
    words = "another policy of this process has Megatron-core groups of other sizes"
    yield refused(words, "groups of other sizes that a policy has", _joined, {}, True)


def _named(groups: Mapping[str, str]) -> Any:
    from refrl.policy.megatron import parallel

    class State:
        def __getattr__(self, name: str) -> Any:
            return lambda: name

    with patch.object(parallel, "parallel_state", State()):
        own = parallel.Parallel(MegatronConfig())
        return {name: getattr(own, name) for name in groups}


def _of_links() -> list[Any]:
    from refrl.policy.megatron.parallel import Parallel

    own: Any = SimpleNamespace(tensor="tensor", expert_tensor="expert_tensor")
    return [Parallel.tensor_of(own, cast(Any, SimpleNamespace(expert=of))) for of in (None, 0)]


def _is_last(rank: int, size: int) -> bool:
    from refrl.policy.megatron.parallel import Parallel

    own = SimpleNamespace(pipeline=SimpleNamespace(rank=lambda: rank, size=lambda: size))
    found: bool = Parallel.is_last_stage.fget(own)  # type: ignore[attr-defined]
    return found


def _sizes() -> list[Any]:
    from refrl.policy.megatron.parallel import Parallel

    numbers = {"tensor": 2, "pipeline": 4, "context": 3, "expert": 5, "expert_tensor": 6, "data": 7}
    own: Any = SimpleNamespace(
        **{name: SimpleNamespace(size=lambda of=of: of, rank=lambda: 3) for name, of in numbers.items()}
    )
    rows = Parallel.rows.fget(own)  # type: ignore[attr-defined]
    return [
        Parallel.sizes(own),
        Parallel.sizes_of_groups(own),
        (rows.rank, rows.size, "group" if rows.group is own.data else ""),
    ]


def _joined(there: Mapping[str, int] | None, living: bool) -> list[Any]:
    """Return which groups are made or left where there are some already.

    Args:
        there: sizes of the groups that exist; None: there are none.
        living: whether a policy has them.
    """
    from refrl.policy.megatron import parallel

    noted: list[Any] = []
    state: dict[str, Any] = {"there": there is not None}

    def leave() -> None:
        if living:
            raise ConfigError("another policy of this process has Megatron-core groups of other sizes")
        noted.append("left")
        state["there"] = False

    def make(**sizes: int) -> None:
        noted.append(("made", sizes))
        state["there"] = True

    groups = iter([{"old"}, {"old", "new"}])
    kept: set[Any] = set()
    own = SimpleNamespace(
        model_parallel_is_initialized=lambda: state["there"],
        initialize_model_parallel=make,
        destroy_model_parallel=lambda: None,
    )
    given: dict[str, Any] = {
        "parallel_state": own, "groups_of_processes": lambda: next(groups), "_GROUPS": kept, "_leave_groups": leave,
        "_check_sizes": lambda *words: None, "_LIVING": set(),
    }  # fmt: skip
    config: Any = SimpleNamespace(
        **{key: value for key, value in SIZES.items() if "expert_tensor" not in key}, expert_tensor_size=1
    )
    with ExitStack() as stack:
        for name, value in given.items():
            stack.enter_context(patch.object(parallel, name, value))
        stack.enter_context(patch.object(torch.distributed, "is_initialized", lambda: True))
        stack.enter_context(patch.object(parallel.Parallel, "sizes_of_groups", lambda self: there))
        found = parallel.join_parallel(config, World(0, 120))
        assert found.config is config and found in cast(Any, given["_LIVING"])
    return [*noted, *["kept"] * (kept == {"new"})]
