"""The table of options: covered by what was measured, out of scope with a reason, and else uncovered."""

import dataclasses
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import pytest

from seatrial.cli import main
from seatrial.relations.cases.examples import ObjectiveSpec
from seatrial.relations.contracts.trainers import TrainerPlan, TrainerSpec
from seatrial.relations.law import Measure
from seatrial.relations.registry import all_relations
from seatrial.targets.trl.options import dropping
from seatrial.targets.trl.options.table import lines, measured, options_of, page, reasons, share
from seatrial.targets.trl.setup import Setup
from seatrial.targets.trl.setups.listed import SETUPS

SETUP = Setup(
    trainer="SFT",
    objective=ObjectiveSpec(kind="sft"),
    data="texts",
    options={"packing": True, "max_length": 40},
)


@dataclass
class Configuration:
    """Options of a made release."""

    packing: bool = False
    max_length: int = 1024
    loss_type: str = "nll"
    output_dir: str = ""
    of_a_new_release: bool = False
    names: list[str] = field(default_factory=list)


SEEN: dict[str, dict[str, Any]] = {
    "packing": {"setup": "whole", "law": "R24.whole/rows of ids"},
    "max_length": {"setup": "whole", "law": None},
    "loss_type": {"setup": "whole", "law": "R12.whole/gradient, two micro-batches a step"},
    "of_a_new_release": {"setup": "gone", "law": "R12.whole/gradient, two micro-batches a step"},
}


def states(config: type = Configuration) -> dict[str, str]:
    return {one.name: one.state for one in options_of("SFT", config, {"whole": SETUP}, SEEN)}


def test_an_option_is_covered_only_if_a_setup_sets_it_and_a_law_saw_it_dropped() -> None:
    """The law of `loss_type` is not enough, since the setup no longer sets it."""
    assert states() == {
        "packing": "covered",
        "max_length": "uncovered",
        "loss_type": "uncovered",
        "output_dir": "out of scope",
        "of_a_new_release": "uncovered",
        "names": "uncovered",
    }


def test_a_value_that_has_become_the_default_covers_nothing() -> None:
    newer = dataclasses.make_dataclass("Newer", [("packing", bool, field(default=True))])
    (option,) = options_of("SFT", newer, {"whole": SETUP}, SEEN)
    assert (option.state, option.reason) == ("uncovered", "whole sets it to this release's default")


def test_the_share_counts_relevant_options_alone() -> None:
    found = list(options_of("SFT", Configuration, {"whole": SETUP}, SEEN))
    assert share(found) == (1, 5)
    assert any(
        "SFT: 1 of 5 relevant options are covered; 1 are out of scope" in line for line in lines(found)
    )
    assert "| `SFTConfig` | 1 | 5 | 20 % | 1 |" in page(found)


def test_what_was_measured_is_of_setups_and_laws_that_exist() -> None:
    """And each setup sets the option."""
    known = {relation.key(law) for relation in all_relations() for law in relation.laws}
    for trainer, options in measured()["trainers"].items():
        for name, entry in options.items():
            assert name not in reasons(), name
            assert SETUPS[entry["setup"]].trainer == trainer
            assert entry["law"] is None or entry["law"] in known or entry["law"].startswith("raises"), entry


@pytest.mark.parametrize("trainer", ["GRPO", "SFT", "DPO"])
def test_enough_options_were_seen_dropped(trainer: str) -> None:
    """At least 43 of each: 70 % of the relevant options of SFT and DPO, and two thirds of GRPO's."""
    entries = measured()["trainers"][trainer].values()
    assert sum(bool(one["law"]) and not one["law"].startswith("raises") for one in entries) >= 43


class Ignoring:
    """A whole trainer that ignores an option if it is dropped."""

    expected_failures: ClassVar[dict[str, str]] = {}
    dropped: frozenset[str] = frozenset()
    trainer_spec = TrainerSpec(objective=ObjectiveSpec(kind="sft"))


def test_the_law_that_sees_a_dropped_option_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known failure does not count, and the option is given again afterwards."""
    (relation,) = [one for one in all_relations() if one.id == "R24.whole"]
    laws = [
        replace(
            law,
            measure=lambda stack, case, which=which: Measure(
                error=float(which in stack.dropped), bound=0, what=""
            ),
        )
        for which, law in zip(("first", "second"), relation.laws[1:3], strict=True)
    ]
    laws = [replace(law, make=lambda *_: TrainerPlan(), excluded=lambda _: None) for law in laws]
    monkeypatch.setattr(dropping, "_laws", lambda adapter: [(relation, law) for law in laws])
    adapter = Ignoring()
    assert dropping.law_that_sees(adapter, "second") == relation.key(laws[1])
    assert dropping.law_that_sees(adapter, "third") is None
    assert adapter.dropped == frozenset()


def test_only_a_target_with_a_table_lists_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["relations", "--target", "transformers", "--options"]) == 2
    assert "--target trl" in capsys.readouterr().err
