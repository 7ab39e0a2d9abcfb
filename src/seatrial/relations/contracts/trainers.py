"""Contract of a whole trainer: its own `train()` for a few steps, from a data set to weights and a log.

Part of `seatrial.relations.contracts`. An adapter's examples or rollouts, model and tokenizer are those of every plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from seatrial.relations.cases.case import Case
from seatrial.relations.cases.examples import Example, ObjectiveSpec
from seatrial.relations.records.run import Record, UpdateRecord

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TrainerPlan(Case):
    """A short training run; a made input."""

    num_steps: int = 3
    num_rows: int = 4
    """Rows of an optimizer step over all processes and micro-batches; of a trainer that samples, completions."""
    num_micro_batches: int = 2
    """Of each process."""
    num_ranks: int = 1
    num_examples: int = 12
    """Of the training split."""
    logging_steps: int = 1
    eval_steps: int = 0
    """Steps after which the held-out split is evaluated; 0: never."""
    ends_after: int = 0
    """Step after whose checkpoint the run is stopped and resumed; 0: none."""
    predicts: bool = False
    """Whether evaluations, in batches of two rows, hand their predictions to a function of the caller."""
    seed: int = 0
    process_seed: int = 0
    """Of the process's random numbers before the trainer is made, which no run should depend on."""

    def smaller(self) -> Iterator[TrainerPlan]:
        """Yield the plan of one step."""
        if self.num_steps > 1 and not self.ends_after:
            yield replace(self, num_steps=1)


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One sampled completion."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    ended: bool
    """Whether it ends with an end token, in place of the limit of its length."""
    rewards: tuple[float | None, ...]
    """Of each reward function; None where it gave none."""
    batch: int
    """Number of the generation that made it, negative in an evaluation; rows of a batch with one prompt are a group."""
    weight_version: int
    """Optimizer steps that the weights had seen that sampled it."""
    number: int
    """Place among the completions of its prompt in the batch."""
    from_tools: tuple[bool, ...] = ()
    """Whether each of `ids` is a tool's, and not sampled: such tokens have no loss; empty where all are sampled."""
    calls: tuple[bool, ...] = ()
    """Of tools, in their order: whether each returned a result, and did not fail."""

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """The tokens that the model sampled."""
        if not self.from_tools:
            return self.ids
        return tuple(token for token, given in zip(self.ids, self.from_tools, strict=True) if not given)

    @property
    def sampled_places(self) -> list[int]:
        """Places in `ids` of the tokens that the model sampled."""
        return [place for place in range(len(self.ids)) if not (self.from_tools and self.from_tools[place])]


TrainerRow = Example | Rollout


@dataclass(frozen=True, kw_only=True)
class TrainerStep:
    """One optimizer step."""

    step: int
    """Counted from 1."""
    micro_batches: tuple[tuple[TrainerRow, ...], ...]
    """The rows that went through the model, of all processes, in their order."""
    update: UpdateRecord
    """Its gradients are raw: summed or averaged over micro-batches and processes, before clipping."""
    logged: Mapping[str, float] = field(default_factory=dict)
    """What was logged after this step; empty between two logging intervals."""

    @property
    def updates(self) -> tuple[UpdateRecord, ...]:
        """The only update."""
        return (self.update,)

    @property
    def weights_after(self) -> Mapping[str, Tensor]:
        """All tensors after the step."""
        return self.update.weights_after

    @property
    def rows(self) -> tuple[TrainerRow, ...]:
        """All rows in their order."""
        return tuple(row for part in self.micro_batches for row in part)


@dataclass(frozen=True, kw_only=True)
class LoggedRow:
    """A row of the tables of completions that a trainer writes."""

    step: int
    rollout: Rollout | None  # None if no rollout of the step has its prompt and text
    rewards: tuple[float | None, ...]
    advantage: float


