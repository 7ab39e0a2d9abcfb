"""Real containers: Podman with runc, on images made of this machine's own programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.e2e.test_compare import BROKE, FINITE, MODE, NAN, STACK, TOY, of_kind, save

from seatrial.launch.container import ContainerRun, launch
from seatrial.trials.rundir import read_results

pytestmark = [pytest.mark.e2e, pytest.mark.nightly, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAMS = ("sh", "cat", "env", "id", "sleep")
IMAGE = "seatrial-test:1"
_ENGINE = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
runc = ["{runc}"]
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=100:100"]
"""
_STORAGE = '[storage]\ndriver = "vfs"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def missing() -> str:
    """Return why there can be no container here; empty if there can."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
    absent = [name for name in ("podman", "runc", "tar", "ldd") if shutil.which(name, path=path) is None]
    if not Path("/usr/libexec/podman/catatonit").exists() and shutil.which("catatonit", path=path) is None:
        absent.append("catatonit")
    if absent:
        return f"{', '.join(absent)} not installed: apt-get install podman runc catatonit"
    return "" if os.geteuid() == 0 else "Podman with runc is tried as root only"


def fill_root(root: Path) -> None:
    """Copy programs and their libraries to what becomes the image's root."""
    for name in PROGRAMS:
        found = shutil.which(name)
        assert found is not None
        listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout.split()
        for file in [Path(found), *(Path(word) for word in listed if word.startswith("/"))]:
            copy = root / file.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, copy)
        if not (root / "bin" / name).exists():
            (root / "bin").mkdir(exist_ok=True)
            shutil.copy(found, root / "bin" / name)
    for name in ("tmp", "proc", "sys", "dev", "etc"):
        (root / name).mkdir(exist_ok=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\n")


def import_image(root: Path, name: str, environment: dict[str, str]) -> None:
    """Make an image of a folder."""
    with subprocess.Popen(["tar", "-C", str(root), "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
        subprocess.run(["podman", "import", "-", name], stdin=tar.stdout, env=environment, check=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of Podman with the image; the tests are skipped where its packages are missing."""
    if reason := missing():
        pytest.skip(f"no container here: {reason}")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "containers.conf").write_text(
        _ENGINE.format(runc=shutil.which("runc") or shutil.which("runc", path="/usr/sbin"))
    )
    (folder / "storage.conf").write_text(_STORAGE.format(folder=folder))
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(folder / "containers.conf"),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    root = folder / "image"
    root.mkdir()
    fill_root(root)
    import_image(root, IMAGE, environment)
    yield environment
    subprocess.run(["podman", "rmi", "--all", "--force"], env=environment, check=True)


@pytest.fixture
def container(engine: dict[str, str], tmp_path: Path) -> Run:
    """Return a function that runs a command in a container, with options of `seatrial container run` before it."""

    def run(
        *command: str, options: tuple[str, ...] = (), **variables: str
    ) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "-m", "seatrial", "container", "run", "--engine", "podman", "--image", IMAGE]
        return subprocess.run(
            [*words, "--gpus", "none", *options, "--", *command],
            cwd=tmp_path,
            env={**engine, **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_arguments_and_exit_status_come_through(container: Run) -> None:
    words = ["a b", "it's", '"$HOME"', "", "*", "line\nline"]
    ran = container("sh", "-c", 'for word; do echo "<$word>"; done; exit 7', "sh", *words)
    assert ran.returncode == 7, ran.stderr
    assert ran.stdout == "".join(f"<{word}>\n" for word in words)


def test_the_working_directory_is_shared_and_a_mount_can_be_read_only(container: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "in").write_text("rows")
    script = "cat /data/in > out; (echo x > /data/new) 2>/dev/null || echo refused"
    ran = container("sh", "-c", script, options=("--mount", f"{data}:/data:ro"))
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "out").read_text() == "rows"
    assert ran.stdout == "refused\n"
    assert not (data / "new").exists()
    assert (tmp_path / "out").stat().st_uid == os.getuid()


def test_named_variables_are_passed_and_no_others(container: Run) -> None:
    ran = container("env", options=("--env", "MINE"), MINE="a=b c", OTHER="secret")
    assert "MINE=a=b c\n" in ran.stdout
    assert "secret" not in ran.stdout


def test_a_signal_ends_the_command_in_the_container(engine: dict[str, str], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "seatrial", "container", "run", "--engine", "podman", "--image", IMAGE]
    process = subprocess.Popen(
        [*words, "--gpus", "none", "--", "sh", "-c", "echo up; exec sleep 100"],
        cwd=tmp_path,
        env=engine,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    left = subprocess.run(
        ["podman", "ps", "--all", "--quiet"], env=engine, capture_output=True, text=True, check=True
    )
    assert left.stdout == ""


@pytest.mark.parametrize(("user", "keeps"), [(0, False), (1000, True)])
def test_only_a_user_who_is_not_root_keeps_the_id(
    user: int, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Podman of root refuses `--userns=keep-id`."""
    monkeypatch.setattr(os, "getuid", lambda: user)
    made = launch("podman", ContainerRun(image=IMAGE, command=("true",), gpus="none"), {})
    assert ("--userns=keep-id" in made.argv) is keeps


def test_two_images_are_compared(engine: dict[str, str], tmp_path: Path) -> None:
    """The stack is in the images alone, and HEAD's logs NaN; Python is this machine's, mounted."""
    sound = TOY.read_text()
    assert MODE in sound
    for name, text in (("base", sound), ("head", sound.replace(MODE, NAN))):
        root = tmp_path / name
        root.mkdir()
        fill_root(root)
        (root / "stack").mkdir()
        (root / "stack" / "toy_command.py").write_text(text)
        import_image(root, f"{name}:1", engine)
    target = {**STACK, "run": [sys.executable, "/stack/toy_command.py"]}
    (tmp_path / "stack.yaml").write_text(yaml.safe_dump(target, sort_keys=False))
    save(tmp_path / "model", {name: np.ones((3, 5), dtype=np.float32) for name in ("embed", "head")})
    environment = Path(sys.executable).parent.parent
    places = {*map(str, (environment, environment.resolve())), sys.base_prefix, "/usr", "/lib", "/lib64"}
    mounts = [word for place in sorted(places) for word in ("--mount", f"{place}:{place}:ro")]
    words = ["--image", "base:1", "head:1", "--engine", "podman", "--python", sys.executable, sys.executable]
    ran = subprocess.run(
        [sys.executable, "-m", "seatrial", "compare", *words, *mounts, "--mount", str(tmp_path / "model"),
         "--target", "stack.yaml", "--trial", "sft-smoke", f"model={tmp_path / 'model'}"],
        cwd=tmp_path, env=engine, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    (run,) = (tmp_path / "runs").iterdir()
    results = read_results(run)
    assert FINITE in of_kind(results, BROKE)
    assert "base:1 against head:1" in results.target
