"""A target: how a stack is launched, where its evidence lies, and which components it offers to relations.

This stack is refrl with the loss of this package; it hands most questions on to the reference target. A stack with
commands of its own answers each of them itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import my_stack
from seatrial.errors import UsageError
from seatrial.targets.base import Job, JobRequest, TrainingJob
from seatrial.targets.reference.target import ReferenceTarget

OWN = ("loss_fn.kind=weighted_reinforce", "loss_fn.options.positive_weight=0.5")


class MyTarget:
    """A `seatrial.targets.base.Target`."""

    name = "my-stack"
    modules: tuple[str, ...] = ("refrl", "my_stack")
    packages: tuple[str, ...] = (*ReferenceTarget.packages, "my-stack")

    def __init__(self) -> None:
        """Take what the reference target knows of refrl."""
        self._refrl = ReferenceTarget()

    def preflight(self) -> None:
        """Look whether the stack can run here at all; raise BlockedError with the remedy where it cannot."""
        self._refrl.preflight()

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Hold the words of the command line against what the stack knows (UsageError)."""
        own = [word for word in overrides if word.startswith("loss_fn.kind=")]
        if own:
            raise UsageError(f"{own[0]}: this target is on trial with its own loss; use --target reference")
        self._refrl.check_overrides([*OWN, *overrides])

    def expected_origins(self) -> Mapping[str, Path]:
        """Return the folder that each of `modules` must come from: another copy on the path is found out."""
        return {**self._refrl.expected_origins(), "my_stack": Path(my_stack.__file__).resolve().parent}

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return the model folder that the overrides name, if any."""
        return self._refrl.given_model(overrides)

    def make_model(self, output: Path, seed: int) -> Job:
        """Return the command that makes a small model folder."""
        return self._refrl.make_model(output, seed)

    def job(self, request: JobRequest) -> TrainingJob:
        """Return the command of a recipe, where its evidence will lie, and what is true of it."""
        if not request.recipe.startswith("grpo"):
            return self._refrl.job(request)
        return self._refrl.job(replace(request, overrides=(*OWN, *request.overrides)))

    def components(self) -> object | None:
        """Return the adapter whose methods relations call (`seatrial.relations.contracts`)."""
        return self._refrl.components()
