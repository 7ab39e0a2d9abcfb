"""R31.media: text, images and videos have the positions along time, height and width that their models have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

MEDIA = relation_of(
    "media",
    "positions-of-media",
    "A patch is where its frame, row and column are behind the text before it; text continues behind the largest.",
)


class Piece(NamedTuple):
    """Equal tokens in succession: text, or the patches of a grid."""

    token: str
    """`word`, `start` and `end` of an image, `video start` and `video end`, `image` or `video`."""
    length: int = 1
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns after merging; None of text."""
    rate: float = 0.0
    """Positions between two frames."""


class Segment(NamedTuple):
    """Words, an image or a video."""

    kind: str
    num_words: int = 0
    frames: int = 1
    rows: int = 1
    columns: int = 1
    seconds: float = 1.0
    """Between two frames."""


KINDS = ("seconds", "stamps", "groups")
"""How a video is written: whole, with positions by seconds; or frame by frame, with time stamps, or within marks."""
PER_SECOND = 2
"""Positions of a second."""


def pieces_of(kind: str, segments: Sequence[Segment]) -> list[Piece]:
    """Return the pieces that segments are written as."""
    found: list[Piece] = []
    for one in segments:
        size = one.rows * one.columns
        frame = (1, one.rows, one.columns)
        if one.kind == "words":
            found.append(Piece("word", one.num_words))
        elif one.kind == "image":
            found += [Piece("start"), Piece("image", size, frame), Piece("end")]
        elif kind == "seconds":
            grid, rate = (one.frames, one.rows, one.columns), one.seconds * PER_SECOND
            found += [Piece("start"), Piece("video", one.frames * size, grid, rate), Piece("end")]
        elif kind == "stamps":
            for _ in range(one.frames):
                found += [Piece("word", 2), Piece("start"), Piece("video", size, frame), Piece("end")]
        else:
            shown = [Piece("start"), Piece("image", size, frame), Piece("end"), Piece("word")]
            found += [Piece("video start"), *shown * one.frames, Piece("video end")]
    return found


def positions(kind: str, segments: Sequence[Segment], left: int, right: int) -> Tensor:
    """Return positions [3, S]; those of padding, which has `left` and `right` tokens, are 1."""
    found, start = [(1, 1, 1)] * left, 0
    for piece in pieces_of(kind, segments):
        if piece.grid is None:
            own = [(start + place,) * 3 for place in range(piece.length)]
        else:
            frames, rows, columns = piece.grid
            own = [
                (start + int(frame * piece.rate), start + row, start + column)
                for frame in range(frames)
                for row in range(rows)
                for column in range(columns)
            ]
        found += own
        start = max(max(place) for place in own) + 1
    return torch.tensor(found + [(1, 1, 1)] * right).T


PLANS: Sequence[Sequence[Segment]] = (
    [Segment("words", 5)],
    [Segment("words", 3), Segment("image", rows=2, columns=5), Segment("words", 4)],
    [Segment("image", rows=4, columns=1), Segment("words", 1), Segment("image", rows=1, columns=3)],
    [Segment("words", 2), *[Segment("image", rows=3, columns=2)] * 2],
    [Segment("words", 2), Segment("video", frames=3, rows=2, columns=4), Segment("words", 3)],
    [
        Segment("words", 1),
        Segment("video", frames=4, rows=1, columns=2, seconds=0.75),
        Segment("image", rows=2, columns=3),
        Segment("words", 2),
        Segment("video", frames=2, rows=3, columns=2, seconds=2.5),
        Segment("image", rows=1, columns=6),
        Segment("words", 2),
    ],
)


def _plans(case: Numbers) -> Iterable[Arguments]:
    for kind in KINDS:
        for plan in PLANS:
            for left, right in ((0, 0), (3, 0), (0, 2), (1, 4)):
                yield kind, plan, left, right


MEDIA_FUNCTIONS = (
    Plain(
        name="positions of media",
        law="positions of text, images and videos",
        suspects="height and width exchanged, the grid of another image, one axis' largest for that of all, "
        "patches before merging, positions of padding",
        cases=_plans,
        right=positions,
    ),
)
add_laws(MEDIA, MEDIA_FUNCTIONS)
