"""Laws of rows: each is there once, in its group and at its step, with its own randomness and weight version."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from seatrial.evidence.ledger.law import (
    Fault,
    LawResult,
    at,
    beyond_chance,
    by_step,
    having,
    missing,
    not_exercised,
)
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow

_ALL_OR_NONE = ("reward", "advantage", "completion", "token_ids", "generation_logprobs", "prev_logprobs")
"""Columns that a stack writes for every row or for none."""
_ODD_TEXT = 32
"""Characters from which on equal completions of a whole step are not due to chance."""


def rows_complete(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Every step has its rows, each once and with all its columns, in groups of the right size."""
    counts = Counter(row.step for row in rows)
    wanted = facts.num_rows_per_step or _usual(counts.values())
    steps = range(1, facts.num_steps + 1) if facts.num_steps else sorted(counts)
    faults = [
        Fault(step, None, f" has {counts[step]} rows, not {wanted}")
        for step in steps
        if counts[step] != wanted
    ]
    for (step, index), number in Counter((row.step, row.index) for row in rows).items():
        if number > 1:
            faults.append(Fault(step, index, f" is there {number} times"))
    faults += _gaps(rows)
    groups = Counter((row.step, row.group_key) for row in rows)
    size = facts.group_size or _usual(groups.values())
    faults += [
        Fault(
            step, None, f": prompt {key[0]} has {number} completions, not {_multiple(facts.group_size, size)}"
        )
        for (step, key), number in groups.items()
        if number % size
    ]
    faults += _holes(rows)
    return LawResult(
        faults=faults,
        num_samples=len(rows),
        summary=f"{len(rows)} rows in {len(groups)} groups",
        value=float(len(rows)),
        bound=f"== {wanted * len(steps)}",
    )


def _usual(numbers: Iterable[int]) -> int:
    """Return the most frequent number, the largest of several."""
    counted = Counter(numbers)
    return max(counted, key=lambda number: (counted[number], number)) if counted else 0


def _multiple(declared: int | None, size: int) -> str:
    return f"a multiple of {size}" if declared else f"a multiple of {size} as most groups"


def _gaps(rows: Sequence[LedgerRow]) -> Iterator[Fault]:
    """Yield the places that no row of a step has, below the largest that one has."""
    for step, of_step in by_step(rows).items():
        indices = {row.index for row in of_step}
        # A set of n indices holds one that is not below n, or is all of 0..n-1.
        absent = next((index for index in range(len(indices)) if index not in indices), None)
        if absent is not None:
            yield Fault(step, absent, f" is missing; the last row is {max(indices)}")


def _holes(rows: Sequence[LedgerRow]) -> Iterator[Fault]:
    """Yield rows without a column that other rows have."""
    for column in _ALL_OR_NONE:
        full = having(rows, column)
        if not full or len(full) == len(rows):
            continue
        for row in rows:
            by_token = column == "advantage" and row.token_advantages is not None
            if getattr(row, column) is None and not by_token:
                yield at(row, f"has no {column}, which other rows have")


