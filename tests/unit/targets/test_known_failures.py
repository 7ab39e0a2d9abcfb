"""Each failure that a shipped adapter expects is in docs/evidence/findings.md, with a script without Seatrial."""

import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

import pytest

from seatrial.relations.expected import OF_PARTS, check_expected_failures
from seatrial.relations.registry import all_relations
from seatrial.targets import PEERS
from seatrial.targets.common.fixed_bugs import FixedBug, all_fixed_bugs
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between, since
from seatrial.targets.common.target import release
from seatrial.targets.peft.configurations import FINDING as OF_ADAPTERS
from seatrial.targets.transformers.configurations import DOCUMENTED, OTHER_NAMES
from seatrial.targets.transformers.configurations import FINDING as OF_MODELS
from seatrial.targets.transformers.head_table import FAILURES as HEADS
from seatrial.targets.transformers.option_table import FAILURES
from seatrial.targets.trl.runs import NUM_TOKENS

PAGE = Path(__file__).parents[3] / "docs" / "evidence" / "findings.md"
PAIRS = Path(__file__).parents[2] / "peers" / "wild" / "pairs.toml"
BEGINNING = "how its scripts begin"


def adapters() -> Iterator[tuple[str, type]]:
    """Yield every adapter of every target but the reference, with its name; no stack is needed for that."""
    for point in PEERS:
        for name, adapter in point.load()().adapters().items():
            yield f"{point.name} {name}", adapter


def known_failures() -> Iterator[tuple[str, KnownFailure]]:
    """Yield all that is known to be broken, in whichever release, with who knows it."""
    yield "trl's runs", NUM_TOKENS
    for name, adapter in adapters():
        for known in getattr(adapter, "known_failures", ()):
            yield name, known


def findings() -> Iterator[tuple[str, str]]:
    """Yield the heading of each finding that something names, with who names it."""
    for name, known in known_failures():
        yield name, known.finding
    for name, adapter in adapters():
        for row in getattr(adapter, "worked_rows", ()):
            if row.known is not None:
                yield f"{name}, {row.function}", row.known.finding
    for failure in FAILURES:
        yield f"options of {', '.join(failure.families)}", failure.finding
    for known in HEADS:
        yield f"heads of {', '.join(known.families)}", known.finding
    for finding in (OF_MODELS, DOCUMENTED, OTHER_NAMES, OF_ADAPTERS):
        yield "classes of options", finding
    yield "fixed_bugs.toml", "PEFT: adapters in earlier releases"


