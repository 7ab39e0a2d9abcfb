"""Without the wandb package a W&B file is Blocked, and the message says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.evidence.read import read_logs


@pytest.mark.parametrize("name", ["run-1.wandb", "renamed.bin"])
def test_the_remedy_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / name).write_bytes(b":W&B\xe1\xbe\x00")
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(BlockedError, match=r"pip install 'seatrial\[readers\]'"):
        read_logs(tmp_path)
