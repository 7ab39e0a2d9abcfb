"""Each guard passes what is right, and names what is wrong; no sample is no Pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from seatrial.guards import GuardError, Guards
from seatrial.verdict import Outcome

LOGPROBS = torch.log_softmax(torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), dim=-1)
MASK = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [0] * 6])
IDS = torch.arange(24).reshape(4, 6)
SAMPLED = [[0, 1, 2, 3, 4, 5], [6, 7], [12, 13, 14], []]


def model() -> torch.nn.Module:
    """Return a model with a frozen layer."""
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 2))
    made[0].requires_grad_(requires_grad=False)
    return made


def step(made: torch.nn.Module, guards: Guards, change: Callable[[torch.nn.Module], None]) -> None:
    """Change a model within a census."""
    with guards.census(made), torch.no_grad():
        change(made)


def move_trained(made: torch.nn.Module) -> None:
    """Do what an optimizer does."""
    for weight in made.parameters():
        if weight.requires_grad:
            weight += 1e-4


def test_right_steps_pass() -> None:
    """All seven, with the samples they rest on."""
    guards = Guards()
    guards.first_ratio(LOGPROBS, LOGPROBS + 1e-5, MASK)
    guards.same_ids(SAMPLED, IDS, MASK)
    guards.group_identity(["a", "a", "b", "b"], [0, 0, 1, 1], 2)
    made = model()
    step(made, guards, move_trained)
    guards.same_weights(
        dict(made.named_parameters()), {name: w.clone() for name, w in made.named_parameters()}
    )
    guards.ledger.drawn(["x", "y", "z"])
    guards.ledger.trained(["x", "y"])
    guards.ledger.left_out(["z"], "equal rewards")
    guards.settled()
    guards.lag(5, [5, 4, 3], 2)
    assert [verdict.outcome for verdict in guards.verdicts] == [Outcome.PASS] * 7
    assert [verdict.num_samples for verdict in guards.verdicts] == [11, 11, 4, 4, 4, 3, 3]
    assert guards.ledger.dropped == {"equal rewards": 1}


def _swap(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    changed = dict(weights)
    changed["1.weight"] = weights["1.weight"].flip(0)
    return changed


WRONG: dict[str, tuple[Callable[[Guards], None], str]] = {
    "ratio of another temperature": (lambda g: g.first_ratio(LOGPROBS, LOGPROBS / 0.9, MASK), "log ratio"),
    "ratio that is nan": (lambda g: g.first_ratio(LOGPROBS, LOGPROBS * float("nan"), MASK), "log ratio"),
    "retokenized row": (
        lambda g: g.same_ids([[0, 1, 2, 3, 4, 5], [6, 8], [12, 13, 14], []], IDS, MASK),
        "row 1: .* at 1",
    ),
    "end token lost": (
        lambda g: g.same_ids([[0, 1, 2, 3, 4, 5], [6, 7, 8], [12, 13, 14], []], IDS, MASK),
        "3 ids sampled, 2",
    ),
    "row lost": (lambda g: g.same_ids(SAMPLED[:3], IDS, MASK), "3 rows sampled, 4 trained"),
    "mixed group": (
        lambda g: g.group_identity(["a", "b", "b", "a"], [0, 0, 1, 1], 2),
        "group 0 holds several",
    ),
    "short group": (lambda g: g.group_identity(["a", "a", "b"], [0, 0, 1], 2), "group 1 has 1 rows, not 2"),
    "nothing moved": (lambda g: step(model(), g, lambda _: None), "trainable and unchanged: 1.weight"),
    "frozen moved": (
        lambda g: step(model(), g, lambda made: [w.add_(1) for w in made.parameters()] and None),
        "frozen and changed: 0.weight",
    ),
    "rows swapped in a sync": (
        lambda g: g.same_weights(dict(model().named_parameters()), _swap(dict(model().named_parameters()))),
        "1.weight differs",
    ),
    "tensor not sent": (
        lambda g: g.same_weights(
            dict(model().named_parameters()), dict(list(model().named_parameters())[1:])
        ),
        "0.weight is on one side",
    ),
    "sample from the future": (lambda g: g.lag(5, [6], 2), "newer than the trainer"),
    "sample too old": (lambda g: g.lag(5, [2], 2), "3 versions old"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_raise_and_are_recorded(name: str) -> None:
    """With what is wrong in the message."""
    act, said = WRONG[name]
    with pytest.raises(GuardError, match=said):
        act(Guards())
    guards = Guards(raises=False)
    act(guards)
    [failure] = guards.failures
    assert failure.outcome is Outcome.FAIL


@pytest.mark.parametrize(
    ("trained", "said"),
    [(["x"], "never trained"), (["x", "y", "y"], "second time"), (["x", "y", "q"], "was not drawn")],
)
def test_samples_that_are_lost_or_trained_twice(trained: list[str], said: str) -> None:
    """And one that is still on its way is no loss."""
    guards = Guards()
    guards.ledger.drawn(["x", "y"])
    guards.ledger.trained(trained)
    with pytest.raises(GuardError, match=said):
        guards.settled()
    if trained == ["x"]:
        guards.settled(in_flight=1)


def test_nothing_to_look_at_is_no_pass() -> None:
    """Rule 2 of the verdicts."""
    guards = Guards()
    guards.first_ratio(LOGPROBS, LOGPROBS, torch.zeros_like(MASK))
    guards.group_identity([], [])
    assert {verdict.outcome for verdict in guards.verdicts} == {Outcome.SKIPPED}


def test_a_sampler_in_lower_precision_holds_the_same_weights() -> None:
    """Compared as bfloat16."""
    weights = dict(model().named_parameters())
    Guards().same_weights(weights, {name: weight.to(torch.bfloat16) for name, weight in weights.items()})


def test_importing_guards_needs_no_torch() -> None:
    """Nor transformers."""
    script = "import sys; sys.modules.update(torch=None, transformers=None)\nimport seatrial.guards"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_callback_of_the_trainer_holds_the_census() -> None:
    """With a step that trains, one at a rate of zero, and one that loses its update."""
    transformers = pytest.importorskip("transformers")
    from seatrial.guards.hugging_face import guard_callback

    made = model()
    optimizer = torch.optim.SGD([w for w in made.parameters() if w.requires_grad], lr=0.1)
    callback = guard_callback(Guards(raises=False))
    assert isinstance(callback, transformers.TrainerCallback)
    state = transformers.TrainerState()
    for rate, lost in ((0.1, False), (0.0, False), (0.1, True)):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        made(torch.ones(3, 40)).square().sum().backward()
        callback.on_pre_optimizer_step(None, state, None, model=made, optimizer=optimizer)
        if not lost:
            optimizer.step()
        callback.on_optimizer_step(None, state, None, model=made, optimizer=optimizer)
    assert [verdict.outcome for verdict in callback.guards.verdicts] == [Outcome.PASS, Outcome.FAIL]
