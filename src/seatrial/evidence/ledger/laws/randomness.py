"""Laws of randomness: each row has its own, and a sampler's weights have a version."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from seatrial.evidence.ledger.facts import LedgerFacts
from seatrial.evidence.ledger.laws.columns import beyond_chance, by_step, having, missing
from seatrial.evidence.ledger.result import Fault, LawResult, at, not_exercised
from seatrial.evidence.ledger.schema import LedgerRow

_MIN_GROUPS = 4
_MIN_TEXT = 16
"""Characters of a completion on average, from which on equal texts of every group are no chance."""


def own_randomness(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """No completion is there twice whose probability makes that impossible: each row and step draws for itself."""
    if facts.temperature == 0:
        return not_exercised("not exercised: sampling at temperature 0 draws nothing")
    logged = having(rows, "token_ids", "prompt_length", "generation_logprobs")
    if not logged:
        return _by_text(rows)
    telling = [row for row in logged if beyond_chance(row, len(logged))]
    if not telling:
        return not_exercised(
            f"not exercised: each of {len(logged)} completions is likely enough to be sampled twice",
            num_samples=len(logged),
        )
    first: dict[tuple[int, ...], LedgerRow] = {}
    faults = []
    for row in telling:
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
        num_samples=len(telling),
        summary=f"{len(telling)} completions that cannot repeat by chance differ",
        bound="chance of an alarm < 1e-06",
    )


def _by_text(rows: Sequence[LedgerRow]) -> LawResult:
    """Judge by texts: without probabilities only groups that are all of one text can be told."""
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
        return not_exercised("not exercised: texts are too short to tell copies; needs generation_logprobs")
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
    """Weight versions never go back, are of weights that there were, and lag no more than the run allows.

    Where a step takes n updates, the trainer's weights have seen n (s - 1) optimizer steps at step s.
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
        bound=f"<= {facts.max_lag} steps" if facts.max_lag is not None else None,
    )
