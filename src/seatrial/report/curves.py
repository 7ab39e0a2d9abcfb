"""The curves that a report shows beside a trial's verdicts: each run of the trial is a line."""

from __future__ import annotations

from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.report.svg import Line, line_chart

SHOWN = {
    "train/reward": "mean reward of the step's completions",
    "validation/accuracy": "accuracy on held-out prompts",
    "train/loss": "loss",
    "train/grad_norm": "norm of the gradient before clipping",
    "train/token_mult_prob_error": "sampler against trainer, 1 where they agree",
    "train/approx_entropy": "entropy of the policy, nats",
}
"""Tags that are drawn where a run logged them, and what their axis says."""


def trial_curves(folder: Path) -> tuple[list[str], list[str]]:
    """Draw the series of every run of a trial.

    Args:
        folder: the trial's; the runs are told by their metrics.json.

    Returns:
        The charts as SVG documents, and a note on each file that could not be read whole.
    """
    logs: dict[str, RunLog] = {}
    notes: list[str] = []
    for path in sorted(folder.rglob("metrics.json")):
        name = str(path.parent.relative_to(folder))
        try:
            log = read_logs(path, set(SHOWN))
        except BlockedError as error:
            notes.append(str(error))
            continue
        logs["this run" if name == "." else name] = log
        notes += [f"{path.name} of {name}: {damage}" for damage in log.damage]
    charts = [chart for tag, label in SHOWN.items() if (chart := _chart(tag, label, logs)) is not None]
    return charts, notes


def _chart(tag: str, label: str, logs: dict[str, RunLog]) -> str | None:
    lines = [
        Line(name=name, xs=series.steps.tolist(), ys=series.values.tolist())
        for name, log in logs.items()
        if (series := log.series.get(tag)) is not None and series.steps.size
    ]
    return line_chart(lines, title=tag, x_label="step", y_label=label) if lines else None
