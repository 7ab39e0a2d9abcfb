"""Worked examples of tensors between Hugging Face and Megatron-core: links, names, files and refusals."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor

from refrl.config import MegatronConfig
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.limits.models import config_of
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.made import example, for_all, made_tensor, refused


def of_megatron_links() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"parts of tensors of any form and number of ranks": (_cut, 24)})
    for size, right in ((1, 9), (2, 10), (3, 9), (4, 12), (9, 9), (10, 10)):
        yield example(f"a vocabulary of 9 ids over {size} ranks", right, _padded, size)
    for tied in (False, True):
        ends = [("output_layer.weight", ["lm_head.weight"], [(9, 6)], 0, True)] * (not tied)
        first = ("embedding.word_embeddings.weight", ["model.embed_tokens.weight"], [(9, 6)], 0, True)
        last = ("decoder.final_layernorm.weight", ["model.norm.weight"], [(6,)], None, False)
        yield example(
            f"parameters outside the layers, tied: {tied}", [first, "0", "1", last, *ends], _ends, tied
        )
    for layers, experts, names in (
        (0, 1, ["decoder.layers.0.mlp.experts.local_experts.2.w", "decoder.layers.1.w", "embedding.w"]),
        (4, 0, ["decoder.layers.4.mlp.experts.local_experts.0.w", "decoder.layers.5.w", "embedding.w"]),
    ):
        yield example(f"names of a rank from layer {layers} on", names, _named, layers, experts)
    yield example("a tensor that is put in its place", [[3.0, 4.0], ["w"]], _filled, (4,))
    yield refused("x has shape (3,), and config.json says (4,)", "a tensor of another shape", _filled, (3,))
    yield from _of_architectures()
    yield from _of_files()


def _cut(stream: random.Random) -> bool:
    """Return whether each rank has its heads, rows or columns, in order, and all of them make the whole again."""
    from refrl.policy.megatron.conversion import Link

    size, wide = stream.choice((1, 2, 4)), 4
    kind = stream.choice(("vocabulary", "rows", "columns", "alike", "joined", "grouped"))
    if kind == "grouped":
        keys, each, width = size * stream.randint(1, 2), stream.randint(1, 3), stream.choice((1, 2))
        shapes = tuple((number * width, wide) for number in (keys * each, keys, keys))
        link = Link("p", ("q", "k", "v"), shapes, form="grouped", split=0, head_dim=width)
    elif kind == "joined":
        link = Link("p", ("gate", "up"), ((2 * size, wide),) * 2, form="joined", split=0)
    else:
        rows = 5 if kind == "vocabulary" else 2 * size
        split = {"columns": 1, "alike": None}.get(kind, 0)
        link = Link("p", ("w",), ((rows, wide),), split=split, padded=kind == "vocabulary")
    tensors = [made_tensor(stream, shape) for shape in link.shapes]
    parts_of = [[link.part(tensor, rank, size) for tensor in tensors] for rank in range(size)]
    held = [link.merge(parts) for parts in parts_of]
    right = True
    if kind == "grouped":
        queries, own_keys, values = ([one.tolist() for one in tensor] for tensor in tensors)
        rows_due = []
        for key in range(keys):
            rows_due += queries[key * each * width : (key + 1) * each * width]
            rows_due += own_keys[key * width : (key + 1) * width] + values[key * width : (key + 1) * width]
        right = torch.cat(held).tolist() == rows_due
    if kind == "joined":
        gate, up = tensors
        right = all(
            torch.equal(one, torch.cat([gate[2 * rank : 2 * rank + 2], up[2 * rank : 2 * rank + 2]]))
            for rank, one in enumerate(held)
        )
    if kind == "vocabulary":
        whole = torch.cat(held) if size > 1 else held[0]
        right = torch.equal(whole[:5], tensors[0]) and not whole[5:].any() and len(whole) % size == 0
    divided = [link.divide(one) for one in held]
    back = [link.whole([own[number] for own in divided], number) for number in range(len(tensors))]
    if kind == "columns" and size > 1:  # cut to the rows of the whole
        back = [torch.cat([own[0] for own in divided], dim=1)]
    return right and all(map(torch.equal, back, tensors))


def _padded(size: int) -> int:
    from refrl.policy.megatron.conversion import pad_vocabulary, padded_vocabulary

    rows = pad_vocabulary(torch.ones(9, 2), size)
    assert rows.sum() == 18 and len(rows) == padded_vocabulary(9, size)
    return len(rows)


def _ends(tied: bool) -> Any:
    from refrl.policy.megatron import conversion

    architecture: Any = SimpleNamespace(hidden_size=6, vocab_size=9, num_layers=2, tied=tied)
    with patch.object(conversion, "_layer", lambda of, number: iter([str(number)])):
        return [
            link
            if isinstance(link, str)
            else (link.parameter, list(link.tensors), list(link.shapes), link.split, link.padded)
            for link in cast(Any, conversion.links(architecture))
        ]


def _named(first: int, rank: int) -> list[str]:
    """Return the names over the whole model of a rank's parameters, of two layers and two of four experts."""
    from refrl.policy.megatron.model import global_name, own_parameters

    layers = [SimpleNamespace(layer_number=first + number + 1) for number in range(2)]
    names = ["decoder.layers.0.mlp.experts.local_experts.0.w", "decoder.layers.1.w", "embedding.w"]
    model: Any = SimpleNamespace(
        decoder=SimpleNamespace(layers=layers), config=SimpleNamespace(num_moe_experts=4),
        named_parameters=lambda: iter([(name, name) for name in names]),
    )  # fmt: skip
    parallel: Any = SimpleNamespace(expert=SimpleNamespace(size=lambda: 2, rank=lambda: rank))
    found = own_parameters(model, parallel)
    assert list(cast(Any, found.values())) == names
    return [global_name(name, model, parallel) for name in names]


