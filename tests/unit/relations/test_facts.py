"""Declared facts take traps out of the laws, and are held themselves."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from seatrial.relations.cases import make_rollout, rollout_for
from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import BuiltBatch, LossInputs, LossSpec, Row, StepResult
from seatrial.relations.registry import select
from seatrial.verdict import Outcome, Verdict


class Losses:
    """A policy gradient with the mean over each row's own tokens: plain, and NaN where a row has none."""

    loss_spec = LossSpec(reduction="sequence", ratio_clip_min=0.99, ratio_clip_max=1e9)
    epsilon = 0.0

    def policy_loss(self, inputs: LossInputs) -> torch.Tensor:
        """Divide by tokens + epsilon."""
        mask = inputs.mask_BT
        ratio = (inputs.logprobs_BT - inputs.old_logprobs_BT).masked_fill(mask == 0, 0.0).exp()
        gain = ratio * inputs.advantages_B.unsqueeze(1)
        per_row = (gain * mask).sum(1) / (mask.sum(1) + self.epsilon)
        return -per_row.sum() / inputs.global_valid_seqs


class Steps:
    """A trainer of one weight whose micro-batches are averaged: right for equal sizes alone."""

    vocab_size = 37

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """Average over micro-batches of the mean over rows."""
        parts = [sum(rows[i].advantage for i in part) / len(part) for part in micro_batches]
        gradient = torch.tensor([sum(parts) / len(parts)])
        return StepResult(loss=0.0, gradients={"w": gradient})


class Batches:
    """Left-padded batches of at most `limit` tokens."""

    limit = 24

    def make_batch(self, rows: Sequence[Row]) -> BuiltBatch:
        """Cut completions at their end."""
        kept = [max(0, self.limit - len(row.prompt_ids)) for row in rows]
        widths = [
            len(row.prompt_ids) + min(room, len(row.completion_ids))
            for row, room in zip(rows, kept, strict=True)
        ]
        S = max(widths)
        ids, real, mask = (torch.zeros(len(rows), S, dtype=torch.long) for _ in range(3))
        logprobs = torch.zeros(len(rows), S)
        for b, (row, width) in enumerate(zip(rows, widths, strict=True)):
            P = len(row.prompt_ids)
            ids[b, S - width :] = torch.tensor([*row.prompt_ids, *row.completion_ids][:width])
            real[b, S - width :] = 1
            mask[b, S - width + P :] = torch.tensor(row.completion_mask[: width - P])
            logprobs[b, S - width + P :] = torch.tensor(row.sampling_logprobs[: width - P])
        return BuiltBatch(
            input_ids_BS=ids,
            attention_mask_BS=real,
            loss_mask_BS=mask,
            sampling_logprobs_BS=logprobs,
            rewards_B=torch.tensor([row.reward for row in rows]),
            prompt_ids_B=torch.tensor([row.prompt_id for row in rows]),
        )


def judged(name: str, stack: Any, **facts: Any) -> Verdict:
    """Return the verdict of a relation on a stack with these declarations."""
    (relation,) = select([name])
    stack.facts = StackFacts(**facts)
    return run_relation(relation, stack)


def test_a_declared_epsilon_covers_parts_that_cancel() -> None:
    """Each micro-batch is divided by its own count plus epsilon; the whole loss may be small beside its parts."""

    class Shares(Losses):
        def policy_loss(self, inputs: LossInputs) -> torch.Tensor:
            """Return the mean over a micro-batch, weighted by its part of the batch's tokens."""
            mask = inputs.mask_BT
            ratio = (inputs.logprobs_BT - inputs.old_logprobs_BT).masked_fill(mask == 0, 0.0).exp()
            total = -(ratio * inputs.advantages_B.unsqueeze(1) * mask).sum()
            return total / (mask.sum() + 1e-4) * float(mask.sum()) / inputs.global_valid_tokens

    (relation,) = select(["R1.loss"])
    stack: Any = Shares()
    stack.facts = StackFacts(epsilon=1e-4)
    assert run_relation(relation, stack, seeds=range(12)).outcome is Outcome.PASS
    stack.facts = StackFacts(epsilon=1e-6)
    assert run_relation(relation, stack, seeds=range(12)).outcome is Outcome.FAIL


