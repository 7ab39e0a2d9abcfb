"""Tests for `seatrial.relations.raised.is_stated`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from seatrial.relations.raised import is_stated, misfit_of


def _states() -> None:
    raise RuntimeError("no batch fills the step")


def _crashes() -> None:
    {}["no such key"]


def _crashes_in_torch() -> None:
    torch.zeros(2) @ torch.zeros(3)


@pytest.mark.parametrize(("act", "stated"), [(_states, True), (_crashes, False), (_crashes_in_torch, False)])
def test_only_a_raise_statement_states_an_error(act: Callable[[], None], stated: bool) -> None:
    """A crash, in Python or in torch, is no statement."""
    with pytest.raises(Exception) as found:
        act()
    assert is_stated(found.value) is stated


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (AssertionError("Torch not compiled with CUDA enabled"), "it needs a GPU"),
        (RuntimeError("Found no NVIDIA driver on your system."), "it needs a GPU"),
        (ValueError("Found no NVIDIA driver"), ""),
        (AssertionError("the shapes differ"), ""),
    ],
)
def test_torch_says_that_a_call_needs_a_gpu(error: Exception, words: str) -> None:
    """Then the machine prevents the evidence, and the stack is not at fault."""
    assert (misfit_of(error, "seatrial.targets") or "").startswith(words)
    assert bool(misfit_of(error, "seatrial.targets")) is bool(words)
