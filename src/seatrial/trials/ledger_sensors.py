"""Verdicts on the ledger: what was sampled, rewarded and trained on, worked out again row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from seatrial.evidence.ledger import LedgerRow
from seatrial.evidence.verifiers import REWARDS, answer_of
from seatrial.targets.base import TrainingJob
from seatrial.trials.advantages import advantages_of
from seatrial.verdict import Outcome, Verdict

REWARD_TOLERANCE = 1e-6
"""Rewards are logged from float32."""
ADVANTAGE_TOLERANCE = 1e-4
"""Relative to the largest advantage of the step; advantages are logged from float32."""
LOGPROB_TOLERANCE = 1e-4
"""Largest difference of one token's log-probability between sampler and trainer in float32, in nats."""
_SHOWN = 3


def ledger_verdicts(rows: Sequence[LedgerRow], job: TrainingJob) -> list[Verdict]:
    """Return every verdict on a ledger."""
    return [
        rows_complete(rows, job),
        tokens_valid(rows, job),
        sampler_agrees_with_trainer(rows, job),
        rewards_right(rows, job),
        advantages_right(rows, job),
    ]


def _conclude(
    name: str,
    rows: Sequence[LedgerRow],
    wrong: Sequence[str],
    *,
    num_samples: int,
    good: str,
    value: float | str | None = None,
    bound: str | None = None,
) -> Verdict:
    """Pass when nothing is wrong and there was something to look at."""
    steps = (rows[0].step, rows[-1].step) if rows else None
    if wrong or not num_samples:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        reason = "; ".join(wrong[:_SHOWN]) + more if wrong else "the ledger holds no rows"
        outcome = Outcome.FAIL
    else:
        outcome, reason = Outcome.PASS, good
    return Verdict(
        name=name,
        outcome=outcome,
        reason=reason,
        value=value,
        bound=bound,
        num_samples=num_samples,
        steps=steps,
        source="hand-set",
    )


def rows_complete(rows: Sequence[LedgerRow], job: TrainingJob) -> Verdict:
    """Every step has its rows, each once, in groups of the right size."""
    wrong = []
    counts = Counter(row.step for row in rows)
    for step in range(1, job.num_steps + 1):
        if counts[step] != job.num_rows_per_step:
            wrong.append(f"step {step} has {counts[step]} rows, not {job.num_rows_per_step}")
    wrong += [
        f"step {step} row {index} stands {number} times"
        for (step, index), number in Counter((row.step, row.index) for row in rows).items()
        if number > 1
    ]
    groups = Counter((row.step, row.prompt_id) for row in rows)
    wrong += [
        f"step {step}: prompt {prompt} has {number} completions, not a multiple of {job.num_generations_per_prompt}"
        for (step, prompt), number in groups.items()
        if number % job.num_generations_per_prompt
    ]
    return _conclude(
        "ledger: every trained row is there, once",
        rows,
        wrong,
        num_samples=len(rows),
        good=f"{len(rows)} rows in {len(groups)} groups",
        value=float(len(rows)),
        bound=f"== {job.num_steps * job.num_rows_per_step}",
    )


def tokens_valid(rows: Sequence[LedgerRow], job: TrainingJob) -> Verdict:
    """Ids lie in the vocabulary, prompts are whole, completions not empty and, where it can be told, are the text."""
    wrong: list[str] = []
    for row in rows:
        length = len(row.sampled_ids)
        if not 0 < row.prompt_length < len(row.token_ids):
            wrong.append(f"{row.where()}: prompt of {row.prompt_length} of {len(row.token_ids)} tokens")
        if job.vocabulary_size and not all(0 <= token < job.vocabulary_size for token in row.token_ids):
            wrong.append(f"{row.where()}: a token outside the vocabulary of {job.vocabulary_size}")
        if not length == len(row.generation_logprobs) == len(row.prev_logprobs):
            wrong.append(
                f"{row.where()}: {length} sampled tokens, {len(row.generation_logprobs)} and "
                f"{len(row.prev_logprobs)} log-probabilities"
            )
        if job.byte_level:
            wrong += _misspelt(row)
    return _conclude(
        "ledger: tokens are valid and are the rewarded text",
        rows,
        wrong,
        num_samples=sum(len(row.token_ids) for row in rows),
        good="ids in the vocabulary, lengths agree"
        + (
            ", tokens spell the rewarded text"
            if job.byte_level
            else "; text not compared (not a byte-level model)"
        ),
        bound=f"ids < {job.vocabulary_size}" if job.vocabulary_size else None,
    )


def _misspelt(row: LedgerRow) -> list[str]:
    """Say where the tokens of a row do not spell its texts."""
    parts = (
        ("prompt", row.token_ids[: row.prompt_length], row.prompt),
        ("rewarded text", row.sampled_ids, row.completion),
    )
    return [
        f"{row.where()}: the {what} {text!r} is not the text of its tokens"
        for what, token_ids, text in parts
        if _text_of(token_ids) != text
    ]