def test_only_the_law_of_the_masked_row_breaks_on_a_stack_that_has_none() -> None:
    """0 / 0 in a row without tokens says nothing about the rest of the formula."""
    broken = judged("R12.loss", Losses()).details["laws_broken"]
    assert broken == ["loss value, with a fully masked row"]
    assert judged("R12.loss", Losses(), masked_rows=False).outcome is Outcome.PASS


def test_a_declared_epsilon_widens_the_bound_by_what_it_moves() -> None:
    """And by no more: one ten times larger fails."""

    class WithEpsilon(Losses):
        epsilon = 1e-8

    assert judged("R12.loss", WithEpsilon(), masked_rows=False).outcome is Outcome.FAIL
    assert judged("R12.loss", WithEpsilon(), masked_rows=False, epsilon=1e-8).outcome is Outcome.PASS
    assert judged("R12.loss", WithEpsilon(), masked_rows=False, epsilon=1e-10).outcome is Outcome.FAIL


def test_a_trainer_of_equal_micro_batches_is_judged_on_those() -> None:
    """Each split is a law of its own."""
    broken = judged("R1.step", Steps()).details["laws_broken"]
    assert broken == ["gradients add up, in micro-batches of unequal numbers of rows"]
    verdict = judged("R1.step", Steps(), micro_batch_sizes="equal")
    assert "gradients add up, in micro-batches of two rows" in verdict.details["laws"]
    assert "laws_broken" not in verdict.details


def test_declarations_are_held() -> None:
    """What is declared to be refused and is served instead is a violation."""
    assert judged("R18.facts", Steps(), micro_batch_sizes="equal").outcome is Outcome.FAIL
    assert judged("R18.facts", Losses(), masked_rows=False).outcome is Outcome.FAIL

    number = "masked rows leave the loss a number"
    assert number in judged("R18.facts", Losses(), masked_rows=False).details["laws_broken"]
    stack = Losses()
    stack.epsilon = 1e-8
    assert number not in judged("R18.facts", stack, masked_rows=False).details["laws_broken"]

    class Refuses(Losses):
        def policy_loss(self, inputs: LossInputs) -> torch.Tensor:
            if not bool((inputs.mask_BT.sum(1) > 0).all()):
                raise ValueError("a row without tokens")
            return super().policy_loss(inputs)

    assert judged("R18.facts", Refuses(), masked_rows=False).outcome is Outcome.PASS
    assert judged("R18.facts", Losses(), dtype="float32").outcome is Outcome.FAIL
    assert judged("R18.facts", Losses(), dtype="float64").outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("facts", "outcome"),
    [
        ({"max_length": 24, "padding_side": "left"}, Outcome.PASS),
        ({"max_length": 20, "padding_side": "left"}, Outcome.FAIL),
        ({"max_length": 24, "padding_side": "right"}, Outcome.FAIL),
    ],
)
def test_a_builder_keeps_its_length_and_side(facts: dict[str, Any], outcome: Outcome) -> None:
    """Rows of up to 60 tokens show both."""
    assert judged("R18.facts", Batches(), **facts).outcome is outcome


def test_a_truncation_that_nobody_declared_is_seen() -> None:
    """Declared, it is held to its length."""
    assert judged("R15.batch", Batches()).details["laws_broken"] == ["long rows"]
    assert judged("R15.batch", Batches(), max_length=24).outcome is Outcome.PASS
    assert judged("R15.batch", Batches(), max_length=30).outcome is Outcome.FAIL


def test_cases_hold_the_traps_that_they_are_asked_for() -> None:
    """No tokens after an end token, no masked row, unless asked."""

    class NoMasked:
        facts = StackFacts(masked_rows=False)

    rows = make_rollout(0, num_prompts=6).rows
    assert not any(1 in row.completion_ids[:-1] for row in rows)
    assert sum(not any(row.completion_mask) for row in rows) == 1
    assert all(any(row.completion_mask) for row in rollout_for(NoMasked(), 0, False).rows)
    assert any(1 in row.completion_ids[:-1] for row in make_rollout(0, ends_inside=True).rows)
    long = make_rollout(0, longest_prompt=20, longest_completion=40).rows
    assert max(len(row.prompt_ids) + len(row.completion_ids) for row in long) > 24
