"""Runs one command several times, each time in its own folder and with its own seed.

In the command and the log path, `{repeat}` is the number of the repeat (from 0) and `{folder}` its folder; the command
also gets both in SEATRIAL_REPEAT and SEATRIAL_REPEAT_FOLDER.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from seatrial.errors import BlockedError, UsageError
from seatrial.evidence.identity.redaction import Redactor
from seatrial.launch.local import run_command

FOLDER, NUMBER = "{folder}", "{repeat}"
ShowProgress = Callable[[str], None]


def run_repeats(
    argv: Sequence[str],
    *,
    num_repeats: int,
    folder: Path,
    logs: str,
    environment: Mapping[str, str],
    timeout_seconds: float,
    say: ShowProgress = lambda text: None,
) -> list[Path]:
    """Run a command and return the log path of each repeat.

    Args:
        argv: the command; it starts in our working directory.
        num_repeats: how often it runs.
        folder: gets `repeat-0`, `repeat-1`, ..., each with the command's run.log; must not contain them yet.
        logs: where a repeat writes its logs, with `{folder}` or `{repeat}` in it.
        environment: the whole environment of the command.
        timeout_seconds: limit of each repeat.
        say: receives progress messages.

    Raises:
        UsageError: all repeats would log to one place, or a repeat's folder already exists.
        BlockedError: a repeat did not exit with status 0, or cannot be started.
    """
    if FOLDER not in logs and NUMBER not in logs:
        raise UsageError(
            f"--logs {logs}: every repeat would log there; write {FOLDER} or {NUMBER} in it, such as {FOLDER}/logs"
        )
    places = []
    for number in range(num_repeats):
        own = folder / f"repeat-{number}"
        try:
            own.mkdir(parents=True)
        except FileExistsError as error:
            raise UsageError(f"{own} already exists from an earlier run; give a new --work folder") from error
        except OSError as error:
            raise BlockedError(f"cannot make {own}: {error.strerror}") from error
        launched = run_command(
            [fill(word, number, own) for word in argv],
            log_path=own / "run.log",
            environment={
                **environment,
                "SEATRIAL_REPEAT": str(number),
                "SEATRIAL_REPEAT_FOLDER": str(own),
            },
            timeout_seconds=timeout_seconds,
            progress=partial(_report, say, f"repeat {number + 1} of {num_repeats}"),
            redact=Redactor(environment).text,
        )
        if not launched.ok:
            raise BlockedError(
                f"repeat {number + 1} of {num_repeats} ended with {launched.describe()}; "
                f"its output is in {launched.log_path}"
            )
        places.append(Path(fill(logs, number, own)))
    return places


def fill(text: str, number: int, folder: Path) -> str:
    """Replace the placeholders in a word by a repeat's number and folder."""
    return text.replace(NUMBER, str(number)).replace(FOLDER, str(folder))


def _report(say: ShowProgress, name: str, seconds: float, line: str) -> None:
    say(f"{name}: {seconds:.0f} s  {line}")
