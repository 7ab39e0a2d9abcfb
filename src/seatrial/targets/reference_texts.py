"""refrl's verifiers, chat encoding and prompts, offered to the relations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from transformers import PreTrainedTokenizerBase

from refrl.chat import BYTE_CHAT_TEMPLATE, ChatEncoder
from refrl.config import DataConfig
from refrl.rewards.code import code_output
from refrl.rewards.math import MathVerifier
from refrl.rewards.scoring import score_completions
from refrl.rewards.text_rules import format_match, multiple_choice
from refrl.rewards.verifiers import (
    Verifier,
    VerifierError,
    byte_closeness,
    character_match,
    exact_match,
    integer_match,
)
from refrl.tasks import PromptSource, Splits, make_splits
from refrl.tokenization import make_byte_tokenizer

DATA = DataConfig(task="reverse", num_train=37, num_validation=11, seed=3)


class Problem(NamedTuple):
    """What a completion is held against."""

    verifier: str
    answer: str


ADDITION = json.dumps([{"stdin": "2 3", "stdout": "5"}, {"stdin": "20 22", "stdout": "42"}])
CASES: tuple[tuple[str, str, str, float], ...] = (
    ("exact_match", "cba", " cba\n", 1.0),
    ("exact_match", "cba", "abc", 0.0),
    ("character_match", "cba", "cbx", 2 / 3),
    ("character_match", "cba", "cbacba", 1 / 2),
    ("byte_closeness", "b", "a", 1 - 1 / 255),
    ("integer_match", "19", "+019", 1.0),
    ("integer_match", "19", "1_9", 0.0),
    ("math_equivalence", "0.5", "so \\boxed{\\frac{1}{2}}", 1.0),
    ("math_equivalence", "(x+1)^2", "\\boxed{x^2+2x+1}", 1.0),
    ("math_equivalence", "3", "\\boxed{-3}", 0.0),
    ("math_equivalence", "3", "no idea", 0.0),
    ("multiple_choice", "B", "A is wrong. The answer is (B).", 1.0),
    ("multiple_choice", "D", "Answer: A. No: the answer is D", 1.0),
    ("multiple_choice", "B", "Answer: A", 0.0),
    ("format_match", r"<a>.*</a>\d", "<a>x\ny</a>7", 1.0),
    ("format_match", r"<a>.*</a>\d", "<a>x</a>7 or so", 0.0),
    ("code_output", ADDITION, "```python\nprint(sum(map(int, input().split())))\n```", 1.0),
    ("code_output", ADDITION, "print(5)", 1 / 2),
    ("code_output", ADDITION, "import os\nos._exit(0)", 0.0),
    ("code_output", ADDITION, "print(sum(map(int, input().split())))\nraise SystemExit(1)", 0.0),
)
"""(verifier, answer, completion, the reward that is right), by hand."""


class ReferenceTexts:
    """The components that read and write text."""

    @property
    def bos_id(self) -> int:
        """See `contracts.Tokenizer`."""
        return int(_tokenizer().bos_token_id)

    @property
    def eos_id(self) -> int:
        """See `contracts.Tokenizer`."""
        return int(_tokenizer().eos_token_id)

    @property
    def pad_id(self) -> int:
        """See `contracts.Tokenizer`."""
        return int(_tokenizer().pad_token_id)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
        """See `contracts.Tokenizer`."""
        encoder = ChatEncoder(_tokenizer(), BYTE_CHAT_TEMPLATE)
        return encoder.encode(messages, add_generation_prompt=add_generation_prompt)

    def training_row(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
        """See `contracts.Tokenizer`."""
        return ChatEncoder(_tokenizer(), BYTE_CHAT_TEMPLATE).training_row(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """See `contracts.Tokenizer`."""
        return str(_tokenizer().decode(list(ids), skip_special_tokens=False))

    def reward_cases(self) -> Iterable[tuple[Problem, str, float]]:
        """See `contracts.Reward`; every verifier, right and wrong."""
        for verifier, answer, completion, reward in CASES:
            yield Problem(verifier, answer), completion, reward

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
        """See `contracts.Reward`; the completions of one verifier are scored together.

        Raises:
            VerifierError: a verifier could not judge one of them.
        """
        verifiers = _verifiers()
        rewards = [0.0] * len(problems)
        for name in sorted({problem.verifier for problem in problems}):
            rows = [row for row, problem in enumerate(problems) if problem.verifier == name]
            scores = score_completions(
                [completions[row] for row in rows], [problems[row].answer for row in rows], verifiers[name]
            )
            if scores.num_errors:
                raise VerifierError(f"{name}: {scores.first_error}")
            for row, reward in zip(rows, scores.rewards, strict=True):
                rewards[row] = reward
        return rewards

    def splits(self) -> Mapping[str, Sequence[int]]:
        """See `contracts.PromptSource`."""
        splits = _splits()
        return {
            "train": [example.prompt_id for example in splits.train],
            "validation": [example.prompt_id for example in splits.validation],
        }

    def epoch(self, *, seed: int, batch_size: int, skip: int = 0) -> Iterator[Sequence[int]]:
        """See `contracts.PromptSource`; skipped batches are drawn by a source that a new one then goes on from."""
        train = _splits().train
        first = PromptSource(train, seed=seed, shuffle=True)
        first.draw(skip * batch_size)
        source = PromptSource(train, seed=seed, shuffle=True)
        source.load_state_dict(first.state_dict())
        for start in range(skip * batch_size, len(train), batch_size):
            drawn = source.draw(min(batch_size, len(train) - start))
            yield [example.prompt_id for example in drawn]


def _verifiers() -> dict[str, Verifier]:
    """Return the verifiers as this module names them now: a planted fault turns the names."""
    return {
        "exact_match": exact_match,
        "character_match": character_match,
        "byte_closeness": byte_closeness,
        "integer_match": integer_match,
        "math_equivalence": _math(MathVerifier),
        "multiple_choice": multiple_choice,
        "format_match": format_match,
        "code_output": code_output,
    }


@cache
def _math(kind: type[MathVerifier]) -> MathVerifier:
    """One worker process; a busy machine may take long over a comparison."""
    return kind(timeout_seconds=60)


def _splits() -> Splits:
    return make_splits(DATA)


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    return make_byte_tokenizer()
