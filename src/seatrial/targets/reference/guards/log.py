"""The log of a run of refrl, read back from its files when the run ends, held to what the run computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.training.session import Session
from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import table
from seatrial.targets.reference.guards.computed import is_looked_at

ROUNDING = 1e-6
"""Relative: scalars are written as float32."""
RATES = {
    "samples_per_sec": ("samples", "total_step_time"),
    "tokens_per_sec": ("train/total_num_tokens", "total_step_time"),
}
"""Rates of a step, by what is counted and the phase that it is divided by."""


class _Noted(NamedTuple):
    """Scalars that the run computed."""

    prefix: str
    step: int
    scalars: Mapping[str, float]


class AsLogged:
    """Asks whether the log says what was computed, under the documented names, at the right steps."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Begin with nothing noted."""
        self._config, self._guards = config, guards
        self._loop = "grpo" if isinstance(config, GRPORunConfig) else "sft"
        self._noted: list[_Noted] = []
        self._steps: set[int] = set()

    def computed(self, prefix: str, step: int, scalars: Mapping[str, float]) -> None:
        """Note the scalars of a step, where it is one of those that are looked at."""
        if prefix == "train":
            self._steps.add(step)
        if is_looked_at(step) or prefix == "validation":
            self._noted.append(_Noted(prefix, step, dict(scalars)))

    def ended(self, session: Session) -> None:
        """Read the log back."""
        if session.world.rank or not self._config.logger.tensorboard_enabled or not self._steps:
            return
        try:
            log = read_logs(session.logger.directory / "tensorboard")
        except BlockedError as error:
            self._guards.hold("log as computed", False, f"the log cannot be read: {error}", number=1)
            return
        self._hold_scalars(log)
        self._hold_names(log)
        self._hold_seconds(log)

    def _hold_scalars(self, log: RunLog) -> None:
        """Every scalar that was computed is in the log, under its step."""
        wrong, number = "", 0
        for noted in self._noted:
            for name, value in noted.scalars.items():
                number += 1
                found = _value(log, f"{noted.prefix}/{name}", noted.step)
                if found is None or not _is_close(found, value):
                    wrong = (
                        wrong
                        or f"{noted.prefix}/{name} of step {noted.step} is {found}, computed {value:.8g}"
                    )
        self._guards.hold("log as computed", not wrong, wrong, number=number)

    def _hold_names(self, log: RunLog) -> None:
        """At every step the phases are logged that each step has, and no name is one that nobody documented."""
        phases = table("phases")[self._loop]
        late = "async_grpo" if self._is_asynchronous() else "each_step"
        wrong = [
            f"timing/train/{name} is not logged at step {step}"
            for name in phases[late]
            for step in sorted(self._steps)
            if _value(log, f"timing/train/{name}", step) is None
        ]
        known = {*phases["each_step"], *phases["async_grpo"], *phases["at_times"]}
        logged = {tag.removeprefix("timing/train/") for tag in log.series if tag.startswith("timing/train/")}
        strange = sorted(
            name
            for name in logged - known
            if not any(name.startswith(group) for group in known if group.endswith("/"))
        )
        wrong += [f"timing/train/{name} is no phase of a step" for name in strange]
        self._guards.hold("phases as documented", not wrong, "; ".join(wrong[:3]), number=len(logged))

    def _hold_seconds(self, log: RunLog) -> None:
        """No phase takes longer than the step that it is of, and rates are counts over seconds."""
        phases = ("generation", "policy_training", "policy_and_reference_logprobs", "reward_calculation")
        wrong, number = "", 0
        for step in sorted(self._steps):
            total = _value(log, "timing/train/total_step_time", step)
            if total is None:
                continue
            for name in phases if not self._is_asynchronous() else ():
                seconds = _value(log, f"timing/train/{name}", step)
                number += 1
                if seconds is not None and not 0 <= seconds <= total * 1.001 + 1e-4:
                    wrong = wrong or f"step {step}: {name} takes {seconds:.4g} s of a step of {total:.4g} s"
            wrong = wrong or self._wrong_rates(log, step)
        self._guards.hold("seconds and rates", not wrong, wrong, number=number)

    def _wrong_rates(self, log: RunLog, step: int) -> str:
        for name, (count, phase) in RATES.items():
            rate = _value(log, f"performance/{name}", step)
            seconds = _value(log, f"timing/train/{phase}", step)
            num = self._num_rows() if count == "samples" else _value(log, count, step)
            if rate is None or seconds is None or num is None:
                continue
            if not math.isclose(rate * seconds, num, rel_tol=1e-4):
                return f"step {step}: performance/{name} is {rate:.6g}, {num:g} in {seconds:.4g} s"
        return ""

    def _num_rows(self) -> int:
        if isinstance(self._config, SFTRunConfig):
            return self._config.policy.train_global_batch_size
        return self._config.grpo.num_prompts_per_step * self._config.grpo.num_generations_per_prompt

    def _is_asynchronous(self) -> bool:
        return isinstance(self._config, GRPORunConfig) and self._config.grpo.async_grpo.enabled


def _value(log: RunLog, tag: str, step: int) -> float | None:
    """Return what was logged under a tag at a step, the last of several."""
    series = log.series.get(tag)
    if series is None:
        return None
    found = series.values[series.steps == step]
    return float(found[-1]) if len(found) else None


def _is_close(found: float, computed: float) -> bool:
    return found == computed or (
        math.isclose(found, computed, rel_tol=ROUNDING, abs_tol=1e-30)
        or (math.isnan(found) and math.isnan(computed))
    )
