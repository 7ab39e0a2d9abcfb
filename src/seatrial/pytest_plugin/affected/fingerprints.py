"""Fingerprints of everything that a test can depend on: a short text that changes with the content.

Besides files these are the command line's options (`--backend=vllm`, `-W error`, `-o key=value`) and installed
distributions: the one behind a top-level module, and the ones that it requires.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any, Final

from seatrial.pytest_plugin.affected.sources import Source, read_source, splits
from seatrial.pytest_plugin.affected.stats import STAT
from seatrial.pytest_plugin.affected.syntax import REST, digest
from seatrial.pytest_plugin.affected.watch import DIR, ENV, FILE, PY, UNWATCHED, is_ignored

OPTION = "option"
"""The value of a command-line option."""

_SELECTING = """
    collectonly continue_on_collection_errors deselect exitfirst failedfirst file_or_dir ignore ignore_glob
    keepduplicates keyword last_failed_no_failures lf markers markexpr maxfail newfirst pyargs show_fixtures_per_test
    showfixtures stepwise stepwise_reset stepwise_skip count repeat_scope reruns reruns_delay only_rerun rerun_except
    randomly_seed randomly_reorganize random_order_seed disable_socket_plugin splits group
"""
_REPORTING = """
    cacheclear cacheshow capture code_highlight color css debug disable_warnings durations durations_min
    fold_skipped force_short_summary fulltrace help html junitprefix no_header no_summary pastebin quiet
    reportchars self_contained_html setuponly setupplan setupshow showcapture showlocals tbstyle trace
    traceconfig usepdb usepdb_cls verbose version xfail_tb xmlpath max_warnings logger_disable
"""
_PLACES = (
    "basetemp cache_dir inifilename rootdir plugins disable_plugin_autoload collect_in_virtualenv noconftest"
)
_SPREADING = """
    dist distload forked boxed loadgroup logxfdist looponfail maxprocesses maxschedchunk max_worker_restart
    maxworkerrestart no_loadscope_reorder loadscopereorder numprocesses px rsyncdir rsyncignore testrunuid tx
"""
_CHANGES_NO_TEST = frozenset(" ".join((_SELECTING, _REPORTING, _PLACES, _SPREADING)).split())
"""Options of pytest and well-known plugins that select, distribute or report tests."""
_PREFIXES = (
    "affected", "tracker_", "functional_dir", "seatrial_", "cov", "no_cov", "testmon", "no-testmon", "tmnet", "_",
    "log_cli", "log_file", "json_report", "doctest_continue", "doctestreport",
)  # fmt: skip


def option_values(options: argparse.Namespace) -> dict[str, str]:
    """Return a digest of the value of each option that may change what a test does."""
    return {
        name: digest(json.dumps(_plain(value)).encode())
        for name, value in vars(options).items()
        if name not in _CHANGES_NO_TEST and not name.startswith(_PREFIXES)
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON; other objects are represented by their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else type(value).__qualname__


_INSTALLED = (".dist-info", ".egg-info")
_IN_RECORD = re.compile(r'^"?([^/,"\n]+?)(?:/[^\n]*)?\.py"?,', re.MULTILINE)
"""The top folder, or the module itself, of each Python file in a distribution's RECORD."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
ABSENT = "absent"


def version(distribution: str) -> str:
    """Return the installed version of a distribution, or `absent`."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ABSENT


class Packages:
    """Finds distributions; the environment is indexed once, on first use."""

    def __init__(self) -> None:
        self._index: Mapping[str, list[str]] | None = None
        self._requirements: dict[str, frozenset[str]] = {}

    def behind(self, modules: Iterable[str]) -> set[str]:
        """Return the distributions behind top-level modules, and all that they require, transitively.

        A module without a distribution counts as a distribution of its own name, so that installing it is noticed.
        """
        outside = {name for name in modules if name not in sys.stdlib_module_names}
        if not outside:
            return set()
        if self._index is None:
            self._index = distributions_by_module()
        found: set[str] = set()
        waiting = [name for module in outside for name in self._index.get(module, [module])]
        while waiting:
            name = _normal(waiting.pop())
            if name not in found:
                found.add(name)
                waiting.extend(self._required(name) - found)
        return found

    def _required(self, distribution: str) -> frozenset[str]:
        known = self._requirements.get(distribution)
        if known is None:
            known = self._requirements[distribution] = frozenset(_requirements(distribution))
        return known


def distributions_by_module() -> dict[str, list[str]]:
    """Return the distributions that provide each top-level module, like `metadata.packages_distributions`.

    That function parses each distribution's metadata for its name; the folder's name takes a tenth of the time.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for folder in dict.fromkeys(sys.path):
        try:
            installed = [path for path in Path(folder).iterdir() if path.name.endswith(_INSTALLED)]
        except OSError:
            continue
        for path in installed:
            for module in _modules_of(path):
                found[module].append(path.stem.partition("-")[0])
    return found


