"""The adapter of answers on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.records.apart import rows_of
from seatrial.targets.transformers.worked.records.called import CALLED_ROWS
from seatrial.targets.transformers.worked.records.older_tokenizers import OLDER_ROWS
from seatrial.targets.transformers.worked.records.pictures import PICTURE_ROWS
from seatrial.targets.transformers.worked.records.processors import PROCESSOR_ROWS
from seatrial.targets.transformers.worked.records.sounds import SOUND_ROWS

ROWS: Sequence[Row] = (*PICTURE_ROWS, *SOUND_ROWS, *PROCESSOR_ROWS, *OLDER_ROWS, *CALLED_ROWS)


class OfRecords(Worked):
    """What processors and tokenizers give by class and options; see `records.answers`."""

    package = "transformers"
    worked_rows = ROWS


class OfTensors(Worked):
    """What processors give that need torchvision, in whose place a process has ours; see `records.apart`."""

    package = "transformers"
    thorough = True
    worked_rows = (
        *rows_of("joint", "inputs with films and of other processors"),
        *rows_of("videos", "films"),
        *rows_of("tensor_pictures", "pictures in tensors"),
    )


ADAPTERS: dict[str, type[Any]] = {"worked-records": OfRecords, "worked-records-tensors": OfTensors}
