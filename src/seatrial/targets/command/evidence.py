"""What a run of a stack left: found by the globs of its YAML file, among files that this start wrote.

Files that were there before the start count only if they changed, so an older run is never judged. Logs and rows are
linked into the trial's folder, checkpoints and the exported model are read where they are.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.dump import lines as dump_lines
from seatrial.evidence.ledger.read import read_ledger
from seatrial.evidence.read import read_logs
from seatrial.files import write_text
from seatrial.launch import Launched
from seatrial.targets.base import Job, TrainingJob
from seatrial.targets.command.data import HELD_OUT
from seatrial.targets.command.schema import COUNTS, PATTERNS, Recipe, Stack, filled
from seatrial.vocabulary import canonical, recognise, stack_named, tags_read_as

Files = Mapping[Path, tuple[int, int]]
"""Time of the last change and size, by file."""
PATIENCE_SECONDS = 5.0
"""How long the log may take to appear after the run has ended, as on a shared file system."""
ANY_COUNT = dict.fromkeys(COUNTS, "*")
FIRST = "first"
"""Folder of what the first of two starts wrote, except for what the second start continues from."""
REQUIRED_SERIES = ("train/loss", "train/grad_norm", "train/reward")
OPTIONAL_SERIES = (
    "train/lr",
    "train/probs_ratio_min",
    "train/probs_ratio_max",
    "train/token_mult_prob_error",
    "train/gen_kl_error",
    "train/kl_penalty",
    "train/global_valid_toks",
    "train/global_valid_seqs",
    "train/total_num_tokens",
    "validation/val_loss",
)
"""Series that verdicts need, by our names; those of REQUIRED_SERIES are expected if the vocabulary has them."""


@dataclass(frozen=True, kw_only=True)
class Collector:
    """Finds the evidence of one start. A `seatrial.targets.base.Collect`."""

    stack: Stack
    recipe: Recipe
    values: Mapping[str, object]
    """Values of the placeholders."""
    directory: Path
    before: Files
    """Files that matched before the start."""
    ends_early: bool
    validates: bool
    """Whether held-out prompts are answered with the first and the last weights."""
    environment: Mapping[str, str]
    """Of further commands."""
    wait: Callable[[float], None] = time.sleep

    def __call__(
        self, job: TrainingJob, launched: Launched, run: Callable[[Job], Launched]
    ) -> tuple[TrainingJob, Launched]:
        """Return the job with the places of this start's evidence, and how the last command ended."""
        if self.ends_early:
            return (self._keep_first_checkpoint(job) if launched.ok else job), launched
        job = replace(job, absent=absent(self.stack, self.recipe, validates=self.validates))
        job = self._linked(job, launched)
        job = self._with_checkpoints(job)
        if launched.ok and self.stack.convert:
            job, launched = self._converted(job, run)
        else:
            job = self._with_export(job)
        job = self._with_facts(job, launched)
        if launched.ok and self.validates and "answers" not in job.absent and job.final_model.is_dir():
            launched = self._answered(job, launched, run)
        return job, launched

    def _linked(self, job: TrainingJob, launched: Launched) -> TrainingJob:
        """Link logs and rows into the trial's folder."""
        logs = self._new(self.stack.logs)
        waited = 0.0
        while launched.ok and not logs and waited < PATIENCE_SECONDS:
            self.wait(0.5)
            waited += 0.5
            logs = self._new(self.stack.logs)
        if launched.ok and not logs:
            raise BlockedError(self._no_logs(launched))
        self._one_folder("logs", logs)
        _link(logs, job.log_dir)
        if self.stack.metrics and logs:
            job = replace(job, log_dir=self._renamed(job.log_dir))
        if self.stack.rows is not None and "rows" not in job.absent:
            _link(self._new(self.stack.rows), job.ledger_dir)
        return job

    def _no_logs(self, launched: Launched) -> str:
        pattern = filled(self.stack.logs, self.values)
        if launched.num_stragglers:
            return (
                f"the command returned after {launched.seconds:.1f} s while {launched.num_stragglers} processes "
                "that it started were running (they were stopped): use a command that waits for them"
            )
        older = len(_files(_matches(pattern)))
        if older:
            return f"logs: {pattern} matches {older} files, all older than this run: none of them is judged"
        return f"logs: {pattern} matches nothing that this run wrote; see {launched.log_path}"

    def _one_folder(self, key: str, found: Mapping[Path, list[Path]]) -> None:
        folders = sorted(str(match) for match in found if match.is_dir())
        if len(folders) > 1:
            raise BlockedError(
                f"{key}: {getattr(self.stack, key)} matches {len(folders)} folders that this run wrote "
                f"({', '.join(folders[:2])}): make it match one"
            )

    def _renamed(self, log_dir: Path) -> Path:
        """Write the log again with our names for the series that `metrics` lists; return its folder."""
        log = read_logs(log_dir)
        if log.damage:
            raise BlockedError(f"{log.damage[0].path}: {log.damage[0].what}")
        ours = {theirs: name for name, theirs in self.stack.metrics.items()}
        missing = sorted(ours.keys() - log.series.keys())
        if missing:
            raise BlockedError(
                f"metrics: the log has no series {missing[0]}; there are {', '.join(sorted(log.series)[:12])}"
            )
        series = {ours.get(tag, tag): replace(one, tag=ours.get(tag, tag)) for tag, one in log.series.items()}
        folder = log_dir.with_name("logs-renamed")
        folder.mkdir(exist_ok=True)
        write_text(
            folder / "metrics.json", "".join(f"{line}\n" for line in dump_lines(replace(log, series=series)))
        )
        return folder

    def _checkpoints(self) -> dict[int, Path]:
        """Return the folders of the checkpoints that this start wrote, by step."""
        if self.stack.checkpoints is None:
            return {}
        return by_step(self.stack, self.values, list(self._new(self.stack.checkpoints)))

    def _with_checkpoints(self, job: TrainingJob) -> TrainingJob:
        """Link the checkpoints into the trial's folder, by step."""
        root = self.directory / "checkpoints"
        root.mkdir(exist_ok=True)
        for step, folder in self._checkpoints().items():
            (root / f"step-{step}").symlink_to(folder.absolute())
        return replace(job, checkpoint_dir=root, checkpoint_form="step-{step}")

    def _with_export(self, job: TrainingJob) -> TrainingJob:
        """Find the exported model: the glob's only folder with weights, or the last checkpoint."""
        if "export" in job.absent:
            return job
        if self.stack.export is None:
            checkpoints = self._checkpoints()
            final = checkpoints[max(checkpoints)] if checkpoints else self.directory / "no-checkpoint"
        else:
            found = [match for match in self._new(self.stack.export) if any(match.glob("*.safetensors"))]
            if len(found) > 1:
                raise BlockedError(
                    f"export: {self.stack.export} matches {found[0]} and {found[1]}: make it match one"
                )
            final = found[0] if found else Path(filled(self.stack.export, self.values))
        job = replace(job, final_model=final)
        if not self.recipe.adapters:
            return job
        absent = {
            **job.absent,
            "export": "the export holds adapters alone, so weights of the model are not compared",
            "merged": "no merged export: that the model under the adapters is frozen is not judged",
        }
        return replace(job, adapter_dir=final, absent=absent)

    def _converted(self, job: TrainingJob, run: Callable[[Job], Launched]) -> tuple[TrainingJob, Launched]:
        """Export the last checkpoint by the stack's own command."""
        checkpoints = self._checkpoints()
        if not checkpoints:
            raise BlockedError(f"convert: no checkpoint matches {self.stack.checkpoints}")
        output = Path(str(self.values["out"])) / "seatrial-export"
        values = {**self.values, "checkpoint": checkpoints[max(checkpoints)]}
        argv = tuple(filled(word, values) for word in self.stack.convert)
        launched = run(Job(what="exporting the model", argv=argv, environment=self.environment))
        return replace(job, final_model=output), launched

    def _with_facts(self, job: TrainingJob, launched: Launched) -> TrainingJob:
        """Add what the run's own evidence says: series that the stack never logs, and rows of a step."""
        if job.num_rows_per_step == 0 and "rows" not in job.absent:
            rows = read_ledger(job.ledger_dir).rows
            job = replace(job, num_rows_per_step=sum(row.step == rows[0].step for row in rows) if rows else 0)
        if not any(job.log_dir.rglob("*")):
            return job
        try:
            tags = set(read_logs(job.log_dir).series)
        except BlockedError:
            if launched.ok:
                raise
            return job  # The verdict on how the command ended says why there is no log.
        return replace(job, unlogged=unlogged(tags))

    def _answered(self, job: TrainingJob, launched: Launched, run: Callable[[Job], Launched]) -> Launched:
        """Answer the held-out prompts with the first and the last weights; return how the last command ended."""
        for step, model in ((0, job.initial_model), (job.num_steps, job.final_model)):
            words = ["--model", str(model), "--prompts", str(self.directory / HELD_OUT), "--step", str(step)]
            words += ["--output", str(job.ledger_dir / f"validation_data_step{step}.jsonl")]
            words += ["--verifier", str(self.recipe.verifier), *(["--chat"] if self.stack.chat else [])]
            argv = (sys.executable, "-m", "seatrial.targets.command.answering", *words)
            answered = run(Job(what="answering held-out prompts", argv=argv, environment=self.environment))
            if not answered.ok:
                return answered
        return launched

    def _keep_first_checkpoint(self, job: TrainingJob) -> TrainingJob:
        """Move away what the first start wrote, except for what the second start continues from."""
        out, kept = Path(str(self.values["out"])), self.directory / FIRST
        earlier = {step: folder for step, folder in self._checkpoints().items() if step < job.num_steps}
        if not earlier:
            raise BlockedError(
                f"the first start left no checkpoint before step {job.num_steps} that {self.stack.checkpoints} matches"
            )
        # A state that each save replaces is that of the last checkpoint before the end.
        needed = [earlier[min(earlier) if self.stack.state is None else max(earlier)]]
        if self.stack.state is not None:
            needed += self._new(self.stack.state)
        for path in needed:
            if not path.is_relative_to(out):
                raise BlockedError(f"{path} is not in {{out}}, so what was written later cannot be put aside")
        if self.stack.state is not None and len(needed) == 1:
            raise BlockedError(
                f"state: {filled(self.stack.state, self.values)} matches nothing that this run wrote"
            )
        out.rename(kept)
        for place in (path.relative_to(out) for path in needed):
            (out / place).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (kept / place).is_dir() else shutil.copy2
            copy(kept / place, out / place)
        return replace(job, log_dir=kept)

    def _new(self, pattern: str) -> dict[Path, list[Path]]:
        """Return the files below each match of a pattern that this start wrote or changed."""
        found = {}
        for match in _matches(filled(pattern, {**_escaped(self.values), **ANY_COUNT})):
            files = [file for file, state in _files([match]).items() if self.before.get(file) != state]
            if files:
                found[match] = files
        return found


