"""False alarms of trials: levels 0 to 2 on the sound reference stack, over seeds and configurations.

    python benchmarks/sound_trials.py --json runs.jsonl [--trial NAME ...] [--seeds 5] [--configuration NAME ...]

The recipe as it is runs with every seed, each configuration with seed 0 and the seeds that `--configured-seeds` counts.
One line of JSON a run is appended to the file; runs that it holds already are not repeated. Prints every trial that did
not pass, with its verdicts. Exits 1 where one failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.plan import select_trials
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

TRIALS = (
    "grpo-smoke",
    "grpo-lora",
    "checkpoint-save",
    "sft-resume-diamond",
    "refit-noncolocated",
    "refit-delta",
    "async-filter-flow",
)
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "bfloat16": ("policy.precision=bfloat16",),
    "8 prompts": ("grpo.num_prompts_per_step=8", "policy.train_global_batch_size=32"),
    "8 completions": ("grpo.num_generations_per_prompt=8", "policy.train_global_batch_size=32"),
    "2 updates a step": ("policy.train_global_batch_size=8", "policy.train_micro_batch_size=4"),
    "temperature 0.7": ("policy.generation.temperature=0.7",),
    "gspo": ("loss_fn.kind=gspo", "loss_fn.reduction=sequence"),
    "cispo": ("loss_fn.kind=cispo",),
    "rloo": ("grpo.advantage.estimator=rloo",),
    "small steps": ("policy.optimizer.lr=1e-4",),
    "decay and warm-up": ("policy.optimizer.weight_decay=0.1", "policy.scheduler.warmup_steps=2"),
    "packing": ("policy.sequence_packing.enabled=true",),
    "dynamic batching": (
        "policy.dynamic_batching.enabled=true",
        "policy.dynamic_batching.train_mb_tokens=96",
    ),
    "llama": ("--family=llama",),
    "tied": ("--tie-word-embeddings",),
}
"""Overrides; words of `refrl make-model`, which begin with dashes, make the model."""


def main(argv: Sequence[str]) -> int:
    """Run what is missing in the file, and print what did not pass."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--trial", nargs="*", default=list(TRIALS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--configured-seeds", type=int, default=1)
    parser.add_argument("--configuration", nargs="*", default=list(CONFIGURATIONS))
    chosen = parser.parse_args(argv)
    known = (
        [json.loads(line) for line in chosen.json.read_text().splitlines()] if chosen.json.exists() else []
    )
    done = {(one["trial"], one["configuration"], one["seed"]): one for one in known}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for key in _runs(chosen):
            if key not in done:
                done[key] = _run(*key, Path(folder))
                with chosen.json.open("a") as lines:
                    lines.write(json.dumps(done[key]) + "\n")
            if done[key]["outcome"] != "Pass":
                failed += done[key]["outcome"] == "Fail"
                print(key, done[key]["outcome"], done[key]["wrong"], flush=True)
    print(f"{len(done)} runs, {failed} failed")
    return 1 if failed else 0


def _runs(chosen: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for trial in chosen.trial:
        for seed in range(chosen.seeds):
            yield trial, "", seed
        for name in chosen.configuration:
            if trial.startswith("sft") and any(
                word.startswith(("grpo", "loss_fn")) for word in CONFIGURATIONS[name]
            ):
                continue
            for seed in range(chosen.configured_seeds):
                yield trial, name, seed


def _run(trial: str, configuration: str, seed: int, folder: Path) -> dict[str, Any]:
    start = time.monotonic()
    words = CONFIGURATIONS.get(configuration, ())
    if words and words[0].startswith("--"):
        model = folder / f"{configuration}-{seed}"
        if not model.exists():
            making = (
                *("-m", "refrl", "make-model", "--output", str(model), "--seed", str(seed)),
                *words[0].split("="),
            )
            subprocess.run([sys.executable, *making], check=True, stdout=subprocess.DEVNULL)
        words = (f"policy.model_name={model}",)
    target = ReferenceTarget()
    request = Request(
        trials=select_trials(None, [trial]), words=trial, seed=seed, overrides=words, timeout_seconds=300.0
    )
    facts = {"trial": trial, "configuration": configuration, "seed": seed}
    try:
        target.check_overrides(words)
    except UsageError as error:
        return {**facts, "outcome": "refused", "wrong": {"overrides": str(error)}}
    with tempfile.TemporaryDirectory() as place, RunDirectory.create(Path(place), target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        run_trials(directory, results, target, request, lambda text: None)
    (result,) = results.requested_trials()
    wrong = {
        one.name: one.reason for one in result.verdicts if one.outcome in (Outcome.FAIL, Outcome.BLOCKED)
    }
    skipped = [one.name for one in result.verdicts if one.outcome is Outcome.SKIPPED]
    outcome = str(results.outcome.value)
    return {
        **facts,
        "outcome": outcome,
        "wrong": wrong,
        "skipped": skipped,
        "num_verdicts": len(result.verdicts),
        "seconds": round(time.monotonic() - start, 1),
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
