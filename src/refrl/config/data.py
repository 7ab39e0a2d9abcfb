"""`data`: where prompts come from, how they are split, and what judges completions."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from refrl.config.base import Section

_OF_FILES = ("validation_path", "prompt_key", "answer_key", "solution_key", "on_overlap")
"""Options of `data` that a made task does not read."""


class DataConfig(Section):
    """Prompts with verifiable answers: of a made task, or of the user's own files."""

    task: str | None = None
    """Name of a task in `refrl.tasks`, of an installed package (entry points `refrl.tasks`), or `package.module:Class`;
    give this or `train_path`."""
    task_args: dict[str, int | float | str | bool] = Field(default_factory=dict)
    """Arguments of the task, such as `max_length: 4`; checked against its signature."""
    train_path: str | None = None
    """Rows to train on: a JSONL file, a Parquet file, or the folder of a Hugging Face dataset."""
    validation_path: str | None = None
    """Rows held out; None holds rows of `train_path` out."""
    prompt_key: str = "prompt"
    """Column of the prompt; dots reach into mappings (`extra_info.question`)."""
    answer_key: str = "answer"
    """Column of the answer; a number becomes its text, a list or a mapping its JSON."""
    solution_key: str | None = None
    """Column of the completion that fine-tuning learns; None takes the answer."""
    on_overlap: Literal["refuse", "drop"] = "refuse"
    """What happens to prompts of `train_path` that stand in `validation_path` too: the run is refused, or they are left
    out of training and counted."""
    verifier: str | None = None
    """Name of a verifier in `refrl.rewards`, of an installed package (entry points `refrl.verifiers`), or
    `package.module:function`; None takes the task's own, or `exact_match` for files."""
    verifiers: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Weights by name, such as `{exact_match: 1, character_match: 0.2}`: the reward is the weighted mean."""
    environment: str | None = None
    """Name of an environment that answers between turns (`refrl.rollout.environments`), of an installed package (entry
    points `refrl.environments`), or `package.module:Class`; None: a completion is one turn."""
    environment_args: dict[str, int | float | str | bool] = Field(default_factory=dict)
    """Arguments of the environment, such as `max_turns: 3`; checked against its signature."""
    system_prompt: str | None = None
    """The system turn before every prompt; needs `policy.tokenizer.chat_template`."""
    num_train: int | None = Field(default=None, gt=0)
    """Prompts to train on; None is 1024 of a made task, and all rows of a file."""
    num_validation: int | None = Field(default=None, gt=0)
    """Prompts held out; None is 128 of a made task, all rows of `validation_path`, and a tenth of the rows of
    `train_path`, at most 128, where there is no `validation_path`."""
    seed: int = Field(default=0, ge=0)
    """Seed of the splits; independent of the seed of the loop."""
    shuffle: bool = True
    """Draw the training prompts of each epoch in an order of its own; False keeps the order of the split."""

    @model_validator(mode="after")
    def _one_source(self) -> DataConfig:
        if (self.task is None) == (self.train_path is None):
            raise ValueError(
                "data.task names a made task and data.train_path a file of your own: give exactly one of the two"
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
                "data.verifiers names the verifiers and their weights, at least one, in place of data.verifier: give "
                "one of the two"
            )
        return self
