"""Worked examples of validations and of fine-tuning: what they sample, train on, log and pass to observers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from refrl.config import SFTRunConfig
from refrl.generation.base import SamplingParams
from refrl.rollout.sync import Rollouts
from refrl.streams import random_stream
from refrl.training import sft
from refrl.training.validation import validate
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import tuning_configuration
from seatrial.targets.reference.worked.made import batch, example, rollouts
from seatrial.targets.reference.worked.rewards import several
from seatrial.targets.reference.worked.steps import made_session, options_of, quietly


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_validations()
    yield from _of_tuning()


class _Worker:
    """A worker that notes what it samples with."""

    def __init__(self, noted: list[Any]) -> None:
        self.noted = noted

    def sample(self, examples: Any, params: SamplingParams, stream: torch.Generator) -> Any:
        self.noted.append(("sampled", len(examples), params.greedy, stream.initial_seed()))
        return rollouts().completions

    def reward(self, examples: Any, completions: Any, verifier: Any) -> Rollouts:
        return rollouts()

    def prompt_ids(self, examples: Any) -> list[tuple[int, ...]]:
        return [(257, *one.prompt.encode()) for one in examples]


def _validated(step: int, **options: Any) -> Any:
    session = made_session(verifier=several())
    session.validation = rollouts().examples
    session.worker = _Worker(session.noted)
    session.prepare_for_generation = lambda: session.noted.append("prepared")
    accuracy = 0.0

    def call() -> None:
        nonlocal accuracy
        accuracy = validate(session, options_of(**options).grpo, step)

    printed = quietly(call)
    return accuracy, session, printed.splitlines()


def _of_validations() -> Iterator[WorkedExample]:
    seed = random_stream(4, "validation", 0).initial_seed()

    def whole() -> Any:
        accuracy, session, printed = _validated(3, grpo__seed=4)
        log = session.logger
        metrics = log.of("validation", 3)
        return {
            "accuracy": accuracy,
            "metrics": {name: value for name, value in metrics.items() if "/" not in name},
            "parts": sorted(name for name in metrics if name.endswith("num_errors")),
            "prefixes": [(prefix, at) for prefix, at, _ in log.scalars],
            "phases": sorted(log.of("timing/validation", 3)),
            "rows": [(name, at, [row["reward"] for row in rows]) for name, at, rows in log.rows],
            "noted": session.noted,
            "observer": (session.observer.last[0], session.observer.last[2] == metrics),
            "printed": printed,
        }

    parts = [f"verifier/{name}/num_errors" for name in ("exact", "fails", "never")]
    yield example(
        "a validation",
        {
            "accuracy": 0.25,
            "metrics": {
                "accuracy": 0.25,
                "reward": 0.1875,
                "avg_length": 2.25,
                "truncation_rate": 0.5,
                "num_verifier_errors": 1.0,
            },
            "parts": parts,
            "prefixes": [("validation", 3), ("timing/validation", 3)],
            "phases": [
                *(f"reward_calculation/{name}" for name in ("exact", "fails", "never")),
                "total_validation_time",
            ],
            "rows": [("validation_data", 3, [1.0, 0.25, 0.0, -0.5])],
            "noted": ["prepared", ("sampled", 4, False, seed), ("validated", 3)],
            "observer": (3, True),
            "printed": [
                "step 3  validation: 1 verifier errors: row 2: no",
                "step 3  validation accuracy 0.250 (4 held-out prompts)",
            ],
        },
        whole,
    )
    greedy = ("sampled", 4, True, seed)
    yield example(
        "a greedy validation draws the same numbers",
        greedy,
        lambda: _validated(8, grpo__seed=4, grpo__val_greedy=True)[1].noted[1],
    )


def tuned(steps: Sequence[int] = (1, 2), **options: Any) -> Any:
    """Take steps of fine-tuning; return the session and its configuration."""
    session = made_session()
    session.worker = _Worker(session.noted)
    session.prompts = SimpleNamespace(draw=lambda num: rollouts().examples[1:][:num])
    session.validation = rollouts().examples[:1]
    config: SFTRunConfig = tuning_configuration(
        {
            "sft.max_num_steps": 4,
            "policy.train_global_batch_size": 2,
            "policy.train_micro_batch_size": 2,
            **options,
        }
    )
    for step in steps:
        quietly(sft.train_step, session, config, step)
    return session, config


def _of_tuning() -> Iterator[WorkedExample]:
    def logged() -> Any:
        session, config = tuned()
        quietly(sft.log_validation_loss, session, config, 2)
        log, (step, made, loss) = session.logger, session.observer.last
        train = log.of("train", 2)
        return {
            "prefixes": [(prefix, at) for prefix, at, _ in log.scalars],
            "train": {
                name: train[name]
                for name in ("total_num_tokens", "mean_prompt_length", "global_valid_toks", "lr")
            },
            "phases": sorted(log.of("timing/train", 2)),
            "noted": [one for one in session.noted if one[0] == "tuned"],
            "val_loss": (log.of("validation", 2), step, loss, made.completion_ids_BT.tolist()),
        }

    # Answers a and c (the solution), each with the end token, after prompts p and q with their first token.
    yield example(
        "what steps of fine-tuning log",
        {
            "prefixes": [
                *((prefix, at) for at in (1, 2) for prefix in ("train", "timing/train", "performance")),
                ("validation", 2),
            ],
            "train": {
                "total_num_tokens": 8.0,
                "mean_prompt_length": 2.0,
                "global_valid_toks": 4.0,
                "lr": 0.5,
            },
            "phases": ["data_processing", "policy_training", "total_step_time"],
            "noted": [("tuned", 1), ("tuned", 2)],
            "val_loss": ({"val_loss": 3.0}, 2, 3.0, [[97, 258]]),
        },
        logged,
    )

    def answers() -> Any:
        session, config = tuned(steps=())
        made = sft.make_answer_batch(session, config, rollouts().examples[1:3])
        return made.completion_ids_BT, made.mask_BT, made.prompt_lens_B, made.group_ids_B

    yield example(
        "answers and solutions", ([[97, 258], [99, 258]], [[1.0, 1.0], [1.0, 1.0]], [2, 2], [5, 3]), answers
    )
    made = replace(batch(), old_logprobs_BT=None)
    counts = {"global_valid_tokens": torch.tensor(10.0), "global_valid_seqs": torch.tensor(4.0)}
    yield example(
        "a micro-batch's share of the loss",
        {
            "loss": 1.25,
            "num_unmasked_tokens": 5.0,
            "num_valid_samples": 3.0,
            "global_valid_toks": 10.0,
            "global_valid_seqs": 4.0,
        },
        lambda: {
            name: float(value)
            for name, value in sft.answer_loss(torch.full((3, 3), -2.5), torch.zeros(3, 3), made, **counts)[
                1
            ].items()
        },
    )

    def accurate(step: int, accuracy: float, **options: Any) -> bool:
        session, config = tuned(steps=(), **{"sft.val_period": 2, "sft.stop_at_accuracy": 0.25, **options})
        session.validation = rollouts().examples
        session.prepare_for_generation = lambda: None
        session.worker.reward = lambda *words: replace(
            rollouts(),
            scores=replace(
                rollouts().scores, rewards=[1.0] * int(4 * accuracy) + [0.5] * (4 - int(4 * accuracy))
            ),
        )
        found = []
        quietly(lambda: found.append(sft.is_accurate(session, config, step)))
        return found[0]

    for step, accuracy, right in (
        (2, 0.25, True),
        (2, 0.0, False),
        (1, 1.0, False),
        (4, 1.0, True),
        (0, 1.0, False),
    ):
        yield example(f"an accuracy of {accuracy} at step {step}", right, accurate, step, accuracy)
