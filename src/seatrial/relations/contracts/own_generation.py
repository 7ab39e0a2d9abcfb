"""Contract of any model that generates, from texts, pictures or sounds, by the options that all have in common.

Part of `seatrial.relations.contracts`, which lists every component. The distribution of each id: `decoding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Generated(NamedTuple):
    """What a call returns."""

    rows: list[list[int]]
    """New ids of each row; several codebooks are laid end to end, step by step."""
    width: int
    """Ids of a step: 1, or the number of codebooks."""


@runtime_checkable
class OwnGeneration(Protocol):
    """A tiny model with a `generate` method."""

    prompts: Sequence[Sequence[int]]
    """Rows of ids of unequal lengths."""
    end_id: int
    generates_text: bool
    """Whether ids are those of the vocabulary, by which penalties and bans apply."""

    def generated(
        self,
        options: Mapping[str, Any],
        *,
        places: Sequence[int] = (0,),
        seed: int = 0,
        defaults: Mapping[str, Any] | None = None,
        as_config: bool = False,
    ) -> Generated:
        """Generate.

        Args:
            options: by the names of `GenerationConfig`.
            places: of the prompts of the batch, which is padded on the left.
            seed: of the draws.
            defaults: options that the model has of its own.
            as_config: whether the options are given as one `GenerationConfig`.

        Raises:
            NotServed: the release has no such option, or the model refuses it.
        """
        ...
