"""The record of a short run of a stack's real loop: rows, updates, weights and logged scalars of every step.

Per-token fields have the length of the row's completion. Weights are mappings from parameter name to tensor; they are
copies, which the loop does not change later. Option names are those of NeMo RL (`contracts.run`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One completion, as it was sampled, judged and trained on."""

    prompt_id: int
    """Identity of the prompt; the rows of one with the same id form a group."""
    prompt_ids: tuple[int, ...]
    """Token ids that the sampler was given."""
    ids: tuple[int, ...]
    """Token ids that were trained on: the sampled ones, the sampled end token included."""
    mask: tuple[int, ...]
    """1 on the tokens that train; all 0 for a row that a filter keeps out of the loss."""
    sampling_logprobs: tuple[float, ...]
    """The sampler's log-probability of each id."""
    old_logprobs: tuple[float, ...]
    """Log-probabilities of the old policy, computed before the first update of the step."""
    ref_logprobs: tuple[float, ...] | None
    """Log-probabilities of the reference policy; None without one."""
    kept_support: tuple[tuple[int, ...], ...] | None
    """Ids that top-k and top-p left at each token, if a filter was on and the stack records them; else None."""
    reward: float
    """What advantages are computed from, before a KL penalty in the reward."""
    reward_before_shaping: float
    """The verifier's reward, before length penalties and other shaping; equal to `reward` without shaping."""
    advantage: float
    finish_reason: Literal["stop", "length"]
    completion: str
    """The text that the verifier judged."""
    prompt: str | None = None
    """The prompt's text in the data, before any template; None if the stack does not report it."""
    answer: str | None
    """The right answer that the verifier was given; None for a verifier without one."""
    weight_version: int
    """Weights that its first token was sampled with: 0 for the initial ones, k for those after step k."""
    version_segments: tuple[tuple[int, int], ...] = ()
    """Where weights changed while it was sampled: (first token, weights) of each segment, the first one included; empty
    where all tokens are of `weight_version`."""

    media: Tensor | None = None
    """The image [channels, height, width] or the sound [mel bins, frames] of the prompt, as the data give it."""
    sampled: tuple[int, ...] = ()
    """1 on ids that the model sampled, 0 on an environment's text between its turns; empty if all were sampled."""

    def sampled_between(self, first: int, end: int) -> list[int]:
        """Return the positions in [first, end) of ids that the model sampled."""
        return [place for place in range(first, end) if not self.sampled or self.sampled[place]]

    @property
    def segments(self) -> tuple[tuple[int, int, int], ...]:
        """(first token, token after the last, weights) of each stretch of tokens."""
        starts = self.version_segments or ((0, self.weight_version),)
        ends = [place for place, _ in starts[1:]] + [len(self.ids)]
        return tuple((place, end, version) for (place, version), end in zip(starts, ends, strict=True))


