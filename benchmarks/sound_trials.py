"""False alarms of trials: every level on the sound reference stack, over seeds and configurations.

    python benchmarks/sound_trials.py --json runs.jsonl [--trial NAME ...] [--seeds 5] [--configuration NAME ...]
                                      [--jobs N] [--device cuda [--gpus N]]

The recipe as it is runs with every seed, each configuration with seed 0 and the seeds that `--configured-seeds` counts.
One line of JSON a run is appended to the file; runs that it holds already are not repeated. Prints every trial that did
not pass, with its verdicts. Exits 1 where one failed. On several GPUs, trials of one process take them in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from seatrial.errors import UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.plan import select_trials
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.verdict import Outcome

TRIALS = {trial.name: trial for trial in select_trials(range(7), ())}
CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "bfloat16": ("policy.precision=bfloat16",),
    "8 prompts": ("grpo.num_prompts_per_step=8", "policy.train_global_batch_size=32"),
    "16 prompts": ("grpo.num_prompts_per_step=16", "policy.train_global_batch_size=64"),
    "8 completions": ("grpo.num_generations_per_prompt=8", "policy.train_global_batch_size=32"),
    "2 updates a step": ("policy.train_global_batch_size=8", "policy.train_micro_batch_size=4"),
    "micro-batches of one row": ("policy.train_micro_batch_size=1", "policy.logprob_batch_size=1"),
    "temperature 0.7": ("policy.generation.temperature=0.7",),
    "gspo": ("loss_fn.kind=gspo", "loss_fn.reduction=sequence"),
    "cispo": ("loss_fn.kind=cispo",),
    "rloo": ("grpo.advantage.estimator=rloo",),
    "small steps": ("policy.optimizer.lr=1e-4",),
    "decay and warm-up": ("policy.optimizer.weight_decay=0.1", "policy.scheduler.warmup_steps=2"),
    "tight clipping": ("policy.max_grad_norm=0.1",),
    "packing": ("policy.sequence_packing.enabled=true",),
    "dynamic batching": (
        "policy.dynamic_batching.enabled=true",
        "policy.dynamic_batching.train_mb_tokens=96",
    ),
    "no reward": ("data.verifier=exact_match",),
    "several micro-batches": ("policy.train_micro_batch_size=4",),
    "llama": ("--family=llama",),
    "tied": ("--tie-word-embeddings",),
    "peaked": ("--initializer-range=0.1",),
    "three layers": ("--num-layers=3",),
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
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gpus", type=int, default=1)
    chosen = parser.parse_args(argv)
    known = (
        [json.loads(line) for line in chosen.json.read_text().splitlines()] if chosen.json.exists() else []
    )
    done = {(one["trial"], one["configuration"], one["seed"]): one for one in known}
    left = [key for key in _runs(chosen) if key not in done]
    with ProcessPoolExecutor(chosen.jobs) as jobs, chosen.json.open("a") as lines:
        begun = [
            jobs.submit(_run, *key, chosen.device, number % chosen.gpus) for number, key in enumerate(left)
        ]
        for run in as_completed(begun):
            one = run.result()
            done[one["trial"], one["configuration"], one["seed"]] = one
            print(json.dumps(one), file=lines, flush=True)
    failed = 0
    for key in _runs(chosen):
        if done[key]["outcome"] != "Pass":
            failed += done[key]["outcome"] == "Fail"
            print(key, done[key]["outcome"], done[key]["wrong"], flush=True)
    print(f"{len(done)} runs, {failed} failed")
    return 1 if failed else 0


def _runs(chosen: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """Yield the runs: a trial, the name of its configuration or an empty one, and the seed."""
    for seed in range(chosen.seeds):
        for trial in chosen.trial:
            yield trial, "", seed
    for name in chosen.configuration:
        for trial in chosen.trial:
            if _fits(trial, CONFIGURATIONS[name]):
                for seed in range(chosen.configured_seeds):
                    yield trial, name, seed


def _fits(trial: str, words: Sequence[str]) -> bool:
    """Return whether a configuration concerns a trial: SFT samples nothing, and level 5 makes its own models."""
    if trial.startswith("sft"):
        return not any(word.startswith(("grpo", "loss_fn", "policy.generation")) for word in words)
    return TRIALS[trial].level != 5 or not words[0].startswith("--")


def _run(trial: str, configuration: str, seed: int, device: str, gpu: int) -> dict[str, Any]:
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # Megatron-core takes the GPUs that it finds
    elif TRIALS[trial].level != 4:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    else:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    with tempfile.TemporaryDirectory() as folder:
        return _judged(trial, configuration, seed, device, Path(folder))


def _judged(trial: str, configuration: str, seed: int, device: str, folder: Path) -> dict[str, Any]:
    start = time.monotonic()
    words = CONFIGURATIONS.get(configuration, ())
    if words and words[0].startswith("--"):
        model = folder / "model"
        making = (
            "-m",
            "refrl",
            "make-model",
            "--output",
            str(model),
            "--seed",
            str(seed),
            *words[0].split("="),
        )
        subprocess.run([sys.executable, *making], check=True, stdout=subprocess.DEVNULL)
        words = (f"policy.model_name={model}",)
    words = (*words, f"cluster.device={device}")
    target = ReferenceTarget()
    request = Request(trials=[TRIALS[trial]], words=trial, seed=seed, overrides=words, timeout_seconds=300.0)
    facts = {"trial": trial, "configuration": configuration, "seed": seed}
    try:
        target.check_overrides(words)
    except UsageError as error:
        return {**facts, "outcome": "refused", "wrong": {"overrides": str(error)}}
    with RunDirectory.create(folder / "run", target.name) as directory:
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