def absent(stack: Stack, recipe: Recipe, *, validates: bool) -> dict[str, str]:
    """Return the evidence that a file gives no place for, each with what to add."""
    found = {}
    if recipe.kind != "grpo":
        found["rows"] = f"{recipe.kind.upper()} has no rollouts: the rows that were trained on are not judged"
    elif stack.rows is None:
        found["rows"] = "no rows: rewards, advantages and groups are not recomputed; add `rows:`"
    if stack.checkpoints is None:
        found["checkpoints"] = "no checkpoints: what is saved is not judged; add `checkpoints:`"
        if stack.export is None:
            found["export"] = "no exported model: that tensors move is not judged; add `export:`"
    elif stack.state is not None:
        found["moments"] = (
            "moments are not in the checkpoint folders: only a resume (sft-resume-diamond) shows them"
        )
    if validates and recipe.verifier is None:
        found["answers"] = "no reward rule for held-out prompts; add `verifier:` to the recipe"
    return found


def snapshot(stack: Stack, values: Mapping[str, object]) -> Files:
    """Return the state of every file that a pattern of the stack matches now."""
    matches = [
        match
        for pattern in (getattr(stack, key) for key in PATTERNS)
        if pattern is not None
        for match in _matches(filled(pattern, {**_escaped(values), **ANY_COUNT}))
    ]
    return _files(matches)


