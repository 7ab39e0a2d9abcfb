"""The command `seatrial relations` around the battery itself."""

import gc
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import seatrial
from seatrial.cli import main
from seatrial.relations.contracts.packs import Segment
from seatrial.relations.registry import select
from seatrial.targets import target_names

FROZEN: list[int] = []


class Packs:
    """Puts each row into a pack of its own, and notes how many objects garbage collection leaves out."""

    rows_beyond_the_width = "cut"

    def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
        """Return the packs."""
        FROZEN.append(gc.get_freeze_count())
        return [[Segment(row, 0, min(length, width))] for row, length in enumerate(lengths)]


def test_what_was_alive_before_the_battery_is_not_collected_again_and_again() -> None:
    """A trainer collects garbage at every start; the import of its stack left hundreds of thousands of objects."""
    FROZEN.clear()
    main(["relations", f"{__name__}:Packs", "--relation", "R4.plan"])
    assert FROZEN
    assert min(FROZEN) > 10_000
    assert gc.get_freeze_count() == 0


class NoisyPacks(Packs):
    """Prints through Python, through the file descriptor, and from a child."""

    def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
        """Return the packs."""
        print("{'loss': 0.5}")
        os.write(2, b"a warning of C code\n")
        subprocess.run([sys.executable, "-S", "-c", "print('from a child')"], check=True)
        return super().plan_packs(lengths, width)


class Crash(Packs):
    """Ends the command itself, as a defect of ours would."""

    def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
        """Raise what no law may catch."""
        print("the last words")
        raise GeneratorExit("a defect")


class Split(Packs):
    """Cuts no row: rows beyond the width break a law."""

    def plan_packs(self, lengths: Sequence[int], width: int) -> list[list[Segment]]:
        """Return packs without the first row."""
        return super().plan_packs(lengths, width)[1:]


def command(forked_python: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own."""
    return subprocess.run(
        [forked_python, "-m", "seatrial", "relations", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[3],
    )


HERE = "tests.unit.cli.test_relations_command"


def test_output_of_the_stack_goes_to_a_file_that_the_last_line_names(
    forked_python: str, tmp_path: Path
) -> None:
    log = tmp_path / "stack.log"
    ran = command(forked_python, f"{HERE}:NoisyPacks", "--relation", "R4.plan", "--log", str(log))
    lines = ran.stdout.splitlines()
    for words in ("{'loss': 0.5}", "a warning of C code", "from a child"):
        assert words in log.read_text()
        assert words not in ran.stdout + ran.stderr
    assert lines[0].startswith("judged: ")
    assert f"seatrial {seatrial.__version__}" in lines[0]
    assert lines[-1] == f"output of the stack: {log} ({len(log.read_text().splitlines())} lines)"


def test_a_crash_of_the_command_shows_the_last_output(forked_python: str) -> None:
    ran = command(forked_python, f"{HERE}:Crash", "--relation", "R4.plan")
    assert ran.returncode == 1
    assert "the last output of the stack" in ran.stderr
    assert "the last words" in ran.stderr
    assert "GeneratorExit: a defect" in ran.stderr


def test_a_failure_begins_with_the_law(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "verdicts.json"
    words = ["relations", f"{__name__}:Split", "--relation", "R4.plan", "--shrink-seconds", "0"]
    assert main([*words, "--json", str(file)]) == 1
    (fail,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Fail  ")]
    assert re.match(r"Fail +law '[^']+' broken \(seed \d\)", fail)
    document = json.loads(file.read_text())
    assert document["releases"]["seatrial"] == seatrial.__version__
    assert document["outcome"] == "Fail"
    assert document["verdicts"][0]["details"]["laws_broken"]


def test_relations_of_components_that_the_adapter_does_not_have_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file has a verdict for each."""
    file = tmp_path / "verdicts.json"
    chosen = ["--relation", "R4", "--relation", "R12"]
    words = ["relations", f"{__name__}:Split", *chosen, "--shrink-seconds", "0"]
    assert main([*words, "--json", str(file)]) == 1
    printed = capsys.readouterr().out
    others = [one for one in json.loads(file.read_text())["verdicts"] if one["outcome"] == "NotRequested"]
    assert len(others) > 1
    assert f"{len(others)} relations of components that the adapter does not have: not requested" in printed
    assert f"{len(others)} NotRequested" in printed
    assert not [line for line in printed.splitlines() if line.startswith("NotRequested")]


def test_help_names_the_targets_and_list_the_laws_of_each_adapter(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["relations", "--help"])
    assert ",".join(target_names()) in "".join(capsys.readouterr().out.split())
    assert main(["relations", f"{__name__}:Packs", "--list"]) == 0
    printed = capsys.readouterr().out
    (plan,) = select(["R4.plan"])
    assert f"{plan.id:<20} {plan.component}" in printed
    assert [line.strip() for line in printed.splitlines() if line.startswith("      ")][: len(plan.laws)] == [
        law.name for law in plan.laws
    ]


def test_the_list_of_a_target_has_a_line_for_each_adapter(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Long(Packs):
        __doc__ = "Word " * 40

    class Several:
        """A target with two adapters."""

        packages = ()

        def components(self) -> dict[str, object]:
            return {"packs": Packs(), "long-name": Long()}

    monkeypatch.setattr("seatrial.cli.relation_stacks.get_target", lambda name: Several())
    plan_laws = [law.name for relation in select(["R4.plan"]) for law in relation.laws]
    brief = ["relations", "--target", "several", "--list"]
    assert main(brief) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split(maxsplit=5)[0] == "packs"
    assert lines[0].endswith(Packs.__doc__.strip())
    assert lines[1].startswith("long-name  ") and lines[1].endswith("...")
    assert lines[2].startswith(
        "2 adapters; their laws: seatrial relations --target several --adapter NAME --list"
    )
    assert len(lines) == 3
    for more in (["--adapter", "packs"], ["-v"]):
        assert main([*brief, *more]) == 0
        shown = capsys.readouterr().out
        assert all(f"      {name}" in shown for name in plan_laws), more


@pytest.mark.nightly
def test_two_processes_that_judge_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Components that make models of the same name: their relations hold in two workers as they do in one."""
    verdicts: list[list[tuple[str, str]]] = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        relations = ["--relation", "R21.export", "--relation", "R7.trained"]
        words = ["relations", "--target", "reference", *relations, "--seed", "0", "--shrink-seconds", "0"]
        ran = subprocess.run(
            [sys.executable, "-m", "seatrial", *words, "--jobs", jobs, "--json", str(file)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        verdicts.append([(one["name"], one["outcome"]) for one in json.loads(file.read_text())["verdicts"]])
    assert verdicts[0] == verdicts[1]
