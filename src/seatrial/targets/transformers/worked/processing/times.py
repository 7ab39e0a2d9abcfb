"""Laws of processors: several films with unlike rates and frames, in one text and in several, each have their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import before
from seatrial.targets.transformers.worked.processing import inputs
from seatrial.targets.transformers.worked.processing.compare import plain, unlike
from seatrial.targets.transformers.worked.processing.inputs import shared, takes
from seatrial.targets.transformers.worked.records import joint, processors, videos

classes = inputs.classes
FRAMES: Sequence[Sequence[int]] = ((5, 15, 25, 35), (0, 100, 300, 500, 520, 560), (50, 60, 75, 80))
RATES = (10.0, 2.0, 30.0)
TOTALS = (40, 600, 90)
TEXTS: Sequence[tuple[str, Sequence[int]]] = (
    ("{video}", [0]), ("{video}a{video}", [0, 1]), ("{video}a{video}", [1, 0]), ("b{video}{video}c{video}", [2, 1, 0]),
)  # fmt: skip
"""Texts and the numbers of their films."""


def _film(number: int) -> Any:
    return videos.film(len(FRAMES[number]), 56, 56)


def _metadata(number: int, times: float = 1.0) -> dict[str, Any]:
    rate = RATES[number] * times
    return {
        "total_num_frames": TOTALS[number], "fps": rate, "duration": TOTALS[number] / rate, "width": 56, "height": 56,
        "frames_indices": list(FRAMES[number]), "video_backend": "own",
    }  # fmt: skip


def _call(made: Any, texts: Sequence[str], films: Sequence[int], times: float = 1.0) -> dict[str, Any]:
    """Return what a processor makes of texts and their films; ids are rows without special tokens and pads."""
    processor = shared(made)
    mark = processors._mark(processor, "video")
    found = processor(
        text=[one.format(video=mark) for one in texts],
        videos=[_film(one) for one in films],
        video_metadata=[_metadata(one, times) for one in films],
        do_sample_frames=False,
        padding=True,
        padding_side="right",
        **joint.NEEDS.get(made.__name__, {}),
    )
    return dict(found.items())


def _rows(found: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens of each text."""
    ids, masks = plain(found["input_ids"]), plain(found["attention_mask"])
    return [
        [int(one) for one, kept in zip(row, mask, strict=True) if kept]
        for row, mask in zip(ids, masks, strict=True)
    ]


def _bare(made: Any) -> tuple[list[int], list[int]]:
    """Return the tokens that are before and after a text."""
    (first,), (other,) = (_rows(dict(shared(made)(text=[one], padding=True).items())) for one in ("a", "b"))
    place = next((at for at, pair in enumerate(zip(first, other, strict=True)) if len({*pair}) > 1), 0)
    return first[:place], first[place + 1 :]


def _served(made: Any) -> None:
    if not takes(made, "video"):
        raise NotServed("no films")
    if not hasattr(shared(made), "tokenizer"):
        raise NotServed("no tokenizer")


def _several(made: Any) -> Iterator[str]:
    """Yield where a film of several in a text, or in several texts, does not have the tokens that it has alone."""
    _served(made)
    start, end = _bare(made)
    size = len(end) or None
    alone = [_rows(_call(made, ["{video}"], [one]))[0] for one in range(len(FRAMES))]
    bare = [one[len(start) : -len(end) if size else None] for one in alone]
    letters = {
        one: _rows(dict(shared(made)(text=[one], padding=True).items()))[0][len(start)] for one in "abc"
    }

    def due(text: str, films: Sequence[int]) -> list[int]:
        given, found = iter(films), list(start)
        for part in text.replace("{video}", "*"):
            found += bare[next(given)] if part == "*" else [letters[part]]
        return found + end

    for text, films in TEXTS:
        row = _rows(_call(made, [text], films))[0]
        if row != due(text, films):
            yield f"{text}, {films}: {_shown(made, row)}, {_shown(made, due(text, films))} is due"
    texts, numbers = [one for one, _ in TEXTS], [one for _, films in TEXTS for one in films]
    found = _rows(_call(made, texts, numbers))
    for row, (text, films) in zip(found, TEXTS, strict=True):
        if row != due(text, films):
            yield f"of several, {text}, {films}: {_shown(made, row)}, {_shown(made, due(text, films))} is due"


def _shown(made: Any, row: Sequence[int]) -> str:
    return str(shared(made).tokenizer.decode(list(row)))[:120]


def _fields(made: Any) -> Iterator[str]:
    """Yield where a field that has a value of each film is not that of the films alone."""
    _served(made)
    alone = [plain(_call(made, ["{video}"], [one])) for one in range(len(FRAMES))]
    text, films = TEXTS[3]
    for given in ([text], ["{video}"] * len(films)):
        found = plain(_call(made, given, films))
        for name in found:
            if "second" in name or name.startswith("video_grid"):
                due = [np.ravel(alone[one][name]).tolist() for one in films]
                have = [np.ravel(one).tolist() for one in found[name]]
                yield from (f"{given}, {name}{one}" for one in unlike(have, due))


def _rated(made: Any) -> Iterator[str]:
    """Yield a class that writes times and gives the same for films of another rate."""
    _served(made)
    older = before("transformers", "5")(None)
    if made.__name__.removesuffix("Processor") not in (WRITES_4 if older else WRITES):
        raise NotServed("no times are written")
    for number in range(len(FRAMES)):
        one, other = (plain(_call(made, ["{video}"], [number], times)) for times in (1.0, 0.25))
        if not list(unlike(other, one)):
            yield f"film {number}: the same at another rate"
        if "second_per_grid_ts" in one and not older:
            step = shared(made).video_processor.temporal_patch_size
            due = step * TOTALS[number] / (len(FRAMES[number]) * RATES[number])
            found = float(np.ravel(one["second_per_grid_ts"])[0])
            if abs(found - due) > 1e-5:
                yield f"film {number}: {found} seconds of a step, {due} is due"


LAWS: Mapping[str, Callable[[Any], Iterator[str]]] = {
    "times: several films": _several,
    "times: fields of films": _fields,
    "times: other rates": _rated,
}
WRITES: Sequence[str] = (
    "Gemma4", "Gemma4Unified", "Glm46V", "Glm4v", "Glm5Next", "Kimi_K25", "Lfm3Vl", "MiniMaxM3VL", "Molmo2",
    "Qwen2_5_VL", "Qwen3VL", "VideoLlama3",
)  # fmt: skip
"""Classes that write times, or count them in steps."""
WRITES_4: Sequence[str] = ("Glm4v", "Qwen3VL")
_NUMBERED = "times: several films"
"""Films of a text have numbers."""
OTHERWISE: Mapping[str, str] = {
    "MiniCPMOcrProcessor": _NUMBERED, "MiniCPMV4_6Processor": _NUMBERED,
    "Kimi_K25Processor": "times: fields",  # a film has a grid of each part
}  # fmt: skip
"""What classes do otherwise by design: patterns of a law and what it says."""
OLDER: Mapping[str, str] = {
    "LlavaOnevisionProcessor": "times: several films",  # a bug: each film has the frames of the first one
}
"""Of releases before 5."""