@dataclass(frozen=True, kw_only=True)
class ServedSequence:
    """The ids of one example in a batch, without padding."""

    ids: tuple[int, ...]
    targets: tuple[bool, ...] | None = None
    """Whether each id is a target; None where the batch does not say it."""
    positions: tuple[int, ...] | None = None
    """Of each id; None where the model counts them itself."""
    follows: bool = False
    """Whether another sequence is before it in its row of ids."""


@dataclass(frozen=True, kw_only=True)
class ServedBatch:
    """One batch as it goes into the loss."""

    rows: tuple[Example, ...]
    sequences: tuple[ServedSequence, ...]
    num_padded_targets: int = 0
    """Places of padding that are targets."""


@dataclass(frozen=True, kw_only=True)
class PredictedSequence:
    """What the caller's function of metrics gets of one held-out sequence."""

    ids: tuple[int, ...]
    places: tuple[int, ...]
    """Places in `ids` of which the logits are known."""
    logits: Tensor
    """[P, V] of the places; of a reward model, [1, 1]."""


@dataclass(frozen=True, kw_only=True)
class TrainerEvaluation:
    """One evaluation of the held-out split."""

    step: int
    batches: tuple[tuple[TrainerRow, ...], ...]
    logged: Mapping[str, float]
    """Without the prefix `eval_`."""
    was_training: bool
    """Whether the model was in training mode in any forward pass."""
    flattened: bool = False
    """Whether any batch had fewer rows of ids than examples."""
    predictions: tuple[PredictedSequence, ...] = ()
    """Of a plan that predicts."""


@dataclass(frozen=True, kw_only=True)
class TrainerRecord(Record):
    """A whole short run."""

    options: Mapping[str, Any]
    """`policy.optimizer.weight_decay`, `.betas`, `.eps` and `policy.max_grad_norm` (None: no clipping) of the run."""
    initial_weights: Mapping[str, Tensor]
    """All tensors of the plain model, and those of adapters."""
    final_weights: Mapping[str, Tensor]
    trainable: frozenset[str]
    steps: tuple[TrainerStep, ...]
    evaluations: tuple[TrainerEvaluation, ...]
    rollouts: tuple[Rollout, ...]
    """All completions sampled for training, in their order."""
    evaluated: tuple[Rollout, ...] = ()
    """All completions sampled for evaluations."""
    reference_weights: Mapping[str, Tensor] | None
    """Of the reference model at the start; None without one."""
    optimizer: Mapping[str, Tensor]
    """State of the optimizer at the end, by parameter and name."""
    was_training: bool
    """Whether the model was in training mode in every forward pass of training."""
    oracles: dict[int, Any] = field(default_factory=dict, compare=False, repr=False)
    """Oracles of steps that laws have computed, by step."""
    scored: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Rows that laws have scored, by what was scored at which weights."""
    split: tuple[Example, ...] = ()
    """The training split in its own order; of a trainer that samples only the prompts are read."""
    held_out: tuple[Example, ...] = ()
    logged_rows: tuple[LoggedRow, ...] = ()
    sampling: tuple[Mapping[str, Any], ...] = ()
    sampling_states: tuple[int, ...] = ()
    """Settings of each generation for training; a checksum of the random state of each process's first one."""
    dropout: float = 0.0
    """Largest probability of dropout in the model during training."""
    widths: frozenset[int] = frozenset()
    """Lengths that rows were padded to, prompts and completions apart where they are padded apart."""
    flattened: bool = False
    """Whether any micro-batch had fewer rows of ids than examples."""
    rank_gradients: tuple[Mapping[str, Tensor], ...] = ()
    """Raw gradients of the last step on every process, of a run on several."""
    served: tuple[ServedBatch, ...] = ()
    """Batches of training and evaluation, of a run in one process; empty where their form is not known."""


