"""Options of a custom part: a mapping in the configuration, validated against the part's own schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from refrl.config.base import Section
from refrl.config.loading import describe_problems

OptionsT = TypeVar("OptionsT", bound=BaseModel)


class NoOptions(Section):
    """The schema of a part without options."""


def parse_options(schema: type[OptionsT], options: Mapping[str, Any], key: str) -> OptionsT:
    """Return the options as an instance of their schema.

    Args:
        schema: of the part.
        options: as configured.
        key: their key in the configuration, for messages.

    Raises:
        ValueError: one line that names each dotted key at fault.
    """
    try:
        return schema.model_validate_json(json.dumps(dict(options)), strict=True)
    except ValidationError as error:
        if not schema.model_fields:
            raise ValueError(f"{key}.{next(iter(options))} is unknown; there are no options") from error
        raise ValueError(describe_problems(schema, error, prefix=f"{key}.")) from error
