"""The guards in a run of refrl: `logger.observers=[seatrial.targets.reference.guards.observer:RunGuards]`.

refrl knows nothing of them: they watch it through its observer protocol (docs/extend/architecture.md). What they
asked and found is written to `guards.json` beside the log.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.rollout.sync import Rollouts
from refrl.training.observed import PassedBatch, TrainedStep, TunedStep
from refrl.training.session import Observer, Session
from seatrial.files import write_whole
from seatrial.guards import GuardError, Guards
from seatrial.guards.guards import WeightSample, sample_weights
from seatrial.targets.reference.guards.checkpoints import AsSaved
from seatrial.targets.reference.guards.computed import AsComputed, is_looked_at
from seatrial.targets.reference.guards.examples import AsGiven
from seatrial.targets.reference.guards.loaded import hold_loaded
from seatrial.targets.reference.guards.log import AsLogged
from seatrial.targets.reference.guards.optimizer import AsAdamW, masters_of
from seatrial.targets.reference.guards.options import hold_options
from seatrial.targets.reference.guards.rewards import AsRewarded
from seatrial.targets.reference.guards.rows import hold_rows, hold_samples, hold_texts, versions_of
from seatrial.targets.reference.guards.schedule import AsScheduled
from seatrial.targets.reference.guards.seeds import AsSeeded
from seatrial.targets.reference.guards.steps import RATIO_TOLERANCE, AsConfigured
from seatrial.targets.reference.guards.weight_sync import hold_int8
from seatrial.targets.reference.target import GUARDS_FILE

FIRST_CENSUS, NEXT_CENSUS = 3, 25
"""Steps until the first look at what moved, and between later ones: the first update of an adapter moves half of its
tensors alone, and a look takes longer than all other guards."""
EARLY_SYNCS, LATER_SYNCS = 4, 25
"""The first syncs are all looked at, of later ones one in so many."""
READ_BACK = 100
"""Of the syncs with a generator in another process, the first two are read back, and one in so many."""


class RunGuards(Observer):
    """Holds a run to the seven guards, and ends it at the first failure."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards | None = None) -> None:
        """Begin; `guards` says whether a failure ends the run."""
        self.guards = guards or Guards()
        self._config = config
        self._configured = AsConfigured(config, self.guards) if isinstance(config, GRPORunConfig) else None
        self._computed, self._given = AsComputed(config, self.guards), AsGiven(config, self.guards)
        self._adamw = AsAdamW(config, self.guards)
        self._scheduled, self._seeded = AsScheduled(config, self.guards), AsSeeded(config, self.guards)
        self._saved, self._logged = AsSaved(config, self.guards), AsLogged(config, self.guards)
        self._rewarded = AsRewarded(config, self.guards)
        self._earlier: dict[str, Any] = {}
        self._is_inline = config.policy.generation.placement == "inline"
        self._version = self._step = 0
        self._num_syncs = 0
        self._looked_at: tuple[int, WeightSample] | None = None
        self._reference: WeightSample | None = None

    def started(self, session: Session) -> None:
        """Look at the weights that the run begins with."""
        self._version, self._step = session.policy.version, session.attempt.step
        if session.attempt.continues_log:
            self._earlier = _read(session.logger.directory)
        with self._recorded(session):
            hold_options(self._config, self.guards, sys.argv)
            self._given.started(session)
            self._seeded.started(session)
            self._saved.started(session)
            hold_loaded(session, self._config, self.guards)
            if self._configured is not None:
                self._configured.started(session)
        self._adamw.started(session)
        if self._config.policy.precision == "float32":
            self._looked_at = (session.attempt.step, sample_weights(session.policy.trained_weights()))
        reference = session.policy.reference_weights()
        self._reference = None if reference is None else sample_weights(dict(reference))

    def synced(self, session: Session) -> None:
        """Names and values in the sampler are the trainer's."""
        self._num_syncs += 1
        early, every = (EARLY_SYNCS, LATER_SYNCS) if self._is_inline else (2, READ_BACK)
        if self._num_syncs <= early or self._num_syncs % every == 0:
            with self._recorded(session):
                self._hold_sync(session)
        if isinstance(self._config, GRPORunConfig):
            with self._recorded(session):
                self._seeded.synced(session)

    def passed(self, session: Session, micro: PassedBatch) -> None:
        """The ratio is 1 while the weights are those that scored the batch."""
        batch = micro.batch
        if session.world.size == 1 and is_looked_at(self._step + 1):
            self._computed.passed(micro)
        if self._configured is not None:
            self._configured.passed(batch, micro.global_valid_tokens, micro.global_valid_seqs)
        old_BT = batch.old_logprobs_BT if isinstance(self._config, GRPORunConfig) else None
        if old_BT is not None and session.policy.version == self._version:
            tolerance = RATIO_TOLERANCE[self._config.policy.precision]
            with self._recorded(session):
                self.guards.first_ratio(micro.logprobs_BT, old_BT, batch.mask_BT, tolerance)

    def trained(self, session: Session, step: TrainedStep) -> None:
        """Rows are what was sampled, once, from weights that are new enough; and what trains moved."""
        assert isinstance(self._config, GRPORunConfig)
        with self._recorded(session):
            hold_rows(session, step, self._config, self.guards)
            hold_samples(step, self._config, self.guards, self._version)
            self._hold_weights(session, step.step, step.metrics)
            num_updates = session.policy.version - self._version
            self._computed.trained(session, step, num_updates)
            self._adamw.trained(session, step.metrics, num_updates)
            self._scheduled.trained(step.step, step.metrics, num_updates)
            self._seeded.trained(session, step)
            self._logged.computed("train", step.step, step.metrics)
            if is_looked_at(step.step):
                hold_texts(session, step.rollouts, self.guards, f"step {step.step}")
                is_all = step.discarded is None and not step.fates
                self._rewarded.hold(step.rollouts, f"step {step.step}", step.metrics if is_all else None)
            if self._configured is not None:
                self._configured.trained(session, step, num_updates)
        self._version, self._step = session.policy.version, step.step

    def tuned(self, session: Session, step: TunedStep) -> None:
        """Answers are whole, their loss is the configured one, and what trains moved."""
        with self._recorded(session):
            self._given.tuned(session, step)
            self._computed.tuned(step)
            num_updates = session.policy.version - self._version
            self._adamw.trained(session, step.metrics, num_updates)
            self._scheduled.trained(step.step, step.metrics, num_updates)
            self._seeded.tuned(session, step)
            self._logged.computed("train", step.step, step.metrics)
            self._hold_weights(session, step.step, step.metrics)
        self._version, self._step = session.policy.version, step.step

    def scored(self, session: Session, step: int, batch: Batch, loss: float) -> None:
        """The loss of held-out answers is of them, each whole."""
        with self._recorded(session):
            self._given.learned(session, batch, f"validation after step {step}")
            held_out = {example.prompt_id for example in session.validation}
            strange = [one for one in batch.group_ids_B.tolist() if one not in held_out]
            logprobs_BT = session.policy.logprobs(batch)
            right = -float((logprobs_BT * batch.mask_BT).sum() / batch.mask_BT.sum())
            good = not strange and math.isclose(loss, right, rel_tol=1e-3, abs_tol=1e-5)
            wrong = f"step {step}: {loss:.6g}, the answers' is {right:.6g}; {len(strange)} are not held out"
            self.guards.hold("validation loss", good, wrong, number=batch.num_rows)

    def validated(
        self, session: Session, step: int, rollouts: Rollouts, metrics: Mapping[str, float]
    ) -> None:
        """The held-out prompts are answered by the weights as they are."""
        with self._recorded(session):
            if self._is_inline:
                self._hold_sync(session)
            versions = [version for one in rollouts.completions for version in versions_of(one)]
            self.guards.lag(session.policy.version, versions, 0)
            self._computed.validated(step, rollouts, metrics)
            self._scheduled.validated(step)
            self._seeded.validated(session, step, rollouts)
            self._logged.computed("validation", step, metrics)
            hold_texts(session, rollouts, self.guards, f"validation after step {step}")
            self._rewarded.hold(rollouts, f"validation after step {step}", metrics)
            if self._configured is not None:
                self._configured.validated(session, step, rollouts)

    def saved(self, session: Session, step: int) -> None:
        """What is saved is whole, and is noted for whoever goes on from it."""
        with self._recorded(session):
            self._saved.saved(session, step)

    def ended(self, session: Session) -> None:
        """Hold the whole log, and write what was found."""
        with self._recorded(session):
            self._scheduled.ended(self._step, session.attempt.step + 1)
            self._logged.ended(session)
        self._write(session)

    def _hold_sync(self, session: Session) -> None:
        trained: Mapping[str, Tensor] = dict(session.policy.named_weights())
        served: Mapping[str, Tensor] = dict(session.generator.named_weights())
        if self._config.policy.generation.quantization == "int8":
            trained, served = hold_int8(trained, served, self.guards)
        self.guards.same_weights(trained, served)
        if self._config.policy.generation.backend == "torch":
            # Rotary frequencies are computed from the configuration by each side: nothing of them is sent.
            sent = {
                name: one for name, one in served.items() if name in trained and not name.endswith("inv_freq")
            }
            other = [name for name, one in sent.items() if one.dtype != trained[name].dtype]
            wrong = f"{len(other)} tensors are of another type in the sampler, such as {other[:1]}"
            self.guards.hold("types after sync", not other, wrong, number=len(served))

    def _hold_weights(self, session: Session, step: int, metrics: Mapping[str, float]) -> None:
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
        """Write what was found before a failure ends the run."""
        try:
            yield
        except GuardError:
            self._write(session)
            raise

    def _write(self, session: Session) -> None:
        if session.world.rank == 0:
            text = json.dumps(_joined(self._earlier, self.guards.summary()), indent=1)
            write_whole(session.logger.directory / GUARDS_FILE, text + "\n")


class RecordingGuards(RunGuards):
    """Holds a run to the guards and lets it go on: for who wants to know what else is seen."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig) -> None:
        """Begin."""
        super().__init__(config, Guards(raises=False))


def _read(directory: Path) -> dict[str, Any]:
    """Return what earlier attempts of the run have found."""
    path = directory / GUARDS_FILE
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return found


def _joined(earlier: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the findings of all attempts: how often each guard was asked, and its first failure."""
    joined = dict(earlier)
    for name, one in now.items():
        before = joined.get(name, {"asked": 0, "failed": None})
        joined[name] = {
            "asked": before["asked"] + one["asked"],
            "failed": before["failed"] or one["failed"],
        }
    return joined
