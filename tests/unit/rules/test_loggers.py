"""The logger judges what stacks hand to their own loggers, in the forms in which each calls them."""

from __future__ import annotations

import numpy as np
import pytest

from seatrial.rules.engine import Judged
from seatrial.rules.loggers import WatchLogger
from seatrial.rules.rule import Level

ROW = {"actor/pg_loss": 0.01, "critic/score/mean": 0.3, "actor/lr": 1e-6, "actor/kl_loss": 0.01}


def alarms(logger: WatchLogger) -> list[tuple[str, int | None]]:
    """Return the rules that alarm, and from which step."""
    loud = [item for item in logger.judged if item.finding.level is Level.ALARM]
    return [(item.rule.id, item.finding.step) for item in loud]


def rows(broken_at: int) -> list[dict[str, object]]:
    """Return rows of verl whose gradient is zero from a step on."""
    random = np.random.default_rng(0)
    return [
        {
            **ROW,
            "actor/pg_loss": float(random.standard_normal()),
            "critic/score/mean": np.float32(0.3 + 0.1 * random.random()),
            "actor/grad_norm": 0.0 if step >= broken_at else float(1 + random.random()),
            "note": "text",
            "table": [1, 2],
        }
        for step in range(1, 31)
    ]


def test_verl_calls_it_by_names() -> None:
    """`log(data=..., step=...)`: quiet on a sound run, and what is no scalar is left out."""
    sound, broken = WatchLogger(), WatchLogger()
    for step, row in enumerate(rows(99), start=1):
        sound.log(data=row, step=step)
    for step, row in enumerate(rows(11), start=1):
        broken.log(data=row, step=step)
    sound.finish()
    broken.finish()
    assert alarms(sound) == []
    assert ("gradient-zero", 15) in alarms(broken)


def test_an_alarm_may_end_the_run() -> None:
    """At the first row after the step that it shows in; once for each rule."""
    heard: list[str] = []

    def end(item: Judged) -> None:
        heard.append(item.rule.id)
        raise SystemExit(3)

    logger = WatchLogger(on_alarm=end, rules=["gradient-zero"])
    with pytest.raises(SystemExit):
        for step, row in enumerate(rows(11), start=1):
            logger.log(row, step)
    assert heard == ["gradient-zero"]
    assert step == 16


def test_nemo_rl_calls_it_with_a_prefix_and_other_clocks() -> None:
    """Metrics of the same step in several calls are judged together; those of a clock of their own are left out."""
    logger = WatchLogger(rules=["finite"])
    logger.log_hyperparams({"grpo": {"seed": 1}})
    for step in range(1, 4):
        logger.log_metrics({"loss": 0.1, "reward": 0.2}, step, prefix="train")
        logger.log_metrics({"gpu": float("nan"), "ray/step": 7.0}, step, prefix="ray", step_metric="ray/step")
        logger.log_metrics(
            {"token_mult_prob_error": np.array([1.0])}, step, prefix="train", step_finished=True
        )
    logger.log_metrics({"loss": float("nan")}, 4, prefix="train")
    logger.finish()
    assert alarms(logger) == [("finite", 4)]


def test_prime_rl_writes_the_step_into_the_row() -> None:
    """And ends with a summary."""
    logger = WatchLogger(rules=["finite"])
    for step in range(1, 5):
        logger.log({"loss/mean": float("nan") if step == 3 else 0.1, "optim/grad_norm": 1.0, "step": step})
        logger.log_samples([], step)
    logger.save_final_summary()
    assert [item.finding.step for item in logger.judged] == [3]