@dataclass(frozen=True, kw_only=True)
class EntropyControl:
    """Each step adds `delta` to the entropy's coefficient, or takes it off where its mean entropy is above `target`;
    after such a step, and in the first, the coefficient is 0 (arXiv 2505.22312)."""

    target: float
    delta: float
    least: float = 0.0
    most: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RolloutSpec:
    """The objective that a trainer of rollouts declares; the float64 oracle computes it from the definition.

    Each completion token has the loss -min(r A, clip(r) A) + beta * KL, with A the advantage of its row and r the ratio
    of the policy's probability to that of the weights that sampled it.
    """

    estimator: Literal["grpo", "rloo"] = "grpo"
    """Of the baseline: the group's mean, or that of the other rows of the group."""
    scale: Literal["group", "batch", "none"] = "group"
    """Whose standard deviation advantages are divided by, plus 1e-4."""
    reward_weights: tuple[float, ...] = (1.0,)
    aggregation: Literal["sum", "normalized"] = "sum"
    """Of several reward functions: the weighted sum; or each is normalized in its group first, the weighted sum of
    these then in the generation (GDPO), with the deviation plus 1e-4 each time."""
    reward_range: tuple[float, float] | None = None
    """That weighted rewards are clipped to, before a penalty."""
    normalizes_advantages: bool = False
    """Whether the advantages of a generation get mean 0 and deviation 1 (its divisor plus 1e-4)."""
    loss: Literal["clip", "cispo", "sapo", "vespo"] = "clip"
    """`clip`: PPO's. `cispo`: -min(r, clip_high) A log p, with no gradient in r (MiniMax-M1, ScaleRL). `sapo`:
    -4 sigmoid(tau (r - 1)) / tau A, with tau of the sign of A (Gao et al. 2025). `vespo`: -phi(w) A log p, with
    phi(w) = w^k exp(lambda (1 - w)) and no gradient in w, the product of the row's ratios (arXiv 2602.10693)."""
    ratio: Literal["token", "mean", "sum"] = "token"
    """Of each token; or one of the row, the exponential of the mean (GSPO) or the sum (RLOO) of its log-ratios."""
    reduction: Literal["tokens", "micro_batch", "rows", "row_sums", "fixed"] = "tokens"
    """Mean over the tokens of the optimizer step; over those of each micro-batch, then over micro-batches; over rows of
    their means, or of their sums; the sum divided by `fixed_length` times the number of rows."""
    fixed_length: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.2
    delta: float | None = None
    """Upper bound of the ratio for either sign of the advantage (INTELLECT-2)."""
    sapo_temperatures: tuple[float, float] = (1.0, 1.05)
    """Of positive and of other advantages."""
    vespo: tuple[tuple[float, float], tuple[float, float]] = ((2.0, 3.0), (3.0, 2.0))
    """k and lambda of advantages of at least 0, and of negative ones."""
    top_entropy: float = 1.0
    """Share of the step's tokens, those of highest entropy, that the policy term keeps (arXiv 2506.01939)."""
    off_policy_threshold: float | None = None
    """Rows with a negative advantage have no policy term if the mean of log(old / current) over their tokens is above
    it (DeepSeek-V3.2, equation 9)."""
    beta: float = 0.0
    kl_in: Literal["loss", "reward"] = "loss"
    """Where the penalty is: k3 in each token's loss, or the sum of log-ratios, as sampled, in the row's reward."""
    kl_ratio: bool = False
    """Whether the k3 of a token is multiplied by its ratio, with gradient (DeepSeek-V3.2)."""
    entropy_coefficient: float = 0.0
    """Of the mean entropy of the step's tokens, which is subtracted."""
    entropy_control: EntropyControl | None = None
    temperature: float = 1.0
    masks_truncated: bool = False
    """Whether completions without an end token are left out of the loss."""
    num_uses: int = 1
    """Optimizer steps that each completion trains in."""


