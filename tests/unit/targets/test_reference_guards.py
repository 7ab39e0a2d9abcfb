"""Guards that hold a run of refrl to its configuration: one told another configuration than the run's has to speak."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from refrl.training.grpo import run_grpo
from refrl.training.session import Observers, Session, TrainedStep, TunedStep
from refrl.training.sft import run_sft
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import configuration, least, tuning_configuration
from seatrial.targets.reference.guards.advantages import check_near_rewards
from seatrial.targets.reference.guards.observer import RecordingGuards
from seatrial.targets.reference.runs.short import quiet

SHARED: dict[str, Any] = {
    "policy.train_global_batch_size": 8,
    "grpo.val_period": 2,
    "loss_fn.entropy_coefficient": 0.01,
    "logger.tensorboard_enabled": True,
}
OTHER: dict[str, tuple[dict[str, Any], str]] = {
    "momentum": ({"policy.optimizer.betas": [0.8, 0.999]}, "update as configured"),
    "second moment": ({"policy.optimizer.betas": [0.9, 0.97]}, "update as configured"),
    "decay": ({"policy.optimizer.weight_decay": 0.9}, "update as configured"),
    "clipping": ({"policy.max_grad_norm": 1e-3}, "update as configured"),
    "reduction": ({"loss_fn.reduction": "sequence"}, "gradient of the loss"),
    "KL": ({"loss_fn.reference_policy_kl_penalty": 0.5}, "gradient of the loss"),
    "entropy": ({"loss_fn.entropy_coefficient": 0.02}, "gradient of the loss"),
    "entropy in the loss": ({"loss_fn.entropy_coefficient": 0.02}, "loss of the rows"),
    "scale": ({"grpo.advantage.scale": "none"}, "advantages as configured"),
    "penalty": (
        {"grpo.reward_shaping.enabled": True, "grpo.reward_shaping.overlong_buffer_length": 6},
        "rewards as configured",
    ),
    "task": ({"data.task": "add"}, "examples of the task"),
    "seed": ({"grpo.seed": 7}, "prompts in the seeded order"),
    "order": ({"data.shuffle": False}, "prompts in the seeded order"),
    "splits": ({"data.seed": 5}, "splits as seeded"),
    "temperature": ({"policy.generation.temperature": 1.7}, "rollouts as seeded"),
    "greedy": ({"grpo.val_greedy": True}, "validations as seeded"),
    "verifier": ({"data.verifier": "exact_match"}, "rewards judged again"),
    "verifiers": (
        {"data.verifier": None, "data.verifiers": {"byte_closeness": 1.0, "exact_match": 2.0}},
        "rewards judged again",
    ),
    "filter": ({"grpo.overlong_filtering": True}, "rows that train"),
    "warm-up": ({"policy.scheduler.warmup_steps": 4}, "learning rate as configured"),
    "validations": ({"grpo.val_period": 1}, "validations as configured"),
    "length": ({"grpo.max_num_steps": 5}, "steps as configured"),
    "micro-batches": ({"policy.train_micro_batch_size": 2}, "micro-batches as configured"),
    "template": ({"policy.tokenizer.chat_template": "byte"}, "prompts as the tokenizer has them"),
}
"""What a guard is told in place of the run's own options, and the guard that has to see it."""


def failed(guards: RecordingGuards) -> set[str]:
    """Return the guards that failed."""
    return {verdict.name.removeprefix("guard ") for verdict in guards.guards.failures}


class Misled(RecordingGuards):
    """Guards that see scalars, and answers, other than those that are there."""

    def trained(self, session: Session, step: TrainedStep) -> None:
        """The scalars of a mean over padding."""
        super().trained(session, replace(step, metrics={**step.metrics, "advantages/mean": 0.31}))

    def tuned(self, session: Session, step: TunedStep) -> None:
        """An answer without its end."""
        mask_BT = step.batch.mask_BT.clone()
        mask_BT[0, int(step.batch.completion_lens_B[0]) - 1] = 0
        super().tuned(session, replace(step, batch=replace(step.batch, mask_BT=mask_BT)))


@cache
def watched() -> dict[str, set[str]]:
    """Return what failed in one short run by what its guards were told."""
    folder = Path(configuration({}).policy.model_name).parent / "guarded"
    config = configuration({**SHARED, "logger.log_dir": str(folder)})
    told = {
        name: RecordingGuards(configuration({**SHARED, **options})) for name, (options, _) in OTHER.items()
    }
    all_guards = {**told, "the truth": RecordingGuards(config), "scalars": Misled(config)}
    with quiet():
        run_grpo(config, Observers(list(all_guards.values())))
    return {name: failed(guards) for name, guards in all_guards.items()}


def test_a_sound_run_is_silent() -> None:
    """Every closed form is asked, and none fails."""
    assert watched()["the truth"] == set()


@pytest.mark.parametrize("name", OTHER)
def test_a_run_of_other_options_is_seen(name: str) -> None:
    """By the guard whose closed form they are in."""
    assert OTHER[name][1] in watched()[name]


def test_a_scalar_that_is_not_its_rows_is_seen() -> None:
    """In its rows and in the log, and nothing else is."""
    assert watched()["scalars"] == {"scalars of the rows", "log as computed"}


def test_fine_tuning_is_held_to_whole_answers_and_their_likelihood(tmp_path: Path) -> None:
    """A sound run is silent; an answer whose end does not train is seen."""
    config = tuning_configuration({"logger.log_dir": str(tmp_path / "log"), "sft.val_period": 1})
    sound, misled = RecordingGuards(config), Misled(config)
    with quiet():
        run_sft(config, Observers([sound, misled]))
    assert failed(sound) == set()
    assert failed(misled) == {"answers as given"}
    assert {
        "guard gradient of the loss",
        "guard shares of a step",
        "guard validation loss",
    } <= sound.guards.asked.keys()


def test_a_default_that_is_not_documented_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a warm-up that nobody asked for."""
    other = {**least(), "policy.scheduler.warmup_steps": 10}
    monkeypatch.setattr("seatrial.targets.reference.guards.examples.least", lambda: other)
    config = tuning_configuration({"logger.log_dir": str(tmp_path / "log")})
    guards = RecordingGuards(config)
    with quiet():
        run_sft(config, guards)
    assert failed(guards) == {"documented defaults"}


def test_a_gradient_that_never_arrives_is_seen(tmp_path: Path) -> None:
    """As of a ratio that is detached: the loss has a value, and nothing learns from it."""

    class Detached(RecordingGuards):
        def passed(self, session: Session, micro: Any) -> None:
            super().passed(session, micro._replace(logprobs_BT=micro.logprobs_BT.detach().requires_grad_()))

    config = tuning_configuration({"logger.log_dir": str(tmp_path / "log")})
    guards = Detached(config)
    with quiet():
        run_sft(config, guards)
    assert "gradient of the loss" in failed(guards)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("estimator", ["grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_near_rewards_that_count_as_equal_are_seen(monkeypatch: pytest.MonkeyPatch, estimator: str) -> None:
    """As where the bound is the rounding of bfloat16."""
    config = configuration({"grpo.advantage.estimator": estimator, "grpo.advantage.scale": "batch"})
    sound, misled = Guards(raises=False), Guards(raises=False)
    check_near_rewards(config, sound)
    monkeypatch.setattr("refrl.algorithms.advantages.EQUAL_REWARDS", 4 * torch.finfo(torch.bfloat16).eps)
    check_near_rewards(config, misled)
    assert not sound.failures
    assert [verdict.name for verdict in misled.failures] == ["guard near rewards differ"]
