"""The worked examples of pipelines: one adapter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.pipes_media import PIPE_MEDIA_ROWS
from seatrial.targets.transformers.worked.pipes_texts import PIPE_TEXT_ROWS
from seatrial.targets.transformers.worked.pipes_written import PIPE_WRITTEN_ROWS

ROWS: Sequence[Row] = (*PIPE_TEXT_ROWS, *PIPE_WRITTEN_ROWS, *PIPE_MEDIA_ROWS)


class OfPipelines(Worked):
    """What pipelines give of texts, chats, sounds and pictures; see `contracts.worked`."""

    package = "transformers"
    worked_rows = ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-pipelines": OfPipelines}
