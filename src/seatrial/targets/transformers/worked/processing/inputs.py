"""Small processors of every class, and rows of texts with pictures, films and sounds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.worked.records import joint, processors, videos
from seatrial.targets.transformers.worked.records.pictures import _picture
from seatrial.targets.transformers.worked.records.sounds import _sound

SIZES = ((53, 37), (31, 60), (40, 40), (66, 30))
FRAMES = (4, 6, 5, 4)
SOUNDS = (4300, 2600, 3100, 5000)
MARKS = {"image": "{image}", "video": "{video}", "audio": "{audio}"}


class Texts(NamedTuple):
    """A row: its text, and the numbers of its pictures, films and sounds."""

    text: str
    images: Sequence[int] = ()
    videos: Sequence[int] = ()
    audio: Sequence[int] = ()


ROWS: Mapping[str, Sequence[Texts]] = {
    "text": (Texts("ab cd."), Texts("e")),
    "image": (Texts("{image}a", [0]), Texts("b {image} cd?", [1])),
    "video": (Texts("{video}a", [], [0]), Texts("b {video} cd?", [], [1])),
    "audio": (Texts("{audio}a", [], [], [0]), Texts("b {audio} cd?", [], [], [1])),
    "images": (Texts("{image}a{image}", [0, 1]), Texts("b {image} cd?", [2])),
    "an image and none": (Texts("{image}a", [0]), Texts("bcd")),
    "none and images": (Texts("bcd"), Texts("{image}a{image}", [3, 0])),
    "sounds": (Texts("{audio}a{audio}", [], [], [0, 1]), Texts("b {audio} cd?", [], [], [2])),
    "films": (Texts("{video}a{video}", [], [0, 1]), Texts("b {video} cd?", [], [2])),
    "image and video": (Texts("{image}a{video}", [0], [0]), Texts("b {video} c{image}d?", [1], [1])),
    "image and audio": (Texts("{image}a{audio}", [0], [], [0]), Texts("b {audio} c{image}d?", [1], [], [1])),
}  # fmt: skip
"""Rows by name."""
NEED: Mapping[str, str] = {"image": "images", "video": "videos", "audio": "audio"}
ONE = ("text", "image", "video", "audio")
"""Rows with one kind of medium, once a row."""


def kinds_of(rows: str) -> list[str]:
    """Return the media of rows."""
    return [kind for kind, mark in MARKS.items() if any(mark in row.text for row in ROWS[rows])]


def takes(made: Any, rows: str) -> bool:
    """Return whether a class takes rows."""
    return all(joint._takes(made, {NEED[kind]: 1}) for kind in kinds_of(rows))


@cache
def _media(kind: str, number: int) -> Any:
    if kind == "images":
        return _picture(*SIZES[number])
    return videos.film(FRAMES[number], 56, 56) if kind == "videos" else _sound(SOUNDS[number])


SMALLER: Mapping[str, Mapping[str, Any]] = {
    "OmDetTurboProcessor": {"size": {"height": 64, "width": 64}},
    "GroundingDinoProcessor": {"size": {"shortest_edge": 60, "longest_edge": 90}},
    "Owlv2Processor": {"size": {"height": 96, "width": 96}}, "OwlViTProcessor": {"size": {"height": 96, "width": 96}},
    "NougatProcessor": {"size": {"height": 56, "width": 42}},
    "GraniteDoclingProcessor": {"size": {"longest_edge": 728}},
    "Kosmos2_5Processor": {"max_patches": 64}, "Pix2StructProcessor": {"max_patches": 64},
}  # fmt: skip
"""Options of parts whose pictures are large."""


def new(made: Any, **options: Any) -> Any:
    """Return a processor."""
    found = joint._made(made, options)
    for name, value in SMALLER.get(made.__name__, {}).items():
        known = getattr(found.image_processor, name)
        setattr(
            found.image_processor, name, value if isinstance(known, (int, dict)) else type(known)(**value)
        )
    return found


@cache
def shared(made: Any) -> Any:
    """Return a processor that laws share which do not change it."""
    return new(made)


def arguments(processor: Any, rows: Sequence[Texts], **options: Any) -> dict[str, Any]:
    """Return the arguments of a call."""
    needs = joint.NEEDS.get(type(processor).__name__, {})
    marks = {kind: processors._mark(processor, kind) for kind in MARKS}
    found: dict[str, Any] = {**needs, "text": [row.text.format(**marks) for row in rows], **options}
    if isinstance(needs.get("task_inputs"), list):
        found["task_inputs"] = ["semantic"] * len(rows)
    if any(row.images for row in rows):
        found["images"] = [[_media("images", one).copy() for one in row.images] for row in rows]
    if any(row.videos for row in rows):
        films = [one for row in rows for one in row.videos]
        found["videos"] = [_media("videos", one).copy() for one in films]
        times = videos._metadata(*(FRAMES[one] for one in films))
        found["video_metadata"] = [{**one, "width": 56, "height": 56} for one in times]
    if any(row.audio for row in rows):
        name = sound_name(type(processor))
        found[name] = [_media("audio", one).copy() for row in rows for one in row.audio]
        parts = [getattr(processor, one, None) for one in ("feature_extractor", "audio_processor")]
        rate = next((getattr(one, "sampling_rate", None) for one in parts if one is not None), None)
        if rate is not None:
            found["sampling_rate"] = rate
    return found


def sound_name(made: Any) -> str:
    """Return what a class calls its sounds."""
    takes_ = inspect.signature(made.__call__).parameters
    return next((one for one in ("audio", "audios", "raw_speech", "speech") if one in takes_), "audio")


def called(processor: Any, rows: Sequence[Texts], **options: Any) -> dict[str, Any]:
    """Return what a processor gives of rows."""
    return dict(processor(**arguments(processor, rows, **options)).items())


@cache
def served(made: Any, names: tuple[str, ...] = ONE) -> list[str]:
    """Return names of rows that a class takes.

    Raises:
        NotServed: it takes none.
    """
    found = []
    for name in names:
        if not takes(made, name):
            continue
        try:
            called(shared(made), ROWS[name], padding=True)
        except ImportError:
            raise
        except Exception:  # noqa: BLE001  rows of another form
            continue
        found.append(name)
    if not found:
        raise NotServed("no rows that it takes")
    return found


@cache
def classes() -> dict[str, Any]:
    """Return the processors of the installed release."""
    import transformers

    return {name: getattr(transformers, name) for name in sorted({*processors._names()})}
