"""Where the Ray cluster of a run's own keeps its sockets."""

import tempfile
from pathlib import Path

import pytest

from refrl.runtime.ray_cluster import place_for_sockets

RAYS = "ray-01234567/session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"
"""The longest that Ray and the folder of a run's own add."""
LONGEST_SOCKET = 107


@pytest.mark.parametrize("length", [5, 29, 30, 31, 32, 90])
def test_a_socket_of_ray_has_a_path_that_linux_allows(monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    """Whatever the length of the folder of temporary files."""
    place = "/" + "t" * (length - 1)
    monkeypatch.setattr(tempfile, "tempdir", place)
    assert len(str(Path(place_for_sockets(), RAYS))) <= LONGEST_SOCKET


def test_a_short_folder_of_temporary_files_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/scratch/job")
    assert place_for_sockets() == "/scratch/job"
