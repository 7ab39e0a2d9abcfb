"""What TRL is asked to run, by the recipe of a trial: the trainer, its steps and rows, and its own options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One short run of a trainer on the CPU."""

    trainer: str
    """`GRPO` or `SFT`."""
    num_steps: int
    num_rows: int
    """Rows of a step; of GRPO completions."""
    num_generations: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the trainer's configuration; those that a release does not have are left out."""
    verifier: str = "byte_closeness"
    """Of GRPO; see `tasks.SCORES`."""
    validates: bool = False
    """Whether held-out prompts are answered before the first step and after the last."""
    kept_steps: tuple[int, ...] = ()
    """Steps whose checkpoints are there at the end; none are saved where there are none."""
    has_adapters: bool = False
    """Whether low-rank adapters are trained in place of the model's own weights."""


EACH_STEP: Mapping[str, Any] = {"save_strategy": "steps", "save_steps": 1}
RECIPES: Mapping[str, Recipe] = {
    "grpo-smoke": Recipe(
        trainer="GRPO",
        num_steps=3,
        num_rows=32,
        num_generations=8,
        options={"learning_rate": 1e-3, "beta": 0.04},
    ),
    "grpo-lora": Recipe(
        trainer="GRPO",
        num_steps=3,
        num_rows=32,
        num_generations=8,
        options={"learning_rate": 1e-2, "beta": 0.0, **EACH_STEP},
        kept_steps=(1, 2, 3),
        has_adapters=True,
    ),
    "grpo-checkpoint-save": Recipe(
        trainer="GRPO",
        num_steps=3,
        num_rows=32,
        num_generations=8,
        options={"learning_rate": 1e-3, "beta": 0.0, "save_total_limit": 2, **EACH_STEP},
        kept_steps=(2, 3),
    ),
    "sft-resume-diamond": Recipe(
        trainer="SFT",
        num_steps=3,
        num_rows=16,
        options={
            "learning_rate": 1e-3,
            "lr_scheduler_type": "linear",
            "eval_strategy": "steps",
            "eval_steps": 1,
            **EACH_STEP,
        },
        kept_steps=(1, 2, 3),
    ),
    "sft-warmup": Recipe(trainer="SFT", num_steps=55, num_rows=64, options={"learning_rate": 2e-3}),
    "grpo-learning": Recipe(
        trainer="GRPO",
        num_steps=60,
        num_rows=64,
        num_generations=8,
        options={"learning_rate": 2e-3, "beta": 0.0},
        verifier="character_match",
        validates=True,
    ),
}
MAX_COMPLETION_LENGTH = 8
