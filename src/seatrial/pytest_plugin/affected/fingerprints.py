"""Fingerprints of everything that a test can depend on: a short text that changes with the content."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Mapping
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

from seatrial.pytest_plugin.affected.options import OPTION
from seatrial.pytest_plugin.affected.packages import ABSENT, version
from seatrial.pytest_plugin.affected.parts import REST, digest
from seatrial.pytest_plugin.affected.sources import Source, read_source, splits
from seatrial.pytest_plugin.affected.stats import STAT
from seatrial.pytest_plugin.affected.watch import DIR, ENV, FILE, PY, UNWATCHED, is_ignored

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

    def of(self, kind: str, name: str) -> str:
        """Return the fingerprint of one dependency."""
        key = (kind, name)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._look(kind, name)
        return found

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


def _machine() -> str:
    from seatrial.pytest_plugin.gpus import visible_gpus

    return ", ".join([platform.machine(), platform.system(), *(gpu.name for gpu in visible_gpus())])
