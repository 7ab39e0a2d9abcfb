"""The callback of Lightning's Trainer ends a run at its first alarm, and lets a sound one be."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch


def trained(fault: bool, place: str) -> tuple[int, set[str]]:
    """Train 40 steps, and return how many were taken, and the rules that alarm."""
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    from seatrial.rules.lightning import watch_callback
    from seatrial.rules.rule import Level

    class Model(pl.LightningModule):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch: Any, number: int) -> Any:
            loss = (self.layer(batch) - batch.sum(1, keepdim=True)).square().mean()
            self.log("loss", loss)
            self.log("learning_rate", 1.0 if fault and self.global_step >= 20 else 1e-3)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    callback = watch_callback()
    trainer = pl.Trainer(
        max_steps=40, accelerator="cpu", logger=False, log_every_n_steps=1, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback], default_root_dir=place,
    )  # fmt: skip
    rows = torch.randn(256, 4, generator=torch.Generator().manual_seed(0))
    trainer.fit(Model(), torch.utils.data.DataLoader(rows, batch_size=4))  # type: ignore[arg-type]
    alarms = {item.rule.id for item in callback.watch.judged if item.finding.level is Level.ALARM}
    return trainer.global_step, alarms


def test_a_sound_run_goes_to_its_end(tmp_path: Any) -> None:
    """Without an alarm."""
    assert trained(False, str(tmp_path)) == (40, set())


def test_a_run_is_ended_at_its_first_alarm(tmp_path: Any) -> None:
    """A learning rate of 1 from step 21 on."""
    steps, alarms = trained(True, str(tmp_path))
    assert "learning-rate-huge" in alarms
    assert steps < 30


def test_importing_it_loads_no_lightning() -> None:
    """Only a call does."""
    code = (
        "import sys, seatrial.rules.lightning; sys.exit('lightning' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
