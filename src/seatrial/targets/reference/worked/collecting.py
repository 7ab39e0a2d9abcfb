"""Worked examples of collecting: prompts that are drawn and sampled, turns with a tool, states for a checkpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from refrl.config import DataConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rewards.verifiers import exact_match
from refrl.rollout.collect import Collected, Collector, SyncCollector
from refrl.rollout.environments import make_environment
from refrl.rollout.environments.lookup import LookupEnvironment
from refrl.rollout.multi_turn import take_turns
from refrl.rollout.progress import Origin, RolloutProgress
from refrl.rollout.sync import Rollouts, RolloutWorker
from refrl.tasks import Example, PromptSource
from refrl.tasks.lookup import price_of
from refrl.timing import Timer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.made import example, refused, rollouts


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_collecting()
    yield from _of_turns()
    yield from _of_states()


class _Sampler:
    """A sampler whose completions are the last prompt token, right where that is even."""

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.prompts: list[list[int]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.seeds.append(generator.initial_seed())
        self.prompts.append([prompt[-1] for prompt in prompts])
        return [
            Completion(prompt_ids=tuple(prompt), ids=(97 + row % 2,), logprobs=(-0.5,), finish_reason="stop")
            for row, prompt in enumerate(prompts)
        ]


def _collector(**options: Any) -> tuple[Collector, _Sampler]:
    """Return a collector of five prompts in order; rows say `a` and `b` in turn, and prompts of odd ids want `c`."""
    made = [Example(number, str(number), "c" if number % 2 else "a", "made") for number in range(5)]
    chosen = {
        "grpo.num_prompts_per_step": 2,
        "grpo.num_generations_per_prompt": 2,
        "policy.train_global_batch_size": 4,
    }
    config = configuration({**chosen, **options}).grpo
    sampler = _Sampler()
    worker = RolloutWorker(
        sampler,
        make_byte_tokenizer(),
        lambda examples: [(65, int(one.prompt)) for one in examples],
    )
    sampling = SamplingParams(max_new_tokens=4)
    source = PromptSource(made, seed=0, shuffle=False)
    return Collector(source, worker, exact_match, sampling, Timer(), config), sampler


def _of_collecting() -> Iterator[WorkedExample]:
    def collected(steps: Sequence[int] = (1,), **options: Any) -> Any:
        collector, sampler = _collector(**{name.replace("__", "."): value for name, value in options.items()})
        found = [collector.collect(step) for step in steps]
        return (
            [[one.prompt_id for one in of.rollouts.examples] for of in found],
            [[one.prompt_id for one in of.served] for of in found],
            [[one.prompt_id for one in of.discarded.examples] if of.discarded else None for of in found],
            len(set(sampler.seeds)) == len(sampler.seeds),
        )

    yield example(
        "groups of each prompt",
        ([[0, 0, 1, 1], [2, 2, 3, 3]], [[0, 1], [2, 3]], [None, None], True),
        collected,
        (1, 2),
    )
    yield example(
        "rewards of rows",
        [1.0, 0.0, 0.0, 0.0],
        lambda: list(_collector()[0].collect(1).rollouts.scores.rewards),
    )
    dynamic = {"grpo__use_dynamic_sampling": True, "data__num_train": 8}
    # Prompts 0, 2 and 4 have groups with spread: 0, 1, then 2, 3.
    yield example(
        "until the step is full", ([[0, 0, 2, 2]], [[0, 1, 2, 3]], [[1, 1, 3, 3]], True), collected, **dynamic
    )
    yield example(
        "more prompts a batch",
        ([[0, 0, 2, 2]], [[0, 1, 2]], [[1, 1]], True),
        collected,
        grpo__batch_multiplier=1.2,
        **dynamic,
    )
    yield refused("step 1", "too few batches", collected, grpo__dynamic_sampling_max_gen_batches=1, **dynamic)
    yield refused("all 1 prompts are in the step", "fewer prompts than a step needs", _too_few)
    yield example("counts of dynamic sampling", (2.0, 2.0, 0.0), _counts)
    yield example("phases of a step", ["data_processing", "generation", "reward_calculation"], _phases)
    right = [["synced", 7, 4, 3, 2], {"sync": 2.0, "batches": 5.0}, 2, "trained"]
    yield example("what a step that is sampled on demand trains on and logs", right, _on_demand)
    yield example("one seed for a step, regardless of the steps before", True, _seeds_of_steps)
    drawn = [(0, 0, "trained", [1.0, 0.0]), (0, 1, "zero variance", [0.0, 0.0])]
    drawn += [(1, 2, "trained", [1.0, 0.0]), (1, 3, "zero variance", [0.0, 0.0])]
    yield example("what became of each prompt that was drawn", drawn, _drawn)
    purposes = ("rollout", "rollout, batch 1")
    yield example("streams of generation batches", [_derived(17, one, 3) for one in purposes], _streams)


def _on_demand() -> list[Any]:
    """Return what was done in which order, the counts of the step, its number of rows, and the training's result."""
    noted: list[Any] = []
    given = rollouts()

    def prepare() -> dict[str, float]:
        noted.append("synced")
        return {"sync": 2.0}

    def collect(step: int) -> Collected:
        noted.append(step)
        return Collected(given, given.examples, {"batches": 5.0})

    def consume(train: Any, *, current_weight_version: int) -> Any:
        noted.append(current_weight_version)
        return train([], given.rows([2, 3]))

    def trained(rows: Rollouts) -> str:
        noted.append(len(rows.examples))
        return "trained"

    collector: Any = SimpleNamespace(collect=collect)
    buffer: Any = SimpleNamespace(add=lambda rows: noted.append(len(rows.examples)), consume=consume)
    source = SyncCollector(collector, buffer, prepare=prepare, version=lambda: 3)
    collected, result = source.consume(7, trained)
    return [noted, collected.counts, len(collected.rollouts.examples), result]


