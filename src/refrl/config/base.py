"""The base class of every section of the configuration."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Frozen; an unknown key or a number that is not finite is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _not_empty(directory: str) -> str:
    if not directory.strip():
        raise PydanticCustomError(
            "empty_directory", "expected a directory (an unset shell variable is empty)"
        )
    return directory


Directory = Annotated[str, AfterValidator(_not_empty)]
"""A directory that the run writes to; an empty value would be the current folder."""
