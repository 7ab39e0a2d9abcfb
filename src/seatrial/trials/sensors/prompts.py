"""Verdict on the prompts of a run: those of the configured task and splits, each as often as the others."""

from __future__ import annotations

import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from seatrial.errors import BlockedError
from seatrial.evidence.ledger.laws.rewards import answer_of
from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.options import options_of, steps_of
from seatrial.trials.sensors.paths import sensor

Arguments = Mapping[str, int]
PARTS, COLOURS = 4, 3
"""Quarters of an image or tones of a sound, one of which a prompt names, and the colours that a quarter may have."""
MEDIA = r"(?:<\|media\|>)+([a-d])="
"""Form of a prompt that names a part of an image or sound."""
UNLIKELY = 1e-6
"""Probability below which numbers of prompts are not drawn from all of a task's."""
COUNTABLE = 2**63
"""Prompts of larger tasks are not numbered."""


class MadeTask(NamedTuple):
    """A task whose prompts are written from a few arguments."""

    form: re.Pattern[str]
    defaults: Arguments
    """Documented values of the arguments."""
    fits: Callable[[Sequence[str], Arguments], bool]
    """Whether the groups of the form's match are those of a prompt with these arguments."""
    size: Callable[[Arguments], int]
    """Returns the number of different prompts with these arguments."""


def _is_word(word: str, least: int, most: int, alphabet_size: int) -> bool:
    return least <= len(word) <= most and set(word) <= set(string.ascii_lowercase[:alphabet_size])


def _words(of: Arguments) -> int:
    """Return the number of words that the arguments allow."""
    return sum(of["alphabet_size"] ** length for length in range(of["min_length"], of["max_length"] + 1))


def _ranged(groups: Sequence[str], of: Arguments) -> bool:
    return _is_word(groups[0], of["min_length"], of["max_length"], of["alphabet_size"])


TASKS: Mapping[str, MadeTask] = {
    "reverse": MadeTask(
        re.compile("reverse ([a-z]*)="),
        {"min_length": 1, "max_length": 4, "alphabet_size": 26},
        _ranged,
        _words,
    ),
    "lookup": MadeTask(
        re.compile("price ([a-z]*):"),
        {"min_length": 1, "max_length": 2, "alphabet_size": 26},
        _ranged,
        _words,
    ),
    "add": MadeTask(
        re.compile(r"(\d+)\+(\d+)="),
        {"digits": 2},
        lambda groups, of: max(map(len, groups)) <= of["digits"],
        lambda of: 10 ** (2 * of["digits"]),
    ),
    "count_letters": MadeTask(
        re.compile("count ([a-z]) in ([a-z]+)="),
        {"length": 6, "alphabet_size": 3},
        lambda groups, of: all(
            _is_word(word, length, length, of["alphabet_size"])
            for word, length in zip(groups, (1, of["length"]), strict=True)
        ),
        lambda of: of["alphabet_size"] ** (1 + of["length"]),
    ),
    "code_print": MadeTask(
        re.compile(r"print (\d+)([+*-])(\d+):"),
        {"limit": 10, "num_operators": 1},
        lambda groups, of: (
            max(int(groups[0]), int(groups[2])) < of["limit"] and groups[1] in "+-*"[: of["num_operators"]]
        ),
        lambda of: of["limit"] ** 2 * of["num_operators"],
    ),
    "colour": MadeTask(re.compile(MEDIA), {}, lambda groups, of: True, lambda of: PARTS * COLOURS**PARTS),
    "pitch": MadeTask(
        re.compile(MEDIA),
        {"num_bands": 8},
        lambda groups, of: True,
        lambda of: PARTS * of["num_bands"] ** PARTS,
    ),
}
"""Made tasks by name."""


def prompts_are_the_tasks(evidence: RunEvidence) -> tuple[list[str], str, int]:
    """Every prompt is one of the configured task, of one split alone, as often as the others; held-out ones stay.

    Raises:
        NotGivenError: the target gives no rows, or does not say how the run is configured.
        BlockedError: a file cannot be read.
    """
    options = options_of(evidence)
    rows = [row for of_step in steps_of(evidence).values() for row in of_step]
    validations = validation_rows(evidence)
    held_out = [dict(row) for of in validations.values() for row in of]
    trained = [{"prompt_id": row.prompt_id, "prompt": row.prompt, "answer": row.answer} for row in rows]
    wrong = [
        *_not_of_task([*trained, *held_out], options),
        *_not_of_one_split(trained, held_out, options),
        *_not_of_all(sorted({row["prompt_id"] for row in [*trained, *held_out]}), options),
        *_validations_differ(validations),
    ]
    if _comes_evenly(options):
        wrong += uneven(rows, options.get("grpo.num_generations_per_prompt", 1))
        wrong += _reordered(rows, options)
    if evidence.job.byte_level:
        wrong += _without_system_prompt(rows, options)
    number = len({row.prompt_id for row in rows})
    return (
        wrong[:3],
        f"{number} prompts to train on in {len(rows)} rows, {len(held_out)} held-out rows",
        number,
    )


PROMPTS = sensor(
    "prompts are those of the task and its splits", "of its arguments; none in both", prompts_are_the_tasks
)


