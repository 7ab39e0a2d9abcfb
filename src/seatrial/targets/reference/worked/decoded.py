"""Worked examples of sampling loops, against plain ones of a row at a time, and of the engine on Megatron-core."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from refrl.generation.base import SamplingParams
from refrl.generation.decoder import PaddedPrompts, pad_prompts
from refrl.generation.decoding import SampledRow, compacting_order, decode
from refrl.generation.megatron import engine as engines
from refrl.generation.receiving import StagedEngine
from refrl.generation.sampling import draw, row_uniforms
from refrl.generation.static.decoding import decode_in_blocks
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.decoder_forms import of_decoder_forms
from seatrial.targets.reference.worked.made import example, for_all, refused
from seatrial.targets.reference.worked.made_packages import package

VOCABULARY = 7
STOPS = frozenset((5, 6))


def of_decoding() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all(
        {"rows of a sampling loop": (_rows, 12), "rows of a loop over blocks": (_rows_in_blocks, 12)}
    )
    for num, ended, right in (
        (4, [1], [0, 3, 2]),
        (4, [0, 1], [2, 3]),
        (5, [4, 1], [0, 3, 2]),
        (3, [0, 1, 2], []),
    ):
        yield example(f"the places of {num} rows, of which {ended} end", right, compacting_order, num, ended)
    yield from of_decoder_forms()
    if find_spec("megatron") is not None:
        yield from _of_megatron()


def _logits(ids: Sequence[int]) -> Tensor:
    """Return the logits after some ids, which depend on each of them and its place."""
    number = sum((place + 2) * (token + 1) ** 2 for place, token in enumerate(ids))
    return torch.tensor([3.0 * math.sin(number * (token + 1.37)) for token in range(VOCABULARY)])


class Decoder:
    """A decoder that knows the whole of each row."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.num_read = 0

    def prefill(self, prompts: PaddedPrompts) -> Tensor:
        """Read prompts without their padding."""
        self.rows = [
            row[-length:]
            for row, length in zip(prompts.ids_PS.tolist(), prompts.lens_P.tolist(), strict=True)
        ]
        self.num_read = len(self.rows)
        return self._logits()

    def expand(self, prompt_of_row_B: Tensor) -> None:
        """Make rows of prompts."""
        self.keep(prompt_of_row_B)

    def step(self, ids_B: Tensor) -> Tensor:
        """Append a token to each row."""
        for row, token in zip(self.rows, ids_B.tolist(), strict=True):
            row.append(token)
        return self._logits()

    def keep(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.rows = [list(self.rows[row]) for row in rows.tolist()]

    def _logits(self) -> Tensor:
        return torch.stack([_logits(row) for row in self.rows])


class BlockDecoder(Decoder):
    """A decoder of blocks; what it samples after a row's end is of no use, and not a number."""

    def __init__(self, block_tokens: int) -> None:
        super().__init__()
        self.block_tokens = block_tokens

    def start(
        self, prompts: PaddedPrompts, of_row_B: Tensor, uniforms_BT: Tensor, params: SamplingParams
    ) -> None:
        """Sample each row's first token."""
        logits = self.prefill(prompts)[of_row_B]
        self.expand(of_row_B)
        self._uniforms, self._params = uniforms_BT, params
        self._lines: list[tuple[list[int], Tensor, Tensor | None]] = []
        self._draw(logits)
        self._num_kept = 0

    def _draw(self, logits: Tensor) -> None:
        over = torch.tensor(
            [bool(STOPS & set(row[-len(self._lines) :])) if self._lines else False for row in self.rows]
        )
        drawn = draw(logits, self._uniforms[:, len(self._lines)], self._params)
        logprobs = drawn.logprobs_B.masked_fill(over, math.nan)
        self._lines.append((drawn.ids_B.tolist(), logprobs, drawn.kept_BV))

    def run(self, num_tokens: int) -> None:
        """Sample so many tokens more."""
        for _ in range(num_tokens):
            self._draw(self.step(torch.tensor(self._lines[-1][0])))

    def sampled(self, start: int) -> tuple[list[list[int]], Tensor]:
        """Return ids and log-probabilities from a token on."""
        lines = self._lines[start:]
        return [ids for ids, _, _ in lines], torch.stack([logprobs for _, logprobs, _ in lines])

    def kept(self) -> Tensor | None:
        """Return the kept ids since the last call."""
        lines, self._num_kept = self._lines[self._num_kept :], len(self._lines)
        found = [kept for _, _, kept in lines if kept is not None]
        return torch.stack(found) if found else None

    def keep(self, rows: Any) -> None:
        """Keep these rows, their random numbers and last tokens."""
        chosen = rows if isinstance(rows, Tensor) else torch.tensor(rows)
        super().keep(chosen)
        if hasattr(self, "_lines") and self._lines:
            self._uniforms = self._uniforms[chosen]
            last = self._lines[-1][0]
            self._lines[-1] = ([last[row] for row in chosen.tolist()], *self._lines[-1][1:])


def _plain(
    prompts: Sequence[tuple[int, ...]], params: SamplingParams, uniforms_BT: Tensor, num_tokens: Sequence[int]
) -> list[tuple[Any, ...]]:
    """Return each row's ids, log-probabilities and kept ids, a row and a token at a time.

    Args:
        num_tokens: that each row may have, less than all where the loop gives up.
    """
    rows = []
    filtered = not params.greedy and (params.top_p < 1 or (params.top_k or VOCABULARY) < VOCABULARY)
    for prompt, uniforms_T, most in zip(prompts, uniforms_BT, num_tokens, strict=True):
        ids: list[int] = []
        logprobs: list[float] = []
        kept: list[tuple[int, ...]] = []
        while len(ids) < most and not (ids and ids[-1] in STOPS):
            drawn = draw(_logits([*prompt, *ids])[None], uniforms_T[len(ids)][None], params)
            ids.append(int(drawn.ids_B))
            logprobs.append(float(drawn.logprobs_B))
            if drawn.kept_BV is not None:
                kept.append(tuple(drawn.kept_BV[0].nonzero().flatten().tolist()))
        rows.append((tuple(ids), tuple(logprobs), tuple(kept) if filtered else None))
    return rows


def _same(found: Sequence[SampledRow], due: Sequence[tuple[Any, ...]]) -> bool:
    return len(found) == len(due) and all(
        (row.ids, row.kept_ids) == (ids, kept)
        and all(math.isclose(a, b, abs_tol=1e-5) for a, b in zip(row.logprobs, logprobs, strict=True))
        for row, (ids, logprobs, kept) in zip(found, due, strict=True)
    )


def _inputs(stream: random.Random) -> tuple[list[tuple[int, ...]], SamplingParams, Tensor]:
    """Return prompts, some of them equal and of other lengths; parameters; and random numbers."""
    some = [tuple(stream.randrange(5) for _ in range(stream.randint(1, 4))) for _ in range(3)]
    prompts = [stream.choice(some) for _ in range(stream.randint(1, 6))]
    options: dict[str, Any] = stream.choice(
        ({}, {"top_k": 3}, {"top_p": 0.6}, {"greedy": True}, {"temperature": 2.0}, {"top_k": 2, "top_p": 0.9})
    )
    params = SamplingParams(max_new_tokens=stream.randint(1, 8), **options)
    uniforms = row_uniforms(
        len(prompts), params.max_new_tokens, torch.Generator().manual_seed(stream.randrange(99))
    )
    return prompts, params, uniforms


def _rows(stream: random.Random) -> bool:
    """Return whether a loop gives each row what it has by itself, up to where the loop gives up."""
    prompts, params, uniforms = _inputs(stream)
    most = stream.choice((99, 1, 2, 3))
    asked: list[int] = []

    def gives_up() -> bool:
        asked.append(0)
        return len(asked) >= most

    decoder = Decoder()
    found = decode(decoder, prompts, params, uniforms, stop_ids=STOPS, pad_token_id=0, gives_up=gives_up)
    due = _plain(prompts, params, uniforms, [min(most, params.max_new_tokens)] * len(prompts))
    return _same(found, due) and decoder.num_read == len(set(prompts))


def _rows_in_blocks(stream: random.Random) -> bool:
    """Return whether a loop over blocks does so; it gives up after a block."""
    prompts, params, uniforms = _inputs(stream)
    most, block = stream.choice((99, 1, 2)), stream.randint(1, 4)
    asked: list[int] = []

    def gives_up() -> bool:
        asked.append(0)
        return len(asked) >= most

    decoder: Any = BlockDecoder(block)
    found = decode_in_blocks(
        decoder, prompts, params, uniforms, stop_ids=STOPS, pad_token_id=0, gives_up=gives_up
    )
    tokens = min(1 + (most - 1) * block, params.max_new_tokens)
    return _same(
        found, _plain(prompts, params, uniforms, [tokens] * len(prompts))
    ) and decoder.num_read == len(set(prompts))


def _of_megatron() -> Iterator[WorkedExample]:
    right = [
        (2, 5),
        [[[True, False], [False, True]], [[True, False], [True, True]]],
        [[[False, True, True]], [[True, True, True]], [[False, True, True]]],
        [[[True, True, True, True]]],
        [[9.0], [8.0]],
    ]
    yield example("what tokens of a decoder on Megatron-core see", right, _seen)
    for stop in (None, (4,)):
        yield example(f"rows of Megatron-core, with the end tokens {stop}", [], _generated, stop)
    yield example("no prompts for Megatron-core", [], _generated_of, [])
    for words, prompt in (
        ("prompt 0 has 8 tokens", (1,) * 8),
        ("outside the vocabulary of 5", (5,)),
        ("is empty", ()),
    ):
        yield refused(words, f"a prompt for Megatron-core: {words}", _generated_of, [prompt])
    yield example("what an engine on Megatron-core is made of", ["model", 12, "served", 3, 10, True], _made)
    yield example("weights of an engine on Megatron-core", [{"a": 1.0}, [("b", 2.0)]], _weights)


def _seen() -> list[Any]:
    """Return the size of the cache, and what tokens see: of two prompts, of three rows, of one that is kept."""

    class Context:
        def __init__(self, rows: int, slots: int) -> None:
            self.sizes = rows, slots
            self.sequence_len_offset = 0
            self.key_value_memory_dict: Any = {1: (torch.tensor([[8.0, 9.0]]), torch.tensor([[8.0, 9.0]]))}

        def enable_decode_mode(self) -> None:
            """Nothing changes."""

    seen: list[Any] = []

    def module(ids: Tensor, places: None, mask: Tensor, **options: Any) -> Tensor:
        seen.append(mask[:, 0].tolist())
        return torch.zeros(*ids.shape, 4)

    made: Any = module
    decoder = engines.MegatronDecoder(made, vocab_size=3, max_new_tokens=4)
    with patch.dict(
        "sys.modules", {"megatron.core.inference.contexts": package("x", StaticInferenceContext=Context)}
    ):
        decoder.prefill(pad_prompts([(1,), (2, 3)], 0, torch.device("cpu")))
    decoder.expand(torch.tensor([0, 1, 0]))
    cache = decoder._cache
    cache.key_value_memory_dict = {1: (torch.tensor([[7.0, 8.0, 9.0]]), torch.tensor([[7.0, 8.0, 9.0]]))}
    decoder.step(torch.tensor([1, 1, 1]))
    decoder.keep(torch.tensor([2, 1]))
    memory = [one.tolist()[0] for one in cache.key_value_memory_dict[1]]
    decoder.keep(torch.tensor([1]))
    decoder.step(torch.tensor([1]))
    return [cache.sizes, seen[0], seen[1], seen[2], [[one] for one in memory[0]]]


def _engine(**parts: Any) -> Any:
    made = object.__new__(engines.MegatronGenerator)
    aborting = SimpleNamespace(is_set=lambda: "aborting")
    module = SimpleNamespace(parameters=lambda: iter([torch.zeros(1)]))
    vars(made).update(
        {
            "_limit": 10, "_pad_token_id": 3, "_check_serving": lambda: None, "_aborting": aborting,
            "_embedding": lambda: SimpleNamespace(num_embeddings=5), "stop_ids": lambda: frozenset((2,)),
            "_served_model": SimpleNamespace(module=module), **parts,
        }
    )  # fmt: skip
    return made


def _generated_of(prompts: Sequence[Sequence[int]]) -> Any:
    return _engine().generate(prompts, SamplingParams(max_new_tokens=3), torch.Generator())


def _generated(stop: tuple[int, ...] | None) -> list[str]:
    """Return what differs of rows that are sampled, and of what they are sampled with."""
    params = SamplingParams(max_new_tokens=2, stop_token_ids=stop, top_k=2)
    ends = frozenset(stop) if stop is not None else frozenset((2,))
    seen: dict[str, Any] = {}
    sampled = [SampledRow((1, 4), (-0.5, -0.25), ((1,), (4,))), SampledRow((2,), (-1.0,), ((2, 3),))]

    def made(module: Any, *, vocab_size: int, max_new_tokens: int) -> str:
        seen["decoder"] = vocab_size, max_new_tokens
        return "decoder"

    def run(decoder: str, rows: Any, own: Any, uniforms: Tensor, **options: Any) -> Any:
        seen["grad"] = torch.is_grad_enabled()
        seen["run"] = decoder, rows, own is params, options.pop("gives_up")()
        seen["options"], seen["uniforms"] = options, uniforms
        return sampled

    engine = _engine()
    with (
        patch.object(engines.MegatronGenerator, "weight_version", 6),
        patch.object(engines, "MegatronDecoder", made),
        patch.object(engines, "decode", run),
    ):
        found = engine.generate([[1, 2], [3]], params, torch.Generator().manual_seed(4))
    due = row_uniforms(2, 2, torch.Generator().manual_seed(4))
    reasons = [
        "stop" if row.ids[-1] in ends else "length" if len(row.ids) == 2 else "abort" for row in sampled
    ]
    holds = {
        "decoder": seen["decoder"] == (5, 2),
        "gradients": not seen["grad"],
        "loop": seen["run"] == ("decoder", [(1, 2), (3,)], True, "aborting"),
        "options": seen["options"] == {"stop_ids": ends, "pad_token_id": 3},
        "random numbers": torch.equal(seen["uniforms"], due),
        "ids": [row.ids for row in found] == [row.ids for row in sampled],
        "prompts": [row.prompt_ids for row in found] == [(1, 2), (3,)],
        "logprobs": [row.logprobs for row in found] == [row.logprobs for row in sampled],
        "kept": [row.kept_ids for row in found] == [row.kept_ids for row in sampled],
        "ends": [row.finish_reason for row in found] == reasons,
        "version": [row.weight_version for row in found] == [6, 6],
    }
    return [name for name, one in holds.items() if not one]


def _made() -> list[Any]:
    noted: list[Any] = []
    served: Any = "served"
    model: Any = "model"

    def init(self: Any, model: Any, *, load_batch_bytes: int) -> None:
        noted.extend([model, load_batch_bytes])

    with patch.object(StagedEngine, "__init__", init):
        own: Any = engines.MegatronGenerator(model, served, pad_token_id=3, limit=10, load_batch_bytes=12)
    return [
        *noted,
        own._served_model,
        own._pad_token_id,
        own._limit,
        own.engine == f"megatron-core {version('megatron-core')}",
    ]


def _weights() -> list[Any]:
    taken: list[Any] = []
    served = SimpleNamespace(
        take=lambda weights: taken.append({name: float(one) for name, one in weights.items()}),
        weights=lambda: [("b", torch.tensor(2.0))],
    )
    own = _engine(_served_model=served)
    own._take([("a", torch.tensor(1.0))])
    return [*taken, [(name, float(one)) for name, one in own._served()]]
