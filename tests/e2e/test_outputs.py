"""Each field that a trial of levels 0 to 2 writes is in the table of outputs, and its check sees it damaged."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from refrl.recipes import recipe_path
from seatrial.errors import BlockedError
from seatrial.evidence.identity.origins import read_imports
from seatrial.evidence.identity.redaction import Redactor
from seatrial.launch import Launched
from seatrial.targets.base import JobRequest
from seatrial.targets.reference.target import ReferenceTarget
from seatrial.trials.outputs import bounded, covered, uncovered
from seatrial.trials.plan import select_trials
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials
from seatrial.trials.sensors.ledger import LEDGER_SENSORS
from seatrial.trials.sensors.recomputed import RECOMPUTED, RECORD
from seatrial.trials.sensors.run_record import RECORD_TRUE
from seatrial.verdict import Outcome

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("forked_processes")]

OF_GUARDS = ("guards*.json", "saved_bits.json")
"""Files of the guards, which are no part of the stack."""
DAMAGED = "damaged"
"""Folder of checkpoints that a trial damages."""
KINDS = {"unused_group_data": "group_data"}
ROWS = ("train_data", "validation_data")
HEX = re.compile("[0-9a-f]{32,64}")
OF_STEP_1 = ("token_ids", "generation_logprobs", "prev_logprobs", "reference_logprobs")
OBSERVED = {"training_info": ("data", "policy", "streams")}
"""Fields of which a guard inside the run compares the values, and a check the forms alone."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the trial of level 0; return its folder."""
    return run_trial(tmp_path_factory.mktemp("run"), "grpo-smoke")


def run_trial(folder: Path, name: str) -> Path:
    """Run a trial of the reference stack, which passes; return its folder."""
    target, trials = ReferenceTarget(), select_trials(None, [name])
    asked = Request(trials=trials, words=name, seed=0, overrides=(), timeout_seconds=300.0)
    with RunDirectory.create(folder, target.name) as directory:
        results = new_results(directory, target, asked, Redactor())
        run_trials(directory, results, target, asked, lambda text: None)
    (result,) = results.requested_trials()
    assert result.outcome is Outcome.PASS, [one for one in result.verdicts if one.outcome is Outcome.FAIL]
    (found,) = folder.glob(f"*/trials/*-{name}")
    return found


