"""A write in the background: what follows it holds no copy up, and happens only when it has ended well."""

from collections.abc import Iterator
from threading import Event

import pytest
import torch

from refrl.checkpointing.tensors import BackgroundWriter


@pytest.fixture(params=[True, False], ids=["in the background", "at once"])
def writer(request: pytest.FixtureRequest) -> Iterator[BackgroundWriter]:
    """Return one of each kind."""
    made = BackgroundWriter(background=request.param)
    yield made
    made.close()


def nothing() -> None:
    """Do nothing."""


def test_a_copy_waits_for_the_write_and_not_for_what_follows() -> None:
    """What follows ends only after the copy has been taken."""
    copied, order = Event(), []
    writer = BackgroundWriter(background=True)

    def follow() -> None:
        copied.wait(60)
        order.append("followed")

    writer.start(lambda: order.append("written"), then=follow)
    staged = writer.stage({"weight": torch.ones(3)})
    order.append("copied")
    copied.set()
    writer.close()
    assert order == ["written", "copied", "followed"]
    assert staged["weight"].tolist() == [1, 1, 1]


def test_what_follows_a_write_that_failed_is_left_out(writer: BackgroundWriter) -> None:
    """Older checkpoints are not removed when the new one could not be written."""
    followed = []

    def fail() -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        writer.start(fail, then=lambda: followed.append(1))
        writer.wait()
    writer.finish()
    assert not followed


def test_what_follows_and_fails_is_reported(writer: BackgroundWriter) -> None:
    """At the next save at the latest."""

    def fail() -> None:
        raise OSError("cannot remove")

    with pytest.raises(OSError, match="cannot remove"):
        writer.start(nothing, then=fail)
        writer.wait()
        writer.start(nothing, then=nothing)