def first_checkpoint(stack: Stack, values: Mapping[str, object]) -> tuple[int, Path] | None:
    """Return the step and the folder of the checkpoint that a second start continues from; None if there is none."""
    if stack.checkpoints is None:
        return None
    matches = _matches(filled(stack.checkpoints, {**_escaped(values), **ANY_COUNT}))
    return min(by_step(stack, values, matches).items(), default=None)


def by_step(stack: Stack, values: Mapping[str, object], matches: Sequence[Path]) -> dict[int, Path]:
    """Return checkpoint folders by their step, the first first; a number of an epoch is that of its last step.

    Raises:
        BlockedError: two folders are of one step.
    """
    checkpoints = stack.checkpoints or ""
    pattern = re.compile(_regex(filled(checkpoints, {**_escaped(values), **dict.fromkeys(COUNTS, "\0")})))
    found: dict[int, Path] = {}
    for match in matches:
        number = pattern.fullmatch(str(match))
        if number is None:
            continue
        step = int(number[1])
        if "{epoch}" in checkpoints:
            step = (step + 1 - stack.first_epoch) * int(str(values["epoch_steps"]))
        if step in found:
            raise BlockedError(
                f"checkpoints: step {step} is in {found[step]} and in {match}: make it match one run"
            )
        found[step] = match
    return dict(sorted(found.items()))


