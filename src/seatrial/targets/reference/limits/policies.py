"""What refrl's policies refuse: layouts, adapters, forms of scoring, files of models."""

from __future__ import annotations

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from refrl.config import ClusterConfig, DTensorConfig, LoraConfig, MegatronConfig
from refrl.distributed import World, join, local_device
from refrl.policy.activations import checkpointed_forward, compile_layers
from refrl.policy.adapter_files import read_adapters, save_adapters
from refrl.policy.draft import load_draft, make_draft
from refrl.policy.dtensor.expert_parallel import share_experts
from refrl.policy.dtensor.meshes import make_meshes
from refrl.policy.dtensor.tensor_parallel import parallelize
from refrl.policy.lora import chosen_layers
from refrl.policy.megatron.architecture import architecture_of, check_divides
from refrl.policy.megatron.context import positions_of_context
from refrl.policy.megatron.conversion import check_names
from refrl.policy.routers import make_router_loss
from refrl.policy.scoring import check_head, check_text, check_window, make_scoring, padded_forward
from seatrial.relations.contracts.refusals import Trial
from seatrial.targets.reference.configuration import new_directory
from seatrial.targets.reference.limits.models import (
    NoLayers,
    batch_of_rows,
    config_of,
    model_of,
    plain_trial,
    policy_of,
)

PLAIN_LORA: Mapping[str, Any] = {
    "bias": "all",
    "fan_in_fan_out": True,
    "use_dora": True,
    "use_rslora": True,
    "modules_to_save": ["lm_head"],
    "rank_pattern": {"q_proj": 4},
    "alpha_pattern": {"q_proj": 4},
    "layers_to_transform": [0],
    "lora_bias": True,
    "r": 3,
    "lora_alpha": 5.0,
    "peft_type": "IA3",
}
"""Options of PEFT, each at a value that makes another adapter."""


def _architecture(kind: str, changes: Mapping[str, Any]) -> object:
    return architecture_of(config_of(kind, **changes))


def _divided(option: str, size: int) -> None:
    shape = architecture_of(config_of("llama", num_key_value_heads=2, num_hidden_layers=3))
    sizes: Any = {option: size}
    check_divides(shape, MegatronConfig(enabled=True, **sizes))


def _parallelized(size: int, changes: Mapping[str, Any]) -> None:
    parallelize(model_of("llama", **changes), _mesh(size), sequence_parallel=False)


def _chosen(kind: str, options: Mapping[str, Any]) -> object:
    tied: dict[str, Any] = {"tie_word_embeddings": True} if kind == "llama" else {}
    return chosen_layers(model_of(kind, **tied), LoraConfig(enabled=True, **options))


def _scored(form: Mapping[str, Any], factor: float) -> object:
    return make_scoring(policy_of(**form), _scaled(factor), 1.0)


