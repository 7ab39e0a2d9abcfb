"""Source and pages are written in the words of the field."""

from __future__ import annotations

from tests.house import words


def test_the_list_is_long_and_each_pattern_is_found() -> None:
    """At least sixty entries; putting a word back into a page fails."""
    assert len(words.words()) >= 60
    found = {word for _, word, _ in words.found_in("A run that is ended\nwhoever_asks = ToldRun")}
    assert found == {"is ended", "whoever", "asks", "Told"}
