"""What a stack's adapter may offer to the relations: one small protocol per component.

An adapter is any object with some of these methods. Relations about other components end NotRequested. Tensors are
torch tensors; the letters of shapes are those of docs/architecture.md (B rows, S padded sequence, T padded
completion, V vocabulary). A method that cannot serve an input by design raises `seatrial.relations.NotServed`:
the law is then reported as not exercised. Any other exception is a crash and fails the component, `NotImplementedError`
(which torch raises for missing kernels) included; a missing third-party package is Blocked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.contracts.adapted_families import AdaptedFamily
from seatrial.relations.contracts.adapter_histories import AdapterHistories
from seatrial.relations.contracts.adapter_routes import AdaptersElsewhere, PreparedAdapters, RoutedAdapters
from seatrial.relations.contracts.adapters import AdapterGroups, Adapters, CombinedAdapters, VariedAdapters
from seatrial.relations.contracts.any_models import AnyModel
from seatrial.relations.contracts.architectures import Architectures
from seatrial.relations.contracts.batches import BatchBuilder, ClampedBatch, GroupFilter, StalenessSchedule
from seatrial.relations.contracts.collators import Collators
from seatrial.relations.contracts.command import Command, Defaults, PromptFiles
from seatrial.relations.contracts.compared import ComparedTrainer
from seatrial.relations.contracts.configurations import Configurations
from seatrial.relations.contracts.controllers import KLController, LengthBalance
from seatrial.relations.contracts.conversations import Conversations, Pairs
from seatrial.relations.contracts.corrections import SamplerCorrection
from seatrial.relations.contracts.data_plane import DataPlane
from seatrial.relations.contracts.decoding import Decoding
from seatrial.relations.contracts.definitions import Definitions
from seatrial.relations.contracts.drawing import DrawnTokens
from seatrial.relations.contracts.episodes import Episodes
from seatrial.relations.contracts.estimators import TokenAdvantages
from seatrial.relations.contracts.families import ModelFamily
from seatrial.relations.contracts.functions import Functions
from seatrial.relations.contracts.generation import (
    Continuation,
    GenerationEngine,
    GenerationPool,
    Sampler,
    SeveralTurns,
    WeightSync,
)
from seatrial.relations.contracts.left import LeftRuns
from seatrial.relations.contracts.links import Links
from seatrial.relations.contracts.loop_histories import LoopHistories
from seatrial.relations.contracts.loops import AccumulatedTraining, Collectives, MetricGather, RowLoader
from seatrial.relations.contracts.masking import Masking
from seatrial.relations.contracts.model_calls import ModelCalls
from seatrial.relations.contracts.model_files import ModelFiles
from seatrial.relations.contracts.model_heads import ModelHeads
from seatrial.relations.contracts.model_options import ModelOptions
from seatrial.relations.contracts.named_metrics import NamedMetrics
from seatrial.relations.contracts.objectives import Objective
from seatrial.relations.contracts.own_generation import OwnGeneration
from seatrial.relations.contracts.packs import PackPlan
from seatrial.relations.contracts.parallel import ParallelTraining
from seatrial.relations.contracts.parts import NamedParts, OwnParts, RandomStreams, Tasks
from seatrial.relations.contracts.placed import PlacedModels
from seatrial.relations.contracts.placements import Placements
from seatrial.relations.contracts.precision import Precision, TokenizedRun
from seatrial.relations.contracts.processes import (
    ExecutableBatchSize,
    NestedExchanges,
    ProcessSplits,
    SeededDraws,
)
from seatrial.relations.contracts.prompt_rows import PromptRows
from seatrial.relations.contracts.ranks import RankedLoss, Ranks
from seatrial.relations.contracts.readiness import Readiness
from seatrial.relations.contracts.recorded import RecordedModel
from seatrial.relations.contracts.refusals import Refusals
from seatrial.relations.contracts.resume import KilledRun, ResumableRun
from seatrial.relations.contracts.resumed_training import ResumedTraining
from seatrial.relations.contracts.rollout_flow import RolloutFlow
from seatrial.relations.contracts.rotary import Rotary
from seatrial.relations.contracts.run import ShortRun
from seatrial.relations.contracts.saved_loops import SavedLoops
from seatrial.relations.contracts.saving import Saving
from seatrial.relations.contracts.schedules import NamedSchedules
from seatrial.relations.contracts.settings import Settings
from seatrial.relations.contracts.supervised import SupervisedEvaluation, SupervisedRun, SupervisedStep
from seatrial.relations.contracts.syncs import CutSync, TrainedSync
from seatrial.relations.contracts.tables import RowTables
from seatrial.relations.contracts.texts import PromptSource, Reward, Tokenizer
from seatrial.relations.contracts.trackers import Tracker
from seatrial.relations.contracts.trainers import WholeTrainer
from seatrial.relations.contracts.tuning import FineTuning
from seatrial.relations.contracts.utilities import Utilities
from seatrial.relations.contracts.validation import ValidationMetrics
from seatrial.relations.contracts.values import ValueLoss
from seatrial.relations.contracts.windows import DefaultSampling, RolloutWindow, TrainedTokens
from seatrial.relations.contracts.worked import WorkedExamples
from seatrial.relations.contracts.written import WritingCommands
from seatrial.relations.facts import StackFacts
from seatrial.relations.records import (
    AdvantageSpec,
    LossInputs,
    LossSpec,
    Row,
    StepResult,
)

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Advantages(Protocol):
    """Rewards to advantages; the attribute that declares them is `advantage_spec`."""

    advantage_spec: AdvantageSpec

    def advantages(self, rewards_B: Tensor, prompt_ids_B: Tensor) -> Tensor:
        """Return one advantage per row; groups are the rows with equal prompt id, in any order."""
        ...


@runtime_checkable
class TokenLogprobs(Protocol):
    """Logits to log-probabilities of the sampled ids."""

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        """Return [B, T]; token t of row b is predicted by `logits_BSV[b, prompt_lens_B[b] + t - 1]`."""
        ...


@runtime_checkable
class FusedLogprobs(Protocol):
    """Hidden states and output head to log-probabilities, without the logits of all tokens at once."""

    def fused_logprobs(
        self,
        hidden_BSD: Tensor,
        head_VD: Tensor,
        completion_ids_BT: Tensor,
        prompt_lens_B: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies, [B, T] each; see `TokenLogprobs`."""
        ...


