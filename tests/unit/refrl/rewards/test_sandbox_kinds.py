"""Each kind of sandbox that this machine permits holds what a completion tries; it is said which kind that is."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from refrl.config import ConfigError
from refrl.rewards import sandbox, sandbox_kinds
from refrl.rewards.code import code_output, sandbox_of
from refrl.rewards.sandbox import SandboxLimits, isolation, run_python
from refrl.rewards.sandbox_kinds import KINDS, Kind
from refrl.rewards.verifiers import VerifierError

ROOMY = SandboxLimits(wall_seconds=60, cpu_seconds=30)
ATTACKS = Path(__file__).with_name("sandbox_attacks.py").read_text()
OF_KERNEL: tuple[Kind, ...] = ("bubblewrap", "namespaces", "landlock")


@cache
def refusal(kind: Kind) -> str | None:
    """Return why this machine does not permit a kind, as far as `run_python` says."""
    try:
        run_python("print(1)", limits=ROOMY, kind=kind)
    except VerifierError as error:
        return str(error)
    return None


def permitted(kind: Kind) -> None:
    if reason := refusal(kind):
        pytest.skip(f"{kind}: {reason}")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a file as a run writes it: prompts with their answers."""
    path = tmp_path / "train_data_step1.jsonl"
    path.write_text(json.dumps({"answer": "the answer"}))
    path.chmod(0o644)
    return path


@pytest.mark.parametrize("kind", OF_KERNEL)
def test_no_attempt_gets_through(kind: Kind, secret: Path) -> None:
    """More than twenty ways to read what is outside, to leave something behind, or to reach another process."""
    permitted(kind)
    result = run_python(f"SECRET = {str(secret)!r}\n{ATTACKS}", limits=ROOMY, kind=kind)
    assert result.stdout.splitlines() == ["end"]
    assert result.isolation.missing() == ()
    assert sorted(path.name for path in secret.parent.iterdir()) == [secret.name]