def _too_few() -> None:
    """Collect a step of two prompts where there is one, which has spread."""
    collector, _ = _collector(**{"grpo.use_dynamic_sampling": True, "data.num_train": 8})
    only = PromptSource([Example(0, "0", "a", "made")], seed=0, shuffle=False)
    replace(collector, prompts=only).collect(1)


def _counts() -> Any:
    collector, _ = _collector(**{"grpo.use_dynamic_sampling": True, "data.num_train": 8})
    counts = collector.collect(1).counts
    names = ("gen_batches", "dropped_groups", "discarded_valid_samples")
    return tuple(counts[f"dynamic_sampling_num_{name}"] for name in names)


def _drawn() -> list[Any]:
    collector, _ = _collector(**{"grpo.use_dynamic_sampling": True, "data.num_train": 8})
    found = collector.collect(1).drawn
    return [(one.batch, one.prompt_id, one.fate, list(one.rewards)) for one in found]


def _streams() -> list[int]:
    """Return the seeds of the batches of step 3, which seed 17 makes."""
    options = {"grpo.use_dynamic_sampling": True, "data.num_train": 8, "grpo.seed": 17}
    collector, sampler = _collector(**options)
    collector.collect(3)
    return sampler.seeds


def _phases() -> list[str]:
    collector, _ = _collector()
    collector.collect(1)
    return sorted(collector.timer.take())


def _seeds_of_steps() -> bool:
    first, one = _collector()
    second, other = _collector()
    for step in (1, 2, 3):
        first.collect(step)
    second.collect(3)
    return one.seeds[2] == other.seeds[0] and len(set(one.seeds)) == 3