def layout_trials() -> Iterator[Trial]:
    """Yield the calls about models and processes that do not divide."""
    kinds: tuple[tuple[str, dict[str, Any], str | None], ...] = (
        ("llama", {}, None),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, None),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4}, None),
        ("mistral", {}, "model_type=mistral"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "rope_type=yarn"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type=dynamic"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("qwen3", {"hidden_act": "gelu"}, "hidden_act=gelu"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4}, "sliding window"),
    )
    for kind, changes, says in kinds:
        yield plain_trial(
            f"Megatron-core with {kind} {changes}",
            says,
            partial(_architecture, kind, changes),
        )
    for option, size, says in (
        ("tensor_model_parallel_size", 2, None),
        ("pipeline_model_parallel_size", 3, None),
        ("tensor_model_parallel_size", 4, "2 key heads"),
        ("pipeline_model_parallel_size", 2, "3 layers"),
        ("expert_model_parallel_size", 2, "0 experts"),
    ):
        yield plain_trial(
            f"{option}={size}",
            says,
            partial(_divided, option, size),
        )
    for names, says in (("ab", None), ("abc", "without a place"), ("a", "missing")):
        yield plain_trial(f"names {names} of ab", says, partial(check_names, names, "ab", what="x"))
    for tokens, says in ((8, None), (6, "6 tokens"), (10, "10 tokens")):
        yield plain_trial(
            f"{tokens} tokens on two ranks",
            says,
            partial(positions_of_context, tokens, 0, 2, "cpu"),
        )
    cpu = torch.device("cpu")
    for what, options, processes, says in (
        ("tensor parallel ranks", {"tensor_parallel_size": 2}, 3, "tensor_parallel_size=2"),
        ("context parallel ranks", {"context_parallel_size": 2}, 3, "context_parallel_size=2"),
        ("expert parallel ranks", {"expert_parallel_size": 2}, 3, "expert_parallel_size=2"),
    ):
        given: Any = options
        config = DTensorConfig(enabled=True, **given)
        yield plain_trial(
            f"{what} of {processes} processes",
            says,
            partial(make_meshes, config, World(0, processes), cpu),
        )
    for size, changes, says in (
        (3, {}, "num_attention_heads=4"),
        (4, {}, "num_key_value_heads=2"),
        (2, {"intermediate_size": 25}, "intermediate_size=25"),
    ):
        yield plain_trial(
            f"tensor parallelism over {size} of {changes}",
            says,
            partial(_parallelized, size, changes),
        )
    yield plain_trial(
        "experts of a model without", "no experts", lambda: share_experts(model_of("llama"), _mesh(2))
    )
    yield plain_trial(
        "five of twelve experts",
        "12 experts",
        lambda: share_experts(model_of("qwen3_moe", num_experts=12), _mesh(5)),
    )
    yield plain_trial("two processes, one started", "num_processes=2", lambda: _joined(2))
    yield plain_trial("one process", None, lambda: _joined(1))
    if not torch.cuda.is_available():
        yield plain_trial(
            "a device that is not there", "cluster.device", lambda: local_device(ClusterConfig(device="cuda"))
        )


def _mesh(size: int) -> Any:
    return SimpleNamespace(size=lambda: size)


def _joined(num_processes: int) -> None:
    with join(ClusterConfig(num_processes=num_processes)):
        pass


def adapter_trials() -> Iterator[Trial]:
    """Yield the calls about the layers of adapters, and their files."""
    for what, kind, options, says in (
        ("every layer", "llama", {}, None),
        ("named layers", "llama", {"target_modules": ("q_proj", "model.layers.1.mlp.up_proj")}, None),
        ("a layer that is not there", "llama", {"target_modules": ("q_proj", "query")}, "query"),
        ("the end of a name", "llama", {"target_modules": ("_proj",)}, "_proj"),
        (
            "no layer",
            "llama",
            {"target_modules": ("q_proj",), "exclude_modules": ("q_proj",)},
            "no linear layer is left",
        ),
        ("a tied head", "llama", {"target_modules": ("lm_head",)}, "lm_head"),
        ("transposed layers", "gpt2", {}, "Conv1D"),
    ):
        yield plain_trial(
            f"adapters of {what}",
            says,
            partial(_chosen, kind, options),
        )
    config = LoraConfig(enabled=True, dim=2, alpha=4)
    weights = {"layer.lora_A.weight": torch.ones(2, 5), "layer.lora_B.weight": torch.ones(3, 2)}
    shapes: dict[str, tuple[int, ...]] = {name: tuple(one.shape) for name, one in weights.items()}
    folder = new_directory("adapters") / "adapter"
    save_adapters(weights, config, "base", folder)
    written = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    least = {name: written[name] for name in ("peft_type", "r", "lora_alpha")}
    empty = {**written, "rank_pattern": None, "modules_to_save": [], "layers_to_transform": None}

    def read(described: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]]) -> Callable[[], object]:
        def call() -> object:
            own = new_directory("adapter")
            shutil.copytree(folder, own, dirs_exist_ok=True)
            (own / "adapter_config.json").write_text(json.dumps(described), encoding="utf-8")
            return read_adapters(own, config, wanted)

        return call

    for what, described in (
        ("as it was written", written),
        ("of the least options", least),
        ("with empty options", empty),
    ):
        yield plain_trial(f"an adapter {what}", None, read(described, shapes))
    for name, value in PLAIN_LORA.items():
        yield plain_trial(f"an adapter with {name}={value}", name, read({**written, name: value}, shapes))
    yield plain_trial(
        "an adapter without its rank", "r=None", read({"peft_type": "LORA", "lora_alpha": 4}, shapes)
    )
    more = {**shapes, "other.lora_A.weight": (2, 5)}
    yield plain_trial("an adapter without a tensor", "other.lora_A.weight", read(written, more))
    fewer = {"layer.lora_A.weight": (2, 5)}
    yield plain_trial("an adapter with one tensor more", "layer.lora_B.weight", read(written, fewer))
    wider = {**shapes, "layer.lora_A.weight": (2, 6)}
    yield plain_trial("an adapter of another width", "(2, 6)", read(written, wider))
    yield plain_trial("no adapter", "adapter_path", lambda: read_adapters(folder.parent, config, shapes))


