"""Stacks under test: the reference stack, stacks of others, and those of installed packages.

A package adds a target with an entry point of the group `seatrial.targets` that names a class, or a function without
arguments, which gives a `seatrial.targets.base.Target`:

    [project.entry-points."seatrial.targets"]
    my-stack = "my_package.target:MyTarget"
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from seatrial.errors import UsageError
from seatrial.nearest import hint
from seatrial.targets.base import Target

GROUP = "seatrial.targets"
REFERENCE = EntryPoint("reference", "seatrial.targets.reference.target:ReferenceTarget", GROUP)
"""Ours, also where the package is on the path and not installed."""
PEERS = tuple(
    EntryPoint(name, f"seatrial.targets.{name.replace('-', '_')}.target:{target}", GROUP)
    for name, target in (
        ("accelerate", "AccelerateTarget"),
        ("liger", "LigerTarget"),
        ("nemo-rl", "NemoRLTarget"),
        ("openrlhf", "OpenRLHFTarget"),
        ("peft", "PeftTarget"),
        ("transfer-queue", "TransferQueueTarget"),
        ("transformers", "TransformersTarget"),
        ("trl", "TRLTarget"),
        ("verl", "VerlTarget"),
    )
)
"""Stacks that the relations check if they are installed."""


def _points() -> dict[str, EntryPoint]:
    return {point.name: point for point in (*entry_points(group=GROUP), *PEERS, REFERENCE)}


def target_names() -> list[str]:
    """Return the names that `--target` takes, in addition to YAML files."""
    return sorted(_points())


def get_target(name: str) -> Target:
    """Return a target by name, whose module is imported now, or the target of a YAML file.

    Raises:
        UsageError: it is unknown (the nearest name is given), its package cannot be imported, or the file is wrong.
    """
    if name.endswith((".yaml", ".yml")):
        from seatrial.targets.command.target import CommandTarget

        return CommandTarget(Path(name))
    points = _points()
    if name not in points:
        raise UsageError(f"--target {name!r} is unknown; {hint(name, sorted(points))}")
    try:
        target: Target = points[name].load()()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"--target {name} ({points[name].value}) cannot be loaded: {error}; fix or uninstall that package"
        ) from error
    return target
