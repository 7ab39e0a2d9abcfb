"""R15 of preference pairs: each row has its own ids and counts its own completion, even if completions share tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from seatrial.relations.cases.examples import Example, ExampleCase, make_examples
from seatrial.relations.contracts.conversations import PairRow, TokenRow
from seatrial.relations.law import Measure, Relation

MAX_LENGTH = 12
SHARED = 3
"""Tokens with which both completions begin."""


def _alike(example: Example) -> Example:
    """Both completions begin with the same tokens."""
    shared = example.prompt_ids[:1] * SHARED
    assert example.rejected_ids is not None
    return replace(
        example,
        completion_ids=(*shared, *example.completion_ids),
        rejected_ids=(*shared, *example.rejected_ids),
    )


def _repeats_prompt(example: Example) -> Example:
    """The chosen completion begins with the prompt, and the rejected one is unchanged."""
    assert example.rejected_ids is not None
    return replace(example, completion_ids=(*example.prompt_ids, *example.completion_ids))


def _start_of_other(example: Example) -> Example:
    """The rejected completion is a prefix of the chosen one."""
    *words, end = example.completion_ids
    return replace(example, completion_ids=(*words, *words, end), rejected_ids=(*words, end))


def _pairs(
    stack: Any,
    seed: int,
    tidy: bool,
    change: Callable[[Example], Example] | None = None,
    lengths: Literal["equal", "unequal"] = "unequal",
    **more: Any,
) -> ExampleCase:
    case = make_examples(
        seed,
        ordinary_ids=stack.ordinary_ids,
        eos_id=stack.eos_id,
        pairs=True,
        lengths="equal" if tidy else lengths,
        **({"longest_prompt": 4, "longest_completion": 5} if tidy else more),
    )
    if change is None or tidy:
        return case
    return replace(case, examples=tuple(change(one) for one in case.examples))


def _cuts_nothing(stack: Any) -> str | None:
    return None if stack.pair_keeps else "pair_keeps=None"


PAIRS = Relation(
    id="R15.pairs",
    name="pairs-are-their-own-rows",
    component="pairs",
    statement="Chosen and rejected rows hold prompt and completion, count the completion, and are cut as declared.",
    catalogue="SB001 SB003 SB007 SB008 SB017 SB027",
    cost="CPU, seconds",
    cases=_pairs,
)


@PAIRS.law(
    "ids", "chosen and rejected exchanged, an end or a start added twice, a column cut", fields=("ids",)
)
@PAIRS.law("counted tokens", "a prompt that counts, a span off by one", fields=("counted",))
@PAIRS.law(
    "counted tokens, completions that begin alike",
    "a prompt found as what both rows share",
    cases=partial(_pairs, change=_alike),
)
@PAIRS.law(
    "counted tokens, a completion that repeats the prompt",
    "a prompt found by searching for its tokens, or for a marker that it holds",
    cases=partial(_pairs, change=_repeats_prompt),
)
@PAIRS.law(
    "counted tokens, a completion that is the start of the other",
    "a prompt found as what both rows share; rows compared up to the shorter",
    cases=partial(_pairs, change=_start_of_other),
)
def rows_are_right(
    stack: Any, case: ExampleCase, fields: Sequence[str] = ("ids", "counted"), max_length: int | None = None
) -> Measure:
    """Compare the chosen and rejected rows with those built by definition."""
    given = stack.pair_rows(case.examples, max_length=max_length)
    errors = [] if len(given) == len(case.examples) else [f"{len(given)} of {len(case.examples)} pairs"]
    for place, (rows, example) in enumerate(zip(given, case.examples, strict=False)):
        right = oracle(example, max_length=max_length, keeps=stack.pair_keeps)
        for side in PairRow._fields:
            for what in fields:
                one, wanted = (list(getattr(getattr(pair, side), what)) for pair in (rows, right))
                if one != wanted:
                    errors.append(f"{what} of {side} {place}: {one} instead of {wanted}")
    return Measure.count(errors, "rows that differ")


def oracle(example: Example, *, max_length: int | None, keeps: str | None) -> PairRow:
    """Return the rows of a pair by definition: the prompt, then its completion, which is what counts."""

    def row(completion_ids: Sequence[int]) -> TokenRow:
        ids = [*example.prompt_ids, *completion_ids]
        counted = [0] * len(example.prompt_ids) + [1] * len(completion_ids)
        if max_length is not None and len(ids) > max_length:
            kept = slice(None, max_length) if keeps == "start" else slice(-max_length, None)
            ids, counted = ids[kept], counted[kept]
        return TokenRow(ids, counted)

    assert example.rejected_ids is not None
    return PairRow(row(example.completion_ids), row(example.rejected_ids))


@PAIRS.law("end tokens count", "a mask made by comparing ids with the pad id, which is the end token too")
def end_tokens_count(stack: Any, case: ExampleCase) -> Measure:
    """Check that each row ends with an end token that counts."""
    errors = [
        f"{side} {place}"
        for place, rows in enumerate(stack.pair_rows(case.examples, max_length=None))
        for side, row in zip(PairRow._fields, rows, strict=True)
        if not row.ids or row.ids[-1] != stack.eos_id or not row.counted[-1]
    ]
    return Measure.count(errors, "rows whose end token is missing or not counted")


@PAIRS.law("other pairs change nothing", "empty columns trimmed one too many, a width taken from another row")
def other_pairs_change_nothing(stack: Any, case: ExampleCase) -> Measure:
    """Check that a pair's rows are the same in a batch alone as with other pairs."""
    together = stack.pair_rows(case.examples, max_length=None)
    changed = [
        f"pair {place}"
        for place, (rows, example) in enumerate(zip(together, case.examples, strict=True))
        if _plain(rows) != _plain(stack.pair_rows([example], max_length=None)[0])
    ]
    return Measure.count(changed, "pairs that their batch changes")


def _plain(rows: PairRow) -> list[list[int]]:
    return [list(part) for row in rows for part in row]


for part, longest_prompt, longest_completion in (
    ("completion", 4, 2 * MAX_LENGTH),
    ("prompt", MAX_LENGTH - 3, 6),
):
    PAIRS.law(
        f"a long {part} is cut",
        "truncation from the other side, of padded rows, of ids without their mask, of prompt and completion apart",
        cases=partial(
            _pairs, lengths="equal", longest_prompt=longest_prompt, longest_completion=longest_completion
        ),
        excluded=_cuts_nothing,
        max_length=MAX_LENGTH,
    )(rows_are_right)
