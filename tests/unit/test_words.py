"""Source and pages are written in the words of the field."""

from __future__ import annotations

from tests.house import words


def test_no_private_words_in_source_and_pages() -> None:
    """Each match names the file, the line, the word, and what to write."""
    found = [
        f"{path.relative_to(words.ROOT)}:{line}: {word!r}: write {instead}"
        for path in words.files(words.ROOT / name for name in words.PLACES)
        for line, word, instead in words.found_in(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found[:20]) + f"\n{len(found)} in all; see tests/house/words.yaml"


def test_the_list_is_long_and_each_pattern_is_found() -> None:
    """At least sixty entries; putting a word back into a page fails."""
    assert len(words.words()) >= 60
    found = {word for _, word, _ in words.found_in("A run that is ended\nwhoever_asks = ToldRun")}
    assert found == {"is ended", "whoever", "asks", "Told"}
