"""Environments: our own, and those of other projects' libraries, made once and kept: by uv, or by pip where uv cannot.

`python -m tests.peers.making WORD ...` installs for its own interpreter, and is what `make` calls.
`python -m tests.peers.making --environments NAME ...` makes environments of environments.toml that are missing.

uv reads no configuration of pip's: where packages come from is asked of pip when an environment is made, and handed to
uv in its environment variables, so that it stands neither in a file nor in a list of processes.
"""

import ast
import fcntl
import hashlib
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("SEATRIAL_PEER_ENVIRONMENTS", ROOT / ".venv-peers"))
OWN = sysconfig.get_path("purelib")
"""Packages of the tests' own environment."""
SECTIONS = ("global", "install", ":env:")
"""Of pip's configuration, for `pip install`; a later one has the last word."""
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "proxy": ("ALL_PROXY", " "),
}
"""By option of pip: the variable that tells uv the same, and what stands between several values of it."""


class MakingError(Exception):
    """Packages could not be installed; the installer's last words, without credentials."""


def environment(name: str) -> Path:
    """Return the interpreter of an environment of environments.toml, which is made when it is missing.

    Raises:
        MakingError: its packages could not be installed.
    """
    wanted = tomllib.loads((ROOT / "tests/peers/environments.toml").read_text())[name]
    requirements = [str(item) for item in wanted["requirements"]]
    alone = [str(item) for item in wanted.get("without_dependencies", [])]
    left_out = [str(item) for item in wanted.get("left_out", [])]
    beside = [OWN] if wanted.get("beside", False) else []
    key = hashlib.sha256(
        "\n".join([sys.version, *requirements, *alone, *beside, *left_out]).encode()
    ).hexdigest()[:12]
    home = PEERS / f"{name}-{key}"
    python = home / "bin" / "python"
    PEERS.mkdir(parents=True, exist_ok=True)
    with (PEERS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / ".ready").exists():
            try:
                _clear(home, beside)
                _with_uv(python, requirements, alone, left_out, beside)
            except MakingError as error:
                warnings.warn(
                    f"environment {name!r} is made by pip, which takes longer: {error}", stacklevel=2
                )
                _clear(home, beside)
                _with_pip(python, requirements, alone, left_out)
            (home / ".ready").touch()
    return python


def install(python: Path, words: Sequence[str]) -> None:
    """Install packages for an interpreter: by uv, or by pip where uv cannot.

    Args:
        python: of the environment, which needs neither.
        words: what both are told after `install`.

    Raises:
        MakingError: neither could.
    """
    try:
        _run([*_uv(), "install", "--python", str(python), *words], uv_variables())
    except MakingError as error:
        warnings.warn(f"{' '.join(words)}: by pip, which takes longer: {error}", stacklevel=2)
        _pip(python, words)


def main(words: Sequence[str]) -> int:
    """Install for this interpreter, compiled, or make environments, and return an exit status.

    A project that is worked in starts hundreds of processes, and some machines keep them from writing what they
    compile.
    """
    if words[0] == "--environments":
        return _make(words[1:])
    try:
        _run([*_uv(), "install", "--python", sys.executable, "--compile-bytecode", *words], uv_variables())
    except MakingError as error:
        print(f"installing by pip, which takes longer: {error}", file=sys.stderr)
        try:
            _run([sys.executable, "-m", "pip", "install", "--quiet", *words])
        except MakingError as failed:
            print(f"the environment could not be made: {failed}", file=sys.stderr)
            return 2
    return 0


def _make(names: Iterable[str]) -> int:
    """Make each environment that is missing; return 2 if one could not be made."""
    status = 0
    for name in names:
        try:
            environment(name)
        except MakingError as failed:
            print(f"environment {name!r} could not be made: {failed}", file=sys.stderr)
            status = 2
    return status


def uv_variables() -> dict[str, str]:
    """Return environment variables with which uv takes packages from where pip would take them."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    return variables_of(listed.stdout, os.environ)


def variables_of(listed: str, present: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of uv.

    Args:
        listed: what `pip config list` says: a line `SECTION.OPTION='VALUE'` each.
        present: environment variables that are set; those of uv's own are left as they are.
    """
    options: dict[str, str] = {}
    lines = [match.groups() for match in re.finditer(r"^([^.\n]+)\.([\w-]+)=(.+)$", listed, re.MULTILINE)]
    for section in SECTIONS:
        options |= {option: str(ast.literal_eval(value)) for at, option, value in lines if at == section}
    found = {
        variable: between.join(options[option].split())
        for option, (variable, between) in VARIABLES.items()
        if options.get(option, "").strip()
    }
    # As pip does: every index is asked, and the best version taken wherever it is.
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **found, **present}


def _clear(home: Path, beside: Sequence[str]) -> None:
    """Make an empty environment, which sees the packages of these folders behind its own."""
    venv.EnvBuilder(clear=True).create(home)
    for folder in home.glob("lib/python*/site-packages"):
        (folder / "beside.pth").write_text("".join(f"{place}\n" for place in beside))


def _with_uv(
    python: Path,
    requirements: Sequence[str],
    alone: Sequence[str],
    left_out: Sequence[str],
    beside: Sequence[str],
) -> None:
    """Install what is not beside already: uv does not look there, so what is there is what it would rather have."""
    variables = uv_variables()
    there = {f"{_plain(one.name)}=={one.version}" for one in distributions(path=list(beside))}
    with tempfile.TemporaryDirectory() as folder:
        asked, excluded, found = (Path(folder) / name for name in ("asked.txt", "excluded.txt", "found.txt"))
        asked.write_text("\n".join(requirements))
        excluded.write_text("\n".join(left_out))
        found.write_text("\n".join(sorted(there)))
        plain = ["--quiet", "--no-header", "--no-annotate", "--python", str(python)]
        _run(
            [*_uv(), "compile", *plain, "--excludes", str(excluded), "-o", str(found), str(asked)], variables
        )
        missing = [line for line in found.read_text().split("\n") if line and line not in there]
    for words in (missing, list(alone)):
        if words:
            _run(
                [*_uv(), "install", "--quiet", "--python", str(python), "--no-deps", *words],
                variables,
            )


def _with_pip(
    python: Path, requirements: Sequence[str], alone: Sequence[str], left_out: Sequence[str]
) -> None:
    _pip(python, requirements)
    if alone:
        _pip(python, ["--no-deps", *alone])
    if left_out:
        _run([sys.executable, "-m", "pip", "--python", str(python), "uninstall", "--yes", *left_out])


def _pip(python: Path, words: Iterable[str]) -> None:
    # Our own pip, called on an environment that then needs none.
    _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--no-compile", *words])


def _uv() -> list[str]:
    if importlib.util.find_spec("uv") is None:
        raise MakingError(f"{sys.executable} has no uv (python -m pip install uv)")
    return [sys.executable, "-m", "uv", "pip"]


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    try:
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    except OSError as error:
        raise MakingError(str(error)) from error
    if ran.returncode:
        raise MakingError(re.sub(r"://[^/@\s]+@", "://", ran.stderr.strip())[-600:])


def _plain(name: str) -> str:
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
