"""What a package offers by name: each class and function once, with its state."""

from types import SimpleNamespace

from seatrial.targets.common.offered import OUT, UNCOVERED, Offered, offered, summary, undecorated


def test_names_are_those_that_modules_define() -> None:
    """Names that a module imports are those of another one; a star matches the rest of a name."""
    found = list(
        offered("json", {"json.t*": "a command"}, lambda name, _: "scanned" if "scan" in name else UNCOVERED)
    )
    assert Offered("json.decoder", "JSONDecoder", UNCOVERED) in found
    assert Offered("json.scanner", "py_make_scanner", "scanned") in found
    assert Offered("json.tool", "main", f"{OUT}a command") in found
    assert not [one for one in found if one.module == "json.decoder" and one.name == "scanstring"]
    assert not [one for one in found if one.module == "json.encoder" and "JSONDecoder" in one.name]


def test_a_name_without_a_star_is_a_whole_module() -> None:
    """So that `fs` leaves `fsdp` alone."""
    found = list(offered("json", {"json.t": "other", "json.tool": "a command"}, lambda *_: UNCOVERED))
    assert Offered("json.tool", "main", f"{OUT}a command") in found


def test_counts_leave_out_what_is_out_of_scope() -> None:
    """Of the relevant names."""
    rows = [Offered("a", "b", "one"), Offered("a", "c", UNCOVERED), Offered("a", "d", f"{OUT}why")]
    assert summary("it", rows) == "it: 1 of 2 relevant names are judged"


def test_an_actor_is_the_class_that_it_was_made_of() -> None:
    """Also where other objects have such a name."""
    actor = SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=Offered))
    assert undecorated(actor) is Offered
    other = SimpleNamespace(__ray_metadata__=None)
    assert undecorated(other) is other
