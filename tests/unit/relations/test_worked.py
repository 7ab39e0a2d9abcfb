"""R34.worked: results of a stack's functions are compared with those worked out by hand; refrl's are right."""

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from refrl import cli
from refrl.algorithms.batching import Batch
from refrl.algorithms.kept_ids import KeptIds
from refrl.algorithms.losses import ppo_clip
from refrl.algorithms.losses.cispo import CISPO
from refrl.algorithms.schedule import Schedule
from refrl.checkpointing import attempts
from refrl.checkpointing.checkpointer import Checkpointer, RunFacts
from refrl.config import describe
from refrl.config.loading import ConfigError
from refrl.config.registry import Registry
from refrl.data_plane import KVBatchMeta, flow
from refrl.data_plane.client import StoreClient
from refrl.data_plane.control import ControlState
from refrl.data_plane.flow import ConsumePlan
from refrl.data_plane.observability import ObservedClient
from refrl.distributed import World
from refrl.generation.broadcast_link import BroadcastLink
from refrl.generation.lean_decoder import KVCache
from refrl.generation.pooled import PooledSampler
from refrl.generation.process import ProcessGenerator
from refrl.generation.torch_engine import TorchGenerator
from refrl.logging import RunLogger
from refrl.models.chat import ChatEncoder
from refrl.models.tiny import TinyModelSpec
from refrl.policy.dtensor.scoring import OwnPositions
from refrl.rewards import sandbox
from refrl.rewards.sandbox import SandboxLimits
from refrl.rewards.scoring import Scores
from refrl.rollout.replay import ReplayBuffer
from refrl.runtime.rank_process import Ended
from refrl.tasks.base import PromptSource
from refrl.tasks.files.rows import Columns
from refrl.tasks.media import PitchTask
from refrl.timing import Timer
from refrl.training import asynchronous, build_generation, grpo
from refrl.weight_sync.colocated import CopiedWeights
from refrl.weight_sync.receiver import Receiver
from seatrial.relations import NotServed
from seatrial.relations.contracts.worked import SUBJECTS, Refused, WorkedExample
from seatrial.relations.engine import first_violation, run_relation
from seatrial.relations.law import Relation
from seatrial.relations.laws.functions.worked import agrees, mistake
from seatrial.relations.registry import select
from seatrial.targets.reference import configuration
from seatrial.targets.reference.worked.examples import ReferenceExamples
from seatrial.targets.reference.worked.values import of_values
from seatrial.verdict import Outcome

(WORKED,) = (relation for relation in select(["R34.worked"]) if isinstance(relation, Relation))


def of(call: Callable[[], Any], right: Any) -> str | None:
    return mistake(WorkedExample(name="made", call=call, right=right))


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (torch.tensor([[0.1, 2.0]]), [[0.1, 2.0]]),
        (np.array([1, 2]), (1, 2)),
        ({"a": (1, None)}, {"a": [1, None]}),
        (0.1 + 0.2, 0.3),
        (1, 1.0),
        (math.nan, math.nan),
        ("a", "a"),
        (True, True),
    ],
)
def test_equal_results_agree(found: Any, right: Any) -> None:
    assert agrees(found, right)


@pytest.mark.parametrize(
    ("found", "right"),
    [
        (torch.tensor([0.1, 2.0]), [0.1]),
        ({"a": 1, "b": 2}, {"a": 1}),
        ({"a": 1}, [1]),
        (0.30001, 0.3),
        (1.0, 1),
        (True, 1),
        (True, 1.0),
        (None, 0.0),
        ("1", 1),
    ],
)
def test_other_results_do_not_agree(found: Any, right: Any) -> None:
    assert not agrees(found, right)


def test_a_refusal_is_expected_with_its_words() -> None:
    def call() -> None:
        raise ValueError("row 3 is empty")

    assert of(call, Refused("row 3")) is None
    assert of(call, Refused("row 4")) == "made: ValueError: row 3 is empty, right is Refused(words='row 4')"
    assert of(lambda: 0, Refused()) == "made: 0, right is Refused(words='')"
    assert of(call, None) == "made: ValueError: row 3 is empty, right is None"


def test_a_missing_package_is_no_mistake() -> None:
    def call() -> None:
        raise ModuleNotFoundError("no such package")

    with pytest.raises(ModuleNotFoundError):
        of(call, 1)


def test_every_subject_has_examples_with_names_of_their_own() -> None:
    without = set() if find_spec("megatron") else {"megatron"}
    for subject in SUBJECTS.keys() - without:
        names = [one.name for one in ReferenceExamples().worked_examples(subject)]
        assert len(names) > 5, subject
        assert len({*names}) == len(names), sorted(name for name in names if names.count(name) > 1)


def test_a_stack_without_examples_is_not_judged() -> None:
    class Empty:
        def worked_examples(self, subject: str) -> list[WorkedExample]:
            return []

    with pytest.raises(NotServed, match="no worked examples of batches"):
        law("batches").measure(Empty(), law("batches").make(Empty(), 0, False))
    assert first_violation(WORKED, Empty(), seeds=[0]) is None


def test_an_example_that_is_not_served_is_left_out_alone_and_named() -> None:
    def not_served() -> None:
        raise NotServed("no such option")

    class Partly(ReferenceExamples):
        right = 1

        def worked_examples(self, subject: str) -> list[WorkedExample]:
            served = WorkedExample(name="served", call=lambda: self.right, right=1)
            return [WorkedExample(name="other", call=not_served, right=1), served]

    class Nothing(Partly):
        def worked_examples(self, subject: str) -> list[WorkedExample]:
            return super().worked_examples(subject)[:1]

    class Wrong(Partly):
        right = 2

    verdict = run_relation(WORKED, Partly(), seeds=[0])
    assert verdict.outcome is Outcome.PASS
    assert "law 'batches' left out what the stack does not serve (other: no such option)" in verdict.reason
    assert run_relation(WORKED, Nothing(), seeds=[0]).outcome is Outcome.SKIPPED
    violation = first_violation(WORKED, Wrong(), seeds=[0])
    assert violation is not None and "1 worked examples (served: 2, right is 1)" in violation.sentence()


