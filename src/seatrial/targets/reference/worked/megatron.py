"""Worked examples of ranks of Megatron-core: their tokens, stages, tensors, norms and passes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.algorithms.batching import Batch
from refrl.distributed import World
from refrl.policy.megatron import context
from refrl.policy.megatron.conversion import Link
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.changes import of_agreement, of_resumed_weights
from seatrial.targets.reference.worked.made import batch, example, refused
from seatrial.targets.reference.worked.made_ranks import ALONE, Group, backward, by_rank
from seatrial.targets.reference.worked.megatron_adapters import of_megatron_adapters
from seatrial.targets.reference.worked.megatron_files import of_files
from seatrial.targets.reference.worked.megatron_layers import of_layers
from seatrial.targets.reference.worked.megatron_links import of_megatron_links
from seatrial.targets.reference.worked.megatron_models import of_megatron_models
from seatrial.targets.reference.worked.megatron_policies import of_megatron_policies
from seatrial.targets.reference.worked.megatron_ranks import of_megatron_ranks
from seatrial.targets.reference.worked.megatron_views import of_megatron_views
from seatrial.targets.reference.worked.ranks import rank_weight
from seatrial.targets.reference.worked.values import of_values


def examples() -> Iterator[WorkedExample]:
    """Yield the examples; none where Megatron-core is not installed."""
    if find_spec("megatron") is not None:
        yield from _of_megatron()
        yield from of_layers()
        yield from of_files()
        yield from of_megatron_links()
        yield from of_megatron_models()
        yield from of_megatron_ranks()
        yield from of_megatron_adapters()
        yield from of_megatron_policies()
        yield from of_megatron_views()
        yield from of_resumed_weights("megatron")
        yield from of_agreement("megatron")
        yield from of_values("megatron")


def _of_megatron() -> Iterator[WorkedExample]:
    from refrl.policy.megatron.parallel import Parallel

    def tokens(function: Any) -> list[Any]:
        def call(group: Group, rank: int) -> Any:
            part = torch.tensor([[1.0], [4.0]]) if rank == 0 else torch.tensor([[2.0], [3.0]])
            weights = torch.arange(1.0, 5.0)[:, None] * (rank + 1)
            found, gradient = backward(lambda given: function(given, group), part, weights)
            return found.flatten().tolist(), gradient.flatten().tolist()

        return by_rank(2, call)

    whole = [1.0, 2.0, 3.0, 4.0]  # a rank has one chunk of the front and one of the back
    yield example(
        "tokens of all ranks, and what all make of them",
        [(whole, [3.0, 12.0]), (whole, [6.0, 9.0])],
        tokens,
        context.gather_context,
    )
    yield example(
        "tokens of all ranks, and what this one makes of its own",
        [(whole, [1.0, 4.0]), (whole, [4.0, 6.0])],
        tokens,
        context.whole_context,
    )

    yield example("weights of two stages", [[("first", [1.0, 2.0]), ("second", [3.0, 4.0])]] * 2, _of_stages)
    for size in (1, 2):
        yield example(f"logits of {size} ranks, without padding", [True] * size, by_rank, size, _logits)
        yield example(f"causal attention over {size} ranks", [True] * size, by_rank, size, _attention)

    from refrl.policy.megatron.policy import MegatronPolicy
    from refrl.policy.module_policy import ModulePolicy

    for kind, attribute in ((MegatronPolicy, "_trained"), (ModulePolicy, "model")):
        for trains in ((), ("",), ("1",), ("0.0",)):
            name = f"whether parts {trains} of {kind.__name__} train"
            yield example(name, bool(trains), _trains, kind, attribute, trains)

    def staged(group: Group, rank: int) -> Any:
        parallel: Any = SimpleNamespace(pipeline=group)
        return (
            Parallel.objects_from_last_stage(parallel, [rank]),
            Parallel.from_last_stage(parallel, torch.tensor([5.0 + rank])),
        )

    yield example("what the last of three stages has", [([2], [7.0])] * 3, by_rank, 3, staged)
    yield example("what one stage has", [([0], [5.0])], by_rank, 1, staged)
    for tensor, size, shares, right in ((2, 1, True, 2), (2, 1, False, 1), (1, 2, False, 4), (2, 2, True, 8)):
        parallel: Any = SimpleNamespace(
            tensor=Group(tensor), context=Group(size), config=SimpleNamespace(sequence_parallel=shares)
        )
        yield example(
            f"lengths of {tensor} x {size} ranks, {shares}",
            right,
            lambda parallel=parallel: Parallel.sequence_multiple.fget(parallel),  # type: ignore[attr-defined]
        )

    def agreed(values: Sequence[float], *, expert: int | None = None) -> Any:
        def call(group: Group, rank: int) -> Any:
            rows: Any = World(rank, group.size(), group)  # type: ignore[arg-type]
            parallel: Any = SimpleNamespace(alone=False, rows=rows)
            weights = {"a": torch.ones(2), "b": torch.tensor([values[rank]])}
            links: Any = {"a": SimpleNamespace(expert=None), "b": SimpleNamespace(expert=expert)}
            return Parallel.check_agreement(parallel, 1.0, weights, links)

        return by_rank(len(values), call)

    yield example("ranks of the same weights", [None, None], agreed, [3.0, 3.0])
    yield example("ranks of other experts", [None, None], agreed, [3.0, 4.0], expert=0)
    yield example(
        "ranks of other weights",
        "DivergenceError: after an update data-parallel rank 1 has gradient norm 1.0 and sum of weights 6.0, and rank "
        "0 has gradient norm 1.0 and sum of weights 5.0",
        lambda: agreed([3.0, 4.0])[0],
    )
    from refrl.policy.megatron.adapters import check_stages

    layers = [f"decoder.layers.{number}.mlp.weight" for number in (0, 3, 2)]
    yield example("adapters in every stage", None, check_stages, layers, num_layers=4, num_stages=2)
    yield example("adapters in one stage", None, check_stages, layers[:1], num_layers=4, num_stages=1)
    yield refused(
        "no layer of pipeline stage 1 (layers 1 to 1) gets an adapter",
        "a stage without adapters",
        check_stages,
        layers,
        num_layers=4,
        num_stages=4,
    )
    yield refused(
        "no layer of pipeline stage 0 (layers 0 to 1) gets an adapter",
        "a first stage without adapters",
        check_stages,
        layers[1:],
        num_layers=4,
        num_stages=2,
    )
    yield example("tensors of ranks that have parts and layers", _WHOLE, _spread)
    # Of the ids (1, 0, 2, 0) and (0, 0, 3, 1), by id; ranks that share activations have two places of each row.
    for padding, shares, due in (
        (0, False, [[0.0, 2.0, 1.0, 1.0]]),
        (1, False, [[4.0, 0.0, 1.0, 1.0]]),
        (None, False, [[4.0, 2.0, 1.0, 1.0]]),
        (0, True, [[0.0, 1.0, 0.0, 0.0], [0.0, 1.0, 1.0, 1.0]]),
        (None, True, [[3.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]]),
    ):
        name = f"gradients of embeddings where {padding} is padding, of {len(due)} ranks"
        yield example(name, due, _embedded, padding, shares, len(due))
    yield from _of_norms()
    yield from _of_passes()


_WHOLE = [[("cut", [[1.0], [2.0], [3.0], [4.0]]), ("whole", [[7.0]])]] * 2


def _spread() -> Any:
    """Return the tensors of two tensor-parallel ranks: one is cut, one is held alike."""
    from refrl.policy.megatron.exchange import gather

    every = [Link("c", ("cut",), ((4, 1),), split=0), Link("w", ("whole",), ((1, 1),))]

    def call(group: Group, rank: int) -> Any:
        own = {"c": torch.tensor([[1.0], [2.0]]) + 2 * rank, "w": torch.tensor([[7.0]])}
        parallel: Any = SimpleNamespace(tensor_of=lambda link: group, pipeline=ALONE, expert=ALONE)
        local: Any = SimpleNamespace(parallel=parallel, parameters=own, every=every)
        return [(name, tensor.tolist()) for name, tensor in gather(own.get, local, torch.float32)]

    return by_rank(2, call)


def _trains(kind: Any, attribute: str, trains: Sequence[str]) -> Any:
    module = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Dropout()), torch.nn.Dropout()).eval()
    for name in trains:
        module.get_submodule(name).training = True
    return kind.in_training_mode.fget(SimpleNamespace(**{attribute: module}))


def _of_stages() -> Any:
    """Return the tensors of two pipeline stages, each of which holds one, as each gets them."""
    from refrl.policy.megatron.exchange import gather

    every = [Link(name, (tensor,), ((2,),), split=None) for name, tensor in (("a", "first"), ("b", "second"))]

    def call(group: Group, rank: int) -> Any:
        own = {"b": torch.tensor([3.0, 4.0])} if rank else {"a": torch.tensor([1.0, 2.0])}
        parallel: Any = SimpleNamespace(tensor_of=lambda link: ALONE, pipeline=group, expert=ALONE)
        local: Any = SimpleNamespace(parallel=parallel, parameters=own, every=every)
        return [(name, tensor.tolist()) for name, tensor in gather(own.get, local, torch.float32)]

    return by_rank(2, call)


def _logits(group: Group, rank: int) -> bool:
    """Return whether a rank has the logits of all tokens, of three ids, from its own part with padded ids."""
    from refrl.policy.megatron.forward import Scorer

    parallel: Any = SimpleNamespace(context=group)
    scorer = Scorer(parallel, vocab_size=3, temperature=1.0, packs=False, dtype=torch.float32)
    whole_BSV = torch.arange(40.0).reshape(2, 4, 5)
    return torch.equal(scorer._whole(scorer._own(whole_BSV)), whole_BSV[..., :3])


def _attention(group: Group, rank: int) -> bool:
    """Return whether a rank's tokens attend to those before them alone, and to each of these."""
    from refrl.policy.megatron.model import CoreAttention

    config: Any = None
    attention = CoreAttention(config, SimpleNamespace(cp=group), softmax_scale=0.5)
    query, key, value = (torch.sin(torch.arange(32.0) * step).reshape(8, 1, 2, 2) for step in (0.7, 1.1, 1.7))
    places = context.positions_of_context(8, rank, group.size(), "cpu")
    found = attention(query[places], key[places], value[places], None)
    right = torch.zeros(8, 1, 2, 2)
    for place in range(8):
        scores = (query[place, 0][None] * key[: place + 1, 0]).sum(-1) * 0.5
        right[place, 0] = (scores.softmax(0)[..., None] * value[: place + 1, 0]).sum(0)
    return torch.allclose(found, right.flatten(2)[places], atol=1e-6)