class _Talker:
    """A sampler that requests a price in the first turn of rows that begin with 1, and answers in the others."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[int], int, int]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.calls.append(([len(one) for one in prompts], params.max_new_tokens, generator.initial_seed()))
        rows = []
        for prompt in prompts:
            words = "?ab" if prompt[0] == 1 and len(prompt) == 2 else "no" if prompt[0] == 2 else "yes"
            ids = tuple(words.encode())[: params.max_new_tokens]
            reason: Any = "stop" if len(ids) == len(words) else "length"
            rows.append(
                Completion(
                    prompt_ids=tuple(prompt), ids=ids, logprobs=(-0.5,) * len(ids), finish_reason=reason
                )
            )
        return rows


def _of_turns() -> Iterator[WorkedExample]:
    price = f"={price_of('ab')};".encode()
    answer = (*b"?ab", *price, *b"yes")
    yield example(
        "an answered and an unanswered row",
        (
            [answer, tuple(b"no")],
            [(1, 1, 1, *(0 for _ in price), 1, 1, 1), None],
            [(-0.5,) * 3 + (0.0,) * 4 + (-0.5,) * 3, (-0.5, -0.5)],
            [([2, 2], 20), ([9], 13)],
        ),
        _talked,
        20,
    )
    yield example("no capacity for a second turn", [tuple(b"?ab"), tuple(b"no")], lambda: _talked(7)[0])
    yield example("a second turn that is cut off", [answer[:-1], tuple(b"no")], lambda: _talked(9)[0])
    spelt = tuple(b"?ab<|eos|>yes")
    yield example(
        "a tool's words that spell a token", [spelt, tuple(b"no")], lambda: _talked(20, _Spelling())[0]
    )
    tool = LookupEnvironment()
    yield example("the tool's answer", price.decode(), tool.respond, ["?x", "so ?ab!"])
    yield example("no question", None, tool.respond, ["?ab", "no"])
    yield refused("max_turns=1", "one turn", LookupEnvironment, 1)
    yield example("no environment", None, make_environment, DataConfig(task="reverse"))
    made: dict[str, Any] = {"task": "lookup", "environment": "lookup", "environment_args": {"max_turns": 3}}
    yield example(
        "an environment with its arguments",
        3,
        lambda: getattr(make_environment(DataConfig(**made)), "max_turns", None),
    )
    yield refused(
        "data.environment",
        "an unknown argument",
        make_environment,
        DataConfig(**{**made, "environment_args": {"turns": 3}}),
    )

    for seed in (5, 6):
        yield example(f"streams of every turn and length, of seed {seed}", [], _wrong_streams, seed)
    yield example("streams that two calls share", [], _shared_streams)


class _Counts:
    """An environment of four turns that answers each, and a sampler that notes the seed of each call.

    Rows of two lengths that always differ by two: the first answer of row 1 is two tokens longer.
    """

    max_turns = 4

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def respond(self, turns: Sequence[str]) -> str | None:
        return "a"

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        lengths = [1, 3] if not self.seeds else [1] * len(prompts)
        self.seeds.append(generator.initial_seed())
        return [
            Completion(tuple(prompt), (66,) * length, (-0.5,) * length, "stop")
            for prompt, length in zip(prompts, lengths, strict=True)
        ]


def _seeds(seed: int) -> list[int]:
    both: Any = _Counts()
    params, stream = SamplingParams(max_new_tokens=30), torch.Generator().manual_seed(seed)
    take_turns(both, both, make_byte_tokenizer(), [(1, 1), (2, 2)], params, stream)
    return list(both.seeds)


def _derived(seed: int, purpose: str, place: int) -> int:
    digest = hashlib.sha256(f"{seed}/{purpose}/{place}".encode()).digest()
    return int.from_bytes(digest[:8], "big") // 2


def _wrong_streams(seed: int) -> list[int]:
    """Return the calls whose stream is not that of their turn and length: a word and a token longer every turn."""
    found, right = _seeds(seed), [seed]
    for turn in (1, 2, 3):
        of_turn = _derived(seed, "turn", turn)
        right += [_derived(of_turn, "length", shortest + 2 * turn - 2) for shortest in (2, 4)]
    return [call for call, one in enumerate(right) if found[call : call + 1] != [one]]


def _shared_streams() -> list[int]:
    """Return the streams that two calls of two batches share."""
    seeds = _seeds(5) + _seeds(6)
    return sorted({seed for seed in seeds if seeds.count(seed) > 1})


class _Spelling:
    """An environment that writes the name of the end token."""

    max_turns = 2

    def respond(self, turns: Sequence[str]) -> str | None:
        return "<|eos|>" if turns[-1].startswith("?") else None


def _talked(most: int, environment: Any = None) -> Any:
    sampler, stream = _Talker(), torch.Generator().manual_seed(5)
    rows = take_turns(
        sampler,
        environment or LookupEnvironment(),
        make_byte_tokenizer(),
        [(1, 1), (2, 2)],
        SamplingParams(max_new_tokens=most),
        stream,
    )
    calls = [call[:2] for call in sampler.calls]
    return [row.ids for row in rows], [row.mask for row in rows], [row.logprobs for row in rows], calls


def _of_states() -> Iterator[WorkedExample]:
    rows = rollouts()
    origin = Origin(rows.examples, {"n": 2.0}, rows.rows([2]), {"generation": 1.0})
    right = replace(origin, seconds={})
    yield example(
        "a batch's origin comes back",
        True,
        lambda: Origin.of(json.loads(json.dumps(origin.state()))) == right,
    )
    bare = Origin(rows.examples[:1], {}, None)
    yield example(
        "an origin without discarded rows comes back",
        True,
        lambda: Origin.of(json.loads(json.dumps(bare.state()))) == bare,
    )
    yield example("what was drawn after the last note is drawn again", [2, 3], _drawn_again)
    yield example("a progress without a note", ({"num_drawn": 0}, None), _not_noted)


def _source() -> PromptSource:
    made = [Example(number, str(number), "", "made") for number in range(6)]
    return PromptSource(made, seed=0, shuffle=False)


def _drawn_again() -> list[int]:
    source, other = _source(), _source()
    progress, again = RolloutProgress(source), RolloutProgress(other)
    source.draw(2)
    progress.note({"trained_steps": 1})
    source.draw(3)
    again.load_state_dict(progress.state_dict())
    assert again.collector == {"trained_steps": 1}
    return [one.prompt_id for one in other.draw(2)]


def _not_noted() -> Any:
    source = _source()
    progress = RolloutProgress(source)
    source.draw(3)
    state = progress.state_dict()
    return state["prompts"], state["collector"]