def fields(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each field that is written below a folder, with the kind of its file."""
    for path in root.rglob("*.jsonl"):
        kind = path.name.partition("_step")[0]
        if "_step" in path.name:
            for line in path.read_text().splitlines():
                yield from ((KINDS.get(kind, kind), name) for name in json.loads(line))
    for path in (*root.rglob("logs/*.json"), *root.rglob("training_info.json")):
        if DAMAGED not in path.parts and not any(fnmatch(path.name, pattern) for pattern in OF_GUARDS):
            yield from ((path.stem, name) for name in json.loads(path.read_text()))
    for path in root.rglob("metrics.json"):
        yield from (("series", tag) for tag in json.loads(path.read_text()) if not tag.startswith("//"))
    for path in (*root.rglob("run.log"), *root.rglob("first.log")):
        for line in path.read_text().splitlines():
            yield "console", re.sub(r"\d+", "N", line)


@pytest.mark.parametrize(
    "name",
    [
        "grpo-smoke",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("grpo-lora", "checkpoint-save", "sft-resume-diamond")
        ),
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("refit-noncolocated", "refit-delta", "async-filter-flow")
        ),
    ],
)
def test_every_field_is_in_the_table(tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    """With the check that computes it again, or the reason why none does."""
    folder = request.getfixturevalue("root") if name == "grpo-smoke" else run_trial(tmp_path, name)
    unknown = {
        (kind, field)
        for kind, field in fields(folder)
        if not any(
            fnmatch(field, pattern) for table in (covered, bounded, uncovered) for pattern in table(kind)
        )
    }
    assert not unknown


def evidence(root: Path, run: Path, words: tuple[str, ...] = ()) -> RunEvidence:
    """Return the evidence of a copy of a run of level 0, as if it had had other options."""
    request = JobRequest(recipe="grpo-smoke", model=root / "model", directory=root, seed=0, overrides=words)
    job = ReferenceTarget().job(request)
    argv, log_path = tuple(job.argv), run / "run.log"
    moved = replace(
        job,
        log_dir=run / job.log_dir.relative_to(root),
        ledger_dir=run / job.ledger_dir.relative_to(root),
        final_model=run / job.final_model.relative_to(root),
        checkpoint_dir=run / "checkpoints",
    )
    ended = Launched(
        argv=argv, returncode=0, seconds=300.0, timed_out=False, log_path=log_path, num_stragglers=0
    )
    return RunEvidence(moved, ended, read_imports(root / "run.imports.jsonl"))


OTHER: dict[str, tuple[str, ...]] = {
    "policy.max_total_sequence_length": ("policy.max_total_sequence_length=16",),
    "policy.max_grad_norm": ("policy.max_grad_norm=0.5",),
    "policy.optimizer.lr": ("policy.optimizer.lr=2e-3",),
    "policy.generation.max_new_tokens": ("policy.generation.max_new_tokens=7",),
    "policy.generation.temperature": ("policy.generation.temperature=0.5",),
    "policy.generation.stop_token_ids": ("policy.generation.stop_token_ids=[258]",),
    "policy.train_global_batch_size": ("policy.train_global_batch_size=8",),
    "grpo.num_prompts_per_step": ("grpo.num_prompts_per_step=2", "grpo.num_generations_per_prompt=8"),
    "grpo.num_generations_per_prompt": ("grpo.num_prompts_per_step=8", "grpo.num_generations_per_prompt=2"),
    "grpo.max_num_steps": ("grpo.max_num_steps=4",),
    "grpo.val_at_start": ("grpo.val_at_start=false",),
    "grpo.val_at_end": ("grpo.val_at_end=false",),
    "grpo.max_val_samples": ("grpo.max_val_samples=4",),
    "loss_fn.reference_policy_kl_penalty": ("loss_fn.reference_policy_kl_penalty=0.02",),
    "data.task": ("data.task=count_letters", "data.task_args={}"),
    "data.verifier": ("data.verifier=exact_match",),
    "data.task_args.min_length": ("data.task_args.min_length=1",),
    "data.task_args.max_length": ("data.task_args.max_length=2", "data.num_train=3", "data.num_validation=2"),
    "data.task_args.alphabet_size": (
        "data.task_args.alphabet_size=1",
        "data.num_train=2",
        "data.num_validation=1",
    ),
    "data.num_train": ("data.num_train=9",),
    "data.num_validation": ("data.num_validation=2",),
}
"""Other values of the options that the recipe sets; a run with them is as one that ignores the recipe's."""
BY_GUARDS = {
    "policy.model_name": "a guard compares the weights at the start with the files",
    "policy.precision": "a guard compares types; other checks take its bounds from it",
    "policy.train_micro_batch_size": "a guard counts the rows of micro-batches",
    "policy.logprob_batch_size": "scores do not depend on it; relations compare sizes",
    "grpo.seed": "guards draw random numbers again",
    "data.seed": "guards draw splits again",
    "logger.log_dir": "it is where the evidence is",
    "checkpointing.checkpoint_dir": "it is where the evidence is",
    "cluster.num_threads": "results do not depend on it, and nothing that is written has it",
}
"""Options that no check of what is written sees ignored, and what does instead."""


def options_of_recipe(section: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of the options that a recipe sets."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from options_of_recipe(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def test_every_option_of_the_recipe_has_a_check_that_sees_it_ignored(root: Path) -> None:
    """The run of the recipe is judged as one of another value; the run's record of its options is not asked."""
    missed = []
    recipe = yaml.safe_load(recipe_path("grpo-smoke").read_text())
    assert set(options_of_recipe(recipe)) == {*OTHER, *BY_GUARDS}
    asked = [sensor for sensor in RECOMPUTED if sensor.name not in (RECORD.name, RECORD_TRUE.name)]
    for option, words in OTHER.items():
        found = evidence(root, root, words)
        seen = any(
            outcome(check, found) is Outcome.FAIL for check in [*(one.name for one in asked), *LEDGER_SENSORS]
        )
        missed += [] if seen else [option]
    assert missed == []


def outcome(check: str, found: RunEvidence) -> Outcome:
    """Return what one check says of a run."""
    asked = {sensor.name: sensor.judge for sensor in RECOMPUTED}
    try:
        if check in asked:
            return asked[check](found).outcome
        return LEDGER_SENSORS[check](found.ledger, found.job).outcome
    except BlockedError:
        return Outcome.BLOCKED


def damaged(value: Any) -> Any:
    """Return another value of the same kind; the first leaf of a structure is another."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return value / 2 or 1.0
    if isinstance(value, int):
        return value - 1 if value > 0 else value + 1
    if isinstance(value, str):
        return ("1" if value[0] == "0" else "0") + value[1:] if HEX.fullmatch(value) else f"{value}x"
    if isinstance(value, list):
        return [damaged(value[0]), *value[1:]] if value else [7]
    if isinstance(value, dict):
        name = next(iter(value), "none")
        return {**value, name: damaged(value.get(name))}
    return 7


def damage(run: Path, kind: str, field: str) -> bool:
    """Change one field of the last file of its kind, in its last object; return whether it has the field."""
    if kind in ROWS:
        path = sorted(run.rglob(f"{kind}_step*.jsonl"))[0 if field in OF_STEP_1 else -1]
        *others, last = [json.loads(line) for line in path.read_text().splitlines()]
        if field not in last:
            return False
        path.write_text(
            "".join(json.dumps(row) + "\n" for row in (*others, {**last, field: damaged(last[field])}))
        )
        return True
    path = max(path for path in run.rglob(f"{kind}.json"))
    said = json.loads(path.read_text())
    if field not in said:
        return False
    path.write_text(json.dumps({**said, field: damaged(said[field])}, indent=1) + "\n")
    return True


def test_the_check_of_each_field_sees_it_damaged(root: Path, tmp_path: Path) -> None:
    """In a run of level 0; its scalars are those of tests/unit/trials/test_recomputed.py."""
    missed = []
    for kind in (*ROWS, "run_info", "parts", "training_info"):
        for field, check in covered(kind).items():
            run = tmp_path / f"{kind}-{field}"
            shutil.copytree(root, run)
            if damage(run, kind, field) and field not in OBSERVED.get(kind, ()):
                found = evidence(root, run)
                missed += [] if outcome(check, found) is not Outcome.PASS else [f"{kind} {field}: {check}"]
            shutil.rmtree(run)
    assert missed == []
