"""The protocol of a target: a stack under test.

A target knows how its stack is launched, where a run leaves its evidence, where its modules should come from,
and which components it exposes to relations. It launches nothing and judges nothing itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from seatrial.launch import Launched
from seatrial.verdict import Verdict

CHECKOUT_VARIABLE = "SEATRIAL_CHECKOUT"
"""Environment variable that names the checkout under test, where `seatrial compare` runs trials of a commit."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a trial needs of a machine."""

    num_gpus: int = 1
    """GPUs that it uses at once, where there are any."""
    minutes: float = 30.0
    """Longest time that it may take; a run with a budget stops it then."""
    states_gpus: bool = False
    """Whether the target states the number, so that a scheduler is asked for them."""

    @property
    def gpu_hours(self) -> float:
        """The most that it can cost."""
        return self.num_gpus * self.minutes / 60


@dataclass(frozen=True, kw_only=True)
class Job:
    """One command of the stack."""

    what: str
    """What it does, to be shown while it runs: `making a tiny model`."""
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables it needs in addition to ours."""


@dataclass(frozen=True, kw_only=True)
class AdvantageFacts:
    """How the run computes advantages from rewards; used to recompute them."""

    estimator: str
    scale: str
    epsilon: float


class Collect(Protocol):
    """Finds what a training command left, after it has ended."""

    def __call__(
        self, job: TrainingJob, launched: Launched, run: Callable[[Job], Launched]
    ) -> tuple[TrainingJob, Launched]:
        """Return the job with the places and facts of this run's evidence, and how the last command ended.

        Args:
            job: as it was launched.
            launched: how it ended.
            run: runs a further command, such as an export, and records it.

        Raises:
            BlockedError: the evidence is missing or ambiguous; the message names the remedy.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TrainingJob(Job):
    """A training command and the paths of its evidence; fields that do not apply to a recipe keep their defaults."""

    log_dir: Path
    """Folder of the logged series."""
    ledger_dir: Path
    """Folder of `train_data_step<N>.jsonl`."""
    initial_model: Path
    """Hugging Face folder that training starts from."""
    final_model: Path
    """Hugging Face folder of the trained model."""
    backend: str | None = None
    """Requested backend of the policy; None if the target does not state it."""
    mesh: Mapping[str, int] = field(default_factory=dict)
    """Requested number of processes by dimension, without dimensions of one process."""
    adapter_dir: Path | None = None
    """Folder of the trained adapters in PEFT's form; None where the model's own weights are trained."""
    checkpoint_dir: Path | None = None
    """Folder of the checkpoints; None where none are saved."""
    checkpoint_form: str = "step_{step}/policy"
    """Place of a step's tensors below that folder, in a form that `seatrial.trials.sensors.saved` reads."""
    checkpoint_steps: tuple[int, ...] = ()
    """Steps whose checkpoints exist at the end."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Every option of the run with its value, defaults included, as JSON values in nested sections; credentials are
    masked. Empty where the target does not say."""
    num_steps: int
    """Optimizer steps of the configuration; the last logged step."""
    num_rows_per_step: int
    num_generations_per_prompt: int = 1
    num_updates_per_step: int = 1
    precision: str
    """Of the weights that score, or of those that sample where they are coarser: `float32`, `bfloat16`, `int8`."""
    ratio_clip: tuple[float, float] = (0.0, math.inf)
    """The interval of the clamped probability ratio."""
    advantage: AdvantageFacts | None = None
    """How the stack says it computes advantages; None when logged rewards alone do not determine them."""
    frozen: tuple[str, ...] = ()
    """Suffixes of the names of tensors that the architecture does not train."""
    has_reference: bool = False
    """Whether a frozen reference policy takes part, so that the distance to it is logged."""
    max_lag: int | None = None
    """Steps that a row's weights may lie behind the trainer's; None where the target does not say."""
    lag_is_exact: bool = False
    """Whether every row's weights are behind by exactly `max_lag` steps, or by all where there were fewer."""
    verifier: str | None = None
    """Name of the reward rule; None where there is no single one by name."""
    max_verifier_error_share: float | None = None
    """Share of rows on which the verifier may fail, where the user configured it; None: the ledger's own."""
    unlogged: Mapping[str, str] = field(default_factory=dict)
    """Series that the stack never writes, by our name, each with the reason: what needs one ends NotRequested."""
    own_checks: Mapping[str, str] = field(default_factory=dict)
    """Checks of the stack's own series that a smoke trial adds, each with what a pass means."""
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    """Verdicts, by name, that the stack is known to fail, each with the reason: Skipped, and Fail if they hold."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Evidence that the target cannot give (`rows`, `export`, `answers`), each with the reason and what to add: a
    verdict that needs it ends NotRequested, and the claims that rest on it are not made."""
    first_step: int = 1
    """First step that this start logs; above 1 where it continues a run whose log is kept apart."""
    collect: Collect | None = None
    """Called when the command has ended; None where the places above are known before."""
    guards_file: Path | None = None
    """Where the run writes what its guards saw (`seatrial.guards.Guards.summary`); None where it has none."""
    vocabulary_size: int | None
    """Number of token ids; None if the model's configuration does not state it."""
    byte_level: bool
    """Whether ids below 256 are the bytes of the text."""


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """A training run that a trial requests from a target."""

    recipe: str
    """What to run: `grpo-smoke` (a few steps), `sft-warmup` (takes a made model to where GRPO has something to
    improve), `grpo-learning` (long enough to learn, with validation before the first step and after the last)."""
    model: Path
    """Folder that training starts from."""
    directory: Path
    """Folder for its evidence."""
    seed: int
    """Of the data: the split is the same for all runs of a trial; also of the loop, for the first run."""
    number: int = 0
    """Which of several runs of a trial; sets the loop's seed apart."""
    overrides: Sequence[str] = ()
    """`a.b=value` overrides of the user who requested the trial."""
    words: Sequence[str] = ()
    """`a.b=value` words of the trial itself: what it is about, such as the backend of the policy."""
    ends_early: bool = False
    """Save after the first step and exit with success; the same request without it resumes from there."""
    runs_examples: bool = False
    """Call the functions that the run uses on worked examples, too, after its last step, where the target has any."""

    def ending_early(self) -> JobRequest:
        """Return the request for a run that ends after its first step."""
        return replace(self, ends_early=True)


