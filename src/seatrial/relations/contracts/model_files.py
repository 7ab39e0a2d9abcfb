"""Contract of a model's files: what is read from them is what was written, in every form of files.

Part of `seatrial.relations.contracts`, which lists every component. Checkpoints of a run: `Saving` there.
"""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

FileForm = Literal[
    "as it is", "in shards", "in bfloat16", "base of the whole", "whole of the base", "another tied name"
]


@runtime_checkable
class ModelFiles(Protocol):
    """One tiny model with its files."""

    def file_errors(self, form: FileForm) -> list[str]:
        """Write the model, read it again, and return what differs: tensors, names that are missing or unexpected.

        Args:
            form: `base of the whole` reads the model without its head from files of all of it, `whole of the base` the
                other way around; `another tied name` has tied weights under each of their other names in turn.

        Raises:
            NotServed: the release has no such form of the model.
        """
        ...
