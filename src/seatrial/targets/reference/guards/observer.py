"""The guards in a run of refrl: `logger.observers=[seatrial.targets.reference.guards.observer:RunGuards]`.

refrl does not import them: they watch it through its observer protocol (docs/architecture.md). What they checked
and found is written to `guards.json` in the log's folder.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig
from refrl.rollout.sync import Rollouts
from refrl.training.recorder import recorded_rows
from refrl.training.session import Observer, PassedBatch, Session, TrainedStep, TunedStep
from seatrial.files import write_whole
from seatrial.guards import GuardError, Guards
from seatrial.guards.guards import WeightSample, sample_weights
from seatrial.relations.records.run import RunRow
from seatrial.targets.reference.conversions import whole_state
from seatrial.targets.reference.guards.advantages import (
    check_advantages,
    check_near_rewards,
    check_shaped_rewards,
)
from seatrial.targets.reference.guards.base import RunConfig, is_checked_closely
from seatrial.targets.reference.guards.bounds import check_bounds
from seatrial.targets.reference.guards.checkpoints import CheckpointGuard, check_loaded
from seatrial.targets.reference.guards.examples import ExampleGuard
from seatrial.targets.reference.guards.log import LogGuard
from seatrial.targets.reference.guards.loss import LossGuard, ShareGuard
from seatrial.targets.reference.guards.masks import check_masks
from seatrial.targets.reference.guards.metrics import (
    check_counts,
    check_scalars,
    check_tuned_counts,
    check_validation_scalars,
)
from seatrial.targets.reference.guards.microbatches import MicroBatchGuard
from seatrial.targets.reference.guards.optimizer import OptimizerGuard, masters_of
from seatrial.targets.reference.guards.options import check_options
from seatrial.targets.reference.guards.refusals import check_refusals
from seatrial.targets.reference.guards.rewards import RewardGuard
from seatrial.targets.reference.guards.rollouts import RolloutGuard
from seatrial.targets.reference.guards.rows import check_rows, check_samples, check_texts, versions_of
from seatrial.targets.reference.guards.sampling import RATIO_TOLERANCE, SamplingGuard
from seatrial.targets.reference.guards.saved_facts import SavedFactsGuard
from seatrial.targets.reference.guards.schedule import ScheduleGuard
from seatrial.targets.reference.guards.seeds import SeedGuard
from seatrial.targets.reference.guards.specifications import check_specifications
from seatrial.targets.reference.guards.updates import UpdateGuard, shows_updates
from seatrial.targets.reference.guards.weight_sync import check_sync
from seatrial.targets.reference.guards.worked import WorkedExamples
from seatrial.targets.reference.target import GUARDS_FILE

FIRST_CENSUS, NEXT_CENSUS = 3, 25
"""Steps until the first check of what moved, and between later ones: the first update of an adapter moves half of its
tensors alone, and the check takes longer than all other guards."""
EARLY_SYNCS, LATER_SYNCS = 4, 25
"""The first syncs are all checked, of later ones one in so many."""
BITS = "bits after sync"
SAVED_BITS = "saved_bits.json"
"""In the log's folder: what each checkpoint should hold, by step and tensor."""
READ_BACK_BYTES = 64 * 2**20
"""Up to this size a trial reads a model back at every sync."""
READ_BACK = 100
"""Of the syncs with a generator in another process, the first two are read back, and one in so many."""