@dataclass(frozen=True, kw_only=True)
class GroupRecord:
    """What happened to a group of completions that was offered to the trainer (asynchronous rollouts)."""

    number: int
    """Place in the order in which groups were offered, from 0."""
    prompt_id: int
    fate: str
    """`trained`, or why not: `stale`."""
    weight_version: int
    """Weights that its oldest row began with: 0 for the initial ones, k for those after step k."""


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """One optimizer update."""

    row_indices: tuple[int, ...]
    """Which of the step's rows it trained on."""
    micro_batches: tuple[tuple[int, ...], ...] | None
    """The same indices, grouped as they went through the model; None if the stack does not report it."""
    gradients: Mapping[str, Tensor]
    """Raw gradient of every trainable parameter, summed over micro-batches and ranks, before clipping."""
    grad_norm: float
    """The norm before clipping that the stack reports."""
    learning_rate: float
    """The rate that the optimizer used."""
    weights_after: Mapping[str, Tensor]
    """All parameters after the update."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One step of the loop: a rollout and its updates."""

    step: int
    """Counted from 1."""
    prompts_served: tuple[int, ...]
    """Ids of the prompts that the data source served for the step, in order; repeated if served repeatedly."""
    rows: tuple[RunRow, ...]
    """The rows of the batch that the updates index, filtered ones (mask 0) included."""
    updates: tuple[UpdateRecord, ...]
    metrics: Mapping[str, float]
    """Logged scalars of the step under the stack's names (NeMo RL's, without the prefix `train/`)."""
    weights_after: Mapping[str, Tensor]
    """All parameters after the step."""
    discarded_rows: tuple[RunRow, ...] = ()
    """Rows that were sampled but not trained on (dynamic sampling); `advantage` and `old_logprobs` are unused."""
    draft_weights_after: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights of the draft head after the step; empty without one."""
    groups: tuple[GroupRecord, ...] = ()
    """Asynchronous rollouts: the groups that the step trained on, and those that were too old for it."""


@dataclass(frozen=True, kw_only=True)
class ValidationRecord:
    """One validation inside the run."""

    step: int
    """The step after which it ran; 0 for one before training."""
    rows: tuple[tuple[int, str, float], ...]
    """Prompt id, completion text and reward of every row."""
    metrics: Mapping[str, float]
    sampled: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    """Ids of prompt and completion of every row; empty if the stack does not report them."""
    media: tuple[Tensor | None, ...] = ()
    """The image or sound of every row, as in `RunRow`; empty where no row has one."""


class Record:
    """Weights and updates of a run, of reinforcement learning or of fine-tuning."""

    options: Mapping[str, Any]
    initial_weights: Mapping[str, Tensor]
    final_weights: Mapping[str, Tensor]
    trainable: frozenset[str]
    steps: Sequence[Any]

    def weights_at(self, version: int) -> Mapping[str, Tensor]:
        """Return the weights of a version: 0 the initial ones, k those after step k."""
        weights: Mapping[str, Tensor] = (
            self.steps[version - 1].weights_after if version else self.initial_weights
        )
        return weights

    def updates(self) -> list[tuple[str, UpdateRecord]]:
        """Return each update with its place in words."""
        return [
            (f"step {step.step}, update {number + 1}", update)
            for step in self.steps
            for number, update in enumerate(step.updates)
        ]


@dataclass(frozen=True, kw_only=True)
class RunRecord(Record):
    """A whole short run."""

    options: Mapping[str, Any]
    """The effective value of every option that the stack knows under a name of `contracts.run`, defaults resolved
    (`grpo.advantage.scale` is never None, `policy.generation.top_k` None means no filter)."""
    initial_weights: Mapping[str, Tensor]
    final_weights: Mapping[str, Tensor]
    reference_weights_start: Mapping[str, Tensor] | None
    """Of the reference policy before the first step; None without one."""
    reference_weights_end: Mapping[str, Tensor] | None
    trainable: frozenset[str]
    """Names of the parameters that training may change."""
    steps: tuple[StepRecord, ...]
    validations: tuple[ValidationRecord, ...]
    train_prompts: tuple[int, ...]
    """Ids of all prompts of the training split, each once."""
    global_streams_untouched: bool
    """Whether the run left the process-wide random streams (torch, NumPy, Python) in the state they were in."""
    vocab_size: int
    stop_ids: tuple[int, ...]
    initial_draft_weights: Mapping[str, Tensor] = field(default_factory=dict)
    """Weights of the draft head before the first step; empty without one."""
    in_training_mode: bool = False
    """Whether the policy is in training mode (dropout on) at the end, although it scores and trains with it off."""

    def rows(self) -> Iterator[tuple[str, StepRecord, RunRow]]:
        """Yield each trained row with its place in words and its step."""
        for step in self.steps:
            for index, row in enumerate(step.rows):
                yield f"step {step.step}, row {index}", step, row


@dataclass(frozen=True, kw_only=True)
class RunOption:
    """Two values of an option that must differ in effect, and where the effect must and must not be seen.

    Evidence is named by `EVIDENCE`. `reaches` must differ between the two runs at some step; `spares` must be equal
    in the first step (and its first update), before other weights make everything different.
    """

    values: tuple[Any, Any]
    reaches: tuple[str, ...]
    spares: tuple[str, ...] = ()
    needs: Mapping[str, Any] = field(default_factory=dict)
    """Further options, set in both runs, without which the option has no effect."""

    def __post_init__(self) -> None:
        """Refuse evidence that has no name, and an option that need not reach anything."""
        unknown = sorted({*self.reaches, *self.spares} - set(EVIDENCE))
        if unknown or not self.reaches:
            raise ValueError(f"an option must reach some of {', '.join(EVIDENCE)}; got {unknown or 'none'}")


EVIDENCE: tuple[str, ...] = (
    "prompts_served",
    "prompt_ids",
    "ids",
    "finish_reason",
    "sampling_logprobs",
    "old_logprobs",
    "ref_logprobs",
    "kept_support",
    "reward_before_shaping",
    "reward",
    "mask",
    "advantage",
    "row_indices",
    "micro_batches",
    "gradients",
    "learning_rate",
    "weights_after",
    "num_rows",
    "num_steps",
    "metrics",
    "validations",
)
"""Names of what can be compared between two runs, in the order in which a step makes it."""
