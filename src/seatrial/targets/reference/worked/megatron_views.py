"""Worked examples of Megatron-core: adapters in layers, what a policy is made of and reads, and served models."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.config import LoraConfig, MegatronConfig
from refrl.distributed import World
from refrl.policy.adapter_files import save_adapters
from refrl.policy.lora import first_low, stream_of
from refrl.policy.megatron.conversion import ConversionError, Link
from seatrial.relations.contracts.worked import Refused, WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import batch, example, refused
from seatrial.targets.reference.worked.made_ranks import ALONE, Group, by_rank
from seatrial.targets.reference.worked.megatron_machines import of_megatron_machines

CPU = torch.device("cpu")


def of_megatron_views() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_adapters()
    yield from _of_policies()
    yield from _of_served()
    yield from of_megatron_machines()


def _of_adapters() -> Iterator[WorkedExample]:
    own = "decoder.layers.3.linear_qkv.adapters"
    names = [f"{own}.{part}.lora_{half}.weight" for part in ("q_proj", "v_proj") for half in "AB"]
    every = [name.replace("layers.3", f"layers.{layer}") for layer in (0, 3) for name in names]
    for first, from_file in ((True, False), (False, False), (False, True)):
        right = [names, names, every, ["adapters of q_proj and v_proj alone"] * 2, first, True, 1]
        name = f"adapters of a stage, the first: {first}, from files: {from_file}"
        yield example(name, right, _added, first, from_file)
    for chosen, layers, stages, words in (
        ((0, 3), 4, 2, None), ((1, 2), 4, 2, None), ((0, 1), 4, 2, "stage 1 (layers 2 to 3)"),
        ((2, 3), 4, 2, "stage 0 (layers 0 to 1)"), ((0, 2, 4), 6, 3, None), ((0, 5), 6, 3, "stage 1 (layers 2 to 3)"),
    ):  # fmt: skip
        name = f"layers {chosen} of {layers} with adapters, in {stages} stages"
        yield example(name, None if words is None else Refused(words), _staged, chosen, layers, stages)


def _added(first: bool, from_file: bool) -> list[Any]:
    """Return what is trained of the second of two stages, and what its layer and its embedding compute then."""
    from refrl.policy.megatron import adapters
    from refrl.policy.megatron.model import LocalModel

    class Layer(nn.Linear):
        def forward(self, states: Tensor) -> Any:
            return super().forward(states), "bias"

    module: Any = nn.Module()
    module.config, module.pre_process = SimpleNamespace(num_moe_experts=None), first
    if first:
        module.embedding = nn.Embedding(4, 3)
    block: Any = nn.Module()
    block.linear_qkv, block.layer_number = Layer(3, 16, bias=False), 4
    module.decoder = nn.Module()
    module.decoder.layers = nn.ModuleList([block])
    shapes = ((8, 3), (4, 3), (4, 3))

    def link(layer: int) -> Link:
        tensors = tuple(f"model.layers.{layer}.{part}_proj.weight" for part in "qkv")
        name = f"decoder.layers.{layer}.linear_qkv.weight"
        return Link(name, tensors, shapes, form="grouped", split=0, head_dim=2)

    sizes = SimpleNamespace(sequence_parallel=False)
    parallel: Any = SimpleNamespace(
        tensor=ALONE, expert=ALONE, pipeline=Group(2), config=sizes,
        tensor_of=lambda link: SimpleNamespace(rank=lambda: 0, size=lambda: 1)
    )  # fmt: skip
    architecture: Any = SimpleNamespace(num_layers=4, fused_experts=False)
    every = tuple(map(link, range(4)))
    local = LocalModel(module, architecture, parallel, {every[3].parameter: every[3]}, {}, every)
    with tempfile.TemporaryDirectory() as folder:
        config = LoraConfig(enabled=True, dim=2, alpha=6, adapter_path=f"{folder}/a" if from_file else None)
        layers = [f"model.layers.{layer}.{part}_proj" for layer in (0, 3) for part in "qv"]
        lows = {name: first_low(2, 3, stream_of(name, config)) for name in layers}
        highs = {name: torch.zeros(8 if "q_" in name else 4, 2) for name in layers}
        if from_file:
            lows, highs = ({name: torch.randn_like(one) for name, one in of.items()} for of in (lows, highs))
            given = {f"{name}.lora_A.weight": one for name, one in lows.items()}
            save_adapters(
                {**given, **{f"{name}.lora_B.weight": one for name, one in highs.items()}}, config, "base",
                Path(f"{folder}/a")
            )  # fmt: skip
        chosen = {every[0].parameter: [0, 2], every[3].parameter: [0, 2]}
        with (
            patch.object(adapters, "_chosen", lambda *words: chosen),
            patch.object(adapters, "copy_to_tensor_model_parallel_region", lambda low, *, group: low),
        ):
            made = adapters.add_adapters(local, config)
            states = torch.randn(5, 1, 3)
            found = [_is_adapted(block, every[3], states, lows, highs)]
            for name, weight in made.local.parameters.items():
                if "lora_B" in name:
                    part = f"model.layers.3.{name.split('.')[-3]}"
                    highs[part] = torch.ones_like(weight) / 4
                    weight.data.copy_(highs[part])
            found.append(_is_adapted(block, every[3], states, lows, highs))
    starts = first and module.embedding(torch.tensor([1])).requires_grad
    trained = sorted(name for name, weight in module.named_parameters() if weight.requires_grad)
    frozen = not block.linear_qkv.weight.requires_grad and len(trained) == 4
    names = list(made.local.parameters), list(made.local.links), [one.parameter for one in made.local.every]
    return [*names, found, starts, frozen, len(made.layers)]


def _is_adapted(
    block: Any, link: Link, states: Tensor, lows: Mapping[str, Tensor], highs: Mapping[str, Tensor]
) -> str:
    """Return whether the output of a layer is that of a weight whose parts have their adapters merged."""
    parts = list(link.divide(block.linear_qkv.weight.detach()))
    for number, part in ((0, "q_proj"), (2, "v_proj")):
        name = f"model.layers.3.{part}"
        parts[number] = parts[number] + 3.0 * highs[name] @ lows[name]
    output, bias = block.linear_qkv(states)
    same = torch.allclose(output, states @ link.merge(parts).T, atol=1e-5) and bias == "bias"
    return "adapters of q_proj and v_proj alone" if same else "others"


def _staged(chosen: tuple[int, ...], layers: int, stages: int) -> None:
    from refrl.policy.megatron.adapters import check_stages

    check_stages(
        [f"decoder.layers.{one}.linear_fc1.weight" for one in chosen], num_layers=layers, num_stages=stages
    )


def _of_policies() -> Iterator[WorkedExample]:
    backend = {"name": "megatron", "model": "torch.nn.modules.linear.Linear", "mesh": {"data": 2},
               "weights": {"Tensor": 2}, "kernels": "the model's own"}  # fmt: skip
    for limit in (None, 32):
        right = [backend, False, 4, 9, limit, ["named"], {"t": 1}, "scored trained", ["cleared", ("saved",
        "tokenizer", "there")],
                 [6, "scorer", "reference", "rows", "cpu", {}, None, 2, 3]]  # fmt: skip
        yield example(f"a policy on Megatron-core of {limit} positions", right, _policy, limit)
    rows = [[0.0, 0.0, 0.0], [1.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    right_rank = [[{"loss": 0.0}, {"loss": 1.0}], rows, [[0], [1, 2]], (5.0, 3.0)]
    yield example("an update that two ranks share", [right_rank] * 2, _shared_update)
    yield example(
        "how the gradients of a rank's share are clipped", [5, True, True, {"b": 0, "a": 1}], _optimizer
    )


def _policy(limit: int | None) -> list[Any]:
    from refrl.policy.megatron.policy import MegatronPolicy

    noted: list[Any] = []
    config = policy_configuration(
        {"train_global_batch_size": 6, "train_micro_batch_size": 2, "logprob_batch_size": 1}
    )
    facts = SimpleNamespace(**({} if limit is None else {"max_position_embeddings": limit}))
    local = SimpleNamespace(
        module=nn.Linear(1, 1), parameters={"a": torch.zeros(1)}, parallel=SimpleNamespace(rows="rows",
        sizes=lambda: {"data": 2}),
        architecture=SimpleNamespace(vocab_size=9, config=facts),
    )  # fmt: skip
    weights: Any = SimpleNamespace(
        local=local, named_weights=lambda: iter(["named"]), trained_weights=lambda: iter([("t", 1)]),
        save=lambda tokenizer, folder: noted.append(("saved", tokenizer, str(folder))),
    )  # fmt: skip
    adamw = SimpleNamespace(
        weights=[torch.ones(1)] * 2, num_updates_done=4, clear_gradients=lambda: noted.append("cleared")
    )
    words: Any = (weights, "trained", "tokenizer", config)
    parts: Any = {"scorer": "scorer", "optimizer": SimpleNamespace(adamw=adamw), "reference": "reference"}
    own: Any = MegatronPolicy(*words, **parts)
    cuts = [len(cut.micro_batches(batch())) for cut in (own._train_cut, own._logprob_cut)]
    made = [
        own._global_batch_size,
        own._scorer,
        own._reference,
        own._rows,
        own._device.type,
        own._state,
        own._frozen,
        *cuts,
    ]
    read = [asdict(own.backend), own.shares_weights, own.version, own.vocab_size, own.max_positions]
    own._score = lambda module, rows: f"scored {module}"
    own.free_gradients()
    own.save(Path("there"))
    return [*read, list(own.named_weights()), own.trained_weights(), own.logprobs(batch()), noted, made]


def _shared_update() -> list[Any]:
    """Return metrics, scores, rows and counts of an update in which the passes of a rank give its number."""
    from refrl.policy.megatron import policy

    def train(module: Any, scorer: Any, passes: Any, share: Any) -> list[Any]:
        value = float(module.rank)
        return [
            share(torch.full(micro.mask_BT.shape, value) * micro.mask_BT, None, micro)[1] for micro in passes
        ]

    def call(group: Group, rank: int) -> Any:
        counts: list[Any] = []

        def loss(
            logprobs: Any, entropy: Any, micro: Any, *, global_valid_tokens: Any, global_valid_seqs: Any
        ) -> Any:
            counts.append((float(global_valid_tokens), float(global_valid_seqs)))
            return logprobs.sum(), {"loss": torch.tensor(float(rank))}

        own = object.__new__(policy.MegatronPolicy)
        parallel = SimpleNamespace(
            alone=False, from_last_stage=lambda values: values, objects_from_last_stage=lambda items: items
        )
        optimizer = SimpleNamespace(has_gradients=True, take_gradients=lambda: None)
        vars(own).update(
            _device=CPU, _trained=SimpleNamespace(rank=rank), _scorer=None, _optimizer=optimizer, _parallel=parallel,
            _rows=World(rank, 2, cast(Any, group)),
            _train_cut=SimpleNamespace(micro_batches=lambda rows: [(slice(None), rows)]),
        )  # fmt: skip
        rows = batch()
        done = own.accumulate(rows, cast(Any, loss), scores=True, with_rows=True)
        old: Any = rows.old_logprobs_BT
        return [done.parts, old[:, :3].tolist(), [list(part) for part in done.micro_batches], *counts]

    with (
        patch.object(policy, "train_passes", train),
        patch.object(policy, "even_passes", lambda micro, of: micro),
    ):
        return by_rank(2, call)


def _optimizer() -> list[Any]:
    """Return of how many updates an optimizer is made, how it clips, of what, and the places of its weights."""
    from refrl.policy.megatron import optimizer

    found: list[Any] = []
    local: Any = SimpleNamespace(module="module", parameters={"b": 1, "a": 2})

    def adamw(module: str, config: str, number: int, clip: Any) -> None:
        found.extend(
            [
                number,
                isinstance(clip, optimizer.WholeNorm) and clip.local is local,
                (module, config) == ("module", "own"),
            ]
        )

    with patch.object(optimizer, "ClippedAdamW", adamw):
        made = optimizer.MegatronOptimizer(local, cast(Any, "own"), 5)
    return [*found, made._names]


def _of_served() -> Iterator[WorkedExample]:
    order = ["available policy.generation.backend=megatron cpu", "prepared", "joined", "read there", "loaded"]
    right = [order, torch.bfloat16, False, [("taken", {"w": 1})], ["whole of w in bfloat16, in memory"]]
    yield example("a model that is sampled with", right, _served, False)
    yield refused("policy.model_name=there: no place", "a served model of other tensors", _served, True)


def _served(fails: bool) -> list[Any]:
    from refrl.policy.megatron import served

    noted: list[Any] = []
    module = nn.Linear(1, 1)
    parameters = {"w": 1}
    local: Any = SimpleNamespace(module=module, parameters=parameters, architecture="architecture")

    def join(config: MegatronConfig, world: World) -> str:
        assert config == MegatronConfig() and (world.rank, world.size) == (0, 1)
        noted.append("joined")
        return "parallel"

    def read(directory: Path) -> str:
        noted.append(f"read {directory}")
        return "architecture"

    def load(directory: Path, architecture: str, parallel: str, config: Any, device: torch.device) -> Any:
        assert (architecture, parallel, device) == ("architecture", "parallel", CPU) and config is own_config
        if fails:
            raise ConversionError("no place")
        noted.append("loaded")
        return local

    taken: list[Any] = []
    where = "refrl.policy.megatron"
    given: Mapping[str, Any] = {
        "served.check_available": lambda option, device: noted.append(f"available {option} {device}"),
        "cpu.prepare": lambda: noted.append("prepared"), "architecture.read_architecture": read,
        "model.load_model": load,
        "parallel.join_parallel": join,
        "exchange.take": lambda weights, into, of: taken.append(("taken",
        weights)) if into is parameters and of is local else None,
        "exchange.gather": lambda get, of, dtype: [f"whole of {'w' if get('w') else ''} in {str(dtype)[6:]}"],
        "conversion.in_memory": lambda tensors, architecture: (f"{one}, in memory" for one in tensors),
    }  # fmt: skip
    own_config: Any = SimpleNamespace(model_name="there", precision="bfloat16")
    with ExitStack() as stack:
        for name, value in given.items():
            stack.enter_context(
                patch.object(served, name[7:], value)
                if name.startswith("served.")
                else patch(f"{where}.{name}", value)
            )
        own = served.ServedModel(own_config, CPU)
        own.take(cast(Any, {"w": 1}))
        weights = list(own.weights())
    assert own.module is module
    return [noted, module.weight.dtype, module.weight.requires_grad, taken, cast(Any, weights)]