class _Embeddings(torch.nn.Module):
    """Embeddings of four ids of width 1; of a rank's places, [S, B, 1], where activations are shared."""

    def __init__(self, shares: bool, group: Group) -> None:
        super().__init__()
        self.reduce_scatter_embeddings, self.group = shares, group
        self.weight = torch.nn.Parameter(torch.ones(4, 1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.reduce_scatter_embeddings:
            ids = ids.T.chunk(self.group.size())[self.group.rank()]
        return self.weight[ids]


def _embedded(padding: int | None, shares: bool, size: int) -> list[Any]:
    """Return the gradient of each id's embedding in a model as it is loaded, on each rank."""
    from refrl.policy.megatron import model

    def gpt(group: Group, *words: Any, **options: Any) -> torch.nn.Module:
        module = torch.nn.Module()
        module.embedding = torch.nn.Module()
        module.embedding.word_embeddings = _Embeddings(shares, group)
        module.rotary_pos_emb = torch.nn.Module()
        return module

    def call(group: Group, rank: int) -> Any:
        first = SimpleNamespace(rank=lambda: 0, size=lambda: 1)
        parallel: Any = SimpleNamespace(pipeline=first, tensor=group)
        architecture: Any = SimpleNamespace(
            expert_layers=(), vocab_size=4, tied=False, config=SimpleNamespace(pad_token_id=padding)
        )
        config: Any = SimpleNamespace(max_total_sequence_length=8)
        loaded = model.load_model(Path(), architecture, parallel, config, torch.device("cpu"))
        embeddings: Any = loaded.module.embedding.word_embeddings
        embeddings(torch.tensor([[1, 0, 2, 0], [0, 0, 3, 1]])).sum().backward()
        return embeddings.weight.grad.flatten().tolist()

    made = {
        "transformer_config": lambda architecture, parallel, config: parallel.tensor,
        "get_transformer_layer_offset": lambda *words, **options: 0,
        "get_num_layers_to_build": lambda *words, **options: 0,
        "TransformerBlockSubmodules": SimpleNamespace,
        "padded_vocabulary": lambda *words: 4,
        "GPTModel": gpt,
        "rotary_buffers": lambda architecture: {"model.rotary_emb.inv_freq": torch.ones(1)},
        "own_parameters": lambda *words: {},
        "links": lambda architecture: [],
        "load_weights": lambda *words: None,
    }
    with ExitStack() as stack:  # around the threads, which share the module
        for name, function in made.items():
            stack.enter_context(patch.object(model, name, function))
        return by_rank(size, call)


def _of_norms() -> Iterator[WorkedExample]:
    from refrl.policy.megatron.optimizer import WholeNorm

    def clipped(limit: float, *, tied: bool = False) -> list[Any]:
        """Clip on two ranks: a tensor that is cut, one that both hold, an expert of each, and the head."""

        def call(group: Group, rank: int) -> Any:
            names = {
                "cut": SimpleNamespace(expert=None, split=0),
                "alike": SimpleNamespace(expert=None, split=None),
                "expert": SimpleNamespace(expert=rank, split=0),
                "output_layer.weight": SimpleNamespace(expert=None, split=0),
            }
            parallel = SimpleNamespace(model=group, expert_model=group, tensor_of=lambda link: group)
            local: Any = SimpleNamespace(
                parallel=parallel, links=names, architecture=SimpleNamespace(tied=tied)
            )
            weights = [
                rank_weight([3.0, 0.0]),
                rank_weight([2.0, 0.0]),
                rank_weight([0.0, 1.0]),
                rank_weight([0.0, 5.0]),
            ]
            norm = WholeNorm(local)(weights, limit)
            gradients = [weight.grad for weight in weights]
            return norm, [float(one.abs().max()) for one in gradients if one is not None]

        return by_rank(2, call)

    # Two parts each of 3, 1 and 5, and one of 2: 9 + 9 + 4 + 1 + 1 + 25 + 25.
    norm = math.sqrt(74)
    yield example("the norm of all ranks", [(norm, [3.0, 2.0, 1.0, 5.0])] * 2, clipped, 100.0)
    yield example(
        "the norm with a tied head", [(math.sqrt(24), [3.0, 2.0, 1.0, 5.0])] * 2, clipped, 100.0, tied=True
    )
    half = [round(value / 2, 5) for value in (3.0, 2.0, 1.0, 5.0)]
    yield example(
        "gradients of all ranks, clipped",
        [half] * 2,
        lambda: [[round(value, 5) for value in found] for _, found in clipped(norm / 2)],
    )


def _of_passes() -> Iterator[WorkedExample]:
    from refrl.policy.megatron.forward import even_passes

    def evened(group: Group, rank: int) -> Any:
        rows: list[Batch] = [batch().rows([0]), batch().rows([1, 2])][: rank + 1]
        if not rank:
            rows = [rows[0].trimmed()]
        parallel: Any = SimpleNamespace(expert=group)
        return [
            (
                tuple(one.input_ids_BS.shape),
                one.mask_BT.sum(1).tolist(),
                one.attention_mask_BS.sum(1).tolist(),
            )
            for one in even_passes(rows, parallel)
        ]

    # Rank 0 has a row of 3 tokens; rank 1 a row of 3 and two of 6 and 3, in rows of 6.
    yield example(
        "passes of ranks that share experts",
        [
            [((1, 3), [2.0], [3]), ((1, 3), [0.0], [3])],
            [((1, 6), [2.0], [3]), ((2, 6), [2.0, 1.0], [6, 3])],
        ],
        by_rank,
        2,
        evened,
    )
    yield example("passes of one rank", [[((1, 3), [2.0], [3])]], by_rank, 1, evened)
