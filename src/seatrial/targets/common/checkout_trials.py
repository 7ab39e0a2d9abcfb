"""Trials of a stack from a checkout: what `seatrial run` and `seatrial doctor` need of such a target."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NoReturn

from seatrial.errors import BlockedError
from seatrial.targets.base import CHECKOUT_VARIABLE, Job, JobRequest, Need, TrainingJob
from seatrial.targets.common import preflight
from seatrial.targets.common.stages import Checkout, Stages, checkout_of, dry_run, read_stages
from seatrial.targets.common.target import ComponentsTarget
from seatrial.verdict import Verdict

SPACE_GIB = 20.0
"""For converted checkpoints and saves of a small model."""


class CheckoutTrials(ComponentsTarget):
    """A target whose relations run on the installed stack, and whose trials are stages of a checkout."""

    package: str
    """Of the target; it holds `stages.yaml`."""
    variable: str
    """Environment variable that names the checkout."""
    runs_elsewhere = True
    requested: Sequence[str] | None = None
    """Trials that a run is about; None: all."""
    _checkout: Checkout | None = None

    @cached_property
    def stages(self) -> Stages:
        """The table of stages."""
        return read_stages(self.package)

    @property
    def trials(self) -> frozenset[str]:
        """Trials that the stack has a stage for."""
        return frozenset(self.stages.stages)

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Take `checkout=DIR` and `bridge=DIR`."""
        under_test = os.environ.get(CHECKOUT_VARIABLE)
        environment = {**os.environ, **({self.variable: under_test} if under_test else {})}
        self._checkout = checkout_of(self.stages, overrides, environment, self.variable)

    def preflight(self) -> None:
        """Check the environment of the trials, or, for relations, whether the stack is installed."""
        if self._checkout is None:
            super().preflight()
            return
        if wrong := preflight.blocked(list(self.preflight_items(self.requested or sorted(self.trials)))):
            raise BlockedError(wrong)

    def preflight_items(self, trials: Sequence[str]) -> Iterator[Verdict]:
        """Yield what the stages of these trials need of this machine and of the checkout."""
        checkout, table = self._checked(), self.stages
        chosen = [table.stages[name] for name in trials if name in table.stages]
        yield from preflight.programs(table.programs)
        yield from preflight.repository(table.stack, checkout.path, table.submodules)
        yield preflight.files(table.stack, checkout.path, [one.script for one in chosen if one.script])
        for check in table.checks:
            root = checkout.path if check.where == "{copy}" else self._bridge(checkout)
            if root is not None and root.is_dir():
                yield preflight.files(check.what, root / check.below, check.tests)
        bridge = self._bridge(checkout)
        if bridge is None or not (bridge / "src" / "megatron" / "bridge").is_dir():
            found, remedy = f"{bridge} has no src/megatron/bridge", "give bridge=DIR or set BRIDGE_REPO"
            yield preflight.verdict("checkout of Megatron-Bridge", False, found, remedy)
        else:
            yield from preflight.repository("Megatron-Bridge", bridge, ["3rdparty/Megatron-LM"])
        yield preflight.gpus(max((one.gpus for one in chosen), default=1))
        home = Path(checkout.values(Path("outputs"))["hf_home"])
        for model in sorted({one.model for one in chosen}):
            yield preflight.snapshot(model, home)
        yield preflight.space("runs", Path("runs"), SPACE_GIB)
        yield from preflight.variables(table.must_not_set, os.environ)
        yield preflight.ray_cluster()
        yield from preflight.schedulers()
        worker = table.worker_python.format(**checkout.values(Path("outputs")))
        if worker and Path(worker).exists() and bridge is not None:
            expected = {"megatron.bridge": bridge, "megatron.core": bridge}
            path = {
                "PYTHONPATH": os.pathsep.join([str(bridge / "src"), str(bridge / "3rdparty" / "Megatron-LM")])
            }
            yield from preflight.origins("worker", worker, list(expected), expected, path)
        else:
            yield preflight.verdict("imports on the worker", None, "its environment is made by the first run")

    def dry_run(self, trials: Sequence[tuple[int, str]], output: Path) -> Iterator[str]:
        """Yield what each trial would launch, read and require."""
        known = {*self.stages.stages, *self.stages.absent}
        return dry_run(self._checked(), [trial for trial in trials if trial[1] in known], output)

    def need(self, trial: str) -> Need:
        """Return the GPUs of a trial's stage."""
        return Need(num_gpus=self.stages.stages[trial].gpus, states_gpus=True)

    def make_model(self, output: Path, seed: int) -> Job:
        """Refuse; see `job`."""
        self._not_launched()

    def job(self, request: JobRequest) -> TrainingJob:
        """Refuse: no stage has been run on GPUs with Seatrial yet."""
        self._not_launched()

    def _not_launched(self) -> NoReturn:
        raise BlockedError(
            f"preflight passed, and trials of {self.stages.stack} are not launched from here yet: run the commands of "
            "--dry-run, then check their logs with its gates by `seatrial check`"
        )

    def _checked(self) -> Checkout:
        if self._checkout is None:
            self.check_overrides(())
        assert self._checkout is not None
        return self._checkout

    def _bridge(self, checkout: Checkout) -> Path | None:
        inside = checkout.path / self.stages.bridge if self.stages.bridge else None
        return checkout.bridge or inside
