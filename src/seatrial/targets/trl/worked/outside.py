"""Completions that GRPO does not sample itself: those of a server, with log-probabilities, and of a user's function."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.made_generation import made_completion
from seatrial.targets.common.target import Gone
from seatrial.targets.common.tiny import ordinary_ids, tiny_model, tiny_tokenizer
from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.trl.named import code_has, parameters_of
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.generations import LENGTHS, LIMIT, Said, reward_of
from seatrial.targets.trl.worked.limits import made_rows, places
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.scored import logprobs_of, place_of
from seatrial.targets.trl.worked.seen import made_trainer, or_refused, takes

COPIES, STEPS = 2, 2
TOLERANCE = 1e-3
CENTRE = -5.5
"""About the log-probability of a token of the tiny model."""
NESTED = "lp[0] for lp in seq"
"""Code that takes the first of a token's log-probabilities."""
ADDS = "logprobs, _, extra_fields = self.vllm_generation"
"""Code that takes further columns from a server."""


class _Outside:
    """Makes completions with log-probabilities, and keeps what it is asked and answers."""

    def __init__(self, trainer_class: type, unknown: bool = False, **options: Any) -> None:
        self.options, self._unknown = options, unknown
        self._nested, self._adds = (code_has(one, trainer_class) for one in (NESTED, ADDS))
        self.calls: list[str] = []
        self.said: list[Said] = []
        self.logprobs: list[list[float]] = []
        tokenizer = tiny_tokenizer()
        self._letters, self._end = ordinary_ids(tokenizer)[:6], int(tokenizer.eos_token_id)
        self._tokenizer = tokenizer
        self._served: dict[tuple[int, ...], int] = {}

    def sync_weights(self) -> None:
        """Take the trainer's weights."""
        self.calls.append("sync")

    def answers(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return a completion of each prompt, copies apart, and keep their log-probabilities."""
        found = []
        for ids in prompts:
            prompt = tuple(ids)
            number = self._served[prompt] = self._served.get(prompt, -1) + 1
            made = made_completion(prompt, number, 0, letters=self._letters, ends=[self._end], limit=LIMIT)
            asked = self._tokenizer.decode(prompt)
            text = self._tokenizer.decode(made, skip_special_tokens=True)
            self.said.append(Said(asked, text, tuple(made), 0))
            moved = [CENTRE + 0.4 * ((3 * token + place) % 5 - 2) for place, token in enumerate(made)]
            self.logprobs.append(
                [
                    math.nan if self._unknown and place == number == 1 else one
                    for place, one in enumerate(moved)
                ]
            )
            found.append(made)
        return found

    def generate(self, prompts: Sequence[Sequence[int]], **_: Any) -> tuple[Any, ...]:
        """Answer as `VLLMGeneration` does: None for a log-probability that is not known."""
        self.calls.append("generate")
        first = len(self.said)
        completions = self.answers(prompts)
        known = [[None if math.isnan(one) else one for one in row] for row in self.logprobs[first:]]
        given = [[[one] for one in row] for row in known] if self._nested else known
        return (prompts, completions, given, None, *(({},) if self._adds else ()))


def _rewarded(prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float]:
    return [
        reward_of("plain", 0, asked, said) or 0.0 for asked, said in zip(prompts, completions, strict=True)
    ]


def _trained(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> tuple[Any, list[dict[str, Any]]]:
    """Return a trainer after its steps at a rate of 0, and the batches of its loss."""
    size = COPIES * len(LENGTHS)
    given = {
        "num_generations": COPIES,
        "max_completion_length": LIMIT,
        "per_device_train_batch_size": size,
        "learning_rate": 0.0,
        "max_steps": STEPS,
        "beta": 0.0,
        **options,
    }
    trainer = made_trainer("GRPO", made_rows("prompts", LENGTHS), given, arguments=arguments)
    batches: list[dict[str, Any]] = []
    own = trainer.compute_loss

    def kept(model: Any, inputs: Any, *more: Any, **named: Any) -> Any:
        batches.append(dict(inputs))
        return own(model, inputs, *more, **named)

    trainer.compute_loss = kept
    trainer.train()
    return trainer, batches


def _matched(batches: Sequence[Mapping[str, Any]], outside: _Outside) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of all batches with the places of their completions.

    Raises:
        ValueError: a row is no completion.
    """
    taken: set[int] = set()
    for batch in batches:
        for number in range(len(batch["prompt_ids"])):
            row = {key: value[number] for key, value in batch.items() if getattr(value, "ndim", 0)}
            place = place_of(outside.said, row, taken)
            if place is None:
                raise ValueError(f"no completion is {tiny_tokenizer().decode(row['completion_ids'])}")
            taken.add(place)
            yield place, row


def _old(row: Mapping[str, Any], one: Said, model: Any, temperature: float) -> list[float]:
    return logprobs_of(model, row["prompt_ids"][row["prompt_mask"].bool()].tolist(), one.ids, temperature)


def ratios_of(moved: Sequence[float], mode: str, bounds: tuple[float | None, float | None]) -> list[float]:
    """Return the correction of a completion's tokens, or of the whole: how its policy differs from its sampler."""
    level, _, how = mode.partition("_")
    low, high = (-math.inf if bounds[0] is None else bounds[0], math.inf if bounds[1] is None else bounds[1])
    found = [math.exp(one) for one in (moved if level == "token" else [math.fsum(moved)])]
    if how == "truncate":
        return [min(max(one, low), high) for one in found]
    return [one if low <= one <= high else 0.0 for one in found]


def _corrected(options: Mapping[str, Any], unknown: bool, _: Any) -> list[str]:
    """Return what is wrong with the correction for completions of a server, and with its figures."""
    trainer_class = find_trainer("GRPO")[0]
    made: list[_Outside] = []

    def server(**given: Any) -> _Outside:
        made.append(_Outside(trainer_class, unknown, **given))
        return made[0]

    unknown &= code_has("nan_to_num(per_token_logps_diff", trainer_class)
    given = {"use_vllm": True, "vllm_mode": "colocate", **options}
    module = import_module(trainer_class.__module__)
    with patch.object(module, "VLLMGeneration", server):
        trainer, batches = _trained(given, {"reward_funcs": _rewarded})
    (outside,) = made
    wrong = [] if outside.calls == ["sync", "generate"] * STEPS else [f"calls {outside.calls}"]
    if [outside.options.get(key) for key in ("temperature", "max_completion_length")] != [
        given["temperature"],
        LIMIT,
    ]:
        wrong.append(f"a server with {outside.options}")
    model = tiny_model(tiny_tokenizer(), 0).double().eval()
    bounds = (
        options.get(f"{PREFIX}_clip_min"),
        options.get(f"{PREFIX}_clip_max", options.get(f"{PREFIX}_cap")),
    )
    ratios, apart, owns = [], [], []
    for place, row in _matched(batches, outside):
        one, sampled = outside.said[place], outside.logprobs[place]
        old = _old(row, one, model, given["temperature"])
        owns.append(old)
        moved = [0.0 if math.isnan(right) else left - right for left, right in zip(old, sampled, strict=True)]
        due = ratios_of(moved, options[f"{PREFIX}_mode"], bounds)
        found = row["importance_sampling_ratio"].tolist()
        wrong += unlike(found[: len(due)], due, "importance_sampling_ratio", TOLERANCE)
        wrong += unlike(
            row["old_per_token_logps"][: len(old)].tolist(), old, "old_per_token_logps", TOLERANCE
        )
        if place < COPIES * len(LENGTHS):  # of the first step
            ratios += due
            apart += [abs(one) for one, right in zip(moved, sampled, strict=True) if not math.isnan(right)]
    figures = {
        "sampling_logp_difference/mean": sum(apart) / len(apart),
        "sampling_logp_difference/max": max(apart),
        "importance_sampling_ratio/min": min(ratios),
        "importance_sampling_ratio/mean": sum(ratios) / len(ratios),
        "importance_sampling_ratio/max": max(ratios),
    }
    logged = next(one for one in trainer.state.log_history if "loss" in one)
    for key, value in figures.items():
        wrong += unlike([logged.get(f"sampling/{key}", math.nan)], [value], key, TOLERANCE)
    return wrong


def _of_function(masks: bool, _: Any) -> list[str]:
    """Return what is wrong with completions of a function of the user, which says which tokens are the model's."""
    outside = _Outside(find_trainer("GRPO")[0])
    tokenizer, asked, given = tiny_tokenizer(), list[Any](), list[Any]()
    masked: list[list[int]] = []

    def rollouts(prompts: Sequence[Any], trainer: Any, *_: Any) -> dict[str, Any]:
        asked.append((list(prompts), trainer))
        ids = [tokenizer(one)["input_ids"] for one in prompts]
        first = len(outside.said)
        completions = outside.answers(ids)
        masks_own = [[int(place % 3 != 1) for place, _ in enumerate(row)] for row in completions]
        masked.extend(masks_own)
        return {
            "prompt_ids": ids,
            "completion_ids": completions,
            "logprobs": outside.logprobs[first:],
            "grade": [len(row) / 4 for row in completions],
            "site": "here",
            **({"env_mask": masks_own} if masks else {}),
        }

    def reward(
        completions: Sequence[Any], grade: Sequence[float], site: Sequence[str], **_: Any
    ) -> list[float]:
        given.extend(zip(completions, grade, site, strict=True))
        return list(grade)

    if masks and not code_has('"env_mask"', find_trainer("GRPO")[0]):
        raise NotServed("all tokens of a function's completions train")
    trainer, batches = _trained({}, {"reward_funcs": reward, "rollout_func": rollouts})
    wrong = [] if all(one is trainer for _, one in asked) else ["the function is not given the trainer"]
    due = [(one.text, len(one.ids) / 4, "here") for one in outside.said]
    if given != due:
        wrong.append(f"a reward function gets {given[:2]}, {due[:2]} are due")
    counts = []
    for place, row in _matched(batches, outside):
        one = outside.said[place]
        own = masked[place] if masks else [1] * len(one.ids)
        counts.append(sum(own))
        if masks and row["tool_mask"][: len(own)].tolist() != own:
            wrong.append(f"{one.text} trains on {row['tool_mask'].tolist()}, {own} are due")
        if "sampling_per_token_logps" in row:
            sampled = row["sampling_per_token_logps"][: len(own)].tolist()
            wrong += unlike(sampled, outside.logprobs[place], "sampling_per_token_logps", TOLERANCE)
    first = counts[: len(counts) // STEPS]
    total = {int(one["num_items_in_batch"]) for one in batches[:1] if "num_items_in_batch" in one}
    if total - {sum(first)}:
        wrong.append(f"{total} tokens that train, {sum(first)} are due")
    logged = next(one for one in trainer.state.log_history if "loss" in one)
    figures = {"mean": sum(first) / len(first), "min": min(first), "max": max(first)}
    for key, value in figures.items():
        name = f"completions/{key}_length"
        wrong += unlike([logged.get(name, math.nan)], [value], name, TOLERANCE)
    return wrong


PREFIX = "vllm_importance_sampling"
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def _rows_of() -> Iterator[Row]:
    def row(subject: str, what: str, call: Callable[..., Any]) -> Row:
        return Row(subject, places("GRPO"), what, or_refused(call), [])

    if hasattr(import_module(find_trainer("GRPO")[0].__module__), "VLLMGeneration"):
        has_low = takes("GRPO", f"{PREFIX}_clip_min")
        for place, mode in enumerate(MODES):
            options: dict[str, Any] = {
                f"{PREFIX}_mode": mode,
                f"{PREFIX}_clip_max" if has_low else f"{PREFIX}_cap": 1.5,
                "temperature": 0.8,
                **({f"{PREFIX}_clip_min": 0.6} if place % 2 and has_low else {}),
            }
            call = partial(_corrected, options, place in (0, 3))
            yield row("samplers", f"completions of a server, {mode}", call)
    if "rollout_func" in parameters_of(find_trainer("GRPO")[0]):
        for masks in (False, True):
            what = f"completions of a function{', of which the model has said a part' if masks else ''}"
            yield row("rollouts", what, partial(_of_function, masks))


def _made() -> Sequence[Row]:
    """Return the rows.

    Raises:
        Gone: the release takes completions from nowhere.
    """
    if rows := list(_rows_of()):
        return rows
    raise Gone("GRPO of this release samples all completions itself")


OUTSIDE: Mapping[str, Callable[[], Sequence[Row]]] = {"outside-grpo": _made}
