"""The last lines of a console log are those of the program."""

from pathlib import Path

from seatrial.triage.patterns import last_lines

WARNING = "[rank0]:[W1126 02:09:25.896250867 ProcessGroupNCCL.cpp:1575] Warning: groups were not destroyed"


def test_warnings_of_native_code_and_empty_lines_are_left_out(tmp_path: Path) -> None:
    """torch warns of process groups after the traceback of what failed."""
    path = tmp_path / "run.log"
    path.write_text(f"Traceback (most recent call last):\nRuntimeError: two devices\n\n{WARNING}\n")
    assert last_lines(path, 1) == ["RuntimeError: two devices"]
    assert last_lines(path) == ["Traceback (most recent call last):", "RuntimeError: two devices"]
