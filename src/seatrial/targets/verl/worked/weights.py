"""Worked examples of verl's weights: names under adapters, chunks, sizes, options, rows without padding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.verl.worked.tools import folder, raised

SHARDED = "verl.utils.fsdp_utils:"
MODELS = "verl.utils.model:"
TENSORS = "verl.utils.torch_functional:"
PADDING = "verl.workers.utils.padding:"


class _Layers(torch.nn.Module):
    """Two layers, the first of which may have an adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return both layers in a row."""
        found: torch.Tensor = self.second(self.first(values))
        return found


def _adapted() -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(_Layers(), LoraConfig(r=1, target_modules=["first"]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(0.5 if "lora_" in name else 1.0)
    return model


def _collected(collect: Callable[..., Any]) -> list[Any]:
    """Return the weights that servers get: of the base first, whose names have no adapter, and then of the adapter."""
    base, adapter = (collect(_adapted(), layered_summon=False, base_sync_done=done) for done in (False, True))
    return [
        {name: weight.tolist() for name, weight in base.items()},
        {name: list(weight.shape) for name, weight in adapter.items()},
    ]


def _restored(backup: Callable[..., Any]) -> list[Any]:
    """Return the names of weights that are kept without the adapter, and weights after they are put back."""
    restore = find_name("verl", [f"{SHARDED}restore_base_model_weights"])
    model = _adapted()
    kept = backup(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    restore(model, kept)
    weights = {
        name.removeprefix("base_model.model."): float(one.sum()) for name, one in model.named_parameters()
    }
    return [sorted(name.removeprefix("base_model.model.") for name in kept), weights]


def _wrapped_names(replace: Callable[..., Any]) -> list[str]:
    """Return the names of weights in a model with an adapter."""
    config = SimpleNamespace(target_modules=["own"], exclude_modules=["gate_proj"])
    keys = (
        *("a.q_proj.weight", "a.q_proj.bias", "a.own.weight", "a.own.bias", "a.gate_proj.weight"),
        *("a.gate_proj.bias", "a.norm.weight", "a.norm.bias", "a.q_proj.scale"),
    )
    return [replace(key, config) for key in keys]


def _plain_names(normalize: Callable[..., Any]) -> list[str]:
    names = (
        "base_model.model.a.base_layer.weight",
        "base_model.model.a.lora_A.weight",
        "base_model.b.weight",
        "c.adapter_x.weight",
        "d.weight",
    )
    return list(normalize(dict.fromkeys(names, 1)))


def _chunks(split: Callable[..., Any]) -> dict[str, Any]:
    """Return weights in chunks of at most eight bytes, and those that are merged again."""
    merge = find_name("verl", ["verl.checkpoint_engine.base:merge_weight_chunks"])
    weights = {
        "small": torch.arange(2, dtype=torch.float32),
        "large": torch.arange(5, dtype=torch.float32).view(5, 1) + 10,
        "half": torch.arange(5, dtype=torch.bfloat16),
    }

    async def run() -> Any:
        parts = [one async for one in split(iter(weights.items()), 8)]
        names = [one async for one in split(iter(weights.items()), 8, meta_only=True)]

        async def again() -> Any:
            for one in parts:
                yield one

        return parts, names, [one async for one in merge(again(), 8)]

    parts, names, merged = asyncio.run(run())

    def read(meta: Any, name: str) -> Any:
        return meta[name] if isinstance(meta, Mapping) else getattr(meta, name)

    return {
        "chunks": [
            [read(meta, "name"), read(meta, "chunk_offset"), read(meta, "chunk_size")] for meta, _ in parts
        ],
        "bytes": [chunk.numel() for _, chunk in parts],
        "without": [chunk is None for _, chunk in names] == [True] * len(parts),
        "merged": [[name, torch.equal(weight, weights[name]), str(weight.dtype)] for name, weight in merged],
    }


CHUNKS: Mapping[str, Any] = {
    "chunks": [
        ["small", 0, 8],
        ["large", 0, 8],
        ["large", 8, 8],
        ["large", 16, 4],
        ["half", 0, 8],
        ["half", 8, 2],
    ],
    "bytes": [8, 8, 8, 4, 8, 2],
    "without": True,
    "merged": [
        ["small", True, "torch.float32"],
        ["large", True, "torch.float32"],
        ["half", True, "torch.bfloat16"],
    ],
}


def _sizes(size: Callable[..., Any]) -> list[Any]:
    """Return numbers of parameters with their unit, which is chosen or given."""

    def model(number: int) -> Any:
        return SimpleNamespace(
            parameters=lambda: [SimpleNamespace(numel=lambda: number), SimpleNamespace(numel=lambda: 0)]
        )

    found = [list(size(model(number))) for number in (7, 1000, 1500, 2_500_000, 3_500_000_000)]
    given = [list(size(model(2_000_000), scale)) for scale in ("K", "M", "B", "")]
    return [found, given, raised(size, model(1), "x")]


def _ranks(rank: Callable[..., Any]) -> list[Any]:
    root = folder()
    found: list[Any] = []
    for text in ('{"r": 8}', "{}", "{"):
        (root / "adapter_config.json").write_text(text)
        found.append(rank(str(root)) if text == '{"r": 8}' else raised(rank, str(root)))
    return [*found, raised(rank, str(root / "none")), raised(rank, str(folder()))]


def _overridden(update: Callable[..., Any]) -> list[Any]:
    config = SimpleNamespace(a=1, inner=SimpleNamespace(b=2, c=3))
    update(config, {"a": 5, "inner": {"b": 6}, "d": 7})
    return [config.a, config.inner.b, config.inner.c, config.d]


def _overrides(read: Callable[..., Any]) -> list[Any]:
    from omegaconf import OmegaConf

    given: Sequence[Any] = (None, {}, {"a": 1}, {"model_config": {"b": 2}, "a": 1})
    return [read(one) for one in given] + [read(OmegaConf.create({"model_config": {"b": 2}}))]


def _optimizers(apply: Callable[..., Any]) -> list[Any]:
    """Return options of an optimizer that a step changes, in every group, and what is refused."""

    def made() -> Any:
        one, other = torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))
        groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [other], "lr": 0.5}]
        return torch.optim.AdamW(groups, lr=0.1)

    optimizer = made()
    apply(optimizer, {"lr": 0.25, "eps": None})
    apply(optimizer, None)
    apply(optimizer, {})
    return [
        [group["lr"] for group in optimizer.param_groups],
        [raised(apply, made(), given) for given in ({"none": 1.0}, {"lr": 1}, [1])],
    ]


def _norm(norm: Callable[..., Any]) -> list[float]:
    layer = torch.nn.Linear(2, 1)
    layer.weight.grad = torch.tensor([[3.0, -4.0]])
    before = norm(layer)
    layer.bias.grad = torch.tensor([2.0])
    return [before, norm(layer)]


def _temperature(process: Callable[..., Any]) -> list[Any]:
    return [process(None, torch.tensor([2.0, 4.0]), scale, None, None).tolist() for scale in (1.0, 2.0)]


def _nested(rows: Sequence[Sequence[float]]) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row) for row in rows], layout=torch.jagged)


def _masks(build: Callable[..., Any]) -> list[Any]:
    rows = _nested([[1.0], [1.0, 2.0, 3.0]])
    return [build(rows).tolist(), build(rows, 4).tolist(), raised(build, torch.ones(2, 2))]


def _answers(to_nested: Callable[..., Any]) -> list[Any]:
    found = to_nested(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), _nested([[1.0], [1.0, 0.0]]))
    return [row.tolist() for row in found.unbind()]


def _embedded(flatten: Callable[..., Any]) -> list[Any]:
    """Return embeddings of prompts without padding, and of negative ones if there are any."""
    from tensordict import TensorDict

    given = {
        "prompt_embeds": torch.arange(6.0).view(2, 3, 1),
        "prompt_embeds_mask": torch.tensor([[0, 1, 1], [1, 0, 0]]),
    }
    both = {**given, "negative_prompt_embeds": given["prompt_embeds"] + 10}
    both["negative_prompt_embeds_mask"] = torch.tensor([[1, 0, 0], [1, 1, 1]])
    found = []
    for columns in (given, both):
        one = flatten(TensorDict(dict(columns), batch_size=2))
        names = [name for name in ("prompt_embeds", "negative_prompt_embeds") if name in one.keys()]  # noqa: SIM118
        found.append([[row.flatten().tolist() for row in one[name].unbind()] for name in names])
    return found


ROWS: Sequence[Row] = (
    Row(
        "transfers",
        f"{SHARDED}collect_lora_params",
        "of the base and of the adapter",
        _collected,
        [
            {"first.weight": [[1.0, 1.0]] * 2, "second.weight": [[1.0, 1.0]] * 2},
            {
                "base_model.model.first.lora_A.weight": [1, 2],
                "base_model.model.first.lora_B.weight": [2, 1],
            },
        ],
    ),
    Row(
        "transfers",
        f"{SHARDED}backup_base_model_weights",
        "weights that are put back",
        _restored,
        [
            ["first.base_layer.weight", "second.weight"],
            {
                "first.base_layer.weight": 4.0,
                "first.lora_A.default.weight": 0.0,
                "first.lora_B.default.weight": 0.0,
                "second.weight": 4.0,
            },
        ],
    ),
    Row(
        "transfers",
        f"{SHARDED}replace_lora_wrapper",
        "names under an adapter",
        _wrapped_names,
        [
            *("a.q_proj.base_layer.weight", "a.q_proj.base_layer.bias", "a.own.base_layer.weight"),
            *("a.own.base_layer.bias", "a.gate_proj.weight", "a.gate_proj.bias", "a.norm.weight"),
            *("a.norm.bias", "a.q_proj.scale"),
        ],
        since="0.4",
    ),
    Row(
        "transfers",
        f"{SHARDED}normalize_peft_param_name",
        "names without an adapter",
        _plain_names,
        ["a.weight", "b.weight", "d.weight"],
    ),
    Row("transfers", "verl.checkpoint_engine.base:split_weight_chunks", "eight bytes", _chunks, CHUNKS),
    Row(
        "models",
        f"{MODELS}get_model_size",
        "units",
        _sizes,
        [
            [[7, ""], [1000, ""], [1.5, "K"], [2.5, "M"], [3.5, "B"]],
            [[2000.0, "K"], [2.0, "M"], [0.002, "B"], [2_000_000, ""]],
            "NotImplementedError",
        ],
        since="0.4",
    ),
    Row(
        "models",
        f"{MODELS}get_lora_rank_from_adapter",
        "files",
        _ranks,
        [8, "ValueError", "ValueError", "FileNotFoundError", "FileNotFoundError"],
    ),
    Row("models", f"{MODELS}update_model_config", "nested options", _overridden, [5, 6, 3, 7]),
    Row(
        "models",
        "verl.trainer.ppo.metric_utils:get_hf_config_override_kwargs",
        "nested options",
        _overrides,
        [{}, {}, {"a": 1}, {"b": 2}, {"b": 2}],
    ),
    Row(
        "steps",
        "verl.workers.engine_workers_tinker:_apply_optim_step_params",
        "options of a step",
        _optimizers,
        [[0.25, 0.25], ["ValueError", "TypeError", "TypeError"]],
    ),
    Row("metrics", f"{TENSORS}compute_grad_norm", "squares of gradients", _norm, [25.0, 29.0]),
    Row("formulas", f"{TENSORS}post_process_logits", "temperatures", _temperature, [[2.0, 4.0], [1.0, 2.0]]),
    Row(
        "batches",
        f"{PADDING}build_attention_mask_from_nested",
        "lengths",
        _masks,
        [[[1, 0, 0], [1, 1, 1]], [[1, 0, 0, 0], [1, 1, 1, 0]], "AssertionError"],
    ),
    Row("batches", f"{PADDING}response_to_nested", "lengths", _answers, [[1.0], [4.0, 5.0]]),
    Row(
        "batches",
        f"{PADDING}embeds_padding_2_no_padding",
        "prompts and negative ones",
        _embedded,
        [[[[1.0, 2.0], [3.0]]], [[[1.0, 2.0], [3.0]], [[10.0], [13.0, 14.0, 15.0]]]],
    ),
)