def _modules_of(installed: Path) -> Iterator[str]:
    for name in ("top_level.txt", "RECORD"):
        try:
            text = (installed / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        yield from set(text.split() if name == "top_level.txt" else _IN_RECORD.findall(text))
        return


def _requirements(distribution: str) -> list[str]:
    try:
        lines = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    names = [match[0] for line in lines if "extra ==" not in line and (match := _NAME.match(line))]
    # What only another system requires is absent, and its later presence is not a change of this project.
    return [name for name in map(_normal, names) if version(name) != ABSENT]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


PART: Final = "part"
"""A part of a Python file: `path::qualified name`, or `path::` for the rest."""
DIST: Final = "dist"
"""An installed distribution."""
GLOB: Final = "glob"
"""Files that a pattern matches, with their contents."""
PYTHON: Final = "python"
CONFIG: Final = "config"
"""pytest's own settings in a configuration file."""
SHADOW: Final = "shadow"
"""The project folders that contain a module of a name: `name@folder:folder`, in search order."""
MACHINE: Final = "machine"
"""Processor, system and GPUs: a test that was skipped on one machine may run on another."""
UNKNOWN: Final = "?"
"""Fingerprint of a file that changed while the tests ran: it equals no other."""

Known = tuple[str, str, dict[str, str]]
"""Digest of a file's bytes, fingerprint of its code, fingerprints of its parts."""


class Fingerprints:
    """Computes each fingerprint once.

    Args:
        root: the project.
        environ: the environment at the start of the session.
        known: what earlier sessions found in Python files; a file with the same bytes is not parsed again.
        options: digests of the values of the command line's options.
    """

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str],
        known: Mapping[str, Known],
        options: Mapping[str, str] | None = None,
    ) -> None:
        self._root = root
        self._environ = environ
        self._options = options or {}
        self.known: dict[str, Known] = dict(known)
        self._sources: dict[str, Source | None] = {}
        self._contents: dict[str, bytes | None] = {}
        self._looked_at: dict[str, Known | None] = {}
        self._names: dict[str, frozenset[str]] = {}
        self._found: dict[tuple[str, str], str] = {}
        self._at_start: dict[str, str] = {}

    def of(self, kind: str, name: str) -> str:
        """Return the fingerprint of one dependency."""
        key = (kind, name)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look(kind, name)
        return found

    def note_start(self, paths: Iterable[str], started: float) -> None:
        """Record the bytes of files before the tests run; a file that changed since `started` is left out."""
        unchanged = [path for path in paths if not changed_since(self._root / path, started)]
        self._at_start = {path: self.of(FILE, path) for path in unchanged}

    def is_as_at_start(self, path: str) -> bool:
        """Return whether a file has the bytes that it had when `note_start` was called."""
        return path in self._at_start and self._bytes(path) == self._at_start[path]

    def source(self, path: str) -> Source | None:
        """Return a parsed Python file; None if there is no such file."""
        if path not in self._sources:
            content = self._content(path)
            self._sources[path] = None if content is None else read_source(content, split=splits(path))
        return self._sources[path]

    def _look(self, kind: str, name: str) -> str:
        looks: dict[str, Callable[[str], str]] = {
            PY: self._code,
            PART: self._part,
            FILE: self._bytes,
            DIR: self._listing,
            ENV: self._variable,
            DIST: version,
            GLOB: self._matches,
            CONFIG: self._settings,
            OPTION: lambda option: self._options.get(option, ABSENT),
            SHADOW: self._holders,
            STAT: self._presence,
            UNWATCHED: lambda _: ABSENT,
            PYTHON: lambda _: f"{sys.implementation.name} {platform.python_version()}",
            MACHINE: lambda _: _machine(),
        }
        return looks[kind](name)

    def _code(self, path: str) -> str:
        known = self._up_to_date(path)
        return ABSENT if known is None or self._is_shadowed(path) else known[1]

    def _part(self, name: str) -> str:
        path, _, part = name.partition("::")
        known = self._up_to_date(path)
        if known is None or self._is_shadowed(path):
            return ABSENT
        # A function without its own part belongs to the rest; in a file without parts that is everything.
        return known[2].get(part, known[1] if part == REST else ABSENT)

    def _up_to_date(self, path: str) -> Known | None:
        """Return what is known of the current content of a Python file; None if it does not exist."""
        if path not in self._looked_at:
            self._looked_at[path] = self._as_it_is(path)
        return self._looked_at[path]

    def _as_it_is(self, path: str) -> Known | None:
        content = self._content(path)
        if content is None:
            return None
        raw = digest(content)
        known = self.known.get(path)
        if known is None or known[0] != raw:
            source = self.source(path)
            if source is None:
                return None
            parts = {name: part.fingerprint for name, part in source.parts.items()}
            known = self.known[path] = (raw, source.whole.fingerprint, parts)
        return known

    def _bytes(self, path: str) -> str:
        try:
            # A pipe or a device has no stable content, and reading it could block.
            if not (self._root / path).is_file():
                return ABSENT
            with (self._root / path).open("rb") as file:
                return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=10)).hexdigest()
        except OSError:
            return ABSENT

    def _content(self, path: str) -> bytes | None:
        if path not in self._contents:
            file = self._root / path
            try:
                self._contents[path] = file.read_bytes() if file.is_file() else None
            except OSError:
                self._contents[path] = None
        return self._contents[path]

    def _listing(self, path: str) -> str:
        try:
            names = [entry.name for entry in os.scandir(self._root / path)]
        except OSError:
            return ABSENT
        kept = sorted(name for name in names if not name.startswith(".") and not is_ignored(name))
        return digest("\n".join(kept).encode())

    def _is_shadowed(self, path: str) -> bool:
        """Return whether Python would import a package or an extension instead of a module."""
        folder, _, name = path.rpartition("/")
        stem = name.removesuffix(".py")
        if name == "__init__.py" or stem == name:
            return False
        here = self._entries(folder)
        return any(stem + suffix in here for suffix in EXTENSION_SUFFIXES) or (
            stem in here and "__init__.py" in self._entries(f"{folder}/{stem}" if folder else stem)
        )

    def _holders(self, name: str) -> str:
        module, _, folders = name.partition("@")
        held = [
            folder
            for folder in folders.split(":")
            if f"{module}.py" in self._entries(folder)
            or (
                module in self._entries(folder)
                and "__init__.py" in self._entries(f"{folder}/{module}".lstrip("/"))
            )
        ]
        return ":".join(held)

    def _entries(self, folder: str) -> frozenset[str]:
        found = self._names.get(folder)
        if found is None:
            try:
                found = frozenset(entry.name for entry in (self._root / folder).iterdir())
            except OSError:
                found = frozenset()
            self._names[folder] = found
        return found

    def _presence(self, path: str) -> str:
        place = self._root / path
        return "file" if place.is_file() else "folder" if place.exists() else ABSENT

    def _variable(self, name: str) -> str:
        value = self._environ.get(name)
        # The value may be a secret; the map may be shared.
        return ABSENT if value is None else digest(b"env:" + value.encode(errors="surrogateescape"))

    def _matches(self, pattern: str) -> str:
        state = hashlib.blake2b(digest_size=10)
        for path in sorted(self._root.glob(pattern)):
            relative = path.relative_to(self._root).as_posix()
            if path.is_file() and not is_ignored(relative):
                state.update(f"{relative}\0{self._bytes(relative)}\0".encode())
        return state.hexdigest()

    def _settings(self, path: str) -> str:
        """Return a digest of only pytest's settings: a linter's options in the same file affect no test."""
        content = self._content(path)
        if content is None or not path.endswith(".toml"):
            return self._bytes(path)
        try:
            data = tomllib.loads(content.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError):
            return self._bytes(path)
        return digest(repr(data.get("tool", {}).get("pytest")).encode())


def changed_since(path: Path, started: float) -> bool:
    """Return whether a file was written, or only touched, since a time in seconds since the epoch."""
    try:
        # Unlike the modification time, no tool resets the change time.
        return path.stat().st_ctime >= started
    except OSError:
        return False


def _machine() -> str:
    from seatrial.pytest_plugin.gpus import visible_gpus

    return ", ".join([platform.machine(), platform.system(), *(gpu.name for gpu in visible_gpus())])