def steps_follow(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """No step is left out between the first and the last; evenly spaced steps are a stack that logs some of them."""
    steps = sorted({row.step for row in rows})
    if len(steps) < 2:
        return not_exercised("not exercised: needs the rows of two steps or more")
    distances = [late - early for early, late in itertools.pairwise(steps)]
    usual = 1 if facts.num_steps else min(distances)
    faults = [
        Fault(early, None, f" is followed by step {early + distance}: {distance - usual} steps have no rows")
        for early, distance in zip(steps, distances, strict=False)
        if distance != usual
    ]
    if steps[0] < 0:
        faults.append(Fault(steps[0], None, ": steps are counted from 0 or 1"))
    every = "every step" if usual == 1 else f"every {usual}th step"
    return LawResult(
        faults=faults, num_samples=len(steps), summary=f"{every} from {steps[0]} to {steps[-1]} has rows"
    )


def trained_once(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """No completion is trained at more steps than the run says.

    The sampler's log-probabilities distinguish a copy from the same words sampled again, because the weights have
    changed in between. For a stack that writes texts only, just whole steps can be compared.
    """
    if len({row.step for row in rows}) < 2:
        return not_exercised("not exercised: needs the rows of two steps or more")
    logged = having(rows, "generation_logprobs", "token_ids")
    texts = having(rows, "completion") if not logged else []
    if not logged and not texts:
        return not_exercised(missing("generation_logprobs or completion"))
    unlikely = [row for row in logged if beyond_chance(row, len(logged))]
    steps = {step: of for step, of in by_step(texts).items() if _is_long(of)}
    if len({row.step for row in unlikely} | steps.keys()) < 2:
        return not_exercised(
            "not exercised: completions are too short or too likely to detect copies at two steps"
        )
    repeats = list(_repeated_rows(unlikely)) if logged else list(_repeated_steps(steps))
    allowed = facts.steps_per_batch
    faults = [fault for fault, times in repeats if times > (allowed or 1)]
    if faults and allowed is None:
        return not_exercised(
            "not exercised: rows are at several steps, and this stack writes a batch again at every step that it "
            "serves; say how many steps those are",
            num_samples=len(rows),
        )
    return LawResult(
        faults=faults,
        num_samples=len(unlikely) or len(steps),
        summary=f"{len(unlikely)} rows differ" if logged else f"{len(steps)} steps differ",
    )


def _is_long(rows: Sequence[LedgerRow]) -> bool:
    """Whether the texts of a step are so long that another step cannot have all of them by chance."""
    return sum(len(row.completion or "") for row in rows) >= _ODD_TEXT * len(rows)


def _repeated_rows(rows: Sequence[LedgerRow]) -> Iterator[tuple[Fault, int]]:
    """Yield each row whose tokens and log-probabilities were at an earlier step, and at how many steps so far."""
    seen: dict[Hashable, list[LedgerRow]] = defaultdict(list)
    for row in rows:
        earlier = seen[(row.token_ids, row.generation_logprobs)]
        if earlier and earlier[-1].step != row.step:
            yield at(row, f"is {earlier[-1].where()} again, token by token"), len(earlier) + 1
        if not earlier or earlier[-1].step != row.step:
            earlier.append(row)


def _repeated_steps(steps: Mapping[int, Sequence[LedgerRow]]) -> Iterator[tuple[Fault, int]]:
    """Yield each step whose texts are all those of an earlier step, and how many steps have had them by then."""
    seen: dict[Hashable, list[int]] = defaultdict(list)
    for step, of_step in steps.items():
        earlier = seen[tuple(sorted((row.prompt_id, row.completion or "") for row in of_step))]
        if earlier:
            yield Fault(step, None, f": its rows are those of step {earlier[-1]} again"), len(earlier) + 1
        earlier.append(step)


def groups_are_prompts(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Rows of a prompt have its text, tokens and media; in a step, another prompt's number has another text."""
    known = [row for row in rows if row.prompt is not None or (row.token_ids and row.prompt_length)]
    if not known:
        return not_exercised(missing("prompt or token_ids"))
    if facts.stack in ORDER_ONLY:
        return not_exercised(
            f"not exercised: {facts.stack} writes no number of a prompt; rows were grouped by its text"
        )
    first: dict[int, LedgerRow] = {}
    numbers: dict[tuple[int, str, str | None], LedgerRow] = {}
    faults = []
    for row in known:
        one = first.setdefault(row.prompt_id, row)
        if row.prompt != one.prompt:
            faults.append(
                at(row, f"prompt {row.prompt_id} is {row.prompt!r}, and {one.prompt!r} in {one.where()}")
            )
        elif row.media != one.media:
            faults.append(
                at(row, f"the image or sound of prompt {row.prompt_id} is not that of {one.where()}")
            )
        elif _prompt_ids(row) != _prompt_ids(one):
            faults.append(at(row, f"the tokens of prompt {row.prompt_id} are not those of {one.where()}"))
        if row.prompt is not None:
            other = numbers.setdefault((row.step, row.prompt, row.media), row)
            if other.prompt_id != row.prompt_id:
                faults.append(
                    at(
                        row,
                        f"{row.prompt!r} is prompt {row.prompt_id}, and {other.prompt_id} in {other.where()}",
                    )
                )
    return LawResult(
        faults=faults,
        num_samples=len(known),
        summary=f"{len(first)} prompts, each with its own text and number",
    )


def _prompt_ids(row: LedgerRow) -> tuple[int, ...] | None:
    return None if row.token_ids is None or row.prompt_length is None else row.token_ids[: row.prompt_length]


ORDER_ONLY = frozenset({"NeMo RL", "TRL", "verl"})
"""Stacks whose rows do not name their prompt."""


_MIN_GROUPS = 4
_MIN_TEXT = 16
"""Characters of a completion on average, from which on equal texts in every group are not due to chance."""


def own_randomness(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """No completion appears twice whose probability makes that impossible: every row draws for itself."""
    if facts.temperature == 0:
        return not_exercised("not exercised: sampling at temperature 0 draws nothing")
    logged = having(rows, "token_ids", "prompt_length", "generation_logprobs")
    if not logged:
        return _by_text(rows)
    unlikely = [row for row in logged if beyond_chance(row, len(logged))]
    if not unlikely:
        return not_exercised(
            f"not exercised: each of {len(logged)} completions is likely enough to be sampled twice",
            num_samples=len(logged),
        )
    first: dict[tuple[int, ...], LedgerRow] = {}
    faults = []
    for row in unlikely:
        earlier = first.setdefault(row.sampled_ids, row)
        if earlier is not row:
            chance = 10 ** min(0.0, sum(row.generation_logprobs or ()) / 2.302585)
            faults.append(
                at(
                    row,
                    f"has the {len(row.sampled_ids)} tokens of {earlier.where()}, whose chance is {chance:.1g}: "
                    "the random stream was used again",
                )
            )
    return LawResult(
        faults=faults,
        num_samples=len(unlikely),
        summary=f"{len(unlikely)} completions that cannot repeat by chance differ",
        bound="chance of an alarm < 1e-06",
    )


def _by_text(rows: Sequence[LedgerRow]) -> LawResult:
    """Judge by texts: without probabilities only groups whose completions are all one text can be detected."""
    texts: dict[tuple[int, tuple[int, int]], list[str]] = defaultdict(list)
    for row in having(rows, "completion"):
        texts[(row.step, row.group_key)].append(row.completion or "")
    groups = {key: of for key, of in texts.items() if len(of) > 1}
    if len(groups) < _MIN_GROUPS:
        return not_exercised(
            "not exercised: needs generation_logprobs and token_ids, or four groups of completions"
        )
    characters = [len(text) for of in groups.values() for text in of]
    equal = [key for key, of in groups.items() if len(set(of)) == 1]
    if sum(characters) < _MIN_TEXT * len(characters):
        return not_exercised("not exercised: texts are too short to detect copies; needs generation_logprobs")
    faults = []
    if len(equal) == len(groups):
        step = equal[0][0]
        faults = [
            Fault(step, None, f": in all {len(groups)} groups the completions of a prompt are one text")
        ]
    return LawResult(
        faults=faults,
        num_samples=len(groups),
        summary=f"{len(groups) - len(equal)} of {len(groups)} groups have completions that differ",
    )


def versions_in_order(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Weight versions never go back, belong to weights that existed, and lag at most as far as the run allows.

    Where a step takes n updates, the trainer's weights have seen n (s - 1) optimizer steps at step s. Where the run
    says so they lag exactly as far: a row that is newer was sampled late, or in place of one that was dropped.
    """
    known = having(rows, "weight_version")
    if not known:
        return not_exercised(missing("weight_version"))
    faults: list[Fault] = []
    newest = -1
    largest = 0
    for step, of_step in by_step(known).items():
        trained_at = facts.num_updates_per_step * (step - 1)
        for row in of_step:
            lag = trained_at - (row.weight_version or 0)
            largest = max(largest, lag)
            if lag < 0 or (row.weight_version or 0) < 0:
                faults.append(
                    at(row, f"sampled by weights {row.weight_version}, trained at weights {trained_at}")
                )
            elif facts.max_lag is not None and lag > facts.max_lag:
                faults.append(at(row, f"sampled by weights {lag} steps behind, allowed are {facts.max_lag}"))
            elif facts.lag_is_exact and facts.max_lag is not None and lag < min(facts.max_lag, trained_at):
                right = min(facts.max_lag, trained_at)
                faults.append(
                    at(row, f"sampled by weights {lag} steps behind, the run samples {right} ahead")
                )
        newest_here = max(row.weight_version or 0 for row in of_step)
        if newest_here < newest:
            faults.append(
                Fault(step, None, f" is sampled by weights {newest_here}, after weights {newest} before")
            )
        newest = max(newest, newest_here)
    return LawResult(
        faults=faults,
        num_samples=len(known),
        summary=f"at most {largest} steps behind",
        value=float(largest),
        bound=f"{'==' if facts.lag_is_exact else '<='} {facts.max_lag} steps"
        if facts.max_lag is not None
        else None,
    )
