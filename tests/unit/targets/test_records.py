"""Answers on record hold on other machines: other releases of Pillow, and packages that are missing."""

from __future__ import annotations

from typing import Any

import pytest

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone
from seatrial.targets.transformers.worked.records import answers

PIXELS = {"pixel_values": ["float32", [2, 3, 36, 28], [0.5, 0.25, 0.125]], "sizes": [36, 28]}
ROUNDED = {**PIXELS, "pixel_values": ["float32", [2, 3, 36, 28], [0.5, 0.26, 0.125]]}
CUT = {**PIXELS, "pixel_values": ["float32", [2, 3, 28, 28], [0.5, 0.25, 0.125]]}


def unlike(
    monkeypatch: pytest.MonkeyPatch, pillow: str, given: dict[str, Any], of_pictures: bool
) -> list[str]:
    """Return where answers, by case, differ from the record; an error is raised."""
    monkeypatch.setattr(answers, "release", lambda package: pillow if package == "pillow" else "5.24.0")
    monkeypatch.setattr(answers, "due_answers", lambda name, kind: dict.fromkeys(given, PIXELS))

    def answered(ask: Any, made: Any, case: str) -> Any:
        if isinstance(given[case], Exception):
            raise given[case]
        return given[case]

    monkeypatch.setattr(answers, "answered", answered)
    return answers.unlike_record("record", "Kind", lambda made, case: None, of_pictures, None)


@pytest.mark.parametrize(
    ("pillow", "found", "of_pictures", "num_wrong"),
    [
        ("13.0.0", PIXELS, True, 0),
        ("13.0.0", ROUNDED, True, 1),
        ("11.3.0", ROUNDED, True, 0),
        ("11.3.0", CUT, True, 1),
        ("11.3.0", {**PIXELS, "sizes": [28, 36]}, True, 2),
        ("11.3.0", ROUNDED, False, 1),
    ],
)
def test_pixels_are_compared_with_the_pillow_of_the_record_alone(
    monkeypatch: pytest.MonkeyPatch, pillow: str, found: dict[str, Any], of_pictures: bool, num_wrong: int
) -> None:
    assert len(unlike(monkeypatch, pillow, {"one": found}, of_pictures)) == num_wrong


def test_a_case_whose_part_is_missing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Gone("transformers 4.57.6 has no transformers.EfficientNetImageProcessorPil")
    assert unlike(monkeypatch, "13.0.0", {"one": missing, "two": PIXELS}, True) == []
    assert len(unlike(monkeypatch, "13.0.0", {"one": missing, "two": ROUNDED}, True)) == 1
    with pytest.raises(NotServed, match="EfficientNet"):
        unlike(monkeypatch, "13.0.0", {"one": missing}, True)
