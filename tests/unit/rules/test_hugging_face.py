"""The callback of the trainer ends a run at its first alarm, and lets a sound one be."""

from __future__ import annotations

import logging

import pytest
from tests.unit.rules.made_logs import healthy

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("fault", [False, True])
def test_a_run_is_ended_at_its_first_alarm(fault: bool, caplog: pytest.LogCaptureFixture) -> None:
    """A learning rate of 1 from step 31 on, as the trainer keeps its rows."""
    from seatrial.rules.hugging_face import watch_callback

    columns = healthy()
    if fault:
        columns["train/learning_rate"][30:] = 1.0
    callback = watch_callback()
    state, control = transformers.TrainerState(), transformers.TrainerControl()
    with caplog.at_level(logging.WARNING, logger="seatrial.watch"):
        for place in range(60):
            row = {tag.removeprefix("train/"): float(values[place]) for tag, values in columns.items()}
            state.log_history.append({**row, "step": place + 1, "epoch": 0.1})
            callback.on_log(None, state, control)
            if control.should_training_stop:
                break
    assert control.should_training_stop is fault
    assert state.log_history[-1]["step"] == (31 if fault else 60)
    told = [record.getMessage().split(":")[0] for record in caplog.records]
    assert told == (["rule learning-rate-huge", "rule learning-rate-jumps"] if fault else [])
