"""Checks the log of a run of refrl, read back from its files when the run ends, against what the run computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from refrl.config import GRPORunConfig
from refrl.training.session import Session
from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import table
from seatrial.targets.reference.guards.base import RunConfig, check, is_checked_closely, rows_per_step
from seatrial.targets.reference.guards.stopwatch import Stopwatch

ROUNDING = 1e-6
"""Relative: scalars are written as float32."""
RATES = {"samples_per_sec": "", "tokens_per_sec": "train/total_num_tokens"}
"""Rates of a step, by the series of what is counted; rows have none. Each is divided by the step's time."""
TOTAL = "timing/train/total_step_time"
PHASES = ("generation", "policy_training", "policy_and_reference_logprobs", "reward_calculation")
"""Phases of a step that follow one another."""


class _Computed(NamedTuple):
    """Scalars that the run computed."""

    prefix: str
    step: int
    scalars: Mapping[str, float]


class LogGuard:
    """Checks that the log has what was computed, under the documented names, at the right steps."""

    def __init__(self, config: RunConfig, guards: Guards) -> None:
        """Begin with nothing recorded."""
        self._config, self._guards = config, guards
        self._loop = "grpo" if isinstance(config, GRPORunConfig) else "sft"
        self._is_async = isinstance(config, GRPORunConfig) and config.grpo.async_grpo.enabled
        self._computed: list[_Computed] = []
        self._steps: set[int] = set()
        self.stopwatch = Stopwatch()

    def computed(self, prefix: str, step: int, scalars: Mapping[str, float]) -> None:
        """Record the scalars of a validation, or of a step that is checked closely."""
        if prefix == "train":
            self._steps.add(step)
            self.stopwatch.step(step)
        if is_checked_closely(step) or prefix == "validation":
            self._computed.append(_Computed(prefix, step, dict(scalars)))

    def ended(self, session: Session) -> None:
        """Read the log back and check it."""
        if session.world.rank or not self._config.logger.tensorboard_enabled or not self._steps:
            return
        try:
            log = read_logs(session.logger.directory / "tensorboard")
        except BlockedError as error:
            check(self._guards, "log as computed", f"the log cannot be read: {error}", number=1)
            return
        self._check_scalars(log)
        self._check_names(log)
        self._check_seconds(log)

    def _check_scalars(self, log: RunLog) -> None:
        """Every scalar that was computed is in the log, under its step."""
        wrong, number = [], 0
        for one in self._computed:
            for name, value in one.scalars.items():
                number += 1
                found = _value(log, f"{one.prefix}/{name}", one.step)
                if found is None or not _is_close(found, value):
                    wrong.append(f"{one.prefix}/{name} of step {one.step} is {found}, computed {value:.8g}")
        check(self._guards, "log as computed", wrong[:1], number=number)

    def _check_names(self, log: RunLog) -> None:
        """Every step logs the phases that each step has, and every logged phase is documented."""
        phases, prefix = table("phases")[self._loop], "timing/train/"
        wrong = [
            f"{prefix}{name} is not logged at step {step}"
            for name in phases["async_grpo" if self._is_async else "each_step"]
            for step in sorted(self._steps)
            if _value(log, f"{prefix}{name}", step) is None
        ]
        known = {*phases["each_step"], *phases["async_grpo"], *phases["at_times"]}
        groups = tuple(name for name in known if name.endswith("/"))
        logged = {tag.removeprefix(prefix) for tag in log.series if tag.startswith(prefix)}
        unknown = sorted(name for name in logged - known if not name.startswith(groups))
        wrong += [f"{prefix}{name} is no phase of a step" for name in unknown]
        check(self._guards, "phases as documented", "; ".join(wrong[:3]), number=len(logged))

    def _check_seconds(self, log: RunLog) -> None:
        """No phase takes longer than its step, and rates are counts over seconds."""
        wrong, number = [], 0
        for step in sorted(self._steps):
            total = _value(log, TOTAL, step)
            if total is None:
                continue
            for name in PHASES if not self._is_async else ():
                seconds = _value(log, f"timing/train/{name}", step)
                number += 1
                if seconds is not None and not 0 <= seconds <= total * 1.001 + 1e-4:
                    wrong.append(f"step {step}: {name} takes {seconds:.4g} s of a step of {total:.4g} s")
            for name, count in RATES.items():
                rate = _value(log, f"performance/{name}", step)
                num = _value(log, count, step) if count else rows_per_step(self._config)
                if rate is not None and num is not None and not math.isclose(rate * total, num, rel_tol=1e-4):
                    wrong.append(f"step {step}: performance/{name} is {rate:.6g}, {num:g} in {total:.4g} s")
        if not self._is_async:  # else a step samples while it trains
            wrong += self.stopwatch.wrong(lambda step, name: _value(log, f"timing/train/{name}", step))
        check(self._guards, "seconds and rates", wrong[:1], number=number)


def _value(log: RunLog, tag: str, step: int) -> float | None:
    """Return what was logged under a tag at a step, the last of several."""
    series = log.series.get(tag)
    if series is None:
        return None
    found = series.values[series.steps == step]
    return float(found[-1]) if len(found) else None


def _is_close(found: float, computed: float) -> bool:
    both_nan = math.isnan(found) and math.isnan(computed)
    return both_nan or found == computed or math.isclose(found, computed, rel_tol=ROUNDING, abs_tol=1e-30)
