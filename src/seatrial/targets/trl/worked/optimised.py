"""Runs of PPO, which earlier releases have: their steps, and the figures of an update worked out row by row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.made_generation import made_generation
from seatrial.targets.common.target import Gone
from seatrial.targets.common.tiny import ordinary_ids, tiny_model, tiny_scorer, tiny_tokenizer
from seatrial.targets.common.trainers import CPU_OPTIONS, freeze_imports, new_folder
from seatrial.targets.common.worked_rows import unlike
from seatrial.targets.trl.named import code_has, parameters_of
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.scored import logprobs_of
from seatrial.targets.trl.worked.seen import known_options, or_refused

LENGTHS = (3, 6, 1, 4, 2, 5, 7, 2)
"""Tokens of prompts: as many as the largest update of any release has, which may not be of fewer."""
RESPONSE, EPISODES, RATE = 9, 10, 0.01
TOLERANCE = 1e-3
PLACES = "trl.experimental.ppo:PPOTrainer trl:PPOTrainer"


class _Update:
    """A run of PPO whose completions are made, and what is seen of it."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        from datasets import Dataset
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        freeze_imports()
        trainer_class, config_class = find_trainer("PPO")
        known = known_options(config_class)
        given = {
            **CPU_OPTIONS,
            "learning_rate": 0.0,
            "per_device_train_batch_size": 4,
            "num_ppo_epochs": 1,
            "num_mini_batches": 1,
            "num_sample_generations": 0,
            "total_episodes": 4,
            "response_length": RESPONSE,
            "stop_token": "eos",
            "max_steps": -1,
            **options,
        }
        if missing := sorted(set(options) - set(known)):
            raise NotServed(f"PPO has no {', '.join(missing)}")
        self.options = {**known, **given}
        folder = new_folder()
        args = config_class(output_dir=folder, **{key: value for key, value in given.items() if key in known})
        tokenizer = tiny_tokenizer()
        self.pad, self.end = int(tokenizer.pad_token_id), int(tokenizer.eos_token_id)
        letters = ordinary_ids(tokenizer)[:20]
        rows = [
            {"input_ids": [letters[(7 * number + place) % 20] for place in range(length)]}
            for number, length in enumerate(LENGTHS)
        ]
        arguments: dict[str, Any] = {
            "args": args,
            "processing_class": tokenizer,
            "model": tiny_model(tokenizer, 0),
            "ref_model": tiny_model(tokenizer, 1),
            "reward_model": tiny_scorer(3),
            "value_model": tiny_scorer(4),
            "train_dataset": Dataset.from_list(rows),
            "eval_dataset": Dataset.from_list(rows),
        }
        arguments["policy"], arguments["ref_policy"] = arguments["model"], arguments["ref_model"]
        takes = parameters_of(trainer_class)
        trainer = trainer_class(**{key: value for key, value in arguments.items() if key in takes})
        module = import_module(trainer_class.train.__module__)
        self.responses: list[tuple[list[int], list[int]]] = []
        self.num_steps, self.num_seen = 0, 0
        sample = module.batch_generation

        def kept(*given: Any, **named: Any) -> Any:
            found = sample(*given, **named)
            width = given[1].shape[1]
            for row in found[0].tolist():
                self.responses.append(([one for one in row[:width] if one != self.pad], row[width:]))
            return found

        def count(*_: Any) -> None:
            self.num_steps += 1

        def see(_: Any, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            if torch.is_grad_enabled():
                self.num_seen += len(named["input_ids"] if "input_ids" in named else given[0])

        policy = trainer.model.policy
        handles = [
            register_optimizer_step_pre_hook(count),
            policy.register_forward_pre_hook(see, with_kwargs=True),
        ]
        try:
            with (
                patch.object(module, "batch_generation", kept),
                made_generation(self.pad, letters=letters[:6], ends=[self.end], equal=False, limit=RESPONSE),
            ):
                trainer.train()
        finally:
            for one in handles:
                one.remove()
        self.trainer = trainer
        self.logged = [one for one in trainer.state.log_history if "objective/kl" in one]


def _stepped(options: Mapping[str, Any], _: Any) -> list[str]:
    """Return what is wrong with the numbers of updates, episodes, optimizer steps and rows, and with the rates.

    Steps of several micro-batches are not counted: PPO's last releases still step at each of them.
    """
    run = _Update(
        {"learning_rate": RATE, "lr_scheduler_type": "linear", "total_episodes": EPISODES, **options}
    )
    size, epochs = int(run.trainer.args.batch_size), run.options["num_ppo_epochs"]
    updates = math.ceil(EPISODES / size)
    wrong = []
    if run.trainer.state.global_step != updates or len(run.logged) != updates:
        wrong.append(f"{run.trainer.state.global_step} updates, {updates} are due")
    for place, one in enumerate(run.logged):
        wrong += unlike([one["episode"]], [size * (place + 1)], "episode")
        wrong += unlike([one["lr"]], [RATE * (1 - place / updates)], "lr")
    due = updates * epochs * run.options["num_mini_batches"]
    if run.options["gradient_accumulation_steps"] == 1 and run.num_steps != due:
        wrong.append(f"{run.num_steps} optimizer steps, {due} are due")
    if run.num_seen != updates * epochs * size:
        wrong.append(f"{run.num_seen} rows train, {updates * epochs * size} are due")
    return wrong


def _scores(model: Any, ids: Sequence[int]) -> list[float]:
    """Return the score of each position."""
    with torch.no_grad():
        backbone = getattr(model, model.base_model_prefix)
        hidden = backbone(input_ids=torch.tensor([list(ids)]), use_cache=False).last_hidden_state
        found: list[float] = model.score(hidden)[0, :, 0].tolist()
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _defined(run: _Update) -> dict[str, float]:
    """Return the figures of an update of an unchanged policy: of scores, penalties, advantages and returns."""
    options, tokenizer = run.options, tiny_tokenizer()
    policy, reference = (tiny_model(tokenizer, seed).eval() for seed in (0, 1))
    judge, values_of = tiny_scorer(3).eval(), tiny_scorer(4).eval()
    width = max(len(said) for _, said in run.responses)
    kls, scores, errors = [], [], []
    for asked, row in run.responses:
        said = row[: row.index(run.end) + 1] if run.end in row else list(row)
        own, other = (
            logprobs_of(one, asked, said, options["temperature"] + 1e-7) for one in (policy, reference)
        )
        moved = [right - left for left, right in zip(own, other, strict=True)]
        k3 = options.get("kl_estimator") == "k3"
        kl = [math.exp(one) - 1 - one if k3 else -one for one in moved]
        score = _scores(judge, [*asked, *said])[-1]
        if options["missing_eos_penalty"] is not None and run.end not in said:
            score -= options["missing_eos_penalty"]
        places = min(len(said) + 1, width)  # one more has a value, and the score
        shown = [*asked, *said, *row[len(said) : places]]
        values = _scores(values_of, shown if len(shown) > len(asked) + len(said) else [*asked, *said])
        values = [
            *values[len(asked) - 1 : len(asked) - 1 + len(said)],
            *([values[len(asked) + len(said) - 1]] if places > len(said) else []),
        ]
        rewards = [-options["kl_coef"] * one for one in kl] + [0.0] * (places - len(said))
        rewards[-1] += score
        gain, found = 0.0, []
        for place in reversed(range(places)):
            following = values[place + 1] if place + 1 < places else 0.0
            gain = (
                rewards[place]
                + options["gamma"] * following
                - values[place]
                + options["gamma"] * options["lam"] * gain
            )
            found.append(gain)
        kls.append(sum(kl))
        scores.append(score)
        errors += [one**2 for one in found]
    return {
        "objective/kl": _mean(kls),
        "objective/scores": _mean(scores),
        "objective/non_score_reward": -options["kl_coef"] * _mean(kls),
        "objective/rlhf_reward": _mean(scores) - options["kl_coef"] * _mean(kls),
        "loss/policy_avg": 0.0,
        "loss/value_avg": 0.5 * _mean(errors),
        "val/ratio": 1.0,
        "policy/clipfrac_avg": 0.0,
        "val/num_eos_tokens": float(sum(row.count(run.end) for _, row in run.responses)),
    }


def _judged(options: Mapping[str, Any], _: Any) -> list[str]:
    """Return the figures of an update that are not those of its definition."""
    run = _Update(options)
    if len(run.responses) != 4:
        raise NotServed(f"{len(run.responses)} responses")
    logged = run.logged[0]
    return [
        line
        for name, right in _defined(run).items()
        for line in unlike([logged.get(name, math.nan)], [right], name, TOLERANCE)
    ]


STEPPED: Sequence[Mapping[str, Any]] = (
    {},
    {"num_ppo_epochs": 3},
    {"num_ppo_epochs": 2, "num_mini_batches": 2},
    {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_ppo_epochs": 3},
)
FIGURES: Sequence[Mapping[str, Any]] = (
    {},
    {"gamma": 0.7, "lam": 0.6, "kl_coef": 0.5},
    {"missing_eos_penalty": 1.5},
    {"kl_estimator": "k3", "kl_coef": 0.4},
    {"temperature": 1.3, "local_rollout_forward_batch_size": 3},
)


def _rows() -> Iterator[Row]:
    def row(what: str, call: Callable[..., Any]) -> Row:
        return Row("steps", PLACES, what, or_refused(call), [])

    for options in STEPPED:
        yield row(f"steps, {dict(options)}", partial(_stepped, options))
    for options in FIGURES:
        yield row(f"figures, {dict(options)}", partial(_judged, options))


def _made() -> Sequence[Row]:
    """Return the rows.

    Raises:
        Gone: the release has no PPO, or one with a loop of the user's.
    """
    if not code_has("batch_generation", find_trainer("PPO")[0]):
        raise Gone("PPO of this release samples nothing")
    return list(_rows())


OPTIMISED: Mapping[str, Callable[[], Sequence[Row]]] = {"optimised-ppo": _made}
