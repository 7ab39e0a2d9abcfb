"""What is known of a run beside its rows. Every fact may be missing; a law then goes by what the rows agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Centre = Literal["group", "others", "batch"]
Scale = Literal["none", "group", "others", "batch", "batch_centred"]


@dataclass(frozen=True, kw_only=True)
class AdvantageRule:
    """A way from rewards to advantages: (reward - centre) / (scale + epsilon)."""

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
    """Steps 1 to `num_steps` are to be there; None: no gap between the first and the last."""
    num_rows_per_step: int | None = None
    """None: as most steps have."""
    group_size: int | None = None
    """Completions of a prompt; None: as most groups have."""
    steps_per_batch: int | None = 1
    """Optimizer steps that one batch of completions is trained at; None where that is not known."""
    num_updates_per_step: int = 1
    """Optimizer steps of a step: weight versions count them."""
    precision: str | None = None
    """Of the trainer; None is held to the widest bound."""
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
    max_verifier_error_share: float = 0.05
