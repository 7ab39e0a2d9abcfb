"""Import origins: which file a named module came from, on the driver and in every process of a run.

A run whose processes imported another checkout is no evidence about the checkout under test.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seatrial.verdict import Outcome, Verdict

OBSERVER = Path(__file__).parent / "observer"
"""Folder of the `sitecustomize` that records imports."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """One module imported by one process."""

    pid: int
    ppid: int
    module: str
    file: Path | None
    """File of the module; folder of a namespace package; None for a module without a file."""
    program: tuple[str, ...]
    """First words of the process's command line."""


def observing_environment(
    environment: Mapping[str, str], modules: Sequence[str], imports_file: Path
) -> dict[str, str]:
    """Return the environment with the import observer put first on PYTHONPATH.

    Args:
        environment: the environment of the command.
        modules: full names of the modules to watch (`refrl`, `megatron.bridge`).
        imports_file: where the processes of the command append what they imported.
    """
    later = environment.get("PYTHONPATH", "")
    return {
        **environment,
        "PYTHONPATH": os.pathsep.join([str(OBSERVER), later] if later else [str(OBSERVER)]),
        "SEATRIAL_IMPORTS_FILE": str(imports_file),
        "SEATRIAL_IMPORTS_MODULES": ",".join(modules),
    }


def read_imports(imports_file: Path) -> list[Import]:
    """Read what the processes of a run recorded; a missing file gives an empty list, an incomplete line is skipped."""
    if not imports_file.exists():
        return []
    rows = []
    for line in imports_file.read_text(errors="replace").splitlines():
        try:
            row = json.loads(line)
            rows.append(
                Import(
                    pid=int(row["pid"]),
                    ppid=int(row["ppid"]),
                    module=str(row["module"]),
                    file=Path(row["file"]) if row["file"] is not None else None,
                    program=tuple(str(word) for word in row["program"]),
                )
            )
        except (ValueError, KeyError, TypeError):
            continue
    return rows


def module_file(name: str) -> Path | None:
    """Return the file that `import name` would read in this process, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.has_location and spec.origin is not None:
        return Path(spec.origin).resolve()
    places = list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places else None


def driver_origin(module: str, expected: Path) -> Verdict:
    """Judge where this process would import `module` from, against the folder it should come from."""
    name = f"origin of {module} on the driver"
    file = module_file(module)
    if file is None:
        return Verdict(
            name=name,
            outcome=Outcome.BLOCKED,
            reason=f"{module} cannot be imported here; it should come from {expected}",
            bound=f"under {expected}",
        )
    return _judge(name, module, [file], expected, processes=1)


def run_origin(module: str, expected: Path, imports: Sequence[Import]) -> Verdict:
    """Judge where the processes of a run imported `module` from; Blocked when no import was observed."""
    name = f"origin of {module} in the run"
    seen = [item for item in imports if item.module == module]
    if not seen:
        return Verdict(
            name=name,
            outcome=Outcome.BLOCKED,
            reason=f"no process of the run was observed importing {module}: its origin is not known "
            "(does the command drop PYTHONPATH, or run Python with -I, -E or -S?)",
            bound=f"under {expected}",
        )
    files = [item.file for item in seen if item.file is not None]
    if len(files) < len(seen):
        return Verdict(
            name=name,
            outcome=Outcome.BLOCKED,
            reason=f"a process of the run imported {module} from no file",
            bound=f"under {expected}",
            num_samples=len(seen),
        )
    return _judge(name, module, files, expected, processes=len({item.pid for item in seen}))


def _judge(name: str, module: str, files: Sequence[Path], expected: Path, processes: int) -> Verdict:
    root = expected.resolve()
    wrong = sorted({str(file) for file in files if not file.resolve().is_relative_to(root)})
    if wrong:
        return Verdict(
            name=name,
            outcome=Outcome.BLOCKED,
            reason=f"{module} came from {', '.join(wrong)}, not from {expected}: this is no evidence about the "
            "checkout under test; remove the other one from PYTHONPATH",
            value=wrong[0],
            bound=f"under {expected}",
            num_samples=len(files),
        )
    return Verdict(
        name=name,
        outcome=Outcome.PASS,
        reason=f"imported from there by {processes} process{'es' if processes > 1 else ''}",
        value=str(files[0]),
        bound=f"under {expected}",
        num_samples=len(files),
    )
