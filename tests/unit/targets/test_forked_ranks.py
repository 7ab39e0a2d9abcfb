"""Ranks that a server forks behave like those that the launcher starts."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from refrl.config import ClusterConfig, ConfigError
from refrl.runtime.launcher import RankError
from seatrial.targets.reference.runs.forking import launch_ranks

CLUSTER = ClusterConfig(num_processes=2, device="cpu")


def note(words: Sequence[str]) -> None:
    """Write down who this rank is, and what it had imported before it began."""
    imported = "refrl.training.grpo" in sys.modules
    text = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}: {os.environ['SAID']}, {imported}"
    Path(words[0], os.environ["RANK"]).write_text(text, encoding="utf-8")


def fail(words: Sequence[str]) -> None:
    """Let rank 1 fail in the given way; rank 0 waits to be terminated."""
    if os.environ["RANK"] == "0":
        sys.stdin.close()
        os.read(os.pipe()[0], 1)
    if words[0] == "raises":
        raise ValueError("no such layout")
    print("no such option", file=sys.stderr)
    raise SystemExit(int(words[0]))


def test_each_rank_has_its_environment_and_the_imports_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is that of the call, not that in which the server started."""
    monkeypatch.setenv("SAID", "now")
    launch_ranks(note, [str(tmp_path)], CLUSTER)
    found = [(tmp_path / str(rank)).read_text(encoding="utf-8") for rank in range(2)]
    assert found == ["0 of 2: now, True", "1 of 2: now, True"]


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ("raises", RankError, "^rank 1 ended with exit status 1, .*ValueError: no such layout"),
        ("3", RankError, "^rank 1 ended with exit status 3, .*no such option"),
        ("2", ConfigError, "^no such option"),
    ],
)
def test_a_rank_that_fails_ends_the_others(how: str, error: type[Exception], message: str) -> None:
    """Status and the last line of standard error are those of the rank that failed."""
    with pytest.raises(error, match=message):
        launch_ranks(fail, [how], CLUSTER)
