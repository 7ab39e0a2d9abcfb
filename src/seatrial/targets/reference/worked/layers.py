"""Worked examples of what attention, norms, passes and probes compute in each of their forms."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from refrl import distributed
from refrl.algorithms.advantages import specification
from refrl.algorithms.batching import Batch
from refrl.algorithms.losses import base as losses
from refrl.config.algorithms import AdvantageConfig, LossConfig
from refrl.generation.lean_decoder import LayerSlots, _attend
from refrl.generation.lean_norms import CentredNorm, Norm, WideNorm
from refrl.generation.lean_rotary import Rotary
from refrl.generation.static.ops import Counters, DeviceOps, TorchOps, Turns
from refrl.lifeline import LISTENING, RENDEZVOUS
from refrl.policy import scoring
from refrl.policy.dtensor import context_parallel
from refrl.policy.module_policy import ModulePolicy
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.kernels import of_token_steps
from seatrial.targets.reference.worked.made import PAD, batch, example, for_all, made_tensor, refused


def of_layers() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"tokens that attend to slots": (_attends, 8), "prompts that attend": (_reads, 6)})
    yield from for_all({"heads that are normalised and turned": (_turns, 16)})
    yield from for_all({"norms of rows": (_norms, 16)})
    yield from of_token_steps()
    yield from _of_norms()
    yield from _of_probes()
    yield from _of_passes()
    yield from _of_claims()
    yield from _of_ranks()


def _gathered(queries: Tensor, keys: Tensor, values: Tensor, seen: list[int], cap: float | None) -> Tensor:
    """Return what a query [H] gathers of the slots that it sees, at a scale of 1/2."""
    scores = [float(queries.double() @ keys[slot].double()) / 2 for slot in seen]
    scores = scores if cap is None else [cap * math.tanh(score / cap) for score in scores]
    weights = [math.exp(score - max(scores)) for score in scores]
    found = sum(weight * values[slot].double() for weight, slot in zip(weights, seen, strict=True))
    return cast(Tensor, found) / sum(weights)


def _layer(stream: random.Random) -> Any:
    """Return a layer of 4 query heads of 2 key heads of width 3, with or without a window and a cap."""
    return SimpleNamespace(
        num_query_heads=4,
        num_kv_heads=2,
        window=stream.choice((None, 1, 2, 9)),
        score_cap=stream.choice((None, 0.5)),
        attention_scale=0.5,
        qk_norm=None,
        head_dim=3,
    )


def _attends(stream: random.Random) -> bool:
    """Return whether both kinds of plain operations attend to a row's slots up to its newest, within the window."""
    layer, slot = _layer(stream), stream.randint(0, 4)
    cache = made_tensor(stream, (2, 3, 2, 6, 3)) / 8
    heads = made_tensor(stream, (3, 8, 3)) / 8
    first = torch.tensor([0, slot, stream.randint(0, slot)])
    counters = Counters(torch.device("cpu"))
    counters.set(slot - 1, 0)
    counters.advance()
    due = cache.clone()
    due[0, :, :, slot], due[1, :, :, slot] = heads[:, 4:6], heads[:, 6:]
    right = []
    for row in range(3):
        start = max(int(first[row]), 0 if layer.window is None else slot + 1 - layer.window)
        slots = list(range(start, slot + 1))
        for head in range(4):
            of = due[:, row, head // 2]
            right.append(_gathered(heads[row, head], of[0], of[1], slots, layer.score_cap))
    for ops in (TorchOps(), DeviceOps()):
        own = cache.clone()
        found = ops.attend(layer, heads, None, own, first, counters)
        if not (
            torch.equal(own, due)
            and torch.allclose(found.double().reshape(-1, 3), torch.stack(right), atol=1e-5)
        ):
            return False
    return True


def _turns(stream: random.Random) -> bool:
    """Return whether both kinds of plain operations normalise and turn heads: both, one of the two, or neither."""
    layer, per_head, slot = _layer(stream), stream.random() < 0.5, 4
    layer.window = layer.score_cap = None
    weight = made_tensor(stream, (6, 3) if per_head else (3,)) / 8
    kind = stream.choice((None, Norm, CentredNorm))
    if kind is not None:
        layer.qk_norm = Norm(weight, 0.25) if kind is Norm else CentredNorm(weight, None, 0.25)
    rotary = Rotary.of(torch.tensor([1.5]), 1.25, head_dim=3)
    turns = stream.choice((None, Turns(rotary, torch.stack(rotary.tables(6, torch.float32)))))
    heads = made_tensor(stream, (2, 8, 3)) / 8
    first = torch.tensor([0, stream.randint(0, slot)])
    due = heads[:, :6].double()
    if kind is not None:
        due = due - due.mean(-1, keepdim=True) * (kind is CentredNorm)
        due = due / (due.square().mean(-1, keepdim=True) + 0.25).sqrt() * weight.double()
    if turns is not None:  # the first pair alone: the last of the three stays as it is
        for row in range(2):
            angle = 1.5 * (slot - int(first[row]))
            cos, sin = 1.25 * math.cos(angle), 1.25 * math.sin(angle)
            one, other = due[row, :, 0].clone(), due[row, :, 1].clone()
            due[row, :, 0], due[row, :, 1] = one * cos - other * sin, other * cos + one * sin
    counters = Counters(torch.device("cpu"))
    counters.set(slot, 0)
    for ops in (TorchOps(), DeviceOps()):
        cache = made_tensor(stream, (2, 2, 2, 6, 3)) / 8
        found = ops.attend(layer, heads, turns, cache, first, counters).double().reshape(2, 4, 3)
        keys = cache[0, :, :, slot].double()
        right = [
            _gathered(
                due[row, head],
                cache[0, row, head // 2],
                cache[1, row, head // 2],
                [*range(int(first[row]), slot + 1)],
                None,
            )
            for row in range(2)
            for head in range(4)
        ]
        if not (
            torch.allclose(keys, due[:, 4:], atol=1e-5)
            and torch.allclose(found.reshape(8, 3), torch.stack(right), atol=1e-5)
        ):
            return False
    return True


def _reads(stream: random.Random) -> bool:
    """Return whether the tokens of a prompt attend to themselves and those before them, and nothing later."""
    layer, length = _layer(stream), stream.randint(2, 4)
    layer.window = None
    heads = made_tensor(stream, (1, length, 8, 3)) / 8
    keys, values = torch.zeros(1, 2, length, 3), torch.zeros(1, 2, length, 3)
    slots = LayerSlots(keys_BKSH=keys, values_BKSH=values, new_keys_BKTH=keys, new_values_BKTH=values)
    found = _attend(layer, slots, heads, None, None)
    right = [
        _gathered(
            heads[0, token, head],
            heads[0, :, 4 + head // 2],
            heads[0, :, 6 + head // 2],
            list(range(token + 1)),
            layer.score_cap,
        )
        for token in range(length)
        for head in range(4)
    ]
    return torch.allclose(found.double().reshape(-1, 3), torch.stack(right), atol=1e-5)


def _norms(stream: random.Random) -> bool:
    """Return whether norms with any offset, bias and weight a head are those of single rows in float64."""
    per_head, offset, eps = stream.random() < 0.5, stream.choice((0.0, 1.0)), 0.25
    weight = made_tensor(stream, (2, 3) if per_head else (3,)) / 8
    inputs = made_tensor(stream, (4, 2, 3))
    kind, has_bias, rounds_last = (
        stream.choice((Norm, CentredNorm)),
        stream.random() < 0.5,
        stream.random() < 0.5,
    )
    if kind is Norm:
        norm: Any = Norm(weight, eps, offset=offset, rounds_last=rounds_last)
        bias = None
    else:
        bias = made_tensor(stream, (3,)) if has_bias and not per_head else None
        norm = CentredNorm(weight, bias, eps, offset=offset)
    rows = inputs.double()
    rows = rows - rows.mean(-1, keepdim=True) * (kind is CentredNorm)
    due = rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt() * (weight.double() + offset)
    due = due if bias is None else due + bias.double()
    low = norm(inputs.to(torch.bfloat16))
    exact = torch.allclose(norm(inputs).double(), due, rtol=1e-5, atol=1e-5)
    return exact and torch.allclose(low.double(), due, rtol=0.02, atol=0.02)


def _of_norms() -> Iterator[WorkedExample]:
    ones = torch.ones(6), torch.ones(2)
    queries, keys = torch.tensor([3.0, 1.0, 1.0, 3.0, 2.0, 2.0]), torch.tensor([0.0, 4.0])
    heads = torch.cat([queries, keys]).reshape(4, 2)
    for name, make in (("root mean square", Norm), ("centred", CentredNorm)):
        options: Any = {} if make is Norm else {"bias": None}
        wide = WideNorm(make(ones[0], eps=1e-12, **options), make(ones[1], eps=1e-12, **options), 3)

        def right(values: Tensor, kind: str = name) -> list[float]:
            centred = values - values.mean() * (kind == "centred")
            return cast(list[float], (centred / centred.square().mean().sqrt()).tolist())

        due = [*right(queries), *right(keys)]
        yield example(f"a {name} norm over heads", due, lambda of=wide: of(heads).flatten())
        yield example(
            f"tensors of a {name} norm over heads", True, lambda of=wide: len(list(of.tensors())) % 2 == 0
        )


def _probe(off: float, precision: torch.dtype = torch.float32, *, fails: bool = False) -> Any:
    facts = SimpleNamespace(vocab_size=9)
    model: Any = SimpleNamespace(device="cpu", config=SimpleNamespace(get_text_config=lambda: facts))

    def forward(model: Any, made: Batch) -> Any:
        if fails:
            raise ValueError("no\n such form")
        moved = torch.zeros(3, 5)
        moved[1, 4] = off
        return moved, moved

    options = {"policy.one": True, "policy.two": False, "policy.three": True}
    return scoring._probe(options, model, forward, lambda *words: (torch.zeros(3, 5),) * 2, precision)


def _of_probes() -> Iterator[WorkedExample]:
    bfloat16 = torch.bfloat16
    for off, precision in ((0.0, torch.float32), (-9e-4, torch.float32), (0.24, bfloat16)):
        yield example(f"a probe that differs by {off}", None, _probe, off, precision)
    for off, precision, said in (
        (1.1e-3, torch.float32, "0.0011 from its own forward, more than 0.001"),
        (-1.1e-3, torch.float32, "0.0011"),
        (-0.26, bfloat16, "0.26 from its own forward, more than 0.25"),
        (math.nan, torch.float32, "nan"),
        (math.inf, bfloat16, "inf"),
    ):
        words = f"policy.one with policy.three: log-probabilities of SimpleNamespace differ by {said}"
        yield refused(words, f"a probe that differs by {off}", _probe, off, precision)
    yield refused(
        "SimpleNamespace does not take it (no such form)", "a probe that fails", _probe, 0.0, fails=True
    )

    def window(length: int, window: int | None) -> None:
        facts = SimpleNamespace(**({} if window == 0 else {"sliding_window": window}))
        model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: facts))
        scoring.check_window("policy.x", cast(Any, SimpleNamespace(max_total_sequence_length=length)), model)

    for length, size in ((4, 4), (4, None), (4, 0), (3, 4)):
        yield example(f"rows of {length} in a window of {size}", None, window, length, size)
    yield refused(
        "policy.x: the model attends over a sliding window of 4 tokens", "rows of 5 in a window", window, 5, 4
    )


def _of_passes() -> Iterator[WorkedExample]:
    cases: tuple[tuple[int, int, Any, list[int], list[int]], ...] = (
        (1, 0, None, [0, 1, 2], [0, 1, 2]),
        (1, 0, [[2, 0], [1]], [2, 0, 1], [2, 0, 1]),
        (2, 0, [[0]], [0], [0]),
        (2, 1, [[1], [0]], [1, 0], [2, 1]),
        (2, 1, None, [0, 1], [1, 2]),
        (3, 2, None, [0], [2]),
    )
    for ranks, rank, given, places, rows in cases:
        name = f"passes of rank {rank} of {ranks}, rows {given}"
        yield example(name, (places, [PROMPTS[row] for row in rows]), _passes, ranks, rank, given)
    for packs in (False, True):
        yield example(f"states of rows, packed: {packs}", [], _states, packs)


PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8, 1], [2, 2, 3]]
"""The rows of `batch`, without padding."""


def _passes(ranks: int, rank: int, given: Any) -> Any:
    """Return the places of a rank's rows by pass, and their tokens."""
    data = SimpleNamespace(
        size=ranks, share=lambda num: slice(num * rank // ranks, num * (rank + 1) // ranks)
    )
    policy: Any = SimpleNamespace(_data=data, _even=lambda passes, of: passes)
    cut: Any = SimpleNamespace(
        micro_batches=lambda own: [([row], own.rows([row])) for row in range(own.num_rows)]
    )
    found = ModulePolicy._passes(policy, batch(), cut, given)
    ids = [ids for _, micro in found for ids in micro.input_ids_BS.tolist()]
    return [place for of, _ in found for place in cast(list[int], of or [])], [
        [one for one in row if one != PAD] for row in ids
    ]


def _states(packs: bool) -> list[int]:
    """Return the rows whose states are not those of their own tokens, where a token's state is the sum up to it."""
    made = batch()

    def model(input_ids: Tensor, attention_mask: Tensor, use_cache: bool, position_ids: Any = None) -> Any:
        seen = (
            attention_mask[:, 0] == 0
            if packs
            else attention_mask[:, None].bool().expand(-1, input_ids.shape[1], -1).tril()
        )
        states = (seen * input_ids[:, None]).sum(-1, keepdim=True).float()
        return SimpleNamespace(last_hidden_state=states)

    states = scoring._packed_states if packs else scoring._padded_states
    found = states(cast(Any, SimpleNamespace(base_model=model, dtype=torch.float32)), made)[..., 0]
    due = (made.input_ids_BS * made.attention_mask_BS).cumsum(1)
    own = made.attention_mask_BS.bool()
    return [row for row in range(3) if found[row][own[row]].tolist() != due[row][own[row]].tolist()]


def _of_claims() -> Iterator[WorkedExample]:
    kinds: Mapping[str, Mapping[str, Any]] = {
        "grpo": {"estimator": "grpo"},
        "rloo": {"estimator": "rloo"},
        "of batches": {"estimator": "reinforce_plus_plus_baseline"},
    }
    own = {"grpo": "group", "rloo": "none", "of batches": "batch"}
    for name, section in kinds.items():
        for scale in (None, "none", "batch"):
            if scale == own[name] or (scale and name != "grpo"):
                continue
            config = {**section, **({"scale": scale} if scale else {}), "epsilon": 0.25}
            due = {
                "estimator": section["estimator"],
                "scale": scale or own[name],
                "epsilon": 0.25,
                "unbiased": True,
            }
            yield example(f"what advantages claim: {name}, {scale}", due, _claimed, config)
    yield example(
        "losses that are refrl's own",
        [True, False],
        lambda: [LossConfig.model_validate(one).is_built_in for one in ({}, {"kind": CUSTOM_LOSS})],
    )
    yield example(
        "advantages that are refrl's own",
        [True, False],
        lambda: [
            AdvantageConfig.model_validate(one).is_built_in for one in ({}, {"estimator": CUSTOM_ADVANTAGES})
        ],
    )
    yield example(
        "what other losses claim",
        None,
        lambda: losses.specification(LossConfig.model_validate({"kind": CUSTOM_LOSS})),
    )


CUSTOM_LOSS = "seatrial.targets.reference.parts.custom:Weighed"
CUSTOM_ADVANTAGES = "seatrial.targets.reference.parts.custom:Scaled"


def _claimed(config: Mapping[str, Any]) -> Any:
    return specification(AdvantageConfig.model_validate(config))


def _of_ranks() -> Iterator[WorkedExample]:
    def meeting(**variables: str) -> Any:
        made: list[Any] = []

        def store(*words: Any, **options: Any) -> str:
            made.append((words, options))
            return "store"

        world: Any = SimpleNamespace(world_size=3, size=3)
        with (
            patch.dict("os.environ", variables),
            patch.object(torch.distributed, "TCPStore", store),
        ):
            for name in {RENDEZVOUS, LISTENING} - variables.keys():
                os.environ.pop(name, None)
            return distributed._meeting(world), made

    options = {"is_master": False, "master_listen_fd": None}
    for name, variables, right in (
        ("by the environment", {}, ({"init_method": "env://"}, [])),
        ("at a file", {RENDEZVOUS: "file:///x"}, ({"init_method": "file:///x"}, [])),
        ("at a host", {RENDEZVOUS: "tcp://h:12"}, ({"store": "store"}, [(("h", 12, 3), options)])),
        (
            "where it listens",
            {RENDEZVOUS: "tcp://::1:12", LISTENING: "0"},
            ({"store": "store"}, [(("::1", 12, 3), {"is_master": True, "master_listen_fd": 0})]),
        ),
    ):
        yield example(f"where ranks meet: {name}", right, meeting, **variables)

    def shared() -> Any:
        model: Any = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1)), nn.Linear(1, 1))
        for place in (0, 2):
            model[place].layer_idx = place
        model[1][0].layer_idx = 1
        model.config = SimpleNamespace()
        known: list[Any] = []
        with patch.object(AttentionInterface, "register", lambda *words: known.append(words)):
            context_parallel.share_sequences(model, cast(Any, SimpleNamespace(get_group=lambda: "group")))
        groups = [getattr(one, "context_group", None) for one in (model[0], model[1], model[1][0], model[2])]
        return groups, model.config._attn_implementation == known[0][0]

    yield example("layers that share sequences", (["group", None, "group", "group"], True), shared)
