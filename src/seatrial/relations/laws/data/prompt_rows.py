"""R16 of prompts: a data set's rows are those of the template, and what is too long is left out, cut or refused."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases.case import Case
from seatrial.relations.contracts.prompt_rows import Messages, PromptRow, Truncation
from seatrial.relations.law import Measure, Relation

LONG = 512
"""Beyond every prompt."""
LETTERS = "abcdefghijklmnopqrstuvwxyz "


@dataclass(frozen=True)
class Prompts(Case):
    """Conversations that end with a user's turn."""

    conversations: tuple[Messages, ...]

    def smaller(self) -> Iterator[Prompts]:
        """Yield the case without one conversation."""
        for drop in range(len(self.conversations)):
            kept = (*self.conversations[:drop], *self.conversations[drop + 1 :])
            if kept:
                yield replace(self, conversations=kept)


def _prompts(stack: Any, seed: int, tidy: bool) -> Prompts:
    """Return prompts of unequal lengths, some with a system turn, some of several turns."""
    stream = random.Random(seed)

    def text() -> str:
        length = 12 if tidy else stream.randint(3, 40)
        return "".join(stream.choice(LETTERS) for _ in range(length)).strip() or "a"

    def conversation(number: int) -> Messages:
        turns = [{"role": "user", "content": text()}]
        if number % 3 == 1 and not tidy:
            turns = [{"role": "system", "content": text()}, *turns]
        if number % 3 == 2 and not tidy:
            turns += [{"role": "assistant", "content": text()}, {"role": "user", "content": text()}]
        return turns

    return Prompts(tuple(conversation(number) for number in range(6)))


PROMPT_ROWS = Relation(
    id="R16.prompt_rows",
    name="prompts-are-those-of-the-template",
    component="prompt_rows",
    statement="Rows of prompts are the template's ids in the data's order; longer ones are left out, cut or refused.",
    cost="CPU, milliseconds",
    cases=_prompts,
)


def _differences(rows: Sequence[PromptRow], due: Sequence[tuple[int, Sequence[int]]]) -> list[str]:
    wrong = [] if len(rows) == len(due) else [f"{len(rows)} rows, {len(due)} are due"]
    for row, (number, ids) in zip(rows, due, strict=False):
        if row.number != number:
            wrong.append(f"prompt {row.number} in place of {number}")
        elif list(row.ids) != list(ids):
            wrong.append(f"prompt {number} has ids {list(row.ids)[:6]}.., due {list(ids)[:6]}..")
        elif row.sampled is not None and list(row.sampled) != list(ids):
            wrong.append(
                f"prompt {number} is sampled from ids {list(row.sampled)[:6]}.., due {list(ids)[:6]}.."
            )
    return wrong


@PROMPT_ROWS.law("ids", "a template that is left out or applied twice, special tokens added, another order")
def rows_are_those_of_the_template(stack: Any, case: Prompts) -> Measure:
    """Compare all rows with the ids of the template."""
    rows = stack.prompt_rows(case.conversations, max_length=LONG, filtered=False, truncation="error")
    due = [(number, stack.prompt_ids(one)) for number, one in enumerate(case.conversations)]
    return Measure.count(_differences(rows, due), "rows that are not the template's")


@PROMPT_ROWS.law(
    "longer prompts are left out",
    "a length of the text or of the last turn, one without the beginning of an answer, a bound that is off by one",
)
def longer_prompts_are_left_out(stack: Any, case: Prompts) -> Measure:
    """Filter by the length of a prompt in the middle, and by one less than that of the next longer one."""
    ids = [stack.prompt_ids(one) for one in case.conversations]
    lengths = sorted(map(len, ids))
    limit = lengths[len(ids) // 2]
    wrong = []
    for bound in {limit, min((one for one in lengths if one > limit), default=limit + 1) - 1}:
        rows = stack.prompt_rows(case.conversations, max_length=bound, filtered=True, truncation="error")
        due = [(number, one) for number, one in enumerate(ids) if len(one) <= bound]
        wrong += _differences(rows, due)
    return Measure.count(wrong, f"rows of at most {limit} tokens that are others")


@PROMPT_ROWS.law("cut at the start", "the other side is cut, a length that is off by one", truncation="left")
@PROMPT_ROWS.law("cut at the end", "the other side is cut, a length that is off by one", truncation="right")
@PROMPT_ROWS.law("cut in the middle", "halves of another length", truncation="middle")
def longer_prompts_are_cut(stack: Any, case: Prompts, truncation: Truncation) -> Measure:
    """Compare cut prompts, of a limit that is odd, with the parts that are to be kept."""
    ids = [stack.prompt_ids(one) for one in case.conversations]
    limit = sorted(map(len, ids))[0] // 2 * 2 + 1
    rows = stack.prompt_rows(case.conversations, max_length=limit, filtered=False, truncation=truncation)
    due = [(number, cut(one, limit, truncation)) for number, one in enumerate(ids)]
    return Measure.count(_differences(rows, due), f"prompts cut to {limit} tokens that are others")


def cut(ids: Sequence[int], limit: int, truncation: Truncation) -> Sequence[int]:
    """Return what is kept of a prompt."""
    if len(ids) <= limit:
        return ids
    if truncation == "left":
        return ids[-limit:]
    if truncation == "right":
        return ids[:limit]
    return [*ids[: limit // 2], *ids[-(limit - limit // 2) :]]


@PROMPT_ROWS.law("longer prompts are refused", "a longer prompt that is cut without notice")
def longer_prompts_are_refused(stack: Any, case: Prompts) -> Measure:
    """Give a limit below all prompts, without a filter."""
    limit = min(len(stack.prompt_ids(one)) for one in case.conversations) - 1
    try:
        stack.prompt_rows(case.conversations, max_length=limit, filtered=False, truncation="error")
    except ValueError:
        return Measure.count([], "longer prompts that are not refused")
    return Measure.count(["no error"], "longer prompts that are not refused")


@PROMPT_ROWS.law("padding and positions", "padding on the other side, positions that count padding")
def padding_is_on_the_left(stack: Any, case: Prompts) -> Measure | None:
    """Check ids, mask and positions of padded rows, one of which has no padding."""
    limit = max(len(stack.prompt_ids(one)) for one in case.conversations)
    rows = stack.prompt_rows(case.conversations, max_length=limit, filtered=False, truncation="error")
    if any(row.padded is None for row in rows):
        return None
    wrong = []
    for row in rows:
        gap, size = limit - len(row.ids), len(row.ids)
        if list(row.padded) != [stack.pad_id] * gap + list(row.ids):
            wrong.append(f"ids of prompt {row.number}")
        if list(row.mask) != [0] * gap + [1] * size:
            wrong.append(f"mask of prompt {row.number}")
        if list(row.positions)[gap:] != list(range(size)):
            wrong.append(f"positions of prompt {row.number}")
    return Measure.count(wrong, "padded rows that are others")
