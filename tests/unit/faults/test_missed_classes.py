"""Classes of faults that no relation saw: for each, the law that was added, with a fault of the class and without."""

import pytest
from tests.unit.faults.one_law import Edit, sentence_of, sentences_of

from seatrial.faults.plant import all_plants
from seatrial.faults.planting import ask

PLANTS = {plant.id: plant for plant in all_plants()}
SEEN = [
    ("errors-of-a-bucket-dropped", "R19.links", "errors are reported"),
    ("buffer-counts-the-running-step", "R14.async", "the buffer holds what later steps take"),
    ("a-draft-head-replaces-the-balance", "R12.architectures", "experts and drafts: balance loss and load"),
    ("seed-of-a-model-ignored", "R18.written", "options take effect"),
    ("logged-lengths-with-the-tools-words", "R22.run", "metrics of a step, of several turns"),
    ("frozen-weights-known-by-name", "R13.run", "over another base, with adapters"),
    ("frozen-weights-known-by-name", "R13.run", "over another reference"),
    ("draft-head-not-exported", "R21.export", "a draft head, by dtensor"),
    ("written-here-regardless-of-output", "R18.written", "files are where they are requested"),
    ("a-failed-part-gives-nothing", "R22.left", "failures of one verifier of several"),
    ("blocks-never-freed", "DP4.lifecycle", "43 memory of a cleared row is freed"),
    ("other-answers-are-the-same-data", "R13.run", "over other answers"),
    ("entropy-gradient-of-chunks-too-small", "R1.run", "equal with options that change no number"),
]


@pytest.mark.parametrize(("plant", "relation", "law"), SEEN, ids=[plant for plant, _, _ in SEEN])
def test_a_law_sees_the_class(plant: str, relation: str, law: str) -> None:
    """The law is broken, and not by a crash, where the fault is planted."""
    assert f"law '{law}' broken" in ask(sentence_of, PLANTS[plant], relation, law)


def test_the_same_laws_hold_without_a_fault() -> None:
    """So none of them is broken by anything else."""
    broken = ask(sentences_of, None, [(relation, law) for _, relation, law in SEEN])
    assert not any(broken), broken


EDITS = [
    (
        Edit(
            "drop_longer_than has no effect",
            "refrl.training.asynchronous",
            "filters.append(WholeGroups(LengthFilter(config.drop_longer_than)))",
            "pass",
        ),
        "R14.async",
        "long groups are dropped",
    ),
    (
        Edit(
            "dynamic_sampling_max_gen_batches has no effect",
            "refrl.algorithms.filters",
            "self.num_generation_batches >= self.max_generation_batches:",
            "self.num_generation_batches >= 10:",
        ),
        "R17.run_filters",
        "a step that is not filled ends the run",
    ),
    (
        Edit(
            "sft.val_at_end has no effect",
            "refrl.training.validation",
            "return periodic or (step == loop.max_num_steps and loop.val_at_end)",
            "return periodic",
        ),
        "R28.updates",
        "loss of held-out answers, every second step and the last",
    ),
    (
        Edit(
            "answers of many digits are rounded",
            "refrl.tasks.files.rows",
            "return str(value) if math.isfinite(value) else None",
            'return f"{value:g}" if math.isfinite(value) else None',
        ),
        "R14.files",
        "every row of JSONL",
    ),
]


@pytest.mark.parametrize(("edit", "relation", "law"), EDITS, ids=[edit.id for edit, _, _ in EDITS])
def test_options_that_nothing_varied_have_a_law(edit: Edit, relation: str, law: str) -> None:
    """It holds, and is broken where the option has no effect."""
    assert ask(sentence_of, None, relation, law) == ""
    assert f"law '{law}' broken" in ask(sentence_of, edit, relation, law)
