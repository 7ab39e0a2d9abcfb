"""Every PPO-clip loss that refrl's schema allows obeys every relation of the loss; a file of its own for a worker."""

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize("reduction", ["token", "sequence", "fixed_length"])
def test_every_loss_obeys(
    losses_disobeyed: Callable[[str, str, int], list[str]], reduction: str, part: int
) -> None:
    """Every KL, clip, correction and entropy."""
    assert not losses_disobeyed("ppo_clip", reduction, part)
