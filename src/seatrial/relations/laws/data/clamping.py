"""R15: a batch that truncates rows reports how much, cuts only their ends, and has one of the allowed widths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from seatrial.relations.cases import Rollout, rollout_for
from seatrial.relations.cases.case import Case
from seatrial.relations.law import Measure, Relation
from seatrial.relations.records import BuiltBatch
from seatrial.relations.worst import largest


@dataclass(frozen=True, kw_only=True)
class ClampCase(Case):
    """Rows and their limits of length."""

    rollout: Rollout
    max_sequence_length: int | None
    buckets: tuple[int, ...]

    def smaller(self) -> Iterator[ClampCase]:
        """Yield fewer or shorter rows, then no buckets."""
        for rollout in self.rollout.smaller():
            yield replace(self, rollout=rollout)
        if self.buckets and self.max_sequence_length:
            yield replace(self, buckets=())

    def describe(self) -> Mapping[str, Any]:
        """Return the case as JSON values."""
        limits = {"max_sequence_length": self.max_sequence_length, "buckets": list(self.buckets)}
        return {**limits, **self.rollout.describe()}

    def built(self, stack: Any) -> BuiltBatch:
        """Return the stack's batch."""
        batch: BuiltBatch = stack.make_clamped_batch(
            self.rollout.rows, self.max_sequence_length, self.buckets
        )
        return batch

    def kept(self) -> list[int]:
        """Return how many completion tokens each row keeps: what fits after its prompt."""
        limit = min([*([self.max_sequence_length] if self.max_sequence_length else []), *self.buckets[-1:]])
        return [min(len(row.completion_ids), limit - len(row.prompt_ids)) for row in self.rollout.rows]


def _make(stack: Any, seed: int, tidy: bool) -> ClampCase:
    rollout = rollout_for(stack, seed, tidy, num_prompts=5)
    if tidy:
        return ClampCase(rollout=rollout, max_sequence_length=None, buckets=(16,))
    longest = max(len(row.prompt_ids) + len(row.completion_ids) for row in rollout.rows)
    prompt = max(len(row.prompt_ids) for row in rollout.rows)
    # Some rows do not fit; the bound is the length, the last bucket, or either.
    limit = max(prompt + 1, longest - 3 - seed % 2)
    widths = (
        (limit, (5, 24, 40)),
        (limit, (6, 26, 33)),
        (limit, (9, limit + 9, 60)),
        (None, tuple(sorted({8, limit}))),
    )
    bound, buckets = widths[seed % 4]
    return ClampCase(rollout=rollout, max_sequence_length=bound, buckets=buckets)


def _make_long(stack: Any, seed: int, tidy: bool) -> ClampCase:
    """Return prompts of up to 20 and completions of up to 40 tokens, with at most 24 for both."""
    if tidy:
        return _make(stack, seed, tidy)
    rollout = rollout_for(stack, seed, tidy, num_prompts=5, longest_prompt=20, longest_completion=40)
    return ClampCase(rollout=rollout, max_sequence_length=24, buckets=())


CLAMP = Relation(
    id="R15.clamp",
    name="clamping-reports-what-it-cuts",
    component="clamped_batch",
    statement="A clamped row keeps a prefix with its own mask; what was cut is counted; the width is a bucket.",
    catalogue="SB008 SB023",
    cost="CPU, milliseconds",
    cases=_make,
)


@CLAMP.law(
    "kept tokens are a prefix",
    "cut from the left, no cut at all, one token too many, a cut by the neighbours' length",
)
@CLAMP.law(
    "kept tokens are a prefix, of long rows",
    "long prompts cut, a completion that starts again, rows dropped",
    cases=_make_long,
)
def kept_tokens_are_a_prefix(stack: Any, case: ClampCase) -> Measure:
    """Check that each row is its prompt and the start of its completion."""
    built = case.built(stack)
    wrong = []
    for index, (row, kept) in enumerate(zip(case.rollout.rows, case.kept(), strict=True)):
        real = built.attention_mask_BS[index].bool()
        given, wanted = (
            built.input_ids_BS[index][real].tolist(),
            [*row.prompt_ids, *row.completion_ids[:kept]],
        )
        if given != wanted:
            wrong.append(f"row {index}: {given} instead of {wanted}")
    return Measure.count(wrong, "rows that are not their prompt and the start of their completion")


@CLAMP.law("cut tokens are counted, of long rows", "a silent cut, rows dropped instead", cases=_make_long)
@CLAMP.law("cut tokens are counted", "a silent cut, padding counted, rows dropped instead")
def cut_tokens_are_counted(stack: Any, case: ClampCase) -> Measure:
    """Compare the reported number of cut tokens with the number that is missing."""
    reported = case.built(stack).num_cut_tokens
    lost = sum(len(row.completion_ids) for row in case.rollout.rows) - sum(case.kept())
    return Measure(
        error=abs(reported - lost),
        bound=0,
        what=f"{reported} cut tokens reported, {lost} missing; difference",
    )


@CLAMP.law("width is a bucket", "the largest bucket always, the next one, buckets ignored")
def width_is_a_bucket(stack: Any, case: ClampCase) -> Measure | None:
    """Check that the batch has the smallest bucket's width that holds its rows.

    All rows together, and the shortest alone (not when tidy), which needs a smaller bucket.
    """
    shortest = min(case.rollout.rows, key=lambda row: len(row.prompt_ids) + len(row.completion_ids))
    alone = replace(case, rollout=replace(case.rollout, rows=(shortest,)))
    found = []
    for part in [case] if case.rollout.tidy else [case, alone]:
        needed = max(len(row.prompt_ids) for row in part.rollout.rows) + max(part.kept())
        if any(bucket >= needed for bucket in part.buckets):
            wanted = min(bucket for bucket in part.buckets if bucket >= needed)
            found.append((abs(part.built(stack).input_ids_BS.shape[1] - wanted), wanted))
    if not found:
        return None
    error, wanted = max(found)
    return Measure(
        error=error,
        bound=0,
        what=f"width of the batch against {wanted}, the smallest bucket that holds the rows; difference",
    )


@CLAMP.law("mask stays on its tokens", "ids cut on one side and masks on the other")
def mask_stays_on_its_tokens(stack: Any, case: ClampCase) -> Measure:
    """Check that masks and log-probabilities are cut together with the ids."""
    built = case.built(stack)
    wrong = []
    for index, (row, kept) in enumerate(zip(case.rollout.rows, case.kept(), strict=True)):
        real = built.attention_mask_BS[index].bool()
        wanted = [0] * len(row.prompt_ids) + list(row.completion_mask[:kept])
        given = [int(value) for value in built.loss_mask_BS[index][real].tolist()]
        outside = float(built.loss_mask_BS[index][~real].abs().sum())
        sampled = [row.sampling_logprobs[token] * row.completion_mask[token] for token in range(kept)]
        logprobs = built.sampling_logprobs_BS[index][real].tolist()[len(row.prompt_ids) :]
        apart = largest(abs(a - b) for a, b in zip(logprobs, sampled, strict=False))
        if given != wanted or outside or not apart <= 1e-5 or len(logprobs) != kept:
            wrong.append(
                f"row {index}: mask {given} instead of {wanted}, log-probabilities {apart:.3g} apart"
            )
    return Measure.count(wrong, "rows whose mask or log-probabilities moved")
