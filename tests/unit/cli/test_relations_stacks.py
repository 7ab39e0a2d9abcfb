"""`seatrial relations` runs every adapter of a target on the relations that it has the component for."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seatrial.cli import main, relation_stacks, relations
from seatrial.cli.relation_stacks import expect_more, find_stacks
from seatrial.errors import BlockedError, UsageError
from seatrial.relations.facts import StackFacts
from seatrial.relations.registry import all_relations, select
from seatrial.targets.common.target import Gone, Unavailable, available, find_name
from seatrial.verdict import Outcome, Verdict


class Facts:
    """An adapter with one component."""

    facts = StackFacts()


class Target:
    """Two adapters, and one whose component the release lacks."""

    relation_seeds = (7,)

    def components(self) -> dict[str, object]:
        """Return them."""
        return {"one": Facts(), "other": Facts(), "gone": Unavailable("stack 1.0 has no stack.Gone")}


@pytest.fixture(autouse=True)
def known_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every name be that target."""
    monkeypatch.setattr(relation_stacks, "get_target", lambda name: Target())


def test_each_adapter_meets_the_relations_of_its_components() -> None:
    """Others would end NotRequested, hundreds of times."""
    asked = find_stacks(None, "stack", [])
    met = {(relation.id, name) for relation, name in asked.pairs(select([]))}
    assert met == {("R18.facts", "one"), ("R18.facts", "other")}
    assert list(asked.seeds) == [7]


def test_an_adapter_whose_stack_raises_has_its_component_and_no_other() -> None:
    """The release refuses a model, say: the laws about it tell why, and other adapters run."""

    class Raising:
        @property
        def facts(self) -> StackFacts:
            raise RuntimeError("no such layer")

    assert relation_stacks.components_of(Raising()) == relation_stacks.components_of(Facts())


def test_what_a_release_lacks_is_not_requested_and_says_why() -> None:
    """Nothing that was asked for is left implicit."""
    (verdict,) = find_stacks(None, "stack", ["gone"]).missing()
    assert (verdict.outcome, verdict.reason) == (Outcome.NOT_REQUESTED, "stack 1.0 has no stack.Gone")


def test_an_unknown_adapter_is_refused_with_the_nearest_name() -> None:
    """As every unknown word is."""
    with pytest.raises(UsageError, match="other"):
        find_stacks(None, "stack", ["othr"])


def test_adapters_of_a_module_are_not_chosen_among() -> None:
    """One object is one adapter."""
    with pytest.raises(UsageError, match="MODULE:OBJECT is one"):
        find_stacks("my_stack:Adapter", None, ["one"])


def test_a_name_that_moved_is_found_and_one_that_is_gone_is_named() -> None:
    """Releases move their trainers; a module that fails to import another is no such case."""
    assert find_name("seatrial", ["seatrial.nowhere:X", "seatrial.verdict:Verdict"]).__name__ == "Verdict"
    with pytest.raises(Gone, match=r"has no seatrial\.nowhere\.X, seatrial\.verdict\.Y"):
        find_name("seatrial", ["seatrial.nowhere:X", "seatrial.verdict:Y"])

    class Missing:
        def __init__(self) -> None:
            raise Gone("no such thing")

    assert available({"a": Facts, "b": Missing})["b"] == Unavailable("no such thing")
    with pytest.raises(
        BlockedError, match=r"none of the 1 adapters of stack 0\.1 can be made here: no such thing"
    ):
        available({"b": Missing}, "stack 0.1")


class Needy:
    """Its package is missing."""

    def __init__(self) -> None:
        raise ModuleNotFoundError("No module named 'deep'", name="deep")


class Broken:
    """The stack is broken at import."""

    def __init__(self) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")


@pytest.mark.parametrize(
    ("adapter", "words", "outcome"),
    [
        (Needy, "imports deep, which is not installed here", Outcome.PASS),
        (
            Broken,
            "cannot be made: RuntimeError: operator torchvision::nms does not exist, at .*py:",
            Outcome.BLOCKED,
        ),
    ],
)
def test_what_the_environment_prevents_is_blocked(
    adapter: type, words: str, outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack without any adapter ends with one line; a missing package alone leaves the verdict to the others."""
    with pytest.raises(BlockedError, match=words):
        available({"a": adapter})
    monkeypatch.setattr(Target, "components", lambda self: available({"one": Facts, "a": adapter}))
    (verdict,) = find_stacks(None, "stack", []).missing()
    assert verdict.outcome is Outcome.BLOCKED
    assert re.search(words, verdict.reason)
    good = Verdict(name="one", outcome=Outcome.PASS, reason="held", num_samples=1)
    assert relations._whole([good, verdict]) is outcome
    assert relations._whole([verdict]) is Outcome.BLOCKED


def test_a_stack_that_is_not_installed_is_blocked(forked_python: str) -> None:
    """Exit 3 with the remedy: the environment, not the stack."""
    ran = subprocess.run(
        [forked_python, "-m", "seatrial", "relations", "--target", "openrlhf"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 3
    assert "run this command in the environment that has openrlhf" in ran.stdout + ran.stderr


def test_an_environment_without_torch_is_blocked_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    all_relations.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["relations", "--target", "trl"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert "Blocked: relations need torch, which cannot be imported here" in line


KNOWN = 'R18.facts/masked rows are refused" = "version 1.0 does not refuse them, 1.1 does"\n'


def test_a_file_adds_to_what_an_adapter_expects(tmp_path: Path) -> None:
    """What the adapter declares itself stays; the others of the target are as they were."""
    asked = find_stacks(None, "stack", [])
    asked.adapters["one"].expected_failures = {"R18.facts/other": "by design"}
    file = tmp_path / "known.toml"
    file.write_text(f'[one]\n"{KNOWN}')
    expect_more(asked.adapters, file)
    assert asked.adapters["one"].expected_failures == {
        "R18.facts/other": "by design",
        "R18.facts/masked rows are refused": "version 1.0 does not refuse them, 1.1 does",
    }
    assert not hasattr(asked.adapters["other"], "expected_failures")


def test_a_file_for_one_adapter_of_ones_own_names_none(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(f'"{KNOWN}')
    adapter = Facts()
    expect_more({"": adapter}, file)
    assert list(adapter.expected_failures) == ["R18.facts/masked rows are refused"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f'[othr]\n"{KNOWN}', "'othr' is not judged here.*other"),
        (f'"{KNOWN}', "is not judged here"),
        ('[one]\n"R18.facts" = 3\n', "RELATION/law"),
        ("[one\n", "cannot be read"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=words):
        expect_more(find_stacks(None, "stack", []).adapters, file)
