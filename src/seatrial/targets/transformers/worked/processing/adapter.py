"""The adapters of laws over all processors and their parts; each runs a process of its own, see `process`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.worked.file_forms import FILE_FORM_ROWS
from seatrial.targets.transformers.worked.pipes_kinds import PIPE_KIND_ROWS
from seatrial.targets.transformers.worked.processing.process import rows_of
from seatrial.targets.transformers.worked.processor_defaults import PROCESSOR_DEFAULT_ROWS
from seatrial.targets.transformers.worked.word_boxes import WORD_BOX_ROWS

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


class OfChannels(Worked):
    """Places of channels of every image processor; see `channels`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("channels", OF_PICTURES)


class OfTimes(Worked):
    """Times of several films of every processor; see `times`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = rows_of("times", OF_PROCESSORS)


class OfOwnOptions(Worked):
    """What every processor takes besides texts and media; see `own` and `processor_defaults`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = (*rows_of("own", OF_PROCESSORS), *PROCESSOR_DEFAULT_ROWS)


class OfWords(Worked):
    """Words with boxes and labels, and folders whose files are of any form; see `word_boxes` and `file_forms`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = (*WORD_BOX_ROWS, *FILE_FORM_ROWS)


class OfPipelineKinds(Worked):
    """Pipelines with each kind of model; see `pipes_kinds`."""

    package = "transformers"
    worked_rows: ClassVar[Sequence[Row]] = PIPE_KIND_ROWS


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
    "processors-channels": OfChannels,
    "processors-times": OfTimes,
    "processors-own": OfOwnOptions,
    "words-and-forms": OfWords,
    "pipelines-kinds": OfPipelineKinds,
}
