"""The laws of a ledger: pure functions that return the rows which violate a law, given what is known of the run.

Each recomputes the figures from the rows, needs no torch, and names the missing column where it could not be
exercised.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from seatrial.evidence.ledger.law import Law
from seatrial.evidence.ledger.laws.advantages import advantages_ordered, advantages_right
from seatrial.evidence.ledger.laws.logprobs import logprobs_possible, sampler_agrees
from seatrial.evidence.ledger.laws.rewards import rewards_finite, rewards_right, verifier_worked
from seatrial.evidence.ledger.laws.rows import (
    groups_are_prompts,
    own_randomness,
    rows_complete,
    steps_follow,
    trained_once,
    versions_in_order,
)
from seatrial.evidence.ledger.laws.tokens import ends_as_said, mask_is_sampled, tokens_valid

LAWS: Mapping[str, Law] = MappingProxyType(
    {
        "every trained row is there, once": rows_complete,
        "steps follow one another": steps_follow,
        "no row is trained again at another step": trained_once,
        "a group is the completions of one prompt": groups_are_prompts,
        "tokens are valid and are the rewarded text": tokens_valid,
        "the loss counts the sampled tokens": mask_is_sampled,
        "completions end for the reason given": ends_as_said,
        "log-probabilities are possible and the row's own": logprobs_possible,
        "sampler and trainer agree per token": sampler_agrees,
        "every row draws its own randomness": own_randomness,
        "weight versions are in order": versions_in_order,
        "every reward is finite": rewards_finite,
        "verifier errors stay below 5 % of rows": verifier_worked,
        "rewards recomputed equal the logged": rewards_right,
        "advantages recomputed equal the logged": advantages_right,
        "advantages follow the rewards of their group": advantages_ordered,
    }
)
"""Every law by its statement, in the order of a step: presence, tokens, sampling, rewards, advantages."""
