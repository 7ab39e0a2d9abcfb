"""Stand-ins that the loops of both trainers of verl run with: configuration, prompts, loader, tokenizer and log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.contracts.trainer_flow import FlowPlan, FlowRecord, prompt_ids, source_of
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.rewards import objects

TRAINER = "verl.trainer.ppo.ray_trainer"
P = 4
"""Width of prompts."""


def validated(plan: FlowPlan) -> Sequence[int]:
    """Return the prompts of a validation, whose number no number of workers divides."""
    return (5, 8, 11, 14, 14 if plan.one_text else 17)


def read_dumped(plan: FlowPlan, record: FlowRecord) -> None:
    """Note the rows that the loop wrote to files."""
    for written in Path(plan.folder).glob("rows/*.jsonl"):
        lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
        record.dumped[int(written.stem)] = [(one["input"], one["output"], one["score"]) for one in lines]


@cache
def own_configuration() -> Any:
    import hydra

    spec = find_spec("verl")
    assert spec is not None and spec.origin is not None
    folder = Path(spec.origin).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return hydra.compose("ppo_trainer")


def configuration(plan: FlowPlan, **more: Any) -> Any:
    """Return the release's own configuration with the options of a plan, and `more` by their full names."""
    from omegaconf import OmegaConf

    own = {
        "trainer.total_epochs": plan.epochs,
        "trainer.save_freq": plan.save_every or -1,
        "trainer.test_freq": plan.validate_every or -1,
        "trainer.val_before_train": False,
        "trainer.critic_warmup": plan.warmup,
        "trainer.balance_batch": plan.balanced,
        "trainer.default_local_dir": plan.folder,
        "trainer.resume_mode": "auto" if plan.resumed else "disable",
        "trainer.rollout_data_dir": str(Path(plan.folder) / "rows"),
        "trainer.logger": ["console"],
        "trainer.project_name": "made",
        "trainer.experiment_name": "made",
        "algorithm.adv_estimator": plan.estimator,
        "algorithm.use_kl_in_reward": plan.kl_in_reward > 0,
        "actor_rollout_ref.actor.use_kl_loss": plan.kl_in_reward == 0,  # says the same before 0.4
        "algorithm.kl_penalty": "kl",
        "actor_rollout_ref.rollout.n": plan.copies,
        "actor_rollout_ref.rollout.val_kwargs.n": plan.validation_copies,
        "actor_rollout_ref.rollout.agent.num_workers": plan.ranks,
        "actor_rollout_ref.actor.ppo_mini_batch_size": plan.prompts,
        **more,
    }
    config = OmegaConf.create(OmegaConf.to_container(own_configuration(), resolve=False))
    for name, value in own.items():
        OmegaConf.update(config, name, value, force_add=True)
    OmegaConf.update(config, "actor_rollout_ref.model.path", "made", force_add=True)
    return config


def logger_of(record: FlowRecord) -> Callable[..., None]:
    def log(data: Mapping[str, Any], step: int) -> None:
        numbers = {name: float(value) for name, value in data.items() if not isinstance(value, str)}
        record.logged.setdefault(step, {}).update(numbers)

    return log


class Tokenizer:
    """Texts are ids with blanks."""

    eos_token_id, pad_token_id = 1, 0

    def decode(self, ids: Any, **_: Any) -> str:
        """Return the text of a row."""
        return " ".join(str(token) for token in ids.tolist() if token != self.pad_token_id)

    def batch_decode(self, rows: Any, **_: Any) -> list[str]:
        """Return the text of each row."""
        return [self.decode(row) for row in rows]


@cache
def _takes_tokens() -> bool:
    """Return whether the loop takes the prompts' tokens out of a batch before it generates, as before 0.7."""
    source = getsource(find_name("verl", [f"{TRAINER}:RayPPOTrainer"]))
    return '_pop = ["input_ids"' in source or "batch_keys=['input_ids'" in source


def rows_of(prompts: Any) -> dict[str, Any]:
    """Return what a data set gives of prompts."""
    numbers = [int(prompt) for prompt in prompts]
    texts = [prompt_ids(prompt) for prompt in numbers]
    tokens = {
        "input_ids": torch.tensor([[0] * (P - len(text)) + text for text in texts]),
        "attention_mask": torch.ones(len(numbers), P, dtype=torch.long),
        "position_ids": torch.zeros(len(numbers), P, dtype=torch.long),
        "raw_prompt_ids": objects(texts),
    }
    return {
        **(tokens if _takes_tokens() else {}),
        "dummy_tensor": torch.zeros(len(numbers), 1),
        "raw_prompt": objects([[{"role": "user", "content": str(prompt)}] for prompt in numbers]),
        "data_source": objects([source_of(prompt) for prompt in numbers]),
        "reward_model": objects([{"ground_truth": str(prompt)} for prompt in numbers]),
        "extra_info": objects([{"index": prompt} for prompt in numbers]),
        "index": objects(numbers),
    }


class Loader:
    """Gives the prompts of steps, of each epoch in another order, and continues from a saved place."""

    sampler = None

    def __init__(self, plan: FlowPlan) -> None:
        self.plan, self.epoch, self.place = plan, 0, 0

    def __len__(self) -> int:
        return self.plan.steps_of_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        size = self.plan.prompts
        order = torch.randperm(len(self) * size, generator=torch.Generator().manual_seed(self.epoch)).tolist()
        while self.place < len(self):
            self.place += 1
            yield rows_of(order[(self.place - 1) * size : self.place * size])
        self.epoch, self.place = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "place": self.place}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.epoch, self.place = state["epoch"], state["place"]