def scripts() -> dict[str, list[str]]:
    """Return the blocks of Python under each finding of the page."""
    found = {}
    for section in re.split(r"^### ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        own = re.split(r"^## ", body, flags=re.MULTILINE)[0]
        found[heading] = re.findall(r"^```python\n(.*?)^```", own, flags=re.MULTILINE | re.DOTALL)
    return found


def test_every_expected_failure_has_its_script() -> None:
    """Under the heading that it names; the script prints what is wrong, and does not import Seatrial."""
    found = scripts()
    for name, finding in findings():
        (script,) = found.get(finding, [""])
        assert "print(" in script, f"{name}: docs/evidence/findings.md has no script under {finding!r}"
        assert "seatrial" not in script, finding
    for _, known in known_failures():
        assert known.laws and known.reason


WITHOUT_A_LAW = {
    "Accelerate: the epoch of a seedable sampler in saved state",
    "PEFT: dropout of the encoder of a prompt",
    "PEFT: virtual tokens of classification that are disabled",
    "TRL: padding in the log of online DPO",
    "TRL: the divisor of sampled answers",
    "Transformers: frames of a padded sound",
    "Transformers: labels of OmniASR without tensors",
    "Transformers: padding on the left of Kosmos",
    "Transformers: sounds that a feature extractor replaces",
    "Transformers: classes of sounds that are asked for at the start",
    "Transformers: sounds that are padded on the left and normalized",
    "Transformers: maps of segments that are interpolated",
    "Transformers: weights that a checkpoint leaves out and nothing sets",
    "Transformers: weights that stay in float32 on the disk, or where files lack them",
    "Transformers: the number of tokens of a picture that Idefics 3 takes",
    "Transformers: sizes that Emu3 reads of pictures whose channels are last",
}
"""Findings that break no law: the rows of the laws avoid them, or none reads that."""


def test_no_script_is_left_of_what_is_no_longer_expected() -> None:
    """Each heading is named by an adapter, but for how the scripts of a stack begin and what breaks no law."""
    named = {finding for _, finding in findings()} | WITHOUT_A_LAW
    assert {heading for heading in scripts() if not heading.endswith(BEGINNING)} == named


def test_no_adapter_expects_a_failure_beside_those() -> None:
    """What is not known as data would escape the tests above."""
    for name, adapter in adapters():
        given = vars(KnowsFailures)["expected_failures"] if issubclass(adapter, KnowsFailures) else None
        assert (
            next(
                (vars(c)["expected_failures"] for c in adapter.__mro__ if "expected_failures" in vars(c)),
                None,
            )
            is given
        ), name


def test_known_failures_are_of_laws_that_exist() -> None:
    """A law that is renamed is renamed there."""
    for name, known in known_failures():
        if name != "trl's runs":
            stack = type("Stack", (), {"expected_failures": dict.fromkeys(known.laws, str(known))})
            check_expected_failures(stack, all_relations())


@pytest.mark.parametrize(
    ("version", "expected"), [("0", {}), ("1000", {"R1.loss": "because (docs/evidence/findings.md, X)"})]
)
def test_a_failure_is_expected_of_its_releases_alone(version: str, expected: dict[str, str]) -> None:
    """And may be declared otherwise for one adapter."""

    class Adapter(KnowsFailures):
        known_failures = (
            KnownFailure("because", finding="X", releases=before("packaging", version)).of("R1.loss"),
            KnownFailure("because", finding="X", releases=since("packaging", "1000")).of("R3.loss"),
        )

    assert release("packaging") != "not installed"
    adapter = Adapter()
    assert adapter.expected_failures == expected
    adapter.expected_failures = {"R5.loss": "mine"}
    assert adapter.expected_failures == {"R5.loss": "mine"}


def test_a_source_tree_has_the_version_that_it_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one, no failure of certain releases is known of it."""
    module = ModuleType("seatrial_tree")
    monkeypatch.setitem(sys.modules, "seatrial_tree", module)
    tests = (
        before("seatrial-tree", "0.9"),
        since("seatrial-tree", "0.1"),
        between("seatrial-tree", "0.1", "0.9"),
    )
    assert [test(None) for test in tests] == [False, False, False]
    module.__version__ = "0.8.0.dev"  # type: ignore[attr-defined]
    assert [test(None) for test in tests] == [True, True, True]
    module.__version__ = "0.8.1.dev0"  # type: ignore[attr-defined]
    assert [since("seatrial-tree", version)(None) for version in ("0.9", "0.10")] == [True, False]


def test_a_tree_may_lack_what_a_patch_release_brought(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree on the way to 0.7.0 is of any time since 0.6.0, and has no bug that is over in 0.6.0 or earlier."""
    module = ModuleType("seatrial_tree")
    monkeypatch.setitem(sys.modules, "seatrial_tree", module)
    module.__version__ = "0.7.0.dev0"  # type: ignore[attr-defined]
    versions = ("0.5.9", "0.6", "0.6.1", "0.7")
    assert [before("seatrial-tree", one)(None) for one in versions] == [False, False, True, True]
    assert [between("seatrial-tree", "0.1", one)(None) for one in versions] == [False, False, True, True]
    module.__version__ = "0.7.0"  # type: ignore[attr-defined]
    assert [before("seatrial-tree", one)(None) for one in versions] == [False, False, False, False]


def test_a_source_tree_before_a_distribution_is_what_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path may begin with a checkout of another version than the installed one."""
    tree = ModuleType("packaging")
    tree.__version__ = "0.1.dev0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "packaging", tree)
    assert release("packaging") == "0.1.dev0"


def _is_of(known: KnownFailure, adapter: type) -> bool:
    """Return whether a failure is declared of the release; not judged where an adapter must read the stack itself."""
    try:
        return known.releases(adapter)
    except AttributeError:
        return False


def test_no_adapter_knows_the_bug_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    """The laws that find the bugs of the shown pairs are not declared of their releases."""
    found = dict(adapters())
    laws_of_all = [relation.key(law) for relation in all_relations() for law in relation.laws]
    for pair in tomllib.loads(PAIRS.read_text(encoding="utf-8"))["pair"]:
        installed = dict(re.findall(r"^(.+?)(?:==|-)([\d.]+)$", one)[0] for one in pair["buggy"])
        monkeypatch.setattr("seatrial.targets.common.known.release", installed.__getitem__)
        adapter = found[f"{pair['target']} {pair['adapter']}"]
        laws = {pair["law"], pair["law"].partition("/")[0]}
        declared = [
            one
            for one in getattr(adapter, "known_failures", ())
            if laws & {law.partition(OF_PARTS)[0] for law in one.laws}
        ]
        assert not [one.reason for one in declared if _is_of(one, adapter)], pair["name"]
        excused = [
            bug.what
            for bug in all_fixed_bugs()
            if bug.is_of(pair["target"], pair["adapter"])
            and pair["adapter"] not in bug.shown
            and between(bug.target, bug.since, bug.before)(None)
            and pair["law"] in {key.partition(OF_PARTS)[0] for key in bug.keys(laws_of_all)}
        ]
        assert not excused, pair["name"]


def test_fixed_bugs_are_of_laws_and_adapters_that_exist() -> None:
    """Each pattern matches a law of its adapters' names, and those adapters say what they expect."""
    found = dict(adapters())
    laws = [relation.key(law) for relation in all_relations() for law in relation.laws]
    for bug in all_fixed_bugs():
        for name in bug.adapters:
            own = [one for key, one in found.items() if fnmatchcase(key, f"{bug.target} {name}")]
            assert own, (bug.what, name)
            assert name == "*" or all(issubclass(one, KnowsFailures) for one in own), (bug.what, name)
        for law in bug.laws:
            assert replace(bug, laws=(law,)).keys(laws), (bug.what, law)
        assert all(bug.is_of(bug.target, name) for name in bug.shown)


def test_a_fixed_bug_is_expected_of_earlier_releases_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where a pair of releases shows it, it only explains what fails."""
    bug = FixedBug(what="x was y", target="packaging", adapters=("a*",), laws=("R1.loss/*",), before="1000")

    class Adapter(KnowsFailures):
        excused_bugs = (bug,)
        shown_bugs = (bug,)

    laws = {
        relation.key(law) for relation in all_relations() if relation.id == "R1.loss" for law in relation.laws
    }
    assert laws
    adapter = Adapter()
    assert (
        adapter.expected_failures
        == adapter.known_bugs
        == dict.fromkeys(laws, "x was y, fixed in packaging 1000")
    )
    monkeypatch.setattr("seatrial.targets.common.known.release", lambda package: "1000")
    later = Adapter()
    assert later.expected_failures == later.known_bugs == {}

    class Later(KnowsFailures):
        excused_bugs = (replace(bug, since="999"),)

    found = {}
    for version in ("998.9", "999", "999.9", "1000"):
        monkeypatch.setattr("seatrial.targets.common.known.release", lambda package, own=version: own)
        found[version] = bool(Later().expected_failures)
    assert found == {"998.9": False, "999": True, "999.9": True, "1000": False}


def test_a_law_of_a_fixed_bug_keeps_its_parts() -> None:
    """A pattern of parts stands for these alone; a whole law stands for all of its parts."""
    bug = FixedBug(what="x", target="trl", adapters=("a",), laws=("R22.whole/s*::kl", "R1.a/b"), before="1")
    assert bug.keys(["R22.whole/scalars", "R22.whole/loss", "R1.a/b"]) == ["R22.whole/scalars::kl", "R1.a/b"]
    assert [
        bug.breaks(law) for law in ("R22.whole/scalars::kl", "R22.whole/scalars::reward", "R1.a/b::x")
    ] == [
        True,
        False,
        True,
    ]
