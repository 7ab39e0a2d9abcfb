"""refrl's verifiers, chat encoding and prompts, offered to the relations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from refrl.config import DataConfig
from refrl.models.chat import ChatEncoder
from refrl.rewards import score_completions
from refrl.rewards.verifiers import VerifierError
from refrl.training import build
from seatrial.relations.cases.conversations import Conversation, Part
from seatrial.relations.contracts.conversations import TokenRow
from seatrial.targets.reference.configuration import configuration, table
from seatrial.targets.reference.engines.transfers import ReferenceTransfers

DATA = DataConfig(task="reverse", num_train=37, num_validation=11, seed=3)


LONG_REASONING = "we look at it again and again. " * 700
"""Longer than what a verifier searches for an answer: it looks at the end."""


class Problem(NamedTuple):
    """What a completion is held against."""

    verifier: str
    answer: str


def _messages(conversation: Conversation) -> list[dict[str, str]]:
    """Return turns whose thinking is a part of what the assistant says, as it is of what is sampled."""
    return [
        {
            "role": turn.role,
            "content": turn.content
            if turn.thinking is None
            else f"<think>{turn.thinking}</think>{turn.content}",
        }
        for turn in conversation.turns
    ]


class ReferenceTexts(ReferenceTransfers):
    """See `contracts.Tokenizer`, `contracts.Conversations`, `contracts.Reward` and `contracts.PromptSource`."""

    conversation_parts: frozenset[Part] = frozenset({"system", "thinking"})
    thinking_kept: Literal["all", "last"] = "all"
    conversation_keeps: Literal["start", "end"] | None = None
    """Rows that are too long are refused where a batch is made."""

    @property
    def bos_id(self) -> int:
        return int(self.tokenizer.bos_token_id)

    @property
    def eos_id(self) -> int:
        return int(self.tokenizer.eos_token_id)

    @property
    def pad_id(self) -> int:
        return int(self.tokenizer.pad_token_id)

    def encode_chat(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> list[int]:
        return self._chat.encode(messages, add_generation_prompt=add_generation_prompt)

    def training_row(self, messages: Sequence[Mapping[str, str]]) -> tuple[list[int], list[int]]:
        return self._chat.training_row(messages)

    def serve_conversation(self, conversation: Conversation, *, add_generation_prompt: bool) -> list[int]:
        return self._chat.encode(_messages(conversation), add_generation_prompt=add_generation_prompt)

    def train_conversation(self, conversation: Conversation, *, max_length: int | None) -> TokenRow:
        return TokenRow(*self._chat.training_row(_messages(conversation)))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def _chat(self) -> ChatEncoder:
        config = configuration({"policy.tokenizer.chat_template": "byte"})
        chat = build.build_encoder(config.policy, config.data, self.tokenizer).chat
        assert chat is not None
        return chat

    def reward_cases(self) -> Iterable[tuple[Problem, str, float]]:
        for case in table("reward_cases"):
            yield Problem(case["verifier"], case["answer"]), case["completion"], case["reward"]
        yield Problem("math_equivalence", "7"), f"{LONG_REASONING}so \\boxed{{7}}", 1.0
        yield Problem("math_equivalence", "7"), f"so \\boxed{{7}} {LONG_REASONING[:15_000]}", 1.0
        yield Problem("math_equivalence", "7"), f"so \\boxed{{7}} {LONG_REASONING} or \\boxed{{8}}", 0.0

    def unjudged_cases(self) -> Iterable[tuple[Problem, str]]:
        """Return completions whose answer no verifier can compare them with."""
        yield Problem("math_equivalence", "\\text{}"), "\\boxed{5}"
        yield Problem("integer_match", "five"), "5"
        yield Problem("multiple_choice", "AB"), "A"
        yield Problem("format_match", "("), "("
        yield Problem("code_output", "[]"), "print(5)"

    def reward(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[float]:
        rewards = [0.0] * len(problems)
        for name in dict.fromkeys(problem.verifier for problem in problems):
            rows = [row for row, problem in enumerate(problems) if problem.verifier == name]
            verifier = build.build_rewards(DATA.model_copy(update={"verifier": name}))
            answers = [problems[row].answer for row in rows]
            scores = score_completions([completions[row] for row in rows], answers, verifier)
            if scores.first_error:
                raise VerifierError(f"{name}: {scores.first_error}")
            for row, reward in zip(rows, scores.rewards, strict=True):
                rewards[row] = reward
        return rewards

    def splits(self) -> Mapping[str, Sequence[int]]:
        splits = build.build_splits(DATA)
        parts = {"train": splits.train, "validation": splits.validation}
        return {name: [example.prompt_id for example in part] for name, part in parts.items()}

    def epoch(self, *, seed: int, batch_size: int, skip: int = 0) -> Iterator[Sequence[int]]:
        splits = build.build_splits(DATA)
        first, source = (build.build_prompts(DATA, splits, seed=seed) for _ in range(2))
        first.draw(skip * batch_size)
        source.load_state_dict(first.state_dict())
        for start in range(skip * batch_size, len(splits.train), batch_size):
            # A whole batch, as the loop draws it: where an epoch ends inside, the rest belongs to the next.
            drawn = source.draw(batch_size)[: len(splits.train) - start]
            yield [example.prompt_id for example in drawn]
