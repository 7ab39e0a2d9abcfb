"""A worked example of TRL leaves nothing to what runs after it, and is left to the releases that document it."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seatrial.relations.not_served import NotServed
from seatrial.targets.common import worked_rows
from seatrial.targets.trl.worked.rows import Row, examples


@pytest.fixture(autouse=True)
def accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the package, of which an example needs the state alone."""
    monkeypatch.setitem(sys.modules, "accelerate", SimpleNamespace(Accelerator=lambda cpu: None))


def test_an_example_leaves_neither_variables_nor_a_type() -> None:
    """Transformers before 5 puts the precision of a run into the environment, where the next run finds it."""

    def changes(_: Any) -> None:
        os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16"
        torch.set_default_dtype(torch.bfloat16)
        raise KeyError("made")

    (example,) = examples([Row("models", "json:loads", "changes", changes, None)], "models")
    before = dict(os.environ)
    with pytest.raises(KeyError):
        example.call()
    assert dict(os.environ) == before
    assert torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize(
    ("call", "since", "words"),
    [
        (lambda loads: loads(unknown=SimpleNamespace().missing), "0", "no attribute 'missing'"),
        (lambda loads: None, "2.0", "this one is of 2.0"),
    ],
)
def test_what_a_release_does_not_have_is_not_served(
    call: Any, since: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arguments of another release, and results that a later one documents."""
    monkeypatch.setattr(worked_rows, "release", lambda package: "1.0")
    monkeypatch.setattr("seatrial.targets.common.known.release", lambda package: "1.0")
    (example,) = examples([Row("models", "json:loads", "x", call, None, since)], "models")
    with pytest.raises(NotServed, match=words):
        example.call()
