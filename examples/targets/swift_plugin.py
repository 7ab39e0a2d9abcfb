"""Rewards of ms-swift's GRPO, in its own form: a class that is registered under a name."""

from seatrial_rewards import SCORES  # type: ignore[import-not-found]  # in the data folder of a trial
from swift.rewards import ORM, orms  # type: ignore[import-not-found]


def scoring(name):
    """Return a reward class that scores completions by a rule of Seatrial's."""

    def call(self, completions, answer, **columns):
        return [SCORES[name](given, right) for given, right in zip(completions, answer, strict=True)]

    return type(name, (ORM,), {"__call__": call})


for rule in SCORES:
    orms[rule] = scoring(rule)
