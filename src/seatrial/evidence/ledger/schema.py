"""The schema of a ledger: one row per trained sample, whichever stack wrote it, and what is known of the run.

Curves are averages; the ledger is what was sampled, rewarded and trained on, row by row. Three columns are always
there. Any other column is None where the stack does not write it, and a law that needs it is then not exercised. The
same holds for facts about the run: where one is missing, a law uses what the rows agree on.

S is the number of tokens of a row (prompt and completion, without padding), T that of its completion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Centre = Literal["group", "others", "batch"]
Scale = Literal["none", "group", "others", "batch", "batch_centred"]


@dataclass(frozen=True, kw_only=True)
class AdvantageRule:
    """How advantages follow from rewards: (reward - centre) / (scale + epsilon)."""

    family: str
    """Name that the field gives it: grpo, dr_grpo, rloo, reinforce_plus_plus, reinforce_plus_plus_baseline."""
    centre: Centre
    """Mean of the row's group, of the group's other rows, or of the batch."""
    scale: Scale = "none"
    """Deviation of the group's rewards, of those of its other rows, of the batch's rewards, or of the batch's
    rewards less their group's mean."""
    epsilon: float = 0.0
    population: bool = False
    """Whether the deviation divides by n; by n - 1 otherwise."""

    def describe(self) -> str:
        """Return the rule in a few words."""
        if self.scale == "none":
            return f"{self.family} (centred by {self.centre}, not scaled)"
        count = "n" if self.population else "n - 1"
        scale = f"deviation of {self.scale} over {count}, epsilon {self.epsilon:g}"
        return f"{self.family} (centred by {self.centre}, {scale})"


@dataclass(frozen=True, kw_only=True)
class LedgerFacts:
    """What is known of the run that wrote a ledger."""

    stack: str | None = None
    """Name of the reader that read it."""
    num_steps: int | None = None
    """Steps 1 to `num_steps` must be there; None: no gap between the first and the last."""
    num_rows_per_step: int | None = None
    """None: as most steps have."""
    group_size: int | None = None
    """Completions of a prompt; None: as most groups have."""
    steps_per_batch: int | None = 1
    """Optimizer steps that one batch of completions is trained at; None where that is not known."""
    num_updates_per_step: int = 1
    """Optimizer steps of a step: weight versions count them."""
    precision: str | None = None
    """Of the trainer; None: the widest bound is used."""
    temperature: float | None = None
    """None: above 0."""
    vocabulary_size: int | None = None
    byte_level: bool | None = None
    """Whether ids below 256 are the bytes of the text; None: if most rows say so."""
    end_ids: frozenset[int] | None = None
    """Ids that end a completion; None: those that completions end with and never hold inside."""
    verifier: str | None = None
    """Name of the reward rule where rows do not name theirs."""
    advantage_rules: tuple[AdvantageRule, ...] | None = None
    """One of these is the run's; None: one of those that are known. Empty: rewards alone do not determine them."""
    max_lag: int | None = None
    """Optimizer steps that the sampler's weights may be behind; None: not bounded."""
    lag_is_exact: bool = False
    """Whether they are behind by exactly `max_lag` in every row, or by all updates where there were fewer."""
    max_verifier_error_share: float = 0.05


@dataclass(frozen=True, kw_only=True)
class LedgerRow:
    """One sample that was trained on."""

    step: int
    """Optimizer step that it was trained at."""
    index: int
    """Place in the step's batch, from 0."""
    prompt_id: int
    """Number of the prompt; equal prompts have equal numbers over the whole run."""

    group: int | None = None
    """Number of the group in its step, where one prompt may have several groups; None: the prompt is the group."""
    prompt: str | None = None
    """The prompt before a chat template."""
    prompt_text: str | None = None
    """The prompt as the model received it, with special tokens spelled out."""
    media: str | None = None
    """Digest of the image or sound in the prompt."""
    completion: str | None = None
    """The text that was rewarded."""
    answer: str | None = None
    token_ids: tuple[int, ...] | None = None
    """The prompt's tokens, then the T of the completion."""
    prompt_length: int | None = None
    """Tokens of the prompt."""
    loss_mask: tuple[float, ...] | None = None
    """What each token's loss is multiplied by: S numbers, more where the stack wrote padding too."""
    filtered: bool | None = None
    """Whether the whole row was kept out of the loss."""
    generation_logprobs: tuple[float, ...] | None = None
    """T log-probabilities by the sampler, under the distribution that it drew from."""
    prev_logprobs: tuple[float, ...] | None = None
    """T log-probabilities by the trainer before the update."""
    reference_logprobs: tuple[float, ...] | None = None
    """T log-probabilities by the frozen reference."""
    kept_support_sizes: tuple[int, ...] | None = None
    """Tokens that top-k and top-p left to draw from, at each of the T places; 0 where an environment wrote."""
    reward: float | None = None
    """The reward that advantages are computed from, `length_penalty` included."""
    length_penalty: float | None = None
    """The part of the reward that depends on the completion's length, not on the verifier; at most 0."""
    verifier: str | None = None
    """Name of the rule that gave the reward."""
    verifier_error: bool | None = None
    """Whether the verifier failed on this row, so that its reward says nothing about the completion."""
    advantage: float | None = None
    token_advantages: tuple[float, ...] | None = None
    """Advantages of the trained tokens, where they are not all one number."""
    finish_reason: str | None = None
    """`stop`: the last token ends the completion; `length`: a limit was reached first."""
    weight_version: int | None = None
    """Optimizer steps that the sampler's weights had seen when the completion was begun."""
    version_segments: tuple[tuple[int, int], ...] = ()
    """First token of the completion and version, for each version that sampled some of it; empty where one did."""
    misplaced: tuple[str, ...] = ()
    """What the reader found where nothing should be: a log-probability in the prompt or in padding."""

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """The T tokens of the completion; empty where the tokens are not written."""
        return (self.token_ids or ())[self.prompt_length or 0 :]

    @property
    def turns(self) -> tuple[tuple[int, ...], ...]:
        """The tokens sampled between an environment's words; without an environment, one turn of all tokens."""
        turns: list[list[int]] = [[]]
        for place, token in enumerate(self.sampled_ids):
            if not self._is_an_environments(place):
                turns[-1].append(token)
            elif turns[-1]:
                turns.append([])
        return tuple(tuple(turn) for turn in turns if turn)

    def _is_an_environments(self, place: int) -> bool:
        """Whether a token of the completion was written by an environment: masked, and with a log-probability of 0."""
        if self.kept_support_sizes is not None:
            return self.kept_support_sizes[place : place + 1] == (0,)
        masked = (self.loss_mask or ())[(self.prompt_length or 0) + place :][:1] == (0,)
        return masked and (self.generation_logprobs or ())[place : place + 1] == (0,)

    @property
    def group_key(self) -> tuple[int, int]:
        """What rows of one group share within a step."""
        return self.prompt_id, self.group or 0

    def where(self) -> str:
        """Return the place of the row for a message: `step 2 row 5`."""
        return f"step {self.step} row {self.index}"


@dataclass(frozen=True, kw_only=True)
class ValidationRow:
    """One held-out prompt at one validation."""

    step: int
    index: int
    prompt_id: int
    reward: float
