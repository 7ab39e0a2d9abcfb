"""The toy stack as a target, and a whole run of it through the runner."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from seatrial.errors import BlockedError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.targets.base import AdvantageFacts, Job, JobRequest, TrainingJob
from seatrial.trials.base import Trial
from seatrial.trials.grpo_smoke import GrpoSmoke
from seatrial.trials.results import Results
from seatrial.trials.rundir import RunDirectory
from seatrial.trials.runner import Request, new_results, run_trials

TOY = Path(__file__).parent / "toy"


class ToyTarget:
    """A `seatrial.targets.base.Target` whose runs take a moment."""

    name = "toy"
    modules: tuple[str, ...] = ("toystack",)
    packages: tuple[str, ...] = ("numpy",)

    def __init__(
        self,
        mode: str = "right",
        place: Path = TOY,
        missing: str | None = None,
        program: str = sys.executable,
    ) -> None:
        """Choose how it misbehaves, where it is imported from, what it lacks, and what starts it."""
        self.program = program
        self.mode = mode
        self.place = place
        self.missing = missing

    def preflight(self) -> None:
        """Lack what was asked to be lacking."""
        if self.missing:
            raise BlockedError(self.missing)

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Take any."""

    def expected_origins(self) -> Mapping[str, Path]:
        """The folder beside this file."""
        return {"toystack": TOY}

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """None is ever given."""
        return None

    def _job(self, what: str, *words: str) -> Job:
        script = "import sys, runpy; import toystack; sys.exit(toystack.main())"
        argv = (self.program, "-c", script, *words)
        return Job(what=what, argv=argv, environment={"PYTHONPATH": str(self.place)})

    def make_model(self, output: Path, seed: int) -> Job:
        """Make two tensors."""
        return self._job("making a toy", "make-model", "--output", str(output))

    def job(self, request: JobRequest) -> TrainingJob:
        """Train: two steps for the smoke, ten for learning; a warm-up makes two more tensors."""
        num_steps = 10 if request.recipe == "grpo-learning" else 2
        directory = request.directory
        words = ["train", "--output", str(directory), "--steps", str(num_steps), "--mode", self.mode]
        final = directory / "final"
        if request.recipe == "sft-warmup":
            final = directory / "warm"
            words = ["warm-up", "--output", str(final)]
        job = self._job("toy training", *words)
        return TrainingJob(
            what=job.what,
            argv=job.argv,
            environment=job.environment,
            log_dir=directory / "logs" / "tensorboard",
            ledger_dir=directory / "logs",
            initial_model=request.model,
            final_model=final,
            num_steps=num_steps,
            num_rows_per_step=2,
            num_generations_per_prompt=2,
            precision="float32",
            ratio_clip=(0.8, 1.2),
            advantage=AdvantageFacts(estimator="grpo", scale="group", epsilon=1e-6),
            has_reference=True,
            verifier="exact_match",
            vocabulary_size=259,
            byte_level=True,
        )

    def components(self) -> None:
        """It has none."""


def run_toy(
    base: Path, target: ToyTarget, trials: Sequence[Trial] | None = None, timeout_seconds: float = 60.0
) -> tuple[Path, Results]:
    """Take the toy through trials; return the run directory and what it concluded."""
    request = Request(
        trials=trials or [GrpoSmoke()],
        words="level 0",
        seed=0,
        overrides=(),
        timeout_seconds=timeout_seconds,
    )
    with RunDirectory.create(base, target.name) as directory:
        results = new_results(directory, target, request, Redactor())
        return directory.path, run_trials(directory, results, target, request, lambda text: None)
