"""Worked examples of the files that Megatron-core's policy reads and writes, and of what it refuses and replaces."""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from refrl.policy.megatron import checkpoint_files, making
from refrl.policy.megatron.checkpoint_files import TensorFiles, write_tensors
from refrl.policy.megatron.conversion import Link
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.limits.models import config_of
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import example, for_all, refused


def of_files() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"files of at most so many bytes": (_shards, 20)})
    yield example("tensors in one file", (["model.safetensors"], None, True), in_folder(_written), 99)
    several = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    index = {"a": several[0], "b": several[0], "c": several[1], "d": several[2]}
    yield example("tensors in several files", (several, (64, index), True), in_folder(_written), 16)
    yield from _of_reading()
    yield from _of_devices()
    yield from _of_sizes()
    yield from _of_replacements()
    yield from _of_architectures()


def _shards(stream: random.Random) -> bool:
    """Return whether tensors keep their order, and each file takes the next one while there is space."""
    sizes = {str(number): stream.choice((1, 2, 3, 5, 8)) for number in range(stream.randint(1, 8))}
    element, most = stream.choice((2, 4)), stream.choice((1, 8, 12, 16, 99))
    due: list[list[str]] = []
    for name, size in sizes.items():
        space = most - sum(sizes[one] * element for one in due[-1]) if due else -1
        due = [*due[:-1], [*due[-1], name]] if due and size * element <= space else [*due, [name]]
    shapes = {name: (size, 1) for name, size in sizes.items()}
    return list(checkpoint_files._shards(shapes, element, most)) == due


def _written(folder: Path, shard_bytes: int) -> Any:
    """Return the files of four tensors, their index, and whether they come back."""
    sizes = {"a": 2, "b": 2, "c": 4, "d": 8}
    tensors = {name: torch.full((size,), float(size)) for name, size in sizes.items()}
    shapes = {name: (size,) for name, size in sizes.items()}
    write_tensors(iter(tensors.items()), shapes, folder, shard_bytes=shard_bytes)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    path = folder / checkpoint_files.INDEX
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
    read = {name: one for file in names for name, one in load_file(folder / file).items()}
    same = read.keys() == tensors.keys() and all(
        torch.equal(one, tensors[name]) for name, one in read.items()
    )
    return names, found and (found["metadata"]["total_size"], found["weight_map"]), same


def _of_reading() -> Iterator[WorkedExample]:
    from refrl.policy.megatron import model

    def read(folder: Path, files: Mapping[str, float], *, tied: bool) -> Any:
        for name, value in files.items():
            save_file({name: torch.full((2,), value)}, folder / f"{name}.safetensors")
        architecture, parameter = SimpleNamespace(tied=tied), torch.zeros(2)
        link = Link("own", (embedding,), ((2,),))
        group = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
        local: Any = SimpleNamespace(
            architecture=architecture, links={"own": link}, parameters={"own": parameter},
            parallel=SimpleNamespace(tensor_of=lambda of: group),
        )  # fmt: skip
        known = ["model.embed_tokens.weight", *(["lm_head.weight"] if not tied else [])]
        with patch.object(model, "links", lambda of: [SimpleNamespace(tensors=known)]):
            model.load_weights(local, folder)
        assert parameter.tolist() == [1.0, 1.0]
        with ExitStack() as stack:
            return sorted(TensorFiles(folder, stack).names())

    embedding, head, old = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.rotary_emb.inv_freq"
    own = in_folder(read)
    for name, files, tied in (
        ("a head of its own", {embedding: 1.0, head: 2.0}, False),
        ("a tied head that is there", {embedding: 1.0, head: 1.0}, True),
        ("frequencies of old files", {embedding: 1.0, old: 3.0}, True),
    ):
        yield example(f"weights with {name}", sorted(files), own, files, tied=tied)
    for words, files, tied in (
        ("lm_head.weight differs from model.embed_tokens.weight", {embedding: 1.0, head: 2.0}, True),
        ("1 missing: lm_head.weight", {embedding: 1.0}, False),
        ("1 without a place: x", {embedding: 1.0, "x": 1.0}, True),
        ("holds no weights (*.safetensors)", {}, True),
    ):
        yield refused(words, f"weights: {words}", own, files, tied=tied)


def _of_devices() -> Iterator[WorkedExample]:
    def available(device: str, *, installed: bool = True, cuda: bool = False) -> None:
        with (
            patch.object(importlib.util, "find_spec", lambda name: installed or None),
            patch.object(torch.cuda, "is_available", lambda: cuda),
        ):
            making.check_available("policy.x", torch.device(device))

    yield example("Megatron-core on a CPU", None, available, "cpu")
    yield example("Megatron-core on a GPU", None, available, "cuda", cuda=True)
    yield refused("policy.x with cluster.device=cpu", "a CPU next to GPUs", available, "cpu", cuda=True)
    yield refused("policy.x needs Megatron-core", "no Megatron-core", available, "cpu", installed=False)


def _of_sizes() -> Iterator[WorkedExample]:
    from refrl.config import MegatronConfig
    from refrl.policy.megatron.parallel import _check_sizes

    def check(size: int, **sizes: int) -> None:
        section = {SIZES[name]: value for name, value in sizes.items()}
        config = MegatronConfig.model_validate({"enabled": True, **section})
        _check_sizes(config, cast(Any, SimpleNamespace(size=size)))

    for size, sizes in (
        (1, {}),
        (4, {"tensor": 2}),
        (6, {"tensor": 3, "pipeline": 2}),
        (8, {"tensor": 2, "pipeline": 2, "context": 2}),
        (4, {"pipeline": 2, "expert": 2}),
    ):
        yield example(f"{size} processes of {sizes}", None, check, size, **sizes)
    for size, sizes, words in (
        (3, {"tensor": 2}, "make 2 processes of one model, which do not divide cluster.num_processes=3"),
        (2, {"tensor": 2, "pipeline": 2}, "start a multiple of 4"),
        (6, {"context": 4}, "start a multiple of 4"),
        (2, {"expert": 4}, "needs a multiple of 4 processes"),
        (6, {"pipeline": 2, "expert": 2}, "needs a multiple of 4 processes"),
    ):
        yield refused(words, f"{size} processes of {sizes}", check, size, **sizes)


