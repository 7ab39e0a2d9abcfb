"""Families whose heads the laws judge: options of a tiny model, heads left out, and known failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from seatrial.targets.common.known import Releases, every_release

FAMILIES: Mapping[str, Mapping[str, Any]] = {
    name: {} for name in ("bert", "roberta", "electra", "ernie", "data2vec-text", "t5", "bart", "qwen2")
}
NO_HEADS: Mapping[str, Sequence[str]] = {}


@dataclass(frozen=True, kw_only=True)
class HeadFailure:
    """A known failure of heads."""

    families: Sequence[str]
    kinds: Sequence[str]
    laws: Sequence[str]
    finding: str
    releases: Releases = every_release


FAILURES: Sequence[HeadFailure] = ()
