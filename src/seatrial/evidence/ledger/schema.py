"""The schema of a ledger: one row per trained sample, whatever stack wrote it.

Curves are averages; the ledger is what was sampled, rewarded and trained on, row by row. Three columns are always
there. Every other one is None where the stack does not write it, and a law that needs it is then not exercised.

S is the number of tokens of a row (prompt and completion, without padding), T that of its completion.
"""

from __future__ import annotations

from dataclasses import dataclass


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
    """The prompt as the model was given it, special tokens spelled out."""
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
    """What the reward owes to the completion's length, not to the verifier; at most 0."""
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
    misplaced: tuple[str, ...] = ()
    """What its reader found where nothing should be: a log-probability in the prompt or in padding."""

    @property
    def sampled_ids(self) -> tuple[int, ...]:
        """The T tokens of the completion; empty where the tokens are not written."""
        return (self.token_ids or ())[self.prompt_length or 0 :]

    @property
    def turns(self) -> tuple[tuple[int, ...], ...]:
        """What the model sampled between an environment's words; one turn of all tokens where there are none."""
        turns: list[list[int]] = [[]]
        for place, token in enumerate(self.sampled_ids):
            if not self._is_an_environments(place):
                turns[-1].append(token)
            elif turns[-1]:
                turns.append([])
        return tuple(tuple(turn) for turn in turns if turn)

    def _is_an_environments(self, place: int) -> bool:
        """Return whether a token of the completion is masked and was not drawn: none was its log-probability."""
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
