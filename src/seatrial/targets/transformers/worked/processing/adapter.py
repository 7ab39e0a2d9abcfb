"""The adapters of laws over all processors and their parts; each runs a process of its own, see `process`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.processing.process import rows_of

OF_PICTURES = "transformers.image_processing_base:ImageProcessingMixin"
OF_PROCESSORS = "transformers.processing_utils:ProcessorMixin"
OF_SOUNDS = "transformers.feature_extraction_sequence_utils:SequenceFeatureExtractor"


class OfProcessors(Worked):
    """Rows of every processor; see `texts`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("texts", OF_PROCESSORS)


class OfCalls(Worked):
    """Calls again, texts alone and forms of every processor; see `calls`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("calls", OF_PROCESSORS)


class OfOptions(Worked):
    """Options, parts and files of every processor; see `options`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("options", OF_PROCESSORS)


class OfPlaces(Worked):
    """Places of media, files and names of every processor; see `places`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("places", OF_PROCESSORS)


class OfChats(Worked):
    """Conversations of every processor; see `chats`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("chats", OF_PROCESSORS)


class OfPictures(Worked):
    """Every image processor; see `pictures` and `posts`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = (*rows_of("pictures", OF_PICTURES), *rows_of("posts", OF_PICTURES))


class OfPixels(Worked):
    """Pixels of every image processor by plain computations; see `pixels`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("pixels", OF_PICTURES)


class OfWaves(Worked):
    """Samples of every feature extractor by plain computations; see `waves`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("waves", OF_SOUNDS)


class OfFilmsAndSounds(Worked):
    """Every video processor and feature extractor; see `films` and `sounds`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = (
        *rows_of("films", "transformers.video_processing_utils:BaseVideoProcessor"),
        *rows_of("sounds", OF_SOUNDS),
    )


ADAPTERS: dict[str, type[Any]] = {
    "processors": OfProcessors,
    "processors-calls": OfCalls,
    "processors-options": OfOptions,
    "processors-places": OfPlaces,
    "processors-chats": OfChats,
    "processors-pictures": OfPictures,
    "processors-pixels": OfPixels,
    "processors-waves": OfWaves,
    "processors-films-sounds": OfFilmsAndSounds,
}
