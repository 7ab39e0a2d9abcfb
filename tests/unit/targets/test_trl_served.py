"""The sequences of TRL's batches are read in each form, and what a function of metrics gets is read with its ids."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from seatrial.relations.contracts.trainers import ServedSequence
from seatrial.relations.not_served import NotServed
from seatrial.targets.trl.predictions import Predictions
from seatrial.targets.trl.served import as_trained, sequences_of

PAD = 0
KNOWN = [(5, 6, 7), (8, 9)]


def _read(**given: Any) -> tuple[list[ServedSequence], int]:
    return sequences_of({name: torch.tensor(value) for name, value in given.items()}, PAD, KNOWN)


@pytest.mark.parametrize(
    ("batch", "targets", "follows", "num_padded"),
    [
        (
            {
                "input_ids": [[5, 6, 7], [8, 9, PAD]],
                "attention_mask": [[1, 1, 1], [1, 1, 0]],
                "labels": [[-100, 6, 7], [-100, 9, PAD]],
            },
            [(False, True, True), (False, True)],
            [False, False],
            1,
        ),
        (
            {
                "input_ids": [[5, 6, 7, 8, 9, PAD]],
                "position_ids": [[0, 1, 2, 0, 1, 0]],
                "labels": [[-100, 6, 7, 8, 9, -100]],
            },
            [(False, True, True), (True, True)],
            [False, True],
            0,
        ),
        (
            {
                "input_ids": [[5, 6, 7, 8, 9]],
                "attention_mask": [[1] * 5],
                "labels": [[-100, 6, 7, -100, 9]],
            },
            [(False, True, True), (False, True)],
            [False, True],
            0,
        ),
        (
            {
                "chosen_input_ids": [[5, 6, 7]],
                "chosen_attention_mask": [[1, 1, 1]],
                "chosen_labels": [[-100, 6, 7]],
                "rejected_input_ids": [[8, 9, PAD]],
                "rejected_attention_mask": [[1, 1, 0]],
                "rejected_labels": [[-100, 9, -100]],
            },
            [(False, True, True), (False, True)],
            [False, False],
            0,
        ),
    ],
    ids=["padded", "packed with positions", "packed without", "pairs"],
)
def test_sequences_are_read(
    batch: dict[str, Any], targets: list[tuple[bool, ...]], follows: list[bool], num_padded: int
) -> None:
    """Ids, targets and borders are those of the rows; a label of padding is counted."""
    found, padded = _read(**batch)
    assert [one.ids for one in found] == KNOWN
    assert [one.targets for one in found] == targets
    assert [one.follows for one in found] == follows
    assert padded == num_padded


def test_prompts_apart_from_answers_are_of_no_known_form() -> None:
    """Old releases join and truncate them later."""
    assert _read(prompt_input_ids=[[5]], chosen_input_ids=[[6]], rejected_input_ids=[[7]]) == ([], 0)


def _predictions(logits: Any, labels: Any) -> Predictions:
    found = Predictions(SimpleNamespace(pad_id=PAD, sequences=KNOWN))  # type: ignore[arg-type]
    given = SimpleNamespace(
        predictions=torch.as_tensor(logits).numpy(), label_ids=torch.tensor(labels).numpy()
    )
    found._keep(given, 1.0)
    return found


def test_logits_are_those_of_the_labels() -> None:
    """A row whose prompt has no labels is its sequence; padding of both kinds is left out."""
    logits = torch.arange(24.0).reshape(2, 4, 3)
    found = _predictions(logits, [[-100, 6, 7, -100], [8, 9, PAD, -100]]).taken()
    assert [(one.ids, one.places) for one in found] == [((5, 6, 7), (1, 2)), ((8, 9), (0, 1))]
    assert torch.equal(found[0].logits, logits[0, 1:3].double())


def test_numbers_in_place_of_logits_are_not_judged_but_zeros_are() -> None:
    """Zeros are a stand-in, of which no sequence is left."""
    with pytest.raises(NotServed):
        _predictions([1.0, 2.0], [0, 0])
    assert _predictions([0.0, 0.0], [0, 0]).taken() == []


def test_rows_that_a_trainer_cuts_within_its_step_are_read_as_cut() -> None:
    """Others, and batches that have no mask of completions, are read as they are."""
    batch = {name: torch.arange(4)[None] for name in ("input_ids", "attention_mask", "completion_mask")}
    cuts = SimpleNamespace(_truncate_inputs=lambda *given: tuple(one[:, :2] for one in given))
    assert {one.shape for one in as_trained(batch, cuts).values()} == {(1, 2)}
    assert as_trained(batch, SimpleNamespace()) is batch
    flat = {"input_ids": batch["input_ids"]}
    assert as_trained(flat, cuts) is flat
