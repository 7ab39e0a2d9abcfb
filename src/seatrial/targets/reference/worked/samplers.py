"""Worked examples of samplers: how rows end, what an engine takes and keeps, requests in parts, rows with media."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refrl.distributed import World
from refrl.generation.base import Completion, SamplingParams
from refrl.generation.decoder import PaddedPrompts
from refrl.generation.decoding import decode, finish_reason
from refrl.generation.lean_support import supports_lean
from refrl.generation.pool import GenerationReply, GenerationRequest, answer, carry_on
from refrl.generation.quantized import quantize_layers
from refrl.generation.torch_engine import TorchGenerator
from refrl.media import pack
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rollout.sync import RolloutWorker, SharedGenerator, SharedMediaGenerator, shared
from refrl.tasks import Example
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.limits.models import VOCABULARY, model_of
from seatrial.targets.reference.worked.made import example, refused

PROMPTS = ((3, 4), (5,), (3, 4))


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_ends()
    yield from _of_engines()
    yield from _of_architectures()
    yield from _of_parts()
    yield from _of_media()


def _stream(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _engine(kind: str = "llama", traits: dict[str, Any] | None = None, **options: Any) -> TorchGenerator:
    return TorchGenerator(model_of(kind, **(traits or {})), 0, **options)


def _of_ends() -> Iterator[WorkedExample]:
    for ids, right in (((5, 2), "stop"), ((5, 2, 5), "length"), ((5, 5, 2), "stop"), ((2, 5), "abort")):
        yield example(
            f"the end of {ids}", right, finish_reason, ids, SamplingParams(max_new_tokens=3), frozenset({2})
        )

    def ends(stop: tuple[int, ...] | None, most: int = 3, **options: Any) -> list[tuple[int, str]]:
        params = SamplingParams(max_new_tokens=most, stop_token_ids=stop)
        rows = _engine(**options).generate(PROMPTS, params, _stream())
        return [(len(row.ids), row.finish_reason) for row in rows]

    every = tuple(range(VOCABULARY))
    ending = {"eos_token_id": list(every)}
    decoders: dict[str, dict[str, Any]] = {
        "token by token": {},
        "in blocks": {"block_tokens": 2},
        "own": {"lean": False},
    }
    for name, paths in decoders.items():
        yield example(f"rows that may not end, {name}", [(3, "length")] * 3, ends, (), **paths)
        yield example(f"rows that end at once, {name}", [(1, "stop")] * 3, ends, every, **paths)
        yield example(f"rows of one token, {name}", [(1, "length")] * 3, ends, (), 1, **paths)
        yield example(
            f"the model's end tokens, {name}", [(1, "stop")] * 3, ends, None, traits=ending, **paths
        )
        yield example(
            f"no end token in place of the model's, {name}",
            [(3, "length")] * 3,
            ends,
            (),
            traits=ending,
            **paths,
        )
    yield example(
        "the end tokens of a model", every, lambda: tuple(sorted(_engine(traits=ending).stop_ids()))
    )
    for name, options in {"token by token": {}, "in blocks": {"block_tokens": 2}}.items():
        yield example(f"rows that are given up, {name}", ([1] * 3, "abort", [5] * 3), _given_up, options)


def _given_up(options: dict[str, Any]) -> Any:
    engine, params = _engine(**options), SamplingParams(max_new_tokens=5, stop_token_ids=())
    engine.abort()
    given_up = engine.generate(PROMPTS, params, _stream())
    engine.resume()
    whole = engine.generate(PROMPTS, params, _stream())
    return [len(row.ids) for row in given_up], given_up[0].finish_reason, [len(row.ids) for row in whole]


def _of_engines() -> Iterator[WorkedExample]:
    params = SamplingParams(max_new_tokens=2, stop_token_ids=())
    yield example("no prompts", [], _engine().generate, [], params, _stream())
    yield example("prompts of rows", list(PROMPTS), lambda: [row.prompt_ids for row in _sampled(_engine())])
    yield example("weights that are copied", (7, [7] * 3, True, 0), _loaded)
    for kind, options in (("llama", {}), ("qwen3", {"block_tokens": 2}), ("gemma2", {"block_tokens": 2})):
        yield example(f"weights of a {kind} that change with {options}", True, _changed, kind, options)
    yield example("weights that are shared", True, _shares)
    for kind, options in (("llama", {}), ("llama", {"block_tokens": 2}), ("gpt2", {})):
        yield example(f"modes of a {kind} with {options}", (True, [True, False]), _modes, kind, options)
    yield example("layers in int8", "14 layers in int8", lambda: _quantized().engine.split(", ")[1])
    yield example(
        "int8 weights that are loaded", (True, True), _loaded_int8
    )  # the scales of rows follow the weights
    words = "static decoding in blocks of 3 tokens"
    yield example("an engine in blocks", words, lambda: _engine(block_tokens=3).engine.split(", ")[-1])
    words = "no static decoding: it does not serve GPT2LMHeadModel as it is here"
    yield example("no blocks", words, lambda: _engine("gpt2", block_tokens=3).engine.split(", ")[-1])
    plain = f"torch {torch.__version__}"
    yield example("a plain engine", (plain, plain), lambda: (_engine().engine, _engine("gpt2").engine))
    yield example("one seed", (True, False), lambda: _again())


def _sampled(engine: TorchGenerator, seed: int = 3, num: int = 2) -> list[Completion]:
    return engine.generate(PROMPTS, SamplingParams(max_new_tokens=num, stop_token_ids=()), _stream(seed))


def _loaded() -> Any:
    engine, other = _engine(), model_of("llama", seed=5)
    given = [*other.named_parameters(), *other.named_buffers()]
    right = {name: tensor.detach().clone() for name, tensor in given}
    engine.load_weights(iter(given), 7)
    with torch.no_grad():
        for _, tensor in given:
            tensor.add_(1)
    same = [torch.equal(tensor, right.pop(name)) for name, tensor in engine.named_weights()]
    return engine.weight_version, [row.weight_version for row in _sampled(engine)], all(same), len(right)


def _changed(kind: str, options: dict[str, Any]) -> bool:
    """Return whether an engine whose weights were loaded after a call samples as a new one with these weights."""
    engine, other = _engine(kind, **options), model_of(kind, seed=5)
    _sampled(engine, num=5)
    engine.load_weights(iter([*other.named_parameters(), *other.named_buffers()]), 7)
    found, right = (_sampled(of, num=5) for of in (engine, TorchGenerator(other, 0, **options)))
    return [(row.ids, row.logprobs) for row in found] == [(row.ids, row.logprobs) for row in right]


def _shares() -> bool:
    engine, other = _engine(), model_of("llama", seed=5)
    given = {**dict(other.named_parameters()), **dict(other.named_buffers())}
    engine.share_weights(iter(given.items()))
    return all(tensor.data_ptr() == given[name].data_ptr() for name, tensor in engine.named_weights())


def _modes(kind: str, options: dict[str, Any]) -> Any:
    """Sample with a model in training, of which one module is not, and with one that is not in training."""
    dropped: dict[str, Any] = {"gpt2": {"resid_pdrop": 0.9, "embd_pdrop": 0.9}}.get(
        kind, {"attention_dropout": 0.9}
    )
    model: Any = model_of(kind, **dropped)
    engine = TorchGenerator(model, 0, **options)
    right = [row.ids for row in _sampled(engine, num=5)]
    model.train()
    last = list(model.modules())[-1]
    last.training = False
    found = [row.ids for row in _sampled(engine, num=5)]
    others = all(module.training for module in model.modules() if module is not last)
    return found == right, [others, last.training]


def _quantized() -> TorchGenerator:
    model = model_of("llama")
    quantize_layers(model)
    return TorchGenerator(model, 0)


def _loaded_int8() -> tuple[bool, bool]:
    """Return whether an engine in int8 computes alike with weights that it loads and that it is made of."""
    loaded, other = _quantized(), model_of("llama", seed=5)
    loaded.load_weights(iter([*other.named_parameters(), *other.named_buffers()]), 2)
    quantize_layers(other)
    right = dict(TorchGenerator(other, 0).named_weights())
    same = [torch.equal(tensor, right[name]) for name, tensor in loaded.named_weights()]
    return all(same), len(same) == len(right)


def _again() -> tuple[bool, bool]:
    engine = _engine()
    first, second, other = (_sampled(engine, seed, 9) for seed in (3, 3, 4))
    return first == second, first == other


def _of_architectures() -> Iterator[WorkedExample]:
    fixed = {"factor": 2.0, "original_max_position_embeddings": 32}
    kinds: dict[str, dict[str, Any]] = {
        "default": {},
        "linear": {"factor": 2.0},
        "dynamic": {"factor": 2.0},
        "yarn": fixed,
        "llama3": {**fixed, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    }
    for kind, more in kinds.items():
        scaling = {"rope_scaling": {"rope_type": kind, **more}}
        yield example(
            f"the lean decoder with rotary embeddings that are {kind}",
            kind != "dynamic",
            lambda of=scaling: supports_lean(model_of("llama", **of)),
        )
    for kind, right in (("gemma3_text", True), ("gpt2", False)):
        yield example(f"the lean decoder of a {kind}", right, lambda of=kind: supports_lean(model_of(of)))
    yield example("the lean decoder of a hooked model", False, _hooked)
    yield example("the lean decoder of weights of two types", False, _mixed)


def _hooked() -> bool:
    model: Any = model_of("llama")
    model.model.layers[1].mlp.register_forward_hook(lambda module, inputs, output: output)
    return supports_lean(model)


def _mixed() -> bool:
    model: Any = model_of("llama")
    model.model.norm.to(torch.bfloat16)
    return supports_lean(model)


class _Parts:
    """An engine that gives each row the tokens that are planned for its prompt's length, and notes its calls."""

    def __init__(self, plans: dict[int, tuple[tuple[int, ...], Any]]) -> None:
        self._plans = plans
        self.calls: list[tuple[list[int], int]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.calls.append(([len(prompt) for prompt in prompts], params.max_new_tokens))
        rows = []
        for prompt in prompts:
            ids, reason = self._plans[len(prompt)]
            rows.append(
                Completion(tuple(prompt), ids, (-0.5,) * len(ids), reason, weight_version=len(prompt))
            )
        return rows


def _of_parts() -> Iterator[WorkedExample]:
    # Prompts of 1, 2 and 4 tokens: the first ends by itself, the others are given up after 1 and 2 tokens.
    yield example(
        "a request that is continued",
        (
            [(7, 2), (8, 9, 9), (5, 6, 2)],
            ["stop", "length", "stop"],
            [([1, 2, 4], 3), ([3], 2), ([6], 1)],
            [(1, ()), (2, ((0, 2), (1, 3))), (4, ((0, 4), (2, 6)))],
            ["abort", "stop"],
        ),
        _continued,
    )
    yield example("what is continued", (1, True), lambda: _carried())


_PLANS: dict[int, tuple[tuple[int, ...], Any]] = {
    1: ((7, 2), "stop"),
    2: ((8,), "abort"),
    4: ((5, 6), "abort"),
    3: ((9, 9), "length"),
    6: ((2,), "stop"),
}


def _request() -> GenerationRequest:
    return GenerationRequest(((1,), (1, 1), (1, 1, 1, 1)), SamplingParams(max_new_tokens=3), 5, 2)


def _continued() -> Any:
    engine: Any = _Parts(_PLANS)
    first = answer(engine, _request())
    second = answer(engine, carry_on(_request(), first))
    rows = second.completions
    return (
        [row.ids for row in rows],
        [row.finish_reason for row in rows],
        engine.calls,
        [(row.weight_version, row.version_segments) for row in rows],
        [first.finish_reason, second.finish_reason],
    )


def _carried() -> Any:
    engine: Any = _Parts(_PLANS)
    reply: GenerationReply = answer(engine, _request())
    request = carry_on(_request(), reply)
    return request.num_parts, request.partial == reply.completions


class _Seeing:
    """A decoder that notes which prompts it reads, with their media, and samples token 1."""

    def prefill(self, prompts: PaddedPrompts) -> Tensor:
        self.ids, self.media = prompts.ids_PS.tolist(), prompts.media
        return self._logits(len(self.ids))

    def expand(self, prompt_of_row_B: Tensor) -> None:
        self.rows = prompt_of_row_B.tolist()

    def step(self, ids_B: Tensor) -> Tensor:
        return self._logits(len(ids_B))

    def keep(self, rows: Tensor) -> None:
        raise AssertionError("no row ends before the others")

    def _logits(self, num: int) -> Tensor:
        return torch.tensor([[-9.0, 9.0]]).repeat(num, 1)


class _Camera:
    """A sampler with media that notes its rows and the seed of its stream, and returns their numbers."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def generate(self, prompts: Any, params: SamplingParams, generator: torch.Generator) -> list[Completion]:
        self.seen.append((list(prompts), None))
        return self._rows(prompts, generator)

    def generate_with_media(
        self, prompts: Any, media: Any, params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.seen.append((list(prompts), list(media)))
        return self._rows(prompts, generator)

    def _rows(self, prompts: Any, generator: torch.Generator) -> list[Completion]:
        numbers = torch.randint(1 << 30, (len(prompts),), generator=generator).tolist()
        return [Completion(tuple(p), (n,), (-0.5,), "stop") for p, n in zip(prompts, numbers, strict=True)]


def _of_media() -> Iterator[WorkedExample]:
    one, other = (pack(np.full((2, 3), value, dtype=np.float32)) for value in (1.0, 2.0))

    def read(media: Sequence[str | None] | None) -> Any:
        decoder: Any = _Seeing()
        decode(
            decoder,
            [(4,), (4,), (4,), (5, 6)][: 4 if media is None else len(media)],
            SamplingParams(max_new_tokens=1),
            torch.full((4 if media is None else len(media), 1), 0.5, dtype=torch.float64),
            stop_ids=frozenset(),
            pad_token_id=0,
            media=media,
        )
        seen = None if decoder.media is None else decoder.media[:, 0, 0].tolist()
        return decoder.ids, seen, decoder.rows

    yield example("prompts without media", ([[0, 4], [5, 6]], None, [0, 0, 0, 1]), read, None)
    yield example("prompts with two images", ([[4], [4]], [1.0, 2.0], [0, 1, 0]), read, [one, other, one])
    yield example("prompts with one image", ([[4]], [1.0], [0, 0, 0]), read, [one, one, one])
    yield refused("1 of 2 rows", "media of some prompts", read, [one, None, None])

    def worked(media: Sequence[str | None], camera: Any, **options: Any) -> Any:
        worker = RolloutWorker(
            camera, make_byte_tokenizer(), lambda rows: [(int(row.prompt),) for row in rows], **options
        )
        rows = [Example(number, str(number), "", "made", media=of) for number, of in enumerate(media)]
        worker.sample(rows, SamplingParams(max_new_tokens=1), _stream())
        return camera.seen

    yield example("rows without media", [([(0,), (1,)], None)], lambda: worked([None, None], _Camera()))
    both: Callable[[], Any] = lambda: worked([None, one], _Camera())  # noqa: E731
    yield example("rows of which one has media", [([(0,), (1,)], [None, one])], both)
    yield refused("the torch engine", "a sampler without media", lambda: worked([one], _Parts({})))

    def share(rank: int) -> Any:
        camera = _Camera()
        made: Any = shared(camera, World(rank, 2))
        world: Any = _Gathers(rank, 2)
        made._world = world
        made.generate_with_media(
            [(1,), (2,), (3,)], [one, None, other], SamplingParams(max_new_tokens=1), _stream()
        )
        return type(made) is SharedMediaGenerator, camera.seen

    yield example("media of the first of two processes", (True, [([(1,)], [one])]), share, 0)
    yield example("media of the second of two processes", (True, [([(2,), (3,)], [None, other])]), share, 1)
    yield example("what one process samples with", True, lambda: _alone())
    yield example("what several processes sample with", True, lambda: _several())


class _Gathers(World):
    """Processes whose rows are those of this one alone."""

    def gather(self, values: Sequence[Any]) -> list[Any]:
        return list(values)


def _alone() -> bool:
    camera: Any = _Camera()
    return shared(camera, World()) is camera


def _several() -> bool:
    parts: Any = _Parts({})
    return type(shared(parts, World(0, 2))) is SharedGenerator
