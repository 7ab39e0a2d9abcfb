"""refrl's worked examples by subject, offered to the relations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import torch

from refrl.config.loading import ConfigError
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.relations.not_served import NotServed


class ReferenceExamples:
    """See `seatrial.relations.contracts.worked`.

    refrl serves every configuration that the examples are made of: a refusal is a wrong result, not one left out.
    """

    def worked_examples(self, subject: str) -> Sequence[WorkedExample]:
        # Modules of files and processes take time to import, and other relations do without.
        module = import_module(f"{__package__}.{subject}")
        try:
            made = tuple(module.examples())
        except NotServed as error:
            said = f"refused: {error}"
            return (WorkedExample(name="the options of these examples", call=lambda: said, right="served"),)
        return tuple(replace(one, call=partial(_result, one.call)) for one in made)


def _result(call: Callable[[], Any]) -> Any:
    """Return what a call returns; torch fills memory that it does not set with NaN meanwhile, so that its use shows.

    Raises:
        ConfigError: a configuration is refused.
    """
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        return call()
    except NotServed as error:
        raise ConfigError(str(error)) from error
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
