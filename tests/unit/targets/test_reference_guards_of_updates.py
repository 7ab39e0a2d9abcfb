"""What an observer of refrl is shown of each update is what the update did."""

from typing import Any

import pytest
import torch

from refrl.policy.base import Update
from seatrial.guards import Guards
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.guards.updates import UpdateGuard, shows_updates


def update(weight: torch.Tensor, *, shown: float = 3.0, norm: float = 3.0) -> Update:
    """Return an update with one weight and one gradient."""
    return Update(
        first_row=0,
        num_rows=1,
        gradients={"w": torch.tensor([shown])},
        grad_norm=norm,
        learning_rate=0.1,
        micro_batches=[[0]],
        weights={"w": weight},
    )


def failed(*steps: tuple[torch.Tensor, list[Update]]) -> set[str]:
    """Return the guards that fail on steps, each with the live weight after it."""
    guards = Guards(raises=False)
    guard = UpdateGuard(configuration({}), guards)
    for live, updates in steps:
        guard.check_step({"w": live.clone()}, updates)
    return {verdict.name.removeprefix("guard ") for verdict in guards.failures}


ONE, TWO = torch.tensor([1.0]), torch.tensor([2.0])


@pytest.mark.parametrize(
    ("steps", "seen"),
    [
        ([(ONE, [update(ONE)]), (TWO, [update(TWO)])], set()),
        ([(TWO, [update(ONE), update(TWO)])], set()),
        ([(ONE, [])], set()),
        ([(ONE, [update(ONE, shown=1.0)])], {"gradients as reported"}),
        ([(ONE, [update(TWO)])], {"weights as updated"}),
        ([(TWO, [update(TWO), update(TWO)])], {"weights as updated"}),
    ],
    ids=["sound", "two updates", "none", "clipped", "others", "the last ones twice"],
)
def test_gradients_and_weights_are_those_of_the_update(steps: Any, seen: set[str]) -> None:
    """Raw gradients, and copies of the weights."""
    assert failed(*steps) == seen


def test_weights_that_change_after_they_were_shown_are_seen() -> None:
    """As where the live ones are shown."""
    live = torch.tensor([1.0])
    guards = Guards(raises=False)
    guard = UpdateGuard(configuration({}), guards)
    guard.check_step({"w": live}, [update(live)])
    live.fill_(2.0)
    guard.check_step({"w": live}, [update(live)])
    assert len(guards.failures) == 1


def test_small_models_in_one_process_show_their_updates() -> None:
    """Each one is a copy of all weights."""
    assert shows_updates(configuration({}))
