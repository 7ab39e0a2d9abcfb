"""Directories that appear whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from refrl.config.loading import ConfigError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Put a file's name into the errors of writing it: a full disk is reported without one.

    Raises:
        OSError: as it was raised within, with the path.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from error


@contextmanager
def new_directory(output: Path) -> Iterator[Path]:
    """Give a temporary directory to fill; it gets its name when the block ends well, and is removed otherwise.

    Args:
        output: an empty or missing directory.

    Raises:
        ConfigError: the directory cannot be made.
    """
    if output.resolve() == Path.cwd():
        raise ConfigError("an empty name of a directory, or '.', is the current folder: name a new one")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    except OSError as error:
        raise ConfigError(f"cannot write the model directory {output}: {error}") from error
    try:
        yield temporary
        _open(temporary)
        temporary.replace(output)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _open(directory: Path) -> None:
    """Give a directory and its files the permissions of new ones: `mkdtemp` and safetensors make them private."""
    plain = directory / ".plain"
    plain.mkdir()
    directory.chmod(plain.stat().st_mode)
    plain.rmdir()
    plain.touch()
    mode = plain.stat().st_mode
    plain.unlink()
    for path in directory.rglob("*"):
        if path.is_file():
            path.chmod(path.stat().st_mode | mode)
