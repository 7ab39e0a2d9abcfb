"""The base classes of the configuration's sections."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError


class Section(BaseModel):
    """Frozen; an unknown key or a number that is not finite is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SwitchedSection(Section):
    """A section whose other options need `enabled`."""

    key: ClassVar[str]
    """Dotted key of the section, for messages."""
    enabled: bool = False
    """Whether the other options have an effect."""

    @model_validator(mode="after")
    def _options_are_enabled(self) -> Self:
        for name, field in type(self).model_fields.items():
            if name != "enabled" and not self.enabled and getattr(self, name) != field.default:
                raise ValueError(
                    f"{self.key}.{name} has no effect without {self.key}.enabled=true: set it, or leave {name} out"
                )
        return self


def _not_empty(directory: str) -> str:
    if not directory.strip():
        raise PydanticCustomError(
            "empty_directory", "expected a directory (an unset shell variable is empty)"
        )
    return directory


Directory = Annotated[str, AfterValidator(_not_empty)]
"""A directory; an empty value would be the current folder."""