class RunGuards(Observer):
    """Checks a run with the guards and stops it at the first failure."""

    def __init__(self, config: RunConfig, guards: Guards | None = None) -> None:
        """Begin; `guards` determines whether a failure stops the run."""
        self.guards = guards or Guards()
        self._config = config
        self._loss, self._examples = LossGuard(config, self.guards), ExampleGuard(config, self.guards)
        self._optimizer = OptimizerGuard(config, self.guards)
        self._schedule, self._seeds = ScheduleGuard(config, self.guards), SeedGuard(config, self.guards)
        self._checkpoints, self._log = CheckpointGuard(self.guards), LogGuard(config, self.guards)
        self._rewards, self._micro = RewardGuard(config, self.guards), MicroBatchGuard(config, self.guards)
        self._shares, self._sampling, self._rollouts = None, None, None
        if isinstance(config, GRPORunConfig):
            self._shares, self._sampling = ShareGuard(config, self.guards), SamplingGuard(config, self.guards)
            self._rollouts = RolloutGuard(config, self.guards)
        self._earlier: dict[str, Any] = {}
        self._is_inline = config.policy.generation.placement == "inline"
        self._version = self._step = 0
        self._num_syncs = 0
        self._looked_at: tuple[int, WeightSample] | None = None
        self._reference: WeightSample | None = None

    def started(self, session: Session) -> None:
        """Check what the run begins with."""
        self._version, self._step = session.policy.version, session.attempt.step
        if session.attempt.continues_log:
            self._earlier = _read(session.logger.directory)
        with self._recorded(session):
            check_options(self._config, self.guards, sys.argv)
            self._examples.started(session)
            self._seeds.started(session)
            self._checkpoints.started(session)
            check_loaded(session, self._config, self.guards)
            if isinstance(self._config, GRPORunConfig):
                check_near_rewards(self._config, self.guards)
            if self._sampling is not None and self._rollouts is not None:
                self._sampling.started(session)
                self._rollouts.started(session)
        self._optimizer.started(session)
        if self._config.policy.precision == "float32":
            self._looked_at = (session.attempt.step, sample_weights(session.policy.trained_weights()))
        reference = session.policy.reference_weights()
        self._reference = None if reference is None else sample_weights(dict(reference))

    def synced(self, session: Session) -> None:
        """Check that names and values in the sampler are the trainer's."""
        self._log.stopwatch.synced()
        self._num_syncs += 1
        early, every = (EARLY_SYNCS, LATER_SYNCS) if self._is_inline else (2, READ_BACK)
        with self._recorded(session):
            if self._num_syncs <= early or self._num_syncs % every == 0:
                check_sync(session, self._config, self.guards)
            if isinstance(self._config, GRPORunConfig):
                self._seeds.synced(session)

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """Check that the ratio is 1 while the weights are those that scored the batch."""
        batch = micro.batch
        self._log.stopwatch.passed()
        self._micro.passed(batch)
        if session.world.size == 1 and is_checked_closely(self._step + 1):
            self._loss.passed(micro)
        if self._shares is not None:
            self._shares.passed(batch, micro.global_valid_tokens, micro.global_valid_seqs)
        old_BT = batch.old_logprobs_BT if isinstance(self._config, GRPORunConfig) else None
        if old_BT is not None and session.policy.version == self._version:
            tolerance = RATIO_TOLERANCE[self._config.policy.precision]
            with self._recorded(session):
                self.guards.first_ratio(micro.logprobs_BT, old_BT, batch.mask_BT, tolerance)

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Check that rows are what was sampled, once, from weights that are new enough, and that what trains moved."""
        config = self._config
        assert isinstance(config, GRPORunConfig)
        assert self._shares is not None
        assert self._sampling is not None
        assert self._rollouts is not None
        num_updates = session.policy.version - self._version
        with self._recorded(session):
            check_rows(session, step, config, self.guards)
            check_samples(step, config, self.guards, self._version)
            self._rollouts.check_step(step)
            self._micro.check_step(step.step)
            self._check_weights(session, step.step, step.metrics)
            self._loss.check_step(step.step, step.metrics, num_updates)
            if is_checked_closely(step.step):
                self._check_values(session, step, config, num_updates)
            self._optimizer.check_step(session, step.metrics, num_updates)
            self._schedule.check_step(step.step, step.metrics, num_updates)
            self._seeds.check_step(session, step)
            self._log.computed("train", step.step, step.metrics)
            if is_checked_closely(step.step):
                check_texts(session, step.rollouts, self.guards, f"step {step.step}")
                is_all = step.discarded is None and not step.fates
                self._rewards.check(step.rollouts, f"step {step.step}", step.metrics if is_all else None)
            self._shares.check_step(session, num_updates)
            self._sampling.check_step(session, step)
        self._version, self._step = session.policy.version, step.step

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Check that answers are whole, that their loss is the configured one, and that what trains moved."""
        num_updates = session.policy.version - self._version
        with self._recorded(session):
            self._examples.tuned(session, step)
            self._micro.check_step(step.step)
            self._loss.check_step(step.step, step.metrics, 1)
            if session.world.size == 1 and is_checked_closely(step.step):
                check_tuned_counts(step, self.guards)
            self._optimizer.check_step(session, step.metrics, num_updates)
            self._schedule.check_step(step.step, step.metrics, num_updates)
            self._seeds.tuned(session, step)
            self._log.computed("train", step.step, step.metrics)
            self._check_weights(session, step.step, step.metrics)
        self._version, self._step = session.policy.version, step.step

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """Check that the loss of held-out answers is computed from them, each whole."""
        with self._recorded(session):
            self._examples.check_answers(session, batch, f"validation after step {step}")
            held_out = {example.prompt_id for example in session.validation}
            unknown = [one for one in batch.group_ids_B.tolist() if one not in held_out]
            logprobs_BT = session.policy.logprobs(batch)
            right = -float((logprobs_BT * batch.mask_BT).sum() / batch.mask_BT.sum())
            good = not unknown and math.isclose(loss, right, rel_tol=1e-3, abs_tol=1e-5)
            wrong = f"step {step}: {loss:.6g}, the answers' is {right:.6g}; {len(unknown)} are not held out"
            self.guards.hold("validation loss", good, wrong, number=batch.num_rows)

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """Check that the current weights answer the held-out prompts."""
        where = f"validation after step {step}"
        self._log.stopwatch.validated()
        with self._recorded(session):
            if self._is_inline:
                check_sync(session, self._config, self.guards)
            versions = [version for one in rollouts.completions for version in versions_of(one)]
            self.guards.lag(session.policy.version, versions, 0)
            check_validation_scalars(step, rollouts, metrics, self.guards)
            self._schedule.validated(step)
            self._seeds.validated(session, step, rollouts)
            self._log.computed("validation", step, metrics)
            check_texts(session, rollouts, self.guards, where)
            self._rewards.check(rollouts, where, metrics)
            if self._sampling is not None:
                self._sampling.validated(session, step, rollouts)

    def saved(self, session: Session, step: int) -> None:
        """Check that what is saved is whole, and record it for a run that resumes from it."""
        with self._recorded(session):
            self._checkpoints.saved(session, step)

    def ended(self, session: Session) -> None:
        """Check the whole log, and write what was found."""
        with self._recorded(session):
            self._schedule.ended(self._step, session.attempt.step + 1)
            self._log.ended(session)
        self._write(session)

    def _check_values(
        self, session: Session, step: TrainedStep, config: GRPORunConfig, num_updates: int
    ) -> None:
        """Check masks, counts, rewards, advantages and scalars of a step against its rows."""
        rows = [RunRow(**row) for row in recorded_rows(step.rollouts, step.batch)]
        check_masks(step, config, self.guards)
        check_counts(session, step, config, self.guards)
        check_shaped_rewards(step, config, self.guards)
        check_advantages(step, rows, config, self.guards)
        if all(all(row.mask) for row in rows) and config.policy.precision == "float32":
            check_scalars(step, rows, config, self.guards, num_updates=num_updates)

    def _check_weights(self, session: Session, step: int, metrics: Mapping[str, float]) -> None:
        """Check that what trains moved, and that what is frozen and the reference did not."""
        if self._looked_at is not None:
            due = FIRST_CENSUS if self._looked_at[0] <= session.attempt.step + 1 else NEXT_CENSUS
            if step - self._looked_at[0] < due:
                return
        live = session.policy.trained_weights()
        masters = {} if self._config.policy.precision == "float32" else masters_of(session)
        weights = masters or live
        now = sample_weights(weights)
        if self._looked_at is not None and metrics["lr"] > 0 and metrics["grad_norm"] > 0:
            self.guards.moved(self._looked_at[1], now, list(weights))
        self._looked_at = (step, now)
        if masters:
            self.guards.same_weights(masters, {name: live[name] for name in masters})
        reference = session.policy.reference_weights()
        if reference is not None and self._reference is not None:
            self.guards.moved(self._reference, sample_weights(dict(reference)), ())

    @contextmanager
    def _recorded(self, session: Session) -> Iterator[None]:
        """Write what was found before a failure stops the run, and note the seconds."""
        try:
            with self._log.stopwatch.guarding():
                yield
        except GuardError:
            self._write(session)
            raise

    def _write(self, session: Session) -> None:
        if session.world.rank == 0:
            text = json.dumps(_joined(self._earlier, self.guards.summary()), indent=1)
            write_whole(session.logger.directory / GUARDS_FILE, text + "\n")