def _filled(shape: tuple[int, ...]) -> Any:
    """Return what the second of two ranks takes of a tensor, and by which name."""
    from refrl.policy.megatron import exchange
    from refrl.policy.megatron.conversion import Link

    link = Link("w", ("x",), ((4,),), split=0)
    asked: list[Any] = []
    group = SimpleNamespace(rank=lambda: 1, size=lambda: 2)

    def tensor_of(of: Any) -> Any:
        asked.append(of.parameter)
        return group

    local: Any = SimpleNamespace(
        architecture="a", links={"w": link, "other": None}, parallel=SimpleNamespace(tensor_of=tensor_of)
    )
    target = torch.zeros(2)
    given = torch.arange(1.0, 1.0 + shape[0])
    with patch.object(
        exchange, "as_in_checkpoint", lambda tensors, of: iter([*tensors.items()] if of == "a" else [])
    ):
        exchange.take({"x": given, "more": given}, {"w": target}, local)
    return [target.tolist(), asked]


def _of_architectures() -> Iterator[WorkedExample]:
    from refrl.policy.megatron.architecture import architecture_of, check_divides

    def sizes(heads: int, layers: int, experts: int, **options: Any) -> None:
        architecture: Any = SimpleNamespace(num_kv_heads=heads, num_layers=layers, num_experts=experts)
        check_divides(architecture, MegatronConfig.model_construct(**options))

    tensor, pipeline, expert = (f"{name}_model_parallel_size" for name in ("tensor", "pipeline", "expert"))
    for name, numbers, own in (
        ("one process", (3, 5, 0), {}),
        ("as many as there are", (4, 6, 8), {tensor: 4, pipeline: 6, expert: 8}),
        ("parts", (4, 6, 8), {tensor: 2, pipeline: 3, expert: 4}),
    ):
        yield example(f"a model divided over {name}", None, sizes, *numbers, **own)
    for option, number, what in (
        (tensor, 3, "4 key heads"),
        (pipeline, 4, "6 layers"),
        (expert, 3, "8 experts"),
        (tensor, 8, "4 key heads"),
    ):
        yield refused(
            f"{option}={number} does not divide the {what}",
            f"{what} over {number}",
            sizes,
            4,
            6,
            8,
            **{option: number},
        )
    yield refused(
        f"{expert}=2 does not divide the 0 experts",
        "a model without experts over 2",
        sizes,
        4,
        6,
        0,
        **{expert: 2},
    )

    def read(changes: Any) -> Any:
        config = config_of("llama")
        for name, value in changes.items():
            setattr(config, name, value)
        return architecture_of(config).family

    changes: Any
    for kind, changes in (
        ("scaled rotation", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}),
        ("whole rotation", {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 1.0}}),
        ("a window that is switched off", {"use_sliding_window": False, "sliding_window": 4}),
        ("a window without a size", {"use_sliding_window": True, "sliding_window": None}),
    ):
        yield example(f"a model with {kind}", "llama", read, changes)
    for words, changes in (
        ("rope_type=yarn", {"rope_parameters": {"rope_type": "yarn"}}),
        (
            "partial_rotary_factor=0.5",
            {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        ),
        ("attention_bias=true", {"attention_bias": True}),
        ("mlp_bias=true", {"mlp_bias": True}),
        ("hidden_act=gelu", {"hidden_act": "gelu"}),
        ("a sliding window of 4 tokens", {"use_sliding_window": True, "sliding_window": 4}),
    ):
        yield refused(f"does not convert a model with {words}", f"a model with {words}", read, changes)
    yield refused("cannot be read", "a configuration that is no JSON", in_folder(_read), "{")


def _read(folder: Path, text: str) -> Any:
    from refrl.policy.megatron.architecture import read_architecture

    (folder / "config.json").write_text(text, encoding="utf-8")
    return read_architecture(folder)


def _of_files() -> Iterator[WorkedExample]:
    for rank in (0, 1):
        right = {"taken": 2, "files": []} if rank else {
            "taken": 2, "files": ["adapter", "config", "generation", "tokenizer", "weights"],
            "type": "bfloat16", "own": "float32", "shapes": {"a": (2,), "b": (3,)}, "adapters": ("w", "lora", "of"),
        }  # fmt: skip
        yield example(f"what rank {rank} writes", right, in_folder(_saved), rank, True)
    for is_there in (True, False):
        files = ["config", *["generation"] * is_there, "tokenizer", "weights"]
        name = f"files without adapters, of a model with generation defaults: {is_there}"
        yield example(name, files, lambda of=is_there: in_folder(_saved)(0, False, of)["files"])


def _saved(folder: Path, rank: int, adapts: bool, is_there: bool = True) -> dict[str, Any]:
    """Return what a rank writes of two tensors, and how many of them it takes."""
    from refrl.policy.megatron import checkpoint_files

    taken: list[str] = []
    found: dict[str, Any] = {}
    source = folder / "of"
    source.mkdir()
    if is_there:
        (source / "generation_config.json").write_text("{}", encoding="utf-8")

    class Config(SimpleNamespace):
        def save_pretrained(self, to: str) -> None:
            found["type"] = str(self.dtype).removeprefix("torch.")
            Path(to, "config").touch()

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name in "ab":
            taken.append(name)
            yield name, torch.zeros(1)

    def write(tensors: Any, shapes: Any, to: Path, *, shard_bytes: int) -> None:
        found["shapes"] = shapes
        list(tensors)
        (to / "weights").touch()

    def write_adapters(own: Any, config: Any, base: str, to: Path) -> None:
        found["adapters"] = own, config, Path(base).name
        to.touch()

    config = Config(dtype="float32", name_or_path=str(source))
    tokenizer: Any = SimpleNamespace(save_pretrained=lambda to: Path(to, "tokenizer").touch())
    links = [SimpleNamespace(tensors=(name,), shapes=(shape,)) for name, shape in (("a", (2,)), ("b", (3,)))]
    architecture: Any = SimpleNamespace(config=config)
    with (
        patch.object(torch.distributed, "get_rank", lambda: rank),
        patch.object(checkpoint_files, "links", lambda of: links),
        patch.object(checkpoint_files, "write_tensors", write),
        patch.object(checkpoint_files, "save_adapters", write_adapters),
    ):
        checkpoint_files.save_directory(
            weights(),
            architecture,
            torch.bfloat16,
            tokenizer,
            folder / "out",
            adapters=cast(Any, ("w", "lora")) if adapts else None,
        )
    if not rank:
        found["own"] = config.dtype
    written = sorted(path.name for path in (folder / "out").glob("*"))
    names = {"generation_config.json": "generation"}
    return {**found, "taken": len(taken), "files": [names.get(name, name) for name in written]}
