"""`data`: where prompts come from, how they are split, and what scores completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from refrl.config.base import Section

_OF_FILES = ("validation_path", "prompt_key", "answer_key", "solution_key", "on_overlap")
"""Options of `data` that a generated task does not read."""


class DataConfig(Section):
    """Prompts with verifiable answers, from a generated task or from your own files."""

    task: str | None = None
    """Name of a task in `refrl.tasks`, of an installed package (entry points `refrl.tasks`), or `package.module:Class`;
    set this or `train_path`."""
    task_args: dict[str, int | float | str | bool] = Field(default_factory=dict)
    """Arguments of the task, such as `max_length: 4`; checked against its signature."""
    train_path: str | None = None
    """Rows to train on: a JSONL file, a Parquet file, or the folder of a Hugging Face dataset."""
    validation_path: str | None = None
    """Held-out rows; None splits them off `train_path`."""
    prompt_key: str = "prompt"
    """Column of the prompt; dots reach into mappings (`extra_info.question`)."""
    answer_key: str = "answer"
    """Column of the answer; a number is converted to text, a list or a mapping to JSON."""
    solution_key: str | None = None
    """Column of the completion that fine-tuning learns; None uses the answer."""
    on_overlap: Literal["refuse", "drop"] = "refuse"
    """What happens to prompts that are in both `train_path` and `validation_path`: `refuse` stops the run, `drop`
    removes them from training and counts them."""
    verifier: str | None = None
    """Name of a verifier in `refrl.rewards`, of an installed package (entry points `refrl.verifiers`), or
    `package.module:function`; None takes the task's verifier, or `exact_match` for files."""
    verifiers: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Weights by name, such as `{exact_match: 1, character_match: 0.2}`: the reward is the weighted mean."""
    environment: str | None = None
    """Name of an environment that answers between turns (`refrl.rollout.environments`), of an installed package (entry
    points `refrl.environments`), or `package.module:Class`; None: a completion is one turn."""
    environment_args: dict[str, int | float | str | bool] = Field(default_factory=dict)
    """Arguments of the environment, such as `max_turns: 3`; checked against its signature."""
    system_prompt: str | None = None
    """System message before every prompt; needs `policy.tokenizer.chat_template`."""
    num_train: int | None = Field(default=None, gt=0)
    """Number of training prompts; None is 1024 for a generated task, and all rows for a file."""
    num_validation: int | None = Field(default=None, gt=0)
    """Number of held-out prompts; None is 128 for a generated task, all rows of `validation_path`, or, without
    `validation_path`, a tenth of the rows of `train_path`, at most 128."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Seed of the splits; independent of the loop's seed."""
    shuffle: bool = True
    """Shuffle the training prompts in each epoch; false keeps the order of the split."""

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if (self.task is None) == (self.train_path is None):
            raise ValueError(
                "data.task names a generated task and data.train_path your own file: set exactly one of the two"
            )
        needs = {"task_args": "task"} if self.task is None else dict.fromkeys(_OF_FILES, "train_path")
        if self.task is None and self.validation_path is None:
            needs["on_overlap"] = "validation_path"
        for name, needed in needs.items():
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                raise ValueError(f"data.{name} has no effect without data.{needed}: leave it out")
        return self

    @model_validator(mode="after")
    def _arguments_have_an_environment(self) -> DataConfig:
        if self.environment_args and self.environment is None:
            raise ValueError("data.environment_args has no effect without data.environment: leave it out")
        return self

    @model_validator(mode="after")
    def _one_reward(self) -> DataConfig:
        if self.verifiers is not None and (self.verifier is not None or not self.verifiers):
            raise ValueError(
                "data.verifiers names the verifiers and their weights, at least one, and replaces data.verifier: set "
                "one of the two"
            )
        return self