def _text_of(token_ids: Sequence[int]) -> str:
    """Return the text of byte-level ids; ids above a byte are special and have none."""
    return bytes(token for token in token_ids if 0 <= token < 256).decode("utf-8", errors="replace")


def sampler_agrees_with_trainer(rows: Sequence[LedgerRow], job: TrainingJob) -> Verdict:
    """The log-probability that each sampled token had is the one that training computes for it."""
    name = "ledger: sampler and trainer agree per token"
    bound = f"<= {LOGPROB_TOLERANCE:g}"
    if job.precision != "float32":
        return Verdict(
            name=name,
            outcome=Outcome.SKIPPED,
            bound=bound,
            reason=f"the bound is for float32, not {job.precision}",
        )
    wrong: list[str] = []
    largest = 0.0
    num_tokens = 0
    for row in rows:
        for token, (sampled, scored) in enumerate(
            zip(row.generation_logprobs, row.prev_logprobs, strict=False)
        ):
            gap = abs(sampled - scored)
            num_tokens += 1
            # Not "gap > tolerance": a NaN must not pass.
            if not gap <= LOGPROB_TOLERANCE:
                wrong.append(f"{row.where()} token {token}: sampled at {sampled:.6f}, scored at {scored:.6f}")
            if not gap <= largest:
                largest = gap
    return _conclude(
        name,
        rows,
        wrong,
        num_samples=num_tokens,
        good=f"largest difference of {num_tokens} tokens",
        value=largest,
        bound=bound,
    )


def rewards_right(rows: Sequence[LedgerRow], job: TrainingJob) -> Verdict:
    """The logged reward of each row is the reward of that row's own completion for its own prompt."""
    name = "ledger: rewards recomputed equal the logged"
    rule = REWARDS.get(job.verifier)
    if rule is None:
        return Verdict(
            name=name,
            outcome=Outcome.SKIPPED,
            reason=f"there is no independent rule for verifier {job.verifier!r}",
        )
    wrong, known, largest = _compare_rewards(rows, rule)
    if rows and not known:
        return Verdict(
            name=name,
            outcome=Outcome.SKIPPED,
            reason=f"there is no independent answer for prompts such as {rows[0].prompt!r}",
        )
    return _conclude(
        name,
        rows,
        wrong,
        num_samples=known,
        good="each row has the reward of its own completion",
        value=largest,
        bound=f"<= {REWARD_TOLERANCE:g}",
    )


def _compare_rewards(
    rows: Sequence[LedgerRow], rule: Callable[[str, str], float]
) -> tuple[list[str], int, float]:
    """Return what is wrong, how many rows could be judged, and the largest difference."""
    wrong: list[str] = []
    known = 0
    largest = 0.0
    for row in rows:
        answer = answer_of(row.prompt)
        if answer is None:
            continue
        known += 1
        reward = rule(row.completion, answer)
        gap = abs(row.reward - reward)
        if answer != row.answer:
            wrong.append(
                f"{row.where()}: the answer of {row.prompt!r} is {answer!r}, logged is {row.answer!r}"
            )
        if not gap <= REWARD_TOLERANCE:
            wrong.append(
                f"{row.where()}: {row.completion!r} for {row.prompt!r} earns {reward:.6g}, logged is {row.reward:.6g}"
            )
        if not gap <= largest:
            largest = gap
    return wrong, known, largest


def advantages_right(rows: Sequence[LedgerRow], job: TrainingJob) -> Verdict:
    """Logged advantages are those of the logged rewards, centred by prompt, in float64."""
    name = "ledger: advantages recomputed equal the logged"
    bound = f"<= {ADVANTAGE_TOLERANCE:g} of the largest"
    if job.advantage is None:
        return Verdict(
            name=name,
            outcome=Outcome.SKIPPED,
            bound=bound,
            reason="rewards are changed before advantages here (KL in the reward): they cannot be worked out again",
        )
    wrong: list[str] = []
    largest = 0.0
    informative = 0
    for step in sorted({row.step for row in rows}):
        of_step = [row for row in rows if row.step == step]
        wanted = advantages_of(of_step, job.advantage)
        logged = np.array([row.advantage for row in of_step])
        scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
        for row, right, is_logged in zip(of_step, wanted, logged, strict=True):
            gap = abs(float(is_logged - right)) / scale
            informative += bool(abs(right) > 1e-9)
            if not gap <= ADVANTAGE_TOLERANCE:
                sign = " (opposite sign)" if right * is_logged < 0 else ""
                wrong.append(f"{row.where()}: advantage {is_logged:.6g}, the rewards give {right:.6g}{sign}")
            if not gap <= largest:
                largest = gap
    if rows and not informative and not wrong:
        return Verdict(
            name=name,
            outcome=Outcome.SKIPPED,
            bound=bound,
            num_samples=len(rows),
            reason="not triggered: every group has equal rewards, so every advantage is 0 whatever its sign",
        )
    return _conclude(
        name,
        rows,
        wrong,
        num_samples=len(rows),
        good=f"{informative} of {len(rows)} rows have an advantage that is not 0",
        value=largest,
        bound=bound,
    )