@dataclass(frozen=True, kw_only=True)
class ReferenceSync:
    """After every `every` steps the reference becomes alpha * policy + (1 - alpha) * reference (TR-DPO)."""

    alpha: float
    every: int


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """What a logged scalar is, as the stack's documentation says."""

    quantity: str
    """A key of `oracles.trainer_metrics.QUANTITIES`."""
    how: Literal["mean", "min", "max", "deviation", "total"] = "mean"
    """Over the values of the step; `total` is the sum since the beginning of training."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """The weights at the end are those of the evaluation with the best value of a metric."""

    metric: str
    larger: bool


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec:
    """When a trainer evaluates, and how."""

    at_start: bool = False
    """Whether it evaluates before the first step too."""
    every: int | None = None
    """Steps after which it evaluates again; None: as the plan says."""
    delay: int = 0
    """Steps before which it does not."""
    num_rows: int | None = None
    """Rows of a batch, the last one aside; None: any number."""
    flattens: bool = False
    """Whether a row of a batch holds several examples."""
    copies: int = 1
    """How often each held-out row is evaluated: completions of a prompt."""


@dataclass(frozen=True, kw_only=True)
class TrainerSpec:
    """What a trainer declares that it does."""

    objective: ObjectiveSpec | RolloutSpec
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    """By the stack's own names; each is logged at every logging interval."""
    unnamed_scalars: frozenset[str] = frozenset()
    """Those of them that the installed release's code does not name. If it does not log them either, it does not have
    them, and no law judges them."""
    logs_first_step: bool = False
    """Whether the first step is logged, however long the interval."""
    order: Literal["shuffled", "as given", "any"] = "any"
    """Of the training split's rows: another one in each run with another seed, or that of the split."""
    order_has_own_seed: bool = False
    """Whether the order depends on a seed of its own, and not on the run's."""
    drops_last: bool = False
    """Whether an epoch ends with its last micro-batch of the full size."""
    evaluation: EvaluationSpec = EvaluationSpec()
    best: Best | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Settings of every generation, by the names of `TrainerRecord.sampling`."""
    dropout: float | None = None
    """Largest probability of dropout in the model during training; None: not checked."""
    balance_weight: float = 0.0
    """Of the routers' load-balancing loss, a mean over micro-batches, which is added. The adapter then has a
    method `balance_loss(weights, sequences)` that returns that of some sequences of ids together."""
    runs: Literal["all", "updates"] = "all"
    """Which laws are meant for it: all, or those of its updates and their log, as of a model with a trait."""
    spreads: bool = True
    """Whether the laws of several processes are meant for it."""
    initialises: str | None = None
    """Part of the names of tensors that the trainer makes, with random values of the run's seed."""
    logs_rows: bool = False  # in tables of the completions of each step
    width_multiple: int = 1
    """What the lengths of padded rows are a multiple of."""
    reference_sync: ReferenceSync | None = None
    window: int = 1
    """Optimizer steps that one generation serves; a checkpoint does not hold those that are left."""
    generates_for: Literal["window", "micro_batch"] = "window"
    """What one generation has the rows of: the steps of its window, or one micro-batch."""
    packs: bool = False
    """Whether examples are packed into rows of a fixed length, of which a micro-batch has a fixed number."""
    flattens: bool = False
    """Whether a row of a micro-batch holds several examples, packed or without padding."""


@runtime_checkable
class WholeTrainer(Protocol):
    """Short runs of a trainer, and the plain model that checks them."""

    trainer_spec: TrainerSpec

    def trainer_run(self, plan: TrainerPlan) -> TrainerRecord:
        """Run the stack's own training loop and return what was observed.

        Raises:
            NotServed: the stack has no such option, by design.
        """
        ...

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        """Return [S, V] raw logits of the plain model with these weights on one sequence of S ids, without dropout.

        It is differentiable in every tensor of `weights` that requires a gradient, in their precision. Of a reward
        model: the score of the sequence, [1, 1].
        """
        ...