def scoring_trials() -> Iterator[Trial]:
    """Yield the calls about forms of scoring and auxiliary losses that a model does not allow."""
    window = model_of("mistral", sliding_window=12)
    for length, says in ((12, None), (13, "12 tokens")):
        yield plain_trial(
            f"{length} tokens, and a window of 12",
            says,
            partial(check_window, "x", policy_of(max_total_sequence_length=length), window),
        )
    plain = model_of("llama")
    yield plain_trial("no window", None, lambda: check_window("x", policy_of(), plain))
    yield plain_trial("a head that is a matrix", None, lambda: check_head(plain))
    yield plain_trial(
        "a head with a cap",
        "final_logit_softcapping",
        lambda: check_head(model_of("gemma2", final_logit_softcapping=3.0)),
    )
    yield plain_trial("a head with a bias", "bias", lambda: check_head(model_of("phi")))
    yield plain_trial("text", None, lambda: check_text("packing", batch_of_rows()))
    media = copy.copy(batch_of_rows())
    media.media_BX = torch.zeros(2, 1)
    yield plain_trial("images", "packing", lambda: check_text("packing", media))
    forms = {"sequence_packing__enabled": True}, {"logprob_chunk_size": 2}
    for form in forms:
        for value, says in ((1.0, None), (math.nan, "differ")):
            yield plain_trial(
                f"{form}, weights times {value}",
                says,
                partial(_scored, form, value),
            )
    yield plain_trial(
        "packs that leak", "differ", lambda: make_scoring(policy_of(**forms[0]), _leaking(), 1.0)
    )
    no_layers: Any = NoLayers()
    yield plain_trial(
        "no layers to compute again",
        "activation_checkpointing",
        lambda: checkpointed_forward(padded_forward(1.0), no_layers),
    )
    yield plain_trial("no layers to compile", "compile_layers", lambda: compile_layers(no_layers))
    experts = model_of("qwen3_moe", num_experts=4)
    yield plain_trial(
        "a loss of routers", None, lambda: make_router_loss(policy_of(router_aux_loss_coef=0.1), experts)
    )
    yield plain_trial(
        "a loss of no routers",
        "router_aux_loss_coef",
        lambda: make_router_loss(policy_of(router_aux_loss_coef=0.1), plain),
    )
    yield plain_trial("no loss of no routers", None, lambda: make_router_loss(policy_of(), plain))
    yield plain_trial("no draft head", "policy.draft", lambda: load_draft(new_directory("draft")))
    drafts = policy_of(draft__enabled=True)
    yield plain_trial(
        "drafts of a capped head",
        "more than a matrix",
        lambda: make_draft(drafts, model_of("gemma2"), num_updates=1, temperature=1.0),
    )


def _scaled(factor: float) -> Any:
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight.mul_(factor)
    return model


def _leaking() -> Any:
    """Return a model whose layers see every token of a pack."""
    model = model_of("llama")
    inner, forward = model.model, type(model.model).forward
    inner.forward = lambda *given, **named: forward(
        inner,
        *given,
        **{**named, "attention_mask": torch.zeros_like(named["attention_mask"])}
        if named["attention_mask"].ndim == 4
        else named,
    )
    return model
