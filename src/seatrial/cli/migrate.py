"""`seatrial migrate SCRIPTS...`: convert shell scripts that call NeMo RL's checker into suites."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.files import not_written, write_whole
from seatrial.migrate.suite_files import suite_texts
from seatrial.migrate.suites import Migration, find_scripts, migrate_script
from seatrial.report.rows import printable
from seatrial.verdict import EXIT_FAIL, EXIT_NOTHING_RAN, EXIT_PASS
from seatrial.words import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial migrate`."""
    parser.add_argument(
        "scripts", metavar="SCRIPT", nargs="+", type=Path, help="shell scripts, or folders of them"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        type=Path,
        help="folder to write the suites to; without it nothing is written",
    )


def run(arguments: argparse.Namespace) -> int:
    """Convert the checks and report what was found.

    Returns:
        0 if every check was converted, 1 if one was not, 5 if no script calls the checker.
    """
    migrations, unreadable = [], []
    for script in find_scripts(arguments.scripts):
        try:
            migrations.append(migrate_script(script))
        except UsageError as error:
            unreadable.append(str(error))
    calling = [migration for migration in migrations if migration.calls or migration.left_behind]
    for migration in calling:
        _report(migration)
    for message in unreadable:
        print(f"not read: {printable(message)}")
    written = _write(calling, arguments.output) if arguments.output else 0
    _summarise(calling, len(migrations) + len(unreadable), written, arguments.output)
    if not calling and not unreadable:
        return EXIT_NOTHING_RAN
    return EXIT_FAIL if unreadable or any(migration.left_behind for migration in calling) else EXIT_PASS


def _report(migration: Migration) -> None:
    """Print the checks that were not converted, and the mistakes in the converted ones."""
    for item in migration.left_behind:
        print(printable(f"{migration.script}:{item.line}: left behind: {item.text}"))
        print(printable(f"    {item.reason}"))
    for carried in migration.carried:
        for finding in (item for item in carried.findings if not item.kind.is_note):
            print(printable(f"{migration.script}:{carried.line}: {finding}"))


def _summarise(calling: list[Migration], num_scripts: int, num_written: int, output: Path | None) -> None:
    carried = [item for migration in calling for item in migration.carried]
    left = sum(len(migration.left_behind) for migration in calling)
    kinds = Counter(finding.kind.value for item in carried for finding in item.findings)
    print(
        f"{counted(num_scripts, 'script')}, {len(calling)} call the checker: "
        f"{counted(len(carried), 'check')} carried over, {left} left behind"
    )
    if kinds:
        print("findings: " + ", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    if output is not None:
        print(
            f"{counted(num_written, 'suite')} written to {output}; judge a run with: seatrial check LOGS --suite FILE"
        )


def _write(calling: list[Migration], output: Path) -> int:
    """Write the suites, each whole or not at all; return how many.

    Raises:
        UsageError: two scripts would give a file of the same name.
        BlockedError: a file cannot be written.
    """
    origins: dict[str, Path] = {}
    texts: dict[str, str] = {}
    for migration in calling:
        for name, text in suite_texts(migration).items():
            if name in texts:
                raise UsageError(
                    f"{migration.script} and {origins[name]} both give {name}: migrate them apart"
                )
            origins[name], texts[name] = migration.script, text
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_whole(output / name, text)
    except OSError as error:
        raise not_written("write", output, error) from error
    return len(texts)
