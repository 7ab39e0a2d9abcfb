"""Every GSPO and CISPO loss that refrl's schema allows obeys every relation of the loss."""

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize(
    ("kind", "reduction"),
    [("gspo", "sequence"), ("cispo", "token"), ("cispo", "sequence"), ("cispo", "fixed_length")],
)
def test_every_loss_obeys(
    losses_disobeyed: Callable[[str, str, int], list[str]], kind: str, reduction: str, part: int
) -> None:
    """Every KL, clip, correction and entropy."""
    assert not losses_disobeyed(kind, reduction, part)
