"""Does asynchronous GRPO learn what the synchronous loop learns? Adding two numbers, five seeds of each.

    python benchmarks/async_learning.py [--work DIR] [--jobs 2] [--steps 160]
    python benchmarks/async_learning.py --logs DIR

A tiny model is warmed up by supervised fine-tuning until it adds a third of the held-out pairs rightly. Every run
starts from it, with the same recipe (`grpo-learning`), and differs in its seed and in whether rollouts are sampled
beside the training (two engines in processes of their own, `max_trajectory_age_steps=1`). With `--logs` runs that are
there are judged: `DIR/sync-SEED/logs` and `DIR/async-SEED/logs`.

The runs of the synchronous loop are a learned baseline (`seatrial baseline`), and the asynchronous ones are held to it
in validation accuracy and in training reward: mean, final window, drift and worst step, at 1 % false alarms in all.
The accuracy of each loop must also be higher at the end than at the start, by a one-sided paired t test over its seeds
at 1 %. The exit status is 0 when all of this holds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from seatrial.comparisons.baseline_compare import compare
from seatrial.comparisons.baselines import Provenance, learn
from seatrial.evidence.read import read_logs
from seatrial.evidence.runlog import RunLog
from seatrial.verdict import Outcome

SEEDS = range(5)
NUM_VALIDATION = 512
RISE_ALPHA = 0.01
ACCURACY, REWARD = "validation/accuracy", "train/reward"
TASK = ("data.task=add", "data.task_args={digits: 2}", "data.num_train=4096", "cluster.device=cpu")
LOOPS: Mapping[str, Sequence[str]] = {
    "sync": (),
    "async": (
        *("grpo.async_grpo.enabled=true", "grpo.async_grpo.num_replicas=2"),
        *("policy.generation.colocated.enabled=false", "policy.generation.placement=process"),
        "loss_fn.importance_sampling=truncated",
    ),
}


def main() -> None:
    """Run, unless the runs are there, and judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, help="folder of the runs (default: temporary)")
    parser.add_argument("--logs", type=Path, help="judge the runs that lie there")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--steps", type=int, default=160, help="of each run")
    arguments = parser.parse_args()
    if arguments.logs:
        raise SystemExit(judge(arguments.logs))
    with tempfile.TemporaryDirectory(prefix="async-learning-") as scratch:
        work = arguments.work or Path(scratch)
        train(work, num_steps=arguments.steps, num_jobs=arguments.jobs)
        raise SystemExit(judge(work))


def train(work: Path, *, num_steps: int, num_jobs: int) -> None:
    """Warm a model up, and run both loops from it with every seed."""
    work.mkdir(parents=True, exist_ok=True)
    refrl("make-model", "--output", str(work / "model"))
    warm = (f"policy.model_name={work / 'model'}", "data.num_validation=128", *folders(work / "warm"))
    more = ("policy.optimizer.lr=1e-3", "sft.max_num_steps=2000", "sft.val_period=50")
    refrl("sft", "--config", "sft-warmup", *TASK, *warm, *more)
    model = work / "warm" / "checkpoints" / "final"

    def run(loop: str, seed: int) -> None:
        refrl(
            *("grpo", "--config", "grpo-learning", *TASK, *LOOPS[loop], *folders(work / f"{loop}-{seed}")),
            *(f"policy.model_name={model}", "policy.optimizer.lr=2e-4", f"grpo.seed={seed}"),
            *(f"data.num_validation={NUM_VALIDATION}", f"grpo.max_val_samples={NUM_VALIDATION}"),
            *(f"grpo.max_num_steps={num_steps}", "logger.log_train_data=false"),
        )

    with ThreadPoolExecutor(num_jobs) as pool:
        for future in [pool.submit(run, loop, seed) for seed in SEEDS for loop in LOOPS]:
            future.result()


def folders(place: Path) -> tuple[str, str]:
    """Return the options that say where a run writes."""
    return (f"logger.log_dir={place / 'logs'}", f"checkpointing.checkpoint_dir={place / 'checkpoints'}")


def refrl(*words: str) -> None:
    """Run a command of refrl in a process of its own."""
    ran = subprocess.run(
        [sys.executable, "-m", "refrl", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise SystemExit(f"refrl {' '.join(words)}: exit status {ran.returncode}\n{ran.stderr}")


def judge(work: Path) -> int:
    """Print what the runs say; return 0 where both loops learn, and learn alike."""
    logs = {loop: {seed: read_logs(work / f"{loop}-{seed}" / "logs") for seed in SEEDS} for loop in LOOPS}
    for loop, runs in logs.items():
        print(curve(loop, list(runs.values())))
    p_values = {loop: rise_p_value(list(runs.values())) for loop, runs in logs.items()}
    print(difference(*(finals(list(runs.values())) for runs in logs.values())))
    baseline, faults = learn(
        {f"sync-{seed}": log for seed, log in logs["sync"].items()},
        [ACCURACY, REWARD],
        window=2,
        provenance=Provenance(commit=None, dirty=True, packages={}, host={}),
    )
    if baseline is None:
        print(f"the repeats are no baseline: {faults}")
        return 3
    verdicts = compare(baseline, {f"async-{seed}": log for seed, log in logs["async"].items()})
    for verdict in verdicts:
        print(f"{verdict.outcome.value:8}{verdict.name}: {verdict.reason}")
    print("rise over the seeds: " + ", ".join(f"{loop} p = {value:.1g}" for loop, value in p_values.items()))
    learned = all(value < RISE_ALPHA for value in p_values.values())
    return int(not learned or any(verdict.outcome is not Outcome.PASS for verdict in verdicts))


def curve(loop: str, runs: Sequence[RunLog]) -> str:
    """Return the mean accuracy at each validation, and its standard deviation between seeds."""
    series = [log.series[ACCURACY] for log in runs]
    points = zip(series[0].steps, *(one.values for one in series), strict=True)
    shown = (f"{step}: {statistics.mean(of):.3f} ({statistics.stdev(of):.3f})" for step, *of in points)
    return f"{loop:6}{', '.join(shown)}"


def finals(runs: Sequence[RunLog]) -> list[float]:
    """Return the accuracy of each run at its end."""
    return [float(log.series[ACCURACY].values[-1]) for log in runs]


def rise_p_value(runs: Sequence[RunLog]) -> float:
    """Return the probability of a rise as large as this over the seeds where training does not help."""
    from scipy import stats

    first = [float(log.series[ACCURACY].values[0]) for log in runs]
    return float(stats.ttest_rel(finals(runs), first, alternative="greater").pvalue)


def difference(sync: Sequence[float], beside: Sequence[float]) -> str:
    """Return the difference of the final accuracies with its 95 % interval (Welch)."""
    from scipy import stats  # runs that are only made, and judged elsewhere, need no scipy

    interval = stats.ttest_ind(beside, sync, equal_var=False).confidence_interval(0.95)
    mean = statistics.mean(beside) - statistics.mean(sync)
    return f"final accuracy, async - sync: {mean:+.3f}, 95 % interval {interval.low:+.3f} to {interval.high:+.3f}"


if __name__ == "__main__":
    main()
