"""Where a module came from is seen in every process, and a wrong place is Blocked."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.evidence.identity.origins import (
    Import,
    driver_origin,
    module_file,
    observing_environment,
    read_imports,
    run_origin,
)
from seatrial.verdict import Outcome


def make_module(folder: Path, name: str = "stack") -> Path:
    """Make a package with one submodule and return the folder it lies in."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("")
    (folder / name / "part.py").write_text("")
    return folder


def observe(
    tmp_path: Path, script: str, *places: Path, modules: tuple[str, ...] = ("stack",)
) -> list[Import]:
    """Run a script under the observer and return what it saw."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
    seen = tmp_path / "imports.jsonl"
    subprocess.run(
        [sys.executable, "-c", script],
        env=observing_environment(environment, modules, seen),
        check=True,
        timeout=60,
        capture_output=True,
    )
    return read_imports(seen)


def test_the_first_place_on_the_path_is_what_is_seen(tmp_path: Path) -> None:
    """The file written down is the one that Python itself reports."""
    right, other = make_module(tmp_path / "right"), make_module(tmp_path / "other")
    script = f"import stack, pathlib; pathlib.Path({str(tmp_path / 'truth')!r}).write_text(stack.__file__)"
    (row,) = observe(tmp_path, script, other, right)
    assert str(row.file) == (tmp_path / "truth").read_text()
    assert row.file is not None
    assert row.file.is_relative_to(other)


def test_children_are_seen_too(tmp_path: Path) -> None:
    """A worker that puts another checkout first on its own path is found out, the driver stays right."""
    right, other = make_module(tmp_path / "right"), make_module(tmp_path / "other")
    worker = f"import sys; sys.path.insert(0, {str(other)!r}); import stack"
    script = f"import stack, subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}], check=True)"
    rows = observe(tmp_path, script, right)
    assert len({row.pid for row in rows}) == 2
    verdict = run_origin("stack", right, rows)
    assert verdict.outcome is Outcome.BLOCKED
    assert str(other) in verdict.reason
    assert str(right / "stack") not in str(verdict.value)


def test_submodules_and_namespace_packages(tmp_path: Path) -> None:
    """A dotted name and a package without __init__ have an origin as well."""
    place = make_module(tmp_path / "place")
    (place / "space").mkdir()
    rows = observe(tmp_path, "import stack.part, space", place, modules=("stack.part", "space"))
    assert {row.module: row.file for row in rows} == {
        "stack.part": place / "stack" / "part.py",
        "space": place / "space",
    }


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    """The observer stands in front of it and hands on."""
    place = make_module(tmp_path / "place")
    (place / "sitecustomize.py").write_text("import os; os.environ['CUSTOMIZED'] = 'yes'")
    rows = observe(tmp_path, "import os, stack; assert os.environ['CUSTOMIZED'] == 'yes'", place)
    assert len(rows) == 1


def test_a_folder_that_cannot_be_written_does_not_disturb_the_run(tmp_path: Path) -> None:
    """The command works; the missing line is what the verdict names."""
    place = make_module(tmp_path / "place")
    environment = observing_environment(
        {**os.environ, "PYTHONPATH": str(place)}, ("stack",), tmp_path / "nowhere" / "imports.jsonl"
    )
    ran = subprocess.run(
        [sys.executable, "-c", "import stack"], env=environment, capture_output=True, check=True
    )
    assert ran.stderr == b""
    verdict = run_origin("stack", place, read_imports(tmp_path / "nowhere" / "imports.jsonl"))
    assert verdict.outcome is Outcome.BLOCKED
    assert "no process of the run was observed importing stack" in verdict.reason


def test_a_module_nobody_imports_is_not_seen(tmp_path: Path) -> None:
    """Looking is not importing."""
    assert (
        observe(tmp_path, "import sys; assert 'stack' not in sys.modules", make_module(tmp_path / "place"))
        == []
    )


def row(file: str | None, pid: int = 1) -> Import:
    """Return one observation."""
    return Import(pid=pid, ppid=0, module="stack", file=Path(file) if file else None, program=("python",))


@pytest.mark.parametrize(
    ("rows", "outcome"),
    [
        ([row("/checkout/src/stack/__init__.py")], Outcome.PASS),
        ([row("/checkout/src/stack/__init__.py"), row("/checkout/src/stack/__init__.py", 2)], Outcome.PASS),
        ([row("/checkout/src/stack/__init__.py"), row("/site/stack/__init__.py", 2)], Outcome.BLOCKED),
        ([row("/checkout/src/stack2/__init__.py")], Outcome.BLOCKED),
        ([row(None)], Outcome.BLOCKED),
        ([], Outcome.BLOCKED),
    ],
)
def test_one_wrong_process_is_enough(rows: list[Import], outcome: Outcome) -> None:
    """Origin is right in all processes, or it is not right; a folder with a longer name is another folder."""
    assert run_origin("stack", Path("/checkout/src/stack"), rows).outcome is outcome


def test_driver_origin() -> None:
    """What this process would import is compared by folder."""
    found = module_file("json")
    assert found is not None
    assert found.samefile(json.__file__)
    assert driver_origin("json", found.parent).outcome is Outcome.PASS
    assert driver_origin("json", Path("/elsewhere")).outcome is Outcome.BLOCKED
    assert driver_origin("no_such_module_anywhere", Path("/elsewhere")).outcome is Outcome.BLOCKED


def test_torn_lines_are_left_out(tmp_path: Path) -> None:
    """A process killed while writing leaves half a line."""
    good = '{"pid": 1, "ppid": 0, "module": "stack", "file": "/a/stack.py", "program": ["python"]}'
    (tmp_path / "imports.jsonl").write_text(good + "\n" + good[:30] + "\n[]\n")
    assert [item.file for item in read_imports(tmp_path / "imports.jsonl")] == [Path("/a/stack.py")]
