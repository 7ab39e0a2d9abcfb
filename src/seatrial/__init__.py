"""Seatrial tests RL post-training stacks for language models: does a stack work, and does it learn?"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Import the public names when they are first used, so that `import seatrial` stays light."""
    if name in ("Outcome", "Verdict", "combine", "exit_code"):
        from seatrial import verdict

        return getattr(verdict, name)
    if name == "parametrize_with_relations":
        from seatrial.relations import parametrize_with_relations

        return parametrize_with_relations
    raise AttributeError(f"module 'seatrial' has no attribute {name!r}")