def test_the_attempts_get_through_without_a_sandbox(secret: Path) -> None:
    """The attempts are real ones."""
    program = f"SECRET = {str(secret)!r}\n{ATTACKS}"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=secret.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    Path("/dev/shm/refrl-sandbox-left").unlink(missing_ok=True)
    through = set(ran.stdout.splitlines())
    assert {
        "by_absolute_path",
        "by_symlink",
        "by_system_call",
        "by_subprocess",
        "by_folder_descriptor",
    } <= through
    assert {"by_socket", "by_writing_beside", "by_memory_file", "by_environment_of_the_caller"} <= through


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_that_prints_the_runs_own_answers_scores_nothing(
    kind: Kind, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last resort as well refuses the plain form."""
    permitted(kind)
    monkeypatch.setattr(sandbox, "isolation", lambda: run_python("", limits=ROOMY, kind=kind).isolation)
    completion = f"import json\nprint(json.load(open({str(secret)!r}))['answer'])"
    assert code_output(completion, json.dumps([{"stdout": "the answer"}]), ROOMY) == 0.0
    assert code_output("print('the answer')", json.dumps([{"stdout": "the answer"}]), ROOMY) == 1.0


def test_the_last_resort_refuses_ordinary_attempts_and_says_what_it_lacks(secret: Path) -> None:
    """Not those of somebody who knows the interpreter: no lock on files is reported."""
    attacks = ATTACKS.replace("import ctypes\n", "").replace(
        "LIBC = ctypes.CDLL(None, use_errno=True)\n", "LIBC = None\n"
    )
    result = run_python(f"SECRET = {str(secret)!r}\n{attacks}", limits=ROOMY, kind="audit hook")
    assert "files" in result.isolation.missing()
    assert result.isolation.describe().startswith("audit hook, without a lock on")
    assert result.stdout.splitlines() == ["end"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_uses_the_standard_library_and_its_own_files(kind: Kind) -> None:
    """What is closed off costs an ordinary program nothing."""
    permitted(kind)
    program = (
        "import collections, decimal, heapq, itertools, json, math, random, re, string, sys\n"
        "open('notes.txt', 'w').write('kept')\n"
        "print(open('notes.txt').read(), sys.stdin.read(), json.dumps([math.pi > 3]))"
    )
    assert run_python(program, "in", ROOMY, kind).stdout == "kept in [true]\n"


@pytest.mark.parametrize("kind", KINDS)
def test_the_disk_is_bounded(kind: Kind) -> None:
    """Many files that are each small enough end at the size of the scratch folder."""
    permitted(kind)
    limits = SandboxLimits(wall_seconds=30, cpu_seconds=20, scratch_bytes=2**22)
    program = "n = 0\nwhile True:\n    open(str(n), 'wb').write(bytes(2**20 - 1))\n    n += 1\n    print(n, flush=True)"
    result = run_python(program, limits=limits, kind=kind)
    assert not result.succeeded
    assert result.outcome != "timeout"
    written = int(result.stdout.split()[-1]) * 2**20
    # On disk the size is looked at every fiftieth of a second.
    assert written <= (limits.scratch_bytes if kind in ("bubblewrap", "namespaces") else 2**30)


@pytest.mark.parametrize("kind", OF_KERNEL)
def test_nothing_of_a_run_is_left_for_the_next(kind: Kind) -> None:
    """Its folder, its shared memory and its descriptors die with it."""
    permitted(kind)
    before = set(Path("/dev/shm").iterdir())
    run_python("open('left', 'w').write('x')", limits=ROOMY, kind=kind)
    after = run_python("import os\nprint(os.listdir('.'))", limits=ROOMY, kind=kind)
    assert after.stdout == "['program.py']\n"
    assert set(Path("/dev/shm").iterdir()) <= before


@pytest.mark.parametrize("kind", KINDS)
def test_limits_of_time_and_memory_hold_in_each_kind(kind: Kind) -> None:
    """As in the plain tests of the sandbox."""
    permitted(kind)
    loop = run_python("while True: pass", limits=SandboxLimits(wall_seconds=60, cpu_seconds=1), kind=kind)
    assert loop.outcome == "killed"
    full = run_python("x = bytearray(2**31)", limits=ROOMY, kind=kind)
    assert "MemoryError" in full.stderr


def test_the_strongest_kind_that_runs_is_chosen_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bwrap the next one serves; a run without programs asks for none."""
    monkeypatch.setattr(sandbox_kinds.shutil, "which", lambda name: "/nonexistent/bwrap")
    isolation.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match="weaker than others: bubblewrap: ") as warned:
            chosen = isolation()
            isolation()
        assert len(warned) == 1
        assert chosen.kind != "bubblewrap"
        assert run_python("print(1)", limits=ROOMY).isolation.kind == chosen.kind
        assert sandbox_of(["exact_match", "code_output"]) == chosen.describe()
        assert sandbox_of(["exact_match"]) is None
    finally:
        isolation.cache_clear()


def test_an_unknown_processor_has_no_filter_of_system_calls_and_the_run_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without the numbers of its system calls there is no filter, and no root of the program's own."""
    kept = [kind for kind in ("landlock", "audit hook") if refusal(kind) is None]
    child = tmp_path / "child.py"
    child.write_text(sandbox_kinds.CHILD.read_text().replace("platform.machine()", "'riscv64'"))
    monkeypatch.setattr(sandbox_kinds, "CHILD", child)
    with pytest.raises(VerifierError, match=r"the number of pivot_root on riscv64 is not known") as refused:
        run_python("print(1)", limits=ROOMY, kind="namespaces")
    assert "Traceback" not in str(refused.value)
    for kind in kept:
        found = run_python("print(1)", limits=ROOMY, kind=kind)
        assert (found.stdout, found.isolation.processes) == ("1\n", False), kind
        assert "processes" in found.isolation.missing()


def test_a_machine_without_any_sandbox_is_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every kind and why it does not serve."""
    monkeypatch.setattr(sandbox_kinds, "CHILD", Path("/nonexistent/child.py"))
    isolation.cache_clear()
    try:
        with pytest.raises(
            ConfigError, match=r"no sandbox runs a program on this machine; bubblewrap: .*audit hook: "
        ):
            sandbox_of(["code_output"])
    finally:
        isolation.cache_clear()
