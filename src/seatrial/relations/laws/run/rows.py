"""R15.run, R17.run: a row's tokens, reward and advantage are its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from seatrial.relations.law import Measure, Relation
from seatrial.relations.measures.rows import ending_error
from seatrial.relations.oracles.runs import expected_advantages
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import largest

# Float32 rewards of a group that spreads by 0.01, divided by that spread: 1e-2 / 2^-23 * 8.
ADVANTAGE_BOUND = 1e-4
NO_SCALE = {"grpo__advantage__scale": "none", "grpo__max_num_steps": 1}
ADVANTAGES: dict[str, dict[str, Any]] = {
    "of a group": {},
    "without a scale": {"grpo__advantage__estimator": "dr_grpo", **NO_SCALE},
    "of the other rows": {"grpo__advantage__estimator": "rloo", **NO_SCALE},
    "with the KL in the reward": {"loss_fn__kl_in": "reward"},
}

ROWS = Relation(
    id="R15.run",
    name="run-rows-are-whole",
    component="run",
    statement="Every row of a run has one value per sampled token, ends as its finish reason says, and trains whole.",
    catalogue="SB001 SB002 SB041 SB045 SB050 SB059 SB060 SB062 SB063 SB132 SB145",
    cost="CPU, seconds",
    cases=run_cases(),
    seeded=False,
)
REWARDS = Relation(
    id="R17.run",
    name="run-rewards-and-advantages",
    component="run",
    statement="A row's reward is the verifier's of its own completion, its advantage that of its own group.",
    catalogue="SB055 SB068 SB069 SB071 SB074 SB082 SB083 SB084 SB087 SB089 SB093",
    cost="CPU, seconds",
    cases=run_cases(),
    seeded=False,
)


def _sampled_rows(record: RunRecord) -> Iterator[tuple[str, RunRow]]:
    """Yield the place and the row of everything that was sampled, discarded rows included."""
    for step in record.steps:
        for index, row in enumerate((*step.rows, *step.discarded_rows)):
            yield f"step {step.step}, row {index}", row


@ROWS.law(
    "one value per token",
    "fields cut or padded apart from their ids, a placeholder of 0 or infinity",
)
def one_value_per_token(stack: Any, case: RunCase) -> Measure:
    """Check the length of every per-token field, the range of ids, and the sign of log-probabilities."""
    record = case.record(stack)
    wrong = []
    for place, row in _sampled_rows(record):
        for name in ("mask", "sampling_logprobs", "old_logprobs", "ref_logprobs", "kept_support"):
            values = getattr(row, name)
            if values is not None and len(values) != len(row.ids):
                wrong.append(f"{place}: {len(values)} {name} for {len(row.ids)} ids")
        numbers = (*row.sampling_logprobs, *row.old_logprobs, *(row.ref_logprobs or ()))
        if not row.ids or not all(0 <= token < record.vocab_size for token in row.ids):
            wrong.append(f"{place}: ids {row.ids}")
        if not all(math.isfinite(value) and value <= 1e-6 for value in numbers):
            wrong.append(f"{place}: a log-probability that is above 0 or not finite")
    return Measure.count(wrong, "rows whose fields are not one per token")


@ROWS.law(
    "a row ends as its finish reason says",
    "one stop token honoured of several, the end token cut off, a limit off by one",
)
def rows_end_as_their_reason_says(stack: Any, case: RunCase) -> Measure:
    """Check that every row ends at a stop token or at the limit, and that its finish reason says which."""
    record = case.record(stack)
    limit, stops = record.options["policy.generation.max_new_tokens"], set(record.stop_ids)
    wrong = []
    for place, row in _sampled_rows(record):
        error = ending_error(row.ids, row.finish_reason, stops, limit)
        wrong += [f"{place}: {error}"] if error else []
    return Measure.count(
        wrong, "rows that do not end at a stop token or at the limit, or have another reason"
    )


@ROWS.law(
    "every sampled token trains",
    "a mask by comparing ids with the pad id, the end token left out",
)
def every_sampled_token_trains(stack: Any, case: RunCase) -> Measure:
    """Check that without a filter every sampled token trains, the end token included."""
    rows = _sampled_rows(case.record(stack))
    wrong = [f"{place}: {row.mask}" for place, row in rows if row.mask != (1,) * len(row.ids)]
    return Measure.count(wrong, "rows whose mask is not 1 on every sampled token")


@ROWS.law(
    "groups are whole",
    "rows lost or doubled between rollout and batch, rows of one prompt given another's id",
)
def groups_are_whole(stack: Any, case: RunCase) -> Measure:
    """Check that a step has the configured number of rows of each served prompt, all with the same prompt ids."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        due = sorted(step.prompts_served * record.options["grpo.num_generations_per_prompt"])
        found = sorted(row.prompt_id for row in step.rows)
        if found != due:
            wrong.append(f"step {step.step}: rows of {found}")
        for prompt in set(due):
            if len({row.prompt_ids for row in step.rows if row.prompt_id == prompt}) > 1:
                wrong.append(f"step {step.step}: prompt {prompt} has several forms")
    return Measure.count(wrong, "steps whose groups are not those of the prompts served")


@REWARDS.law(
    "rewards differ within groups",
    "a verifier that fails and gives 0, rewards of one row given to all",
)
def rewards_differ_within_groups(stack: Any, case: RunCase) -> Measure:
    """Check that some group has different rewards: without a spread, the other laws show nothing."""
    spread = sum(
        len({row.reward for row in step.rows if row.prompt_id == prompt}) > 1
        for step in case.record(stack).steps
        for prompt in set(step.prompts_served)
    )
    return Measure(
        error=0 if spread else 1, bound=0, what=f"{spread} groups with different rewards (1: none)"
    )


@REWARDS.law(
    "a row's reward is its own",
    "rows reordered between sampling and judging, another prompt's answer, text of other tokens",
)
def rewards_are_the_verifiers(stack: Any, case: RunCase) -> Measure:
    """Compare every row's reward with the verifier's for that row alone."""
    rows = list(_sampled_rows(case.record(stack)))
    given = stack.rewards_of([row for _, row in rows])
    wrong = [
        f"{place}: {row.reward_before_shaping}, judged alone {reward}"
        for (place, row), reward in zip(rows, given, strict=True)
        if not abs(row.reward_before_shaping - reward) <= 1e-6 * max(1.0, abs(reward))
        or not abs(row.reward - row.reward_before_shaping) <= 1e-6 * max(1.0, abs(reward))
    ]
    return Measure.count(wrong, "rows whose reward is not the verifier's")


def advantages_are_of_the_group(stack: Any, case: RunCase) -> Measure:
    """Compare every row's advantage with that of the recorded rewards of its group."""
    record = case.record(stack)
    found = []
    for step in record.steps:
        expected = expected_advantages(step.rows, record.options)
        scale = max(1.0, largest(abs(value) for value in expected))
        for index, (row, right) in enumerate(zip(step.rows, expected, strict=True)):
            place = f"step {step.step}, row {index}: {row.advantage:.6g} for {right:.6g}"
            found.append((abs(row.advantage - right) / scale, place))
    return Measure.largest(
        found, ADVANTAGE_BOUND, "advantage against that of the recorded rewards, relative difference"
    )


for _name, _options in ADVANTAGES.items():
    REWARDS.law(
        f"a row's advantage is its own, {_name}",
        "groups formed by position, statistics of the batch, another estimator than configured",
        cases=run_cases(**_options),
    )(advantages_are_of_the_group)
