"""R15 and R17 of the whole run: a row's tokens, reward and advantage are its own."""

from __future__ import annotations

import math
from typing import Any

from seatrial.relations.law import Law, Measure, Relation
from seatrial.relations.measures.rows import ending_error
from seatrial.relations.oracles.runs import expected_advantages
from seatrial.relations.records.run import RunRecord, RunRow
from seatrial.relations.runs import RunCase, run_cases
from seatrial.relations.worst import largest

ADVANTAGE_BOUND = (
    1e-4  # float32 rewards of a group that spreads by 0.01, divided by that spread: 1e-2 / 2^-23 * 8
)


def _rows(record: RunRecord) -> list[tuple[str, RunRow]]:
    return [
        (f"step {step.step}, row {index}", row)
        for step in record.steps
        for index, row in enumerate((*step.rows, *step.discarded_rows))
    ]


def _count(wrong: list[str], what: str) -> Measure:
    return Measure(error=float(len(wrong)), bound=0, what=f"{what} ({(wrong or ['none'])[0]})")


def _one_value_a_token(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    wrong = []
    for place, row in _rows(record):
        columns = {
            "mask": row.mask,
            "sampling_logprobs": row.sampling_logprobs,
            "old_logprobs": row.old_logprobs,
            "ref_logprobs": row.ref_logprobs if row.ref_logprobs is not None else row.ids,
            "kept_support": row.kept_support if row.kept_support is not None else row.ids,
        }
        wrong += [
            f"{place}: {len(values)} {name} for {len(row.ids)} ids"
            for name, values in columns.items()
            if len(values) != len(row.ids)
        ]
        numbers = (*row.sampling_logprobs, *row.old_logprobs, *(row.ref_logprobs or ()))
        if not row.ids or not all(0 <= token < record.vocab_size for token in row.ids):
            wrong.append(f"{place}: ids {row.ids}")
        if not all(math.isfinite(value) and value <= 1e-6 for value in numbers):
            wrong.append(f"{place}: a log-probability that is above 0 or not finite")
    return _count(wrong, "rows whose fields are not one a token")


def _ends_where_it_says(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    limit, stops = record.options["policy.generation.max_new_tokens"], set(record.stop_ids)
    wrong = []
    for place, row in _rows(record):
        error = ending_error(row.ids, row.finish_reason, stops, limit)
        wrong += [f"{place}: {error}"] if error else []
    return _count(wrong, "rows that do not end at a stop token or at the limit, or say another reason")


def _everything_trains(stack: Any, case: RunCase) -> Measure:
    """Without a filter every sampled token trains, the end token included."""
    wrong = [
        f"{place}: {row.mask}" for place, row in _rows(case.record(stack)) if row.mask != (1,) * len(row.ids)
    ]
    return _count(wrong, "rows whose mask is not 1 on every sampled token")


def _groups_are_whole(stack: Any, case: RunCase) -> Measure:
    """A step holds the prompts that were served, each with its number of completions of one and the same prompt."""
    record = case.record(stack)
    wrong = []
    for step in record.steps:
        wanted = sorted(step.prompts_served * record.options["grpo.num_generations_per_prompt"])
        if sorted(row.prompt_id for row in step.rows) != wanted:
            wrong.append(f"step {step.step}: rows of {sorted(row.prompt_id for row in step.rows)}")
        for prompt in set(wanted):
            if len({row.prompt_ids for row in step.rows if row.prompt_id == prompt}) > 1:
                wrong.append(f"step {step.step}: prompt {prompt} has several forms")
    return _count(wrong, "steps whose groups are not those of the prompts served")


def _own_reward(stack: Any, case: RunCase) -> Measure:
    rows = _rows(case.record(stack))
    given = stack.rewards_of([row for _, row in rows])
    wrong = [
        f"{place}: {row.reward_before_shaping}, judged alone {reward}"
        for (place, row), reward in zip(rows, given, strict=True)
        if not abs(row.reward_before_shaping - reward) <= 1e-6 * max(1.0, abs(reward))
        or not abs(row.reward - row.reward_before_shaping) <= 1e-6 * max(1.0, abs(reward))
    ]
    return _count(wrong, "rows whose reward is not the verifier's")


def _rewards_differ(stack: Any, case: RunCase) -> Measure:
    """The evidence is worth something: in some group the rewards differ, or nothing that follows says anything."""
    record = case.record(stack)
    spread = sum(
        len({row.reward for row in step.rows if row.prompt_id == prompt}) > 1
        for step in record.steps
        for prompt in set(step.prompts_served)
    )
    return Measure(
        error=0.0 if spread else 1.0, bound=0, what=f"{spread} groups with different rewards (1: none)"
    )


def _own_advantage(stack: Any, case: RunCase) -> Measure:
    record = case.record(stack)
    worst, place = 0.0, "nowhere"
    for step in record.steps:
        expected = expected_advantages(step.rows, record.options)
        for index, (row, right) in enumerate(zip(step.rows, expected, strict=True)):
            error = abs(row.advantage - right) / max(1.0, largest(abs(value) for value in expected))
            if not error <= worst:
                worst, place = error, f"step {step.step}, row {index}: {row.advantage:.6g} for {right:.6g}"
    return Measure(
        error=worst,
        bound=ADVANTAGE_BOUND,
        what=f"advantage against that of the recorded rewards, {place}, relative difference",
    )


ADVANTAGE_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("of a group", {}),
    (
        "without a scale",
        {"grpo__advantage__estimator": "dr_grpo", "grpo__advantage__scale": "none", "grpo__max_num_steps": 1},
    ),
    (
        "of the other rows",
        {"grpo__advantage__estimator": "rloo", "grpo__advantage__scale": "none", "grpo__max_num_steps": 1},
    ),
    ("with the KL in the reward", {"loss_fn__kl_in": "reward"}),
)

RELATIONS = (
    Relation(
        id="R15.run",
        name="run-rows-are-whole",
        component="run",
        statement="Every row of a run holds one value a sampled token, ends where it says, and trains whole.",
        catalogue=("SB001", "SB002", "SB041", "SB045", "SB050", "SB059", "SB060", "SB062", "SB063", "SB132", "SB145"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="one value a token",
                make=run_cases(),
                measure=_one_value_a_token,
                seeded=False,
                suspects="fields cut or padded apart from their ids, a placeholder of 0 or infinity",
            ),
            Law(
                name="a row ends where it says",
                make=run_cases(),
                measure=_ends_where_it_says,
                seeded=False,
                suspects="one stop token honoured of several, the end token cut off, a limit off by one",
            ),
            Law(
                name="every sampled token trains",
                make=run_cases(),
                measure=_everything_trains,
                seeded=False,
                suspects="a mask by comparing ids with the pad id, the end token left out",
            ),
            Law(
                name="groups are whole",
                make=run_cases(),
                measure=_groups_are_whole,
                seeded=False,
                suspects="rows lost or doubled between rollout and batch, rows of one prompt given another's id",
            ),
        ),
    ),
    Relation(
        id="R17.run",
        name="run-rewards-and-advantages",
        component="run",
        statement="A row's reward is the verifier's of its own completion, its advantage that of its own group.",
        catalogue=("SB055", "SB068", "SB069", "SB071", "SB074", "SB082", "SB083", "SB084", "SB087", "SB089", "SB093"),
        cost="CPU, seconds",
        laws=(
            Law(
                name="rewards differ within groups",
                make=run_cases(),
                measure=_rewards_differ,
                seeded=False,
                suspects="a verifier that fails and gives 0, rewards of one row given to all",
            ),
            Law(
                name="a row's reward is its own",
                make=run_cases(),
                measure=_own_reward,
                seeded=False,
                suspects="rows reordered between sampling and judging, another prompt's answer, text of other tokens",
            ),
            *(
                Law(
                    name=f"a row's advantage is its own, {name}",
                    make=run_cases(tuple(options), **options),
                    measure=_own_advantage,
                    seeded=False,
                    suspects="groups formed by position, statistics of the batch, another estimator than configured",
                )
                for name, options in ADVANTAGE_OPTIONS
            ),
        ),
    ),
)  # fmt: skip