def unlogged(tags: set[str]) -> dict[str, str]:
    """Return the series that verdicts need and a stack never writes, by our names, each with the reason.

    A series of REQUIRED_SERIES that the vocabulary lists for the stack is not one of them: a log must have it.
    """
    stack = recognise(tags)
    known = set() if stack is None else {*stack.tags.values(), *stack.also.values()}
    ours = stack_named("nemo_rl")
    found = {}
    for tag in (*REQUIRED_SERIES, *OPTIONAL_SERIES):
        metric = canonical(tag, ours)
        if tag in tags or tag in tags_read_as({tag}, tags):
            continue
        if tag in REQUIRED_SERIES and (stack is None or (metric is not None and metric.name in known)):
            continue
        name = "this stack" if stack is None else stack.name
        found[tag] = f"the log of {name} has no such series"
    return found


def _escaped(values: Mapping[str, object]) -> dict[str, str]:
    return {name: glob.escape(str(value)) for name, value in values.items()}


def _matches(pattern: str) -> list[Path]:
    return [Path(match) for match in sorted(glob.glob(pattern, recursive=True))]  # noqa: PTH207  absolute


def _files(matches: list[Path]) -> dict[Path, tuple[int, int]]:
    files = {}
    for match in matches:
        for file in [match] if match.is_file() else match.rglob("*"):
            if file.is_file():
                state = file.stat()
                files[file] = (state.st_mtime_ns, state.st_size)
    return files


def _link(found: Mapping[Path, list[Path]], folder: Path) -> None:
    """Make a folder of links to files, by their place below the match."""
    folder.mkdir(parents=True, exist_ok=True)
    for match, files in found.items():
        for file in files:
            link = folder / (file.relative_to(match) if match.is_dir() else file.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(os.path.abspath(file))  # noqa: PTH100  links are kept as they are


def _regex(pattern: str) -> str:
    """Return a glob as a regular expression, with a group of digits for each NUL."""
    parts = re.split(r"(\*\*|\*|\?|\0|\[[*?[]\])", pattern)
    words = {"**": ".*", "*": "[^/]*", "?": "[^/]", "\0": r"(\d+)"}
    return "".join(
        words.get(part, re.escape(part[1] if len(part) == 3 and part[0] == "[" else part)) for part in parts
    )
