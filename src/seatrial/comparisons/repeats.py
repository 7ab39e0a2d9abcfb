"""Run one command several times, each time in a folder of its own and with a seed of its own.

In the command and in the place of the logs, `{repeat}` is the number of the repeat (from 0) and `{folder}` its folder;
the command finds both in SEATRIAL_REPEAT and SEATRIAL_REPEAT_FOLDER as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    """Run a command and return the place of each repeat's logs.

    Args:
        argv: the command; it starts in our working directory.
        num_repeats: how often.
        folder: gets `repeat-0`, `repeat-1`, ..., each with the command's run.log; must not hold them yet.
        logs: where a repeat leaves its logs, with `{folder}` or `{repeat}` in it.
        environment: the whole environment of the command.
        timeout_seconds: limit of each repeat.
        say: told what is being waited for.

    Raises:
        UsageError: all repeats would log to one place, or a repeat's folder is there already.
        BlockedError: a repeat did not end with status 0, or cannot be started.
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
            raise UsageError(
                f"{own} is there already, from another time; give a new --work folder"
            ) from error
        except OSError as error:
            raise BlockedError(f"cannot make {own}: {error.strerror}") from error
        _run(argv, number, num_repeats, own, environment, timeout_seconds, say)
        places.append(Path(fill(logs, number, own)))
    return places


def fill(text: str, number: int, folder: Path) -> str:
    """Put a repeat's number and folder into a word."""
    return text.replace(NUMBER, str(number)).replace(FOLDER, str(folder))


def _run(
    argv: Sequence[str],
    number: int,
    num_repeats: int,
    folder: Path,
    environment: Mapping[str, str],
    timeout_seconds: float,
    say: ShowProgress,
) -> None:
    redactor = Redactor(environment)
    launched = run_command(
        [fill(word, number, folder) for word in argv],
        log_path=folder / "run.log",
        environment={
            **environment,
            "SEATRIAL_REPEAT": str(number),
            "SEATRIAL_REPEAT_FOLDER": str(folder),
        },
        timeout_seconds=timeout_seconds,
        progress=lambda seconds, line: say(f"repeat {number + 1} of {num_repeats}: {seconds:.0f} s  {line}"),
        redact=redactor.text,
    )
    if not launched.ok:
        raise BlockedError(
            f"repeat {number + 1} of {num_repeats} ended with {launched.describe()}; "
            f"its output is in {launched.log_path}"
        )