def law(subject: str) -> Any:
    return next(one for one in WORKED.laws if one.name == subject)


FAULTS: dict[str, tuple[Any, str, Any]] = {
    "batches": (Batch, "completion_starts_B", property(lambda self: self.prompt_lens_B + 1)),
    "broadcasts": (BroadcastLink, "_earlier", lambda self: None),
    "building": (asynchronous, "log_parts", lambda session, config, replicas: None),
    "calls": (Receiver, "check_whole", lambda self: None),
    "changes": (RunFacts, "data", "the same"),
    "chats": (ChatEncoder, "training_row", lambda self, messages: ([], [])),
    "clients": (ReplayBuffer, "__len__", lambda self: 2),
    "combinations": (Registry, "names", lambda self: []),
    "commands": (cli, "EXIT_FAILED", 2),
    "counts": (Schedule, "is_fresh", lambda self, sample, trainer: True),
    "engines": (build_generation, "engine_device", lambda config, device, number: device),
    "files": (Columns, "named", lambda self: {}),
    "formulas": (ppo_clip.PPOClip, "surrogate", CISPO.surrogate),
    "inputs": (KeptIds, "trimmed", lambda self, num_tokens: self),
    "judges": (sandbox, "_LOOKS_PER_SECOND", 0.1),
    "leases": (ControlState, "expire", lambda self: None),
    "links": (ProcessGenerator, "stop_ids", lambda self: frozenset()),
    "loops": (grpo, "is_validation_step", lambda loop, step: False),
    "metrics": (RunLogger, "value_at", lambda self, tag, step: 0.0),
    "models": (TinyModelSpec, "expert_size", property(lambda self: 3)),
    "offers": (describe, "_default", lambda field: "required"),
    "parts": (PooledSampler, "_requests", lambda self, prompts, params, seed: []),
    "pools": (CopiedWeights, "sync", lambda self: {}),
    "processes": (Ended, "how", property(lambda self: "ended")),
    "programs": (SandboxLimits, "as_rlimits", lambda self: {}),
    "properties": (PromptSource, "load_state_dict", lambda self, state: None),
    "ranks": (World, "sum_rows", lambda self, values: values),
    "rates": (Timer, "take", lambda self: self._seconds),
    "refusals": (ConsumePlan, "__post_init__", lambda self: None),
    "returns": (ReplayBuffer, "close", lambda self: []),
    "rewards": (Scores, "verified", property(lambda self: self.rewards)),
    "rollouts": (Scores, "verified", property(lambda self: self.rewards)),
    "samplers": (TorchGenerator, "stop_ids", lambda self: frozenset()),
    "sandboxes": (sandbox, "_LOOKS_PER_SECOND", 0.1),
    "shares": (OwnPositions, "fill", lambda self, values: values),
    "starts": (attempts, "cut_log", lambda directory, after: None),
    "states": (StoreClient, "_tidy", lambda self, waste: None),
    "stores": (KVBatchMeta, "with_fields", lambda self, fields: self),
    "tasks": (PitchTask, "num_examples", 3),
    "texts": (ChatEncoder, "training_row", lambda self, messages: ([], [])),
    "transfers": (KVCache, "keep", lambda self, rows: None),
    "wrappers": (ObservedClient, "renew", lambda self, meta: None),
}
"""Faults by subject; mutants in `seatrial/faults/mutants/worked.yaml` are about the others."""


SLOW = ("samplers", "sandboxes")


@pytest.mark.parametrize(
    "subject", [pytest.param(name, marks=[pytest.mark.nightly] * (name in SLOW)) for name in FAULTS]
)
def test_a_fault_in_a_subject_is_seen(monkeypatch: pytest.MonkeyPatch, subject: str) -> None:
    owner, name, fault = FAULTS[subject]
    monkeypatch.setattr(owner, name, fault)
    measure = law(subject).measure(ReferenceExamples(), law(subject).make(None, 0, False))
    assert not measure.holds


@pytest.mark.parametrize("subject", ["returns", "steps"])
def test_a_fault_that_refuses_every_configuration_is_seen(
    monkeypatch: pytest.MonkeyPatch, subject: str
) -> None:
    def refuse(schema: Any, tree: Any, *, source: str) -> Any:
        raise ConfigError("every configuration")

    monkeypatch.setattr(configuration, "validate_config", refuse)
    measure = law(subject).measure(ReferenceExamples(), law(subject).make(None, 0, False))
    assert not measure.holds
    assert "every configuration" in measure.what


@pytest.mark.nightly
def test_a_session_without_its_checkpoint_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpointer, "restore", lambda self, checkpoint: None)
    measure = law("sessions").measure(ReferenceExamples(), law("sessions").make(None, 0, False))
    assert not measure.holds
    assert "a session that continues" in measure.what


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (flow, "LOOK_UP_S", 1.0),
        (flow.ConsumePlan.__init__, "__kwdefaults__", {}),
        (SandboxLimits.__init__, "__defaults__", (9.0, *(SandboxLimits.__init__.__defaults__ or ())[1:])),
    ],
)
def test_written_values_are_compared(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = getattr(owner, "__module__", "refrl.data_plane.flow")
    (one,) = (one for one in of_values() if one.name == f"written values of {module}")
    assert mistake(one) is None
    monkeypatch.setattr(owner, name, value)
    assert mistake(one) is not None
