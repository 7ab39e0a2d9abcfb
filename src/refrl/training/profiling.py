"""Profiles one step of a run with torch's profiler."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.profiler import profile

from refrl.training.session import Observer, Session, TrainedStep, TunedStep

ROWS = 40
"""Lines of each table."""


class StepProfiler(Observer):
    """Writes `trace.json` and `table.txt` of one step: from the end of the one before to its own end."""

    def __init__(self, step: int, directory: Path) -> None:
        """Profile this step, counted from 1."""
        self._step = step
        self._directory = directory
        self._profile = profile()

    def started(self, session: Session) -> None:
        """Begin with the run, where the first step is profiled."""
        self._after(0)

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Follow GRPO steps."""
        self._after(step.step)

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Follow steps of fine-tuning."""
        self._after(step.step)

    def _after(self, step: int) -> None:
        if step == self._step - 1:
            self._profile.start()
        if step != self._step:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self._profile.stop()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._profile.export_chrome_trace(str(self._directory / "trace.json"))
        averages = self._profile.key_averages()
        keys = ["self_cpu_time_total"] + ["self_cuda_time_total"] * torch.cuda.is_available()
        tables = [averages.table(sort_by=key, row_limit=ROWS) for key in reversed(keys)]
        (self._directory / "table.txt").write_text("\n".join(tables), encoding="utf-8")
