"""R16: tokenization of conversations: one template, one start token, end tokens kept, stable prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from seatrial.relations.cases.case import Case
from seatrial.relations.facts import facts_of
from seatrial.relations.law import Measure, Relation

TEXTS = (
    "2+2?",
    "emoji \U0001f642 and é",
    "line\nbreak",
    "tool said 7",
    "ok",
)


@dataclass(frozen=True, kw_only=True)
class ConversationCase(Case):
    """A conversation that ends with the assistant."""

    messages: tuple[tuple[str, str], ...]

    def smaller(self) -> Iterator[ConversationCase]:
        """Yield the conversation without its first exchange."""
        if len(self.messages) > 2:
            yield replace(self, messages=self.messages[2:])

    def upto(self, count: int | None = None) -> list[dict[str, str]]:
        """Return the first messages in the form that templates take."""
        return [{"role": role, "content": content} for role, content in self.messages[:count]]


def _make(stack: Any, seed: int, tidy: bool) -> ConversationCase:
    if tidy:
        return ConversationCase(messages=(("user", "2+2?"), ("assistant", "4")))
    rng = np.random.default_rng([seed, 16])
    turns = int(rng.integers(2, 4))
    text = iter(rng.permutation(TEXTS).tolist() * 2)
    # An answer that spells the stack's own end token, and one with white space around it: both as text.
    answers = iter([f"Say {stack.decode([stack.eos_id])} here", "  kept as it is ", next(text)])
    return ConversationCase(
        messages=tuple(
            (role, next(text if role == "user" else answers))
            for _ in range(turns)
            for role in ("user", "assistant")
        )
    )


def _starts_with_nothing(stack: Any) -> str | None:
    return "bos_id=None" if stack.bos_id is None else None


CHAT = Relation(
    id="R16.chat",
    name="tokenisation",
    component="tokenizer",
    statement="One start, stable prefixes, one form in serving and training; answers train with their end token.",
    catalogue="SB001 SB002 SB003 SB005 SB010 SB018 SB022 SB024 SB030 SB036 SB037",
    cost="CPU, milliseconds",
    cases=_make,
)


@CHAT.law("one start", "template and tokenizer both add it", excluded=_starts_with_nothing)
def one_start_token(stack: Any, case: ConversationCase) -> Measure:
    """Check that a conversation has at most one start token."""
    ids = stack.encode_chat(case.upto(), add_generation_prompt=False)
    count = ids.count(stack.bos_id)
    return Measure(error=max(0, count - 1), bound=0, what=f"{count} start tokens, more than one by")


@CHAT.law("stable prefixes", "messages rendered one by one, content stripped or rewritten by the template")
def prefixes_are_stable(stack: Any, case: ConversationCase) -> Measure:
    """Check that the prompt before each answer is a prefix of the finished conversation."""
    whole = stack.encode_chat(case.upto(), add_generation_prompt=False)
    wrong = 0
    for count, (role, _) in enumerate(case.messages):
        if role == "assistant":
            prompt = stack.encode_chat(case.upto(count), add_generation_prompt=True)
            wrong += whole[: len(prompt)] != prompt
    return Measure(
        error=wrong, bound=0, what="assistant turns whose prompt is not a prefix of the conversation"
    )


@CHAT.law("serving is training", "two templates, a generation prompt left at the end of training rows")
def training_equals_serving(stack: Any, case: ConversationCase) -> Measure:
    """Check that the ids of a training row are those of the served conversation."""
    ids, mask = stack.training_row(case.upto())
    served = stack.encode_chat(case.upto(), add_generation_prompt=False)
    wrong = (list(ids) != list(served)) + (len(ids) != len(mask))
    return Measure(
        error=wrong, bound=0, what="training row and served conversation differ, or mask and ids in length"
    )


@CHAT.law(
    "only answers train",
    "the mask spans the header, a span off by one, all ones when the template marks nothing",
)
def only_answers_train(stack: Any, case: ConversationCase) -> Measure:
    """Check that the trained spans, decoded, are the answers with their end tokens."""
    ids, mask = stack.training_row(case.upto())
    end = stack.decode([stack.eos_id])
    spans = list(trained_spans(stack, ids, mask))
    wanted = [answer + end for answer in _trained_answers(stack, case)]
    wrong = [
        f"{given!r} instead of {right!r}"
        for given, right in zip(spans, wanted, strict=False)
        if given != right
    ]
    wrong += [f"{len(spans)} trained spans, {len(wanted)} answers"] * (len(spans) != len(wanted))
    return Measure.count(wrong, "trained spans that are not the answers")


def trained_spans(stack: Any, ids: Sequence[int], mask: Sequence[int]) -> Iterator[str]:
    """Yield the decoded text of each run of trained tokens."""
    span: list[int] = []
    for token, trained in zip([*ids, stack.pad_id], [*mask, 0], strict=True):
        if trained:
            span.append(token)
        elif span:
            yield stack.decode(span)
            span = []


def _trained_answers(stack: Any, case: ConversationCase) -> list[str]:
    """Return the answers that train: all, or the last if the stack declares so."""
    answers = [content for role, content in case.messages if role == "assistant"]
    return answers[-1:] if facts_of(stack).trains == "last" else answers


@CHAT.law("end tokens train", "pad equal to end and masked by id, the end token outside the span")
def end_tokens_train(stack: Any, case: ConversationCase) -> Measure:
    """Check that the end token of each answer trains."""
    ids, mask = stack.training_row(case.upto())
    answers = len(_trained_answers(stack, case))
    trained = sum(1 for token, on in zip(ids, mask, strict=True) if on and token == stack.eos_id)
    return Measure(
        error=abs(trained - answers), bound=0, what=f"{trained} end tokens trained, {answers} answers"
    )


@CHAT.law(
    "one end token", "a template and a tokenizer that both add it, an end token added to one that is there"
)
def one_end_token(stack: Any, case: ConversationCase) -> Measure:
    """Check that no second end token follows the one that ends an answer, whether it trains or not."""
    ids, mask = stack.training_row(case.upto())
    doubled = [
        place
        for place, (token, following) in enumerate(itertools.pairwise(ids))
        if mask[place] and token == following == stack.eos_id
    ]
    return Measure.count(doubled, "places of end tokens of answers that a second end token follows")