@runtime_checkable
class PolicyLoss(Protocol):
    """The policy loss of a micro-batch; the attribute that declares it is `loss_spec`."""

    loss_spec: LossSpec

    def policy_loss(self, inputs: LossInputs) -> Tensor:
        """Return a scalar whose sum over micro-batches is the loss of the optimizer batch."""
        ...


@runtime_checkable
class KLEstimate(Protocol):
    """An estimator of KL(policy || reference) per token."""

    def kl_estimate(self, logprobs_BT: Tensor, ref_logprobs_BT: Tensor, kind: str) -> Tensor:
        """Return [B, T] for kind k1, k2 or k3, or for a name of the attribute `kl_names`, if the adapter has one.

        It maps the stack's own names to the kinds of the value and of the gradient; these may be `abs` too.
        """
        ...


@runtime_checkable
class TrainStep(Protocol):
    """The trainer from rows to raw gradients, on the adapter's own tiny model (fixed weights, no dropout)."""

    vocab_size: int

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """Return loss and summed raw gradients of one optimizer batch, computed in these micro-batches of rows."""
        ...


@runtime_checkable
class Policy(Protocol):
    """Scores given tokens with the adapter's own tiny model, which it may give as `scored_model()`."""

    vocab_size: int

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """Return the log-probability of every completion token of every row (masked tokens included)."""
        ...