def validation_rows(evidence: RunEvidence) -> dict[int, list[Mapping[str, Any]]]:
    """Return the rows of each validation by its step.

    Raises:
        BlockedError: a file cannot be read.
    """
    found = {}
    for path in evidence.job.ledger_dir.glob("validation_data_step*.jsonl"):
        try:
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found[int(path.stem.removeprefix("validation_data_step"))] = rows
        except (OSError, ValueError) as error:
            raise BlockedError(f"{path} cannot be read: {error}") from error
    return dict(sorted(found.items()))


def uneven(rows: Sequence[LedgerRow], group_size: int) -> Iterator[str]:
    """Yield that a prompt comes again before each of those seen has come as often; rows are in the order of the run."""
    counts: Counter[int] = Counter()
    for row in rows[::group_size]:
        counts[row.prompt_id] += 1
        if counts[row.prompt_id] > 1 + min(counts.values()):
            yield f"{row.where()}: prompt {row.prompt!r} comes again before others"
            return


def _reordered(rows: Sequence[LedgerRow], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield that epochs come in different orders although `data.shuffle` is false."""
    size = options.get("data.num_train")
    served = [row.prompt_id for row in rows[:: options.get("grpo.num_generations_per_prompt", 1)]]
    if options.get("data.shuffle") is False and size and served[size:] != served[:-size]:
        yield "data.shuffle=false, and the prompts of an epoch come in another order than in the one before"


def _without_system_prompt(rows: Sequence[LedgerRow], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row whose prompt does not hold the system message."""
    text = options.get("data.system_prompt")
    if not text:
        return
    for row in rows:
        prompt = bytes(one for one in (row.token_ids or ())[: row.prompt_length] if one < 256)
        if text.encode() not in prompt:
            yield f"{row.where()}: the prompt is without data.system_prompt={text!r}"
            return


def _comes_evenly(options: Mapping[str, Any]) -> bool:
    """Return whether every prompt that is drawn is trained on, in the order in which it is drawn."""
    return not (options.get("grpo.use_dynamic_sampling") or options.get("grpo.async_grpo.enabled"))


def _not_of_task(rows: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> Iterator[str]:
    task = TASKS.get(options.get("data.task") or "")
    if task is None:
        return
    arguments = _arguments(task, options)
    for row in rows:
        match = task.form.fullmatch(row["prompt"] or "")
        if match is None or not task.fits(match.groups(), arguments):
            yield f"{row['prompt']!r} is no prompt of data.task={options['data.task']} with {arguments}"
        answer = answer_of(row["prompt"] or "")
        if answer is not None and answer != row["answer"]:
            yield f"the answer of {row['prompt']!r} is {answer!r}, and is {row['answer']!r} here"


def _arguments(task: MadeTask, options: Mapping[str, Any]) -> Arguments:
    """Return the effective arguments of the configured task."""
    return {name: options.get(f"data.task_args.{name}", value) for name, value in task.defaults.items()}


def _not_of_all(numbers: Sequence[int], options: Mapping[str, Any]) -> Iterator[str]:
    """Yield that the numbers of prompts are beyond the task's, or gathered at one end of them.

    Prompts are drawn without replacement, so that K of N are all among the first (or the last) M with the probability
    of (M over K) / (N over K).
    """
    task = TASKS.get(options.get("data.task") or "")
    size = 0 if task is None else task.size(_arguments(task, options))
    if not numbers or not 0 < size < COUNTABLE:
        return
    if not 0 <= numbers[0] <= numbers[-1] < size:
        yield f"prompt {numbers[-1]} of data.task={options['data.task']}, which has {size} with its arguments"
        return
    for among, where in ((numbers[-1] + 1, "first"), (size - numbers[0], "last")):
        chance = math.comb(among, len(numbers)) / math.comb(size, len(numbers))
        if not chance >= UNLIKELY:
            yield (
                f"all {len(numbers)} prompts are among the {where} {among} of {size} of data.task="
                f"{options['data.task']}, which has a probability of {chance:.1g}"
            )


def _not_of_one_split(
    trained: Sequence[Mapping[str, Any]], held_out: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> Iterator[str]:
    prompts = [{row["prompt_id"]: row["prompt"] for row in rows} for rows in (trained, held_out)]
    for row in (*trained, *held_out):
        if any(of.get(row["prompt_id"], row["prompt"]) != row["prompt"] for of in prompts):
            yield f"prompt {row['prompt_id']} is {row['prompt']!r} and another one"
    both = prompts[0].keys() & prompts[1].keys()
    if both:
        yield f"{len(both)} held-out prompts are trained on, such as {prompts[0][min(both)]!r}"
    for name, of in zip(("train", "validation"), prompts, strict=True):
        most = options.get(f"data.num_{name}")
        if most is not None and len(of) > most:
            yield f"{len(of)} different prompts, and data.num_{name} is {most}"


def _validations_differ(validations: Mapping[int, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    prompts = {step: [row["prompt_id"] for row in rows] for step, rows in validations.items()}
    first = next(iter(prompts.values()), [])
    for step, of in prompts.items():
        if of != first or len(set(of)) < len(of):
            yield f"the validation of step {step} has other prompts than the first one, or one twice"