class RecordingGuards(RunGuards):
    """Checks a run with the guards without stopping it, so that later failures are recorded too."""

    def __init__(self, config: RunConfig) -> None:
        """Begin."""
        super().__init__(config, Guards(raises=False))


class TrialGuards(RecordingGuards):
    """The guards of a trial: they also read a generator in another process back at every sync, and look at updates."""

    def __init__(self, config: RunConfig) -> None:
        """Begin."""
        super().__init__(config)
        self.needs_gradients = shows_updates(config)
        self._updates = UpdateGuard(config, self.guards)
        self._saved_facts = SavedFactsGuard(config, self.guards)

    def started(self, session: Session) -> None:
        """Check which options are refused together, what the parts say of themselves, and bounds that are reached."""
        super().started(session)
        self._saved_facts.started(session)
        check_specifications(self._config, self.guards)
        check_bounds(session, self._config, self.guards)
        if session.world.rank == 0:
            check_refusals(self.guards)

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Check what is shown of each update."""
        super().trained(session, step)
        self._updates.check_step(session.policy.trained_weights(), step.updates)

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Check what is shown of each update."""
        super().tuned(session, step)
        self._updates.check_step(session.policy.trained_weights(), step.updates)

    def synced(self, session: Session) -> None:
        """Check every tensor of the generator against the policy's, bit by bit, without refrl's fingerprints."""
        super().synced(session)
        if self._is_inline:
            return
        trained = dict(session.policy.named_weights())
        is_small = sum(tensor.nbytes for tensor in trained.values()) <= READ_BACK_BYTES
        if not is_small and session.policy.version % READ_BACK:
            return
        served = dict(session.generator.named_weights())
        wrong = sorted(trained.keys() ^ served.keys()) + [
            name for name in trained.keys() & served.keys() if _bits(trained[name]) != _bits(served[name])
        ]
        what = f"version {session.policy.version}: {len(wrong)} tensors differ in bits, such as {wrong[:1]}"
        self.guards.hold(BITS, not wrong, what, number=len(trained))

    def saved(self, session: Session, step: int) -> None:
        """Record the digest of every tensor that the checkpoint of this step should hold."""
        self._saved_facts.saved(session, step)  # before what draws random numbers
        super().saved(session, step)
        if session.world.size != 1:
            return
        path = session.logger.directory / SAVED_BITS
        known = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        state = whole_state(session.policy)
        known[str(step)] = {name: hashlib.sha256(_bits(tensor)).hexdigest() for name, tensor in state.items()}
        write_whole(path, json.dumps(known) + "\n")

    def ended(self, session: Session) -> None:
        """Check what the checkpoints say, too."""
        self._saved_facts.ended(session)
        super().ended(session)


class GuardsWithExamples(TrialGuards):
    """The guards of a trial that also call the functions of the run on worked examples."""

    def __init__(self, config: RunConfig) -> None:
        """Begin with the examples before the run has computed anything."""
        self._worked = WorkedExamples(config)
        super().__init__(config)

    def ended(self, session: Session) -> None:
        """Ask last, and only where the run itself showed no failure: it is written before."""
        super().ended(session)
        if session.world.rank == 0 and not any(one["failed"] for one in self.guards.summary().values()):
            self._worked.check(self.guards)
            self._write(session)
        else:
            self._worked.drop()


def _bits(tensor: Tensor) -> bytes:
    """Return the elements in row-major order as bytes."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _read(directory: Path) -> dict[str, Any]:
    """Return what earlier attempts of the run have found."""
    path = directory / GUARDS_FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _joined(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings of all attempts, as `Guards.summary` those of one."""
    joined = dict(earlier)
    for name, one in now.items():
        before = joined.get(name, {"asked": 0})
        joined[name] = {
            "asked": before["asked"] + one["asked"],
            **{word: before.get(word) or one[word] for word in ("failed", "blocked")},
        }
    return joined