@runtime_checkable
class MakesArchitectures(Protocol):
    """A target that can make tiny models of several architectures."""

    def make_architecture(self, name: str, output: Path, seed: int) -> Job:
        """Return the command that makes a tiny model: `dense`, `tied` (embeddings), `moe` (more than ten experts)."""
        ...


@runtime_checkable
class DescribesRuns(Protocol):
    """A target that can say what its trials would launch, and what they need."""

    def dry_run(self, trials: Sequence[tuple[int, str]], output: Path) -> Iterator[str]:
        """Yield what each trial would launch, read and require, line by line.

        Args:
            trials: level and name of each.
            output: folder for the evidence.
        """
        ...

    def preflight_items(self, trials: Sequence[str]) -> Iterator[Verdict]:
        """Yield what these trials need of this machine: Pass, Blocked with the remedy, or Skipped where unknown."""
        ...


class Target(Protocol):
    """A stack under test."""

    name: str
    modules: tuple[str, ...]
    """Modules whose import origin is part of the evidence."""
    packages: tuple[str, ...]
    """Distributions whose version is part of the evidence."""

    def preflight(self) -> None:
        """Check whether the stack can run here, without running it.

        Raises:
            BlockedError: something is missing; the message names the remedy.
        """
        ...

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Check that the stack accepts these keys and values.

        Raises:
            UsageError: a key is unknown (the nearest known one is named), reserved, or its value is wrong.
        """
        ...

    def expected_origins(self) -> Mapping[str, Path]:
        """Return the folder that each of `modules` must come from."""
        ...

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return the model folder that the overrides name, after a look at it; None when they name none.

        Raises:
            BlockedError: the folder is missing, or holds no model or no tokenizer.
        """
        ...

    def make_model(self, output: Path, seed: int) -> Job:
        """Return the command that makes a small model folder."""
        ...

    def job(self, request: JobRequest) -> TrainingJob:
        """Return a training run by one of the stack's recipes.

        Raises:
            UsageError: the stack has no such recipe, or an override does not go with it.
        """
        ...

    def components(self) -> object | None:
        """Return the adapter that relations call (`seatrial.relations.contracts`); None where there is none.

        A mapping holds several by name: adapters of one stack whose components differ, such as its trainers. A target
        whose components are slow may have an attribute `relation_seeds`, the seeds of cases by default, and one whose
        components can be forked `relation_jobs`, the processes that judge its relations at once.
        """
        ...
