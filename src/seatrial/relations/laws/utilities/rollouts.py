"""R31.rollouts: a worker's batch of rollouts, and an answer in parts, are what the inference server gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from seatrial.relations.contracts.rollouts import Asked, Part, Resumed, Rolled
from seatrial.relations.contracts.utilities import Rollout
from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.padded_episodes import batch_of
from seatrial.relations.laws.utilities.plain import Plain, add_laws, difference, relation_of

ROLLOUTS = relation_of(
    "rollouts",
    "rollouts-are-what-the-server-gave",
    "A batch of rollouts has each row's own prompt, answer and reward; an answer in parts continues where it stopped.",
)
P, T = 48, 6
"""Widths of prompts and answers of a batch."""
LENGTHS = (3, T + 3, 1, T, T + 1, 5)
"""Of the server's answers; longer ones are cut to T."""
TRAINING: Mapping[str, Any] = {"temperature": 0.75, "top_p": 0.9, "top_k": 40}
BUDGET = 20
"""Longest answer, as configured, where the options of a request have no limit."""
PENALTY = 1.25
"""Of repetitions, as configured."""
VALIDATION: Mapping[str, Any] = {"temperature": 0.25, "top_p": 0.8, "top_k": 7}


def asked(case: Numbers) -> list[Asked]:
    """Return rows of unequal prompts and answers."""
    generator, rows = case.generator(), []
    for row, length in enumerate(LENGTHS):
        ids = torch.randint(10, 90, (length,), generator=generator).tolist()
        system = [{"role": "system", "content": "Be"}] if row % 3 == 1 else []
        messages = [*system, {"role": "user", "content": f"row {row}" + "?" * (row % 4)}]
        logprobs = [-0.125 * (place + 1) - row for place in range(length)]
        rows.append(Asked(messages=messages, answer=ids, logprobs=logprobs, reward=0.5 * row - 0.75))
    return rows


def _batch(stack: Any, rows: Sequence[Asked], **options: Any) -> Rolled:
    """Return what a worker makes of rows; of two workers where `workers` is 2."""
    plan = {"workers": 1, "validates": False, "rewarded": False, **options}
    given: Rolled = stack.utilities["rollouts"](list(rows), plan)
    return given


def _wrong(found: Rolled, rows: Sequence[Asked], rewarded: bool = False) -> list[str]:
    """Return where a batch differs from its definition."""
    given = [
        Rollout(
            prompt_ids=list(prompt),
            response_ids=list(row.answer[:T]),
            mask=[1] * len(row.answer[:T]),
            logprobs=list(row.logprobs[:T]),
            experts_SLK=None,
            reward=row.reward if rewarded else None,
            num_turns=2,
            extras={},
        )
        for prompt, row in zip(found.prompts, rows, strict=True)
    ]
    due = batch_of(given, 0, (P, T))
    due = {name: value for name, value in due.items() if isinstance(value, torch.Tensor)}
    due["attention_mask"] = due["attention_mask"].long()
    wrong = []
    for name in ("rollout_log_probs",):
        if name not in found.columns:
            due.pop(name, None)
    for name, value in due.items():
        error, place = difference(found.columns.get(name), value)
        wrong += [f"{name}{place}"] if error else []
    shown = [list(range(len(row.prompt_ids) + len(row.response_ids))) for row in given]
    wrong += ["positions"] if [list(one) for one in found.positions] != shown else []
    wrong += ["turns"] if any(turns != 2 for turns in found.turns) else []
    wrong += [
        f"conversation of row {row}"
        for row, (one, other) in enumerate(zip(found.asked, rows, strict=True))
        if list(one) != list(other.messages)
    ]
    return wrong


@ROLLOUTS.law(
    "rows of a batch",
    "answers in the order in which they came, a mask of another row, an answer that is cut elsewhere than its mask",
    excluded=without("rollouts"),
)
def batches_have_the_rows_in_order(stack: Any, case: Numbers) -> Measure:
    """Check the batch of rows whose answers come in the reverse order, of all rows and of one."""
    rows, wrong = asked(case), []
    for some in (rows, rows[::-1], rows[1:2]):
        wrong += [f"{len(some)} rows: {one}" for one in _wrong(_batch(stack, some), some)]
    return Measure.count(wrong, "columns of batches that are wrong")


@ROLLOUTS.law(
    "a batch of several workers",
    "parts of workers in another order, a part that is lost",
    excluded=without("rollouts of workers"),
)
def workers_share_a_batch(stack: Any, case: Numbers) -> Measure:
    """Check the batch that two and three workers make."""
    rows, wrong = asked(case), []
    for workers in (2, 3):
        plan = {"workers": workers, "validates": False, "rewarded": False}
        found = stack.utilities["rollouts of workers"](list(rows), plan)
        wrong += [f"{workers} workers: {one}" for one in _wrong(found, rows)]
    return Measure.count(wrong, "columns of batches that are wrong")


