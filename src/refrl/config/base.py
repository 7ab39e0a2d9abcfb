"""The base class of every section of the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen; an unknown key or a number that is not finite is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