SIZES = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
}


def _of_replacements() -> Iterator[WorkedExample]:
    from refrl.policy.megatron import cpu, forward

    def hosted(**options: Any) -> Any:
        found = cpu._on_host(torch.ones(2), **options)
        return type(found).__name__, found.tolist(), cpu._on_host("a", **options)

    for options, kind in (
        ({}, "Tensor"),
        ({"as_numpy": True}, "ndarray"),
        ({"record_stream": True}, "Tensor"),
    ):
        yield example(f"a tensor on the host: {options}", (kind, [1.0, 1.0], "a"), hosted, **options)
    real = ModuleType("real")
    real.kept, real.own = 1, 2  # type: ignore[attr-defined]
    standin = cpu._Standin(real, {"own": 3})
    yield example(
        "names of a replaced module",
        ("real", 1, 3, 2),
        lambda: (standin.__name__, standin.kept, standin.own, real.own),
    )

    def decoded() -> Any:
        from refrl.generation.megatron.engine import MegatronDecoder

        noted: list[str] = []
        cache = SimpleNamespace(sequence_len_offset=3, enable_decode_mode=lambda: noted.append("decodes"))
        logits = torch.arange(24.0).reshape(2, 3, 4)

        def module(*words: Any, runtime_gather_output: bool, **options: Any) -> torch.Tensor:
            return logits if runtime_gather_output else logits[..., :2]

        decoder: Any = SimpleNamespace(_module=module, _cache=cache, _vocab_size=3)
        found = MegatronDecoder._forward(decoder, torch.zeros(2, 3), torch.zeros(2, 3, 3))
        return found, cache.sequence_len_offset, noted

    right = [[8.0, 9.0, 10.0], [20.0, 21.0, 22.0]], 6, ["decodes"]
    yield example("logits of the newest token, without padding", right, decoded)

    def scored() -> Any:
        def run(module: Any, scorer: Any, batches: Any, keep: Any, *, forward_only: bool) -> Any:
            return (
                [keep((f"logprobs {one}", "entropy"), one) for one in batches],
                forward_only,
                torch.is_grad_enabled(),
            )

        with patch.object(forward, "_run", run):
            return forward.score_passes(cast(Any, None), cast(Any, None), cast(Any, [1, 2]))

    yield example("log-probabilities that are kept", (["logprobs 1", "logprobs 2"], True, False), scored)


def _of_architectures() -> Iterator[WorkedExample]:
    from refrl.policy.megatron.architecture import architecture_of

    def read(kind: str, **changes: Any) -> Any:
        made = architecture_of(config_of(kind, **changes))
        heads = made.num_heads, made.num_kv_heads, made.head_dim
        own = made.tied, made.qkv_bias, made.qk_norm, made.norm_topk
        experts = made.expert_layers, made.num_experts, made.experts_per_token, made.expert_hidden_size
        return heads, (made.hidden_size, made.ffn_hidden_size), own, experts

    dense = (False, False), 0, 0, 0
    some: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5}
    for kind, changes, right in (
        ("qwen3", {}, ((4, 2, 8), (16, 24), (False, False, True, True), dense)),
        ("qwen3", {"tie_word_embeddings": True}, ((4, 2, 8), (16, 24), (True, False, True, True), dense)),
        ("llama", {"head_dim": None}, ((4, 2, 4), (16, 24), (False, False, False, True), dense)),
        ("qwen2", {"num_key_value_heads": 4}, ((4, 4, 8), (16, 24), (False, True, False, True), dense)),
        (
            "qwen3_moe",
            {**some, "norm_topk_prob": False, "mlp_only_layers": [0]},
            ((4, 2, 8), (16, 24), (False, False, True, False), ((False, True), 4, 2, 5)),
        ),
    ):
        yield example(f"the architecture of a {kind} with {changes}", right, read, kind, **changes)
    yield refused("model_type=gemma2", "an architecture that is not converted", read, "gemma2")
    for fused in (False, True):
        yield example(f"experts that are in one tensor: {fused}", True, _renamed, fused)


def _renamed(fused: bool) -> bool:
    """Return whether weights come back as they are in a file, and each expert is where it belongs in memory."""
    from refrl.policy.megatron.conversion import as_in_checkpoint, in_memory

    architecture: Any = SimpleNamespace(fused_experts=fused, num_experts=2)
    numbers = iter(range(99))
    kinds = [("gate_proj", (3, 2)), ("up_proj", (3, 2)), ("down_proj", (2, 3))]
    given = {"model.norm.weight": torch.full((2,), float(next(numbers)))}
    for layer in range(2):
        for expert in range(2):
            for kind, shape in kinds:
                name = f"model.layers.{layer}.mlp.experts.{expert}.{kind}.weight"
                given[name] = torch.full(shape, float(next(numbers)))
    held = dict(in_memory(given.items(), architecture))
    back = dict(as_in_checkpoint(held, architecture))
    same = back.keys() == given.keys() and all(torch.equal(back[name], one) for name, one in given.items())
    if not fused:
        return same and held.keys() == given.keys()
    pairs = held["model.layers.1.mlp.experts.gate_up_proj"]
    return same and pairs[:, :, 0].tolist() == [[7.0] * 3 + [8.0] * 3, [10.0] * 3 + [11.0] * 3]