@ROLLOUTS.law(
    "options of sampling of a batch",
    "options of training in a validation, options of validation in training",
    excluded=without("rollouts"),
)
def each_request_has_the_configured_options(stack: Any, case: Numbers) -> Measure:
    """Check the options of each request, with training's and validation's configured apart."""
    rows, wrong = asked(case), []
    for validates, due in ((False, TRAINING), (True, VALIDATION)):
        found = _batch(stack, rows, validates=validates)
        for row, options in enumerate(found.sampling):
            given = {name: value for name, value in due.items() if options.get(name) != value}
            # Releases that pass no top_k sample with the server's own.
            given = {name: value for name, value in given.items() if name in options or name != "top_k"}
            wrong += [f"validation {validates}, row {row}: not {given}"] if given else []
    return Measure.count(wrong, "requests with other options")


@ROLLOUTS.law(
    "penalty of repetitions of a batch",
    "an option of rollouts that requests overwrite",
    excluded=without("rollouts"),
)
def each_request_has_the_configured_penalty(stack: Any, case: Numbers) -> Measure:
    """Check the penalty of each request in training; the server has the configured one for those without."""
    given = [one.get("repetition_penalty", PENALTY) for one in _batch(stack, asked(case)).sampling]
    wrong = [f"row {row}: {one}, not {PENALTY}" for row, one in enumerate(given) if one != PENALTY]
    return Measure.count(wrong, "requests with another penalty")


@ROLLOUTS.law(
    "rows that are sampled greedily",
    "a baseline that is sampled, options that rows share",
    excluded=without("greedy rollouts"),
)
def greedy_rows_are_greedy(stack: Any, case: Numbers) -> Measure:
    """Check that requests of the rows of a greedy baseline have temperature 0, all others the configured options."""
    rows = asked(case)
    greedy = [row % 3 == 1 for row in range(len(rows))]
    wrong = []
    for row, options in enumerate(stack.utilities["greedy rollouts"](list(rows), greedy)):
        due: Mapping[str, Any] = {"temperature": 0, "top_p": 1.0} if greedy[row] else TRAINING
        given = {name: options.get(name) for name in due}
        wrong += [f"row {row}: {given}"] if given != dict(due) else []
    return Measure.count(wrong, "requests with other options")


@ROLLOUTS.law(
    "rewards of a batch",
    "a reward of another row, a reward in the padding, an answer that is scored before it is cut",
    excluded=without("rollouts with rewards"),
)
def rewards_are_of_their_rows(stack: Any, case: Numbers) -> Measure:
    """Check the rewards of rows, and what their worker returned in addition to them."""
    rows = asked(case)
    plan = {"workers": 1, "validates": False, "rewarded": True}
    found = stack.utilities["rollouts with rewards"](list(rows), plan)
    wrong = _wrong(found, rows, rewarded=True)
    lengths = [min(len(row.answer), T) for row in rows]
    if [int(one) for one in found.scored] != lengths:
        wrong.append(f"the reward's worker was given answers of {list(found.scored)} tokens, not {lengths}")
    return Measure.count(wrong, "rewards of batches that are wrong")


def _times(chunks: Sequence[Sequence[Mapping[str, float]]], lengths: Sequence[tuple[int, int]]) -> Any:
    """Return the metrics of the times of rows, and those of the row that took longest."""
    rows = [row for chunk in chunks for row in chunk]
    found: dict[str, float] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        found[f"agent_loop/{name}/min"] = min(values)
        found[f"agent_loop/{name}/max"] = max(values)
        found[f"agent_loop/{name}/mean"] = sum(values) / len(values)
    parts = ("generate_sequences", "tool_calls", "compute_score")
    whole = [sum(row.get(name, 0.0) for name in parts) for row in rows]
    slowest = whole.index(max(whole))
    found |= {f"agent_loop/slowest/{name}": value for name, value in rows[slowest].items()}
    found["agent_loop/slowest/prompt_length"] = float(lengths[slowest][0])
    found["agent_loop/slowest/response_length"] = float(lengths[slowest][1])
    return found


def _timed(case: Numbers) -> list[tuple[Any, ...]]:
    generator = case.generator()
    found = []
    for sizes in ((3, 2), (1,), (2, 2, 2)):
        draws = (torch.randint(1, 64, (sum(sizes), 4), generator=generator) / 8).tolist()
        names = ("generate_sequences", "tool_calls", "compute_score", "num_preempted")
        rows = iter([dict(zip(names, draw, strict=True)) for draw in draws])
        chunks = [[next(rows) for _ in range(size)] for size in sizes]
        lengths = [tuple(one) for one in torch.randint(1, T, (sum(sizes), 2), generator=generator).tolist()]
        found.append((chunks, lengths))
    return found


ROLLOUT_FUNCTIONS = (
    Plain(
        name="times of rollouts",
        law="times of rollouts",
        suspects="the mean of a worker, the longest part of a row for the longest row, lengths of another row",
        cases=_timed,
        right=_times,
        bound=1e-6,
    ),
)
add_laws(ROLLOUTS, ROLLOUT_FUNCTIONS)


