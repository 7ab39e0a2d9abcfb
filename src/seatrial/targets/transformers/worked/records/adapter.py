"""The adapter of answers on record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.records.apart import rows_of
from seatrial.targets.transformers.worked.records.called import CALLED_ROWS
from seatrial.targets.transformers.worked.records.composed import COMPOSED_ROWS
from seatrial.targets.transformers.worked.records.declared import DECLARED_ROWS
from seatrial.targets.transformers.worked.records.grid_options import GRID_OPTION_ROWS
from seatrial.targets.transformers.worked.records.grids import GRID_ROWS
from seatrial.targets.transformers.worked.records.hearing import HEARING_ROWS
from seatrial.targets.transformers.worked.records.loaded import LOADED_ROWS
from seatrial.targets.transformers.worked.records.older_tokenizers import OLDER_ROWS
from seatrial.targets.transformers.worked.records.pictures import PICTURE_ROWS
from seatrial.targets.transformers.worked.records.processors import PROCESSOR_ROWS
from seatrial.targets.transformers.worked.records.quantized import QUANTIZED_ROWS
from seatrial.targets.transformers.worked.records.sounds import SOUND_ROWS
from seatrial.targets.transformers.worked.records.squares import SQUARE_ROWS

ROWS: Sequence[Row] = (*PICTURE_ROWS, *SOUND_ROWS, *PROCESSOR_ROWS, *OLDER_ROWS, *CALLED_ROWS)
MEDIA_ROWS: Sequence[Row] = (*GRID_ROWS, *GRID_OPTION_ROWS, *SQUARE_ROWS, *HEARING_ROWS)


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


class OfMedia(Worked):
    """What models give of rows with pictures, films and sounds; see `records.answers`."""

    package = "transformers"
    thorough = True
    worked_rows = MEDIA_ROWS


class OfLoading(Worked):
    """What models keep that are read; see `records.loaded`."""

    package = "transformers"
    thorough = True
    worked_rows = LOADED_ROWS


class OfDeclared(Worked):
    """What modules declare, quantization, models of parts; see `records.declared`, `.quantized` and `.composed`."""

    package = "transformers"
    thorough = True
    worked_rows = (*DECLARED_ROWS, *QUANTIZED_ROWS, *COMPOSED_ROWS)


ADAPTERS: dict[str, type[Any]] = {
    "worked-records": OfRecords,
    "worked-records-tensors": OfTensors,
    "worked-media": OfMedia,
    "worked-loading": OfLoading,
    "worked-declared": OfDeclared,
}
