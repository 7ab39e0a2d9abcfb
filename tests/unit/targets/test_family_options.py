"""Tests for `seatrial.targets.transformers.family_options`: which errors of a configuration are refusals."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.family_options import ADAPTERS, OptionedFamily


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("not a kind"), NotServed),
        (NotImplementedError("not yet"), NotServed),
        (KeyError("Missing required keys in `rope_parameters`"), NotServed),
        (KeyError("factor"), KeyError),
        (AttributeError("no such attribute"), AttributeError),
    ],
)
def test_a_check_refuses_and_a_crash_is_a_crash(
    monkeypatch: pytest.MonkeyPatch, error: Exception, raised: type[Exception]
) -> None:
    """A crash while a model is made is not taken for an option that is not served."""
    stack = ADAPTERS["options-llama"]()
    (name, *_) = stack.option_names

    def model(self: OptionedFamily, attention: str = "eager") -> Any:
        raise error

    monkeypatch.setattr(OptionedFamily, "model", model)
    with pytest.raises(raised):
        stack.with_option(name)


def test_sizes_that_are_one_are_varied() -> None:
    """Also those that a tiny model cannot do without, and of families whose other options are not judged."""
    assert "n_groups=2" in ADAPTERS["options-mamba2"]().option_names
    assert "moe_intermediate_size=24" in ADAPTERS["options-mellum"]().option_names