def _parts(case: Numbers, sizes: Sequence[int], last: str = "completed") -> list[Part]:
    generator = case.generator()
    parts = []
    for number, size in enumerate(sizes):
        ids = torch.randint(10, 90, (size,), generator=generator).tolist()
        stop = last if number == len(sizes) - 1 else "aborted"
        logprobs = [-number - 0.125 * (place + 1) for place in range(size)]
        parts.append(Part(ids, logprobs, stop, version=3 + 2 * number, preempted=number + 1))
    return parts


@ROLLOUTS.law(
    "an answer in parts",
    "tokens of a part lost or twice, a request that begins again, other log-probabilities, a limit for each part",
    excluded=without("answer in parts"),
)
def parts_of_an_answer_follow_one_another(stack: Any, case: Numbers) -> Measure:
    """Check answers of one to three parts, also a part without a token, with a limit and at the limit."""
    wrong: list[str] = []
    prompt = [5, 6, 7]
    plans: Sequence[tuple[Sequence[int], int, str]] = (
        ((4,), 20, "completed"),
        ((4, 3), 20, "completed"),
        ((0, 3), 20, "completed"),
        ((4, 0, 2), 20, "completed"),
        ((5, 4, 3), 12, "length"),
        ((5, 7), 12, "aborted"),
    )
    for sizes, limit, last in plans:
        parts = _parts(case, sizes, last)
        given: Resumed = stack.utilities["answer in parts"](prompt, parts, limit, True)
        wrong += [
            f"parts of {tuple(sizes)} tokens, limit {limit}: {one}"
            for one in _misplaced(given, prompt, parts, limit)
        ]
    return Measure.count(wrong, "faults of answers in parts")


def _misplaced(given: Resumed, prompt: Sequence[int], parts: Sequence[Part], limit: int) -> list[str]:
    ids = [token for part in parts for token in part.ids]
    wrong = [] if list(given.ids) == ids else [f"ids {list(given.ids)}"]
    if list(given.logprobs) != [value for part in parts for value in part.logprobs]:
        wrong.append("log-probabilities")
    before = [sum(len(one.ids) for one in parts[:number]) for number in range(len(parts))]
    if [list(one) for one in given.requests] != [[*prompt, *ids[:size]] for size in before]:
        wrong.append(f"{len(given.requests)} requests, or with other ids")
    if list(given.limits) != [limit - size for size in before]:
        wrong.append(f"limits {list(given.limits)}")
    if given.versions != (parts[0].version, parts[-1].version):
        wrong.append(f"versions {given.versions}")
    if given.preempted != sum(part.preempted for part in parts):
        wrong.append(f"{given.preempted} times preempted")
    due = "length" if len(ids) >= limit else parts[-1].stop
    wrong += [f"ended by {given.stop!r}"] if given.stop != due else []
    wrong += [] if len(given.released) == len(parts) else [f"{len(given.released)} servers released"]
    return wrong


@ROLLOUTS.law(
    "an answer in parts, no limit among its options",
    "a whole answer's length again for each part",
    excluded=without("answer in parts"),
)
def parts_share_the_configured_length(stack: Any, case: Numbers) -> Measure:
    """Check that parts after the first one are limited to what is left of the configured length."""
    parts, wrong = _parts(case, (4, 0, 3)), []
    given: Resumed = stack.utilities["answer in parts"]([5, 6, 7], parts, None, True)
    for number, (limit, due) in enumerate(zip(given.limits, (BUDGET, BUDGET - 4, BUDGET - 4), strict=False)):
        # The server's own limit holds for a first request that has none.
        wrong += [f"part {number}: {limit}, not {due}"] if limit != due and (number or limit) else []
    return Measure.count(wrong, "parts with another limit")


@ROLLOUTS.law(
    "options of an answer in parts",
    "what is left of the budget written to the options of the caller, who uses them again",
    excluded=without("answer in parts"),
)
def options_of_the_caller_are_kept(stack: Any, case: Numbers) -> Measure:
    """Check that the caller's options are the same after an answer in parts."""
    given: Resumed = stack.utilities["answer in parts"]([5, 6], _parts(case, (3, 2)), 20, True)
    wrong = (
        [] if given.options.get("max_tokens") == 20 else [f"max_tokens is {given.options.get('max_tokens')}"]
    )
    return Measure.count(wrong, "options that are changed")


@ROLLOUTS.law(
    "an answer that is not resumed",
    "a part that is resumed although this is off",
    excluded=without("answer in parts"),
)
def aborted_answers_end_where_configured(stack: Any, case: Numbers) -> Measure:
    """Check that the first part is all, where answers are not resumed."""
    parts = _parts(case, (4, 3))
    given: Resumed = stack.utilities["answer in parts"]([5, 6], parts, 20, False)
    return Measure.count(_misplaced(given, [5, 6], parts[:1], 20), "faults of an answer that is not resumed")
