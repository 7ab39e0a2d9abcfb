"""Environments of several turns: built in, of installed packages, or by import path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from refrl.config import ConfigError, DataConfig
from refrl.config.registry import Registry


class Environment(Protocol):
    """Answers between the turns of a model. One instance serves all rows, so its state must come from the turns."""

    max_turns: int
    """Turns of the model after which an episode ends."""

    def respond(self, turns: Sequence[str]) -> str | None:
        """Return the text that follows the model's last turn, or None to end the episode.

        Args:
            turns: texts of the model's turns so far, the last one last, without special tokens.
        """
        ...


ENVIRONMENTS: dict[str, Any] = {"lookup": "refrl.rollout.environments.lookup:LookupEnvironment"}
"""The built-in environments by the name that `data.environment` takes."""

ENVIRONMENT_REGISTRY = Registry("environment", "refrl.environments", ENVIRONMENTS)
"""What `data.environment` may name: classes, or functions, that make one from `data.environment_args`."""


def make_environment(config: DataConfig) -> Environment | None:
    """Return the environment; None where a completion is one turn.

    Raises:
        ConfigError: it is unknown, does not take its arguments, or is no environment.
    """
    if config.environment is None:
        return None
    make = ENVIRONMENT_REGISTRY.find(config.environment, "data.environment")
    try:
        made: Environment = make(**config.environment_args)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"data.environment={config.environment} and data.environment_args: {error}"
        ) from error
    if not callable(getattr(made, "respond", None)) or not isinstance(getattr(made, "max_turns", None), int):
        raise ConfigError(
            f"data.environment={config.environment} makes a {type(made).__name__}, which is no environment: it must "
            "have respond(turns) and the number max_turns"
        )
    return made