@runtime_checkable
class Packing(Protocol):
    """Scores and trains on rows laid end to end; the padded forms are for comparison.

    An adapter that also packs the rows of a batch padded on the left (prompts before their first token, completions
    after their last) sets `packs_left_padded = True`; its `score_packed` then takes `padding_side="left"`.
    """

    vocab_size: int

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """See `Policy`."""
        ...

    def score_packed(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        """Return what `score` returns, computed from packed rows."""
        ...

    def gradients(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """See `TrainStep`."""
        ...

    def gradients_packed(self, rows: Sequence[Row], micro_batches: Sequence[Sequence[int]]) -> StepResult:
        """Return what `gradients` returns, computed from packed rows."""
        ...


@runtime_checkable
class OptimizerStep(Protocol):
    """One whole update of the adapter's own tiny model."""

    vocab_size: int

    def parameters(self) -> Mapping[str, Tensor]:
        """Return copies of all parameters and buffers by name."""
        ...

    def trainable(self) -> frozenset[str]:
        """Return the names of the parameters that training may change."""
        ...

    def update(
        self, rows: Sequence[Row], *, lr: float | None = None, max_grad_norm: float | None = None
    ) -> float:
        """Do one optimizer step (None keeps the stack's own setting) and return the gradient norm before clipping."""
        ...

    def reset(self) -> None:
        """Put parameters, optimizer and counters back to the start."""
        ...


@runtime_checkable
class LearningRate(Protocol):
    """The schedule."""

    def learning_rates(
        self, *, lr: float, warmup_steps: int, num_steps: int, schedule: str
    ) -> Sequence[float]:
        """Return the rate used by each optimizer step 1..num_steps."""
        ...


@runtime_checkable
class Evaluation(Protocol):
    """Validation inside training."""

    def train_with_evaluation(self, *, evaluate: bool, seed: int) -> Mapping[str, Any]:
        """Train a few steps with or without validation in between; return final state as comparable tensors."""
        ...


@runtime_checkable
class Metrics(Protocol):
    """Logged scalars, to be recomputed from raw tensors."""

    def metrics(self, inputs: Sequence[LossInputs]) -> Mapping[str, float]:
        """Return the step's logged scalars, under NeMo RL's names, of these micro-batches together."""
        ...


@runtime_checkable
class Declared(Protocol):
    """What the stack declares about itself, in the attribute `facts`."""

    facts: StackFacts


COMPONENTS: Mapping[str, type] = {
    "advantages": Advantages,
    "token_advantages": TokenAdvantages,
    "token_logprobs": TokenLogprobs,
    "fused_logprobs": FusedLogprobs,
    "policy_loss": PolicyLoss,
    "kl_estimate": KLEstimate,
    "kl_controller": KLController,
    "value_loss": ValueLoss,
    "sampler_correction": SamplerCorrection,
    "batch_builder": BatchBuilder,
    "clamped_batch": ClampedBatch,
    "group_filter": GroupFilter,
    "staleness_schedule": StalenessSchedule,
    "train_step": TrainStep,
    "objective": Objective,
    "supervised_step": SupervisedStep,
    "supervised_run": SupervisedRun,
    "supervised_evaluation": SupervisedEvaluation,
    "rollout_window": RolloutWindow,
    "trained_tokens": TrainedTokens,
    "masking": Masking,
    "collators": Collators,
    "default_sampling": DefaultSampling,
    "drawn_tokens": DrawnTokens,
    "readiness": Readiness,
    "policy": Policy,
    "model_family": ModelFamily,
    "model_calls": ModelCalls,
    "adapted_family": AdaptedFamily,
    "model_files": ModelFiles,
    "model_heads": ModelHeads,
    "any_model": AnyModel,
    "configurations": Configurations,
    "model_options": ModelOptions,
    "recorded_model": RecordedModel,
    "rotary": Rotary,
    "packing": Packing,
    "pack_plan": PackPlan,
    "length_balance": LengthBalance,
    "row_tables": RowTables,
    "optimizer_step": OptimizerStep,
    "weight_sync": WeightSync,
    "trained_sync": TrainedSync,
    "cut_sync": CutSync,
    "links": Links,
    "generation_engine": GenerationEngine,
    "generation_pool": GenerationPool,
    "continuation": Continuation,
    "several_turns": SeveralTurns,
    "episodes": Episodes,
    "data_plane": DataPlane,
    "rollout_flow": RolloutFlow,
    "sampler": Sampler,
    "decoding": Decoding,
    "own_generation": OwnGeneration,
    "reward": Reward,
    "tokenizer": Tokenizer,
    "conversations": Conversations,
    "pairs": Pairs,
    "prompt_source": PromptSource,
    "prompt_rows": PromptRows,
    "learning_rate": LearningRate,
    "named_schedules": NamedSchedules,
    "evaluation": Evaluation,
    "metrics": Metrics,
    "named_metrics": NamedMetrics,
    "validation_metrics": ValidationMetrics,
    "parallel_training": ParallelTraining,
    "placements": Placements,
    "ranks": Ranks,
    "ranked_loss": RankedLoss,
    "resume": ResumableRun,
    "killed_run": KilledRun,
    "resumed_training": ResumedTraining,
    "saving": Saving,
    "run": ShortRun,
    "architectures": Architectures,
    "left_run": LeftRuns,
    "tokenized_run": TokenizedRun,
    "precision": Precision,
    "fine_tuning": FineTuning,
    "whole_trainer": WholeTrainer,
    "utilities": Utilities,
    "adapters": Adapters,
    "combined_adapters": CombinedAdapters,
    "varied_adapters": VariedAdapters,
    "routed_adapters": RoutedAdapters,
    "prepared_adapters": PreparedAdapters,
    "adapters_elsewhere": AdaptersElsewhere,
    "adapter_histories": AdapterHistories,
    "adapter_groups": AdapterGroups,
    "row_loader": RowLoader,
    "metric_gather": MetricGather,
    "collectives": Collectives,
    "process_splits": ProcessSplits,
    "placed_models": PlacedModels,
    "saved_loops": SavedLoops,
    "loop_histories": LoopHistories,
    "seeded_draws": SeededDraws,
    "executable_batch_size": ExecutableBatchSize,
    "nested_exchanges": NestedExchanges,
    "accumulated_training": AccumulatedTraining,
    "tracker": Tracker,
    "functions": Functions,
    "definitions": Definitions,
    "settings": Settings,
    "worked_examples": WorkedExamples,
    "compared_trainer": ComparedTrainer,
    "prompt_files": PromptFiles,
    "written_commands": WritingCommands,
    "tasks": Tasks,
    "random_streams": RandomStreams,
    "named_parts": NamedParts,
    "own_parts": OwnParts,
    "refusals": Refusals,
    "command": Command,
    "defaults": Defaults,
    "facts": Declared,
}
"""Name of every component with the protocol that an adapter implements to offer it."""
