"""A target: how a stack is launched, where its evidence is, and which components relations can call.

This stack is refrl with the loss of this package, so most methods call those of the reference target. A target for
another stack implements each method itself.
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
        """Make the reference target that most methods call."""
        self._refrl = ReferenceTarget()

    def preflight(self) -> None:
        """Check that the stack can run here; raise BlockedError with the remedy if it cannot."""
        self._refrl.preflight()

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Check the overrides of the command line; raise UsageError for one that the stack does not know."""
        own = [word for word in overrides if word.startswith("loss_fn.kind=")]
        if own:
            raise UsageError(f"{own[0]}: this target always runs its own loss; use --target reference")
        self._refrl.check_overrides([*OWN, *overrides])

    def expected_origins(self) -> Mapping[str, Path]:
        """Return the folder that each of `modules` must be imported from; another copy on the path is noticed."""
        return {**self._refrl.expected_origins(), "my_stack": Path(my_stack.__file__).resolve().parent}

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return the model folder that the overrides name, if any."""
        return self._refrl.given_model(overrides)

    def make_model(self, output: Path, seed: int) -> Job:
        """Return the command that makes a small model folder."""
        return self._refrl.make_model(output, seed)

    def job(self, request: JobRequest) -> TrainingJob:
        """Return the command of a recipe, the place of its evidence, and the facts that its log must match."""
        if not request.recipe.startswith("grpo"):
            return self._refrl.job(request)
        return self._refrl.job(replace(request, overrides=(*OWN, *request.overrides)))

    def components(self) -> object | None:
        """Return the adapter whose methods relations call (`seatrial.relations.contracts`)."""
        return self._refrl.components()
