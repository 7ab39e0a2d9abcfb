"""refrl's episodes of several turns, offered to the relations: rolled out and judged as a run does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedTokenizerBase

from refrl.generation.base import Completion, SamplingParams
from refrl.rewards.verifiers import Verifier
from refrl.rollout.sync import RolloutWorker
from refrl.tasks import Example
from seatrial.relations.contracts.episodes import EpisodesRecord

NUM_TOKENS = 512


class _Engine:
    """Samples the next turn of the row that a prompt begins with."""

    def __init__(self, turns: Sequence[Sequence[tuple[int, ...]]]) -> None:
        self._turns, self._next = turns, [0] * len(turns)
        self.streams: list[int] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        self.streams.append(hash(generator.get_state().numpy().tobytes()))
        return [self._completion(tuple(prompt)) for prompt in prompts]

    def _completion(self, prompt: tuple[int, ...]) -> Completion:
        row = prompt[0]
        ids = self._turns[row][self._next[row]]
        self._next[row] += 1
        return Completion(prompt, ids, (-1.0,) * len(ids), "stop")


class _Environment:
    """Answers with a row's own words; a row is known by its first turn."""

    def __init__(self, turns: Sequence[Sequence[str]], words: Sequence[Sequence[str]]) -> None:
        self._rows = {own[0]: row for row, own in enumerate(turns)}
        self._words, self.max_turns = words, max(map(len, turns))
        self.received: list[list[list[str]]] = [[] for _ in turns]

    def respond(self, turns: Sequence[str]) -> str | None:
        row = self._rows[turns[0]] if turns[0] in self._rows else self._nearest(turns[0])
        self.received[row].append(list(turns))
        number = len(self.received[row]) - 1
        return self._words[row][number] if number < len(self._words[row]) else None

    def _nearest(self, text: str) -> int:
        return next(row for first, row in self._rows.items() if text.startswith(first))


class ReferenceEpisodes:
    """See the contract `seatrial.relations.contracts.episodes.Episodes`."""

    tokenizer: PreTrainedTokenizerBase

    def episodes(self, turns: Sequence[Sequence[str]], words: Sequence[Sequence[str]]) -> EpisodesRecord:
        ids = [
            [tuple(self.tokenizer.encode(text, add_special_tokens=False)) for text in own] for own in turns
        ]
        engine, environment = _Engine(ids), _Environment(turns, words)
        worker = RolloutWorker(
            generator=engine,
            tokenizer=self.tokenizer,
            prompt_ids=lambda examples: [(example.prompt_id,) for example in examples],
            environment=environment,
        )
        examples = [Example(row, "", "", "made") for row in range(len(turns))]
        stream = torch.Generator().manual_seed(0)
        completions = worker.sample(examples, SamplingParams(max_new_tokens=NUM_TOKENS), stream)
        verifier: Verifier = _half
        rollouts = worker.reward(examples, completions, verifier)
        return EpisodesRecord(
            received=environment.received, streams=engine.streams, judged=list(rollouts.texts)
        )


def _half(completion: str, answer: str) -> float:
    return 0.5
