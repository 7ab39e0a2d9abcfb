"""Records of text models with rich configurations, and noise that no seed draws."""

from __future__ import annotations

import pytest
import torch

from seatrial.targets.transformers.class_records import LINES, record
from seatrial.targets.transformers.class_rich import RICH
from seatrial.targets.transformers.rich_configs import GROUPS, PADDING, even_noise
from seatrial.targets.transformers.rich_inputs import GAPS, LENGTH, padded
from seatrial.targets.transformers.rich_outputs import MADE


def test_noise_grows_with_its_share_and_draws_nothing() -> None:
    """Dropout acts in training alone, and another share gives other values; nothing is drawn."""
    values, before = torch.ones(2, 5), torch.get_rng_state()
    with even_noise():
        quiet = torch.nn.functional.dropout(values, 0.5, training=False)
        little, much = (torch.nn.functional.dropout(values, p, training=True) for p in (0.1, 0.2))
        numbers = torch.rand(4), torch.empty(4).uniform_(2.0, 3.0)
    assert torch.equal(quiet, values)
    assert torch.allclose(2 * (little - 1), much - 1)
    assert len({*numbers[0].tolist()}) == 4
    assert bool(((numbers[1] >= 2) & (numbers[1] < 3)).all())
    assert torch.equal(before, torch.get_rng_state())


def test_noise_ends() -> None:
    """Dropout is that of torch again, also after an error."""
    before = torch.nn.functional.dropout
    with pytest.raises(ValueError, match="of a model"), even_noise():
        raise ValueError("of a model")
    assert torch.nn.functional.dropout is before


@pytest.mark.parametrize("left", [True, False])
def test_padding_is_of_ids_and_mask(left: bool) -> None:
    """What the mask leaves out is the id of padding."""

    class Model:
        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> None: ...

    found = padded(Model(), {"input_ids": torch.full((3, LENGTH), 9)}, left=left)
    assert torch.equal(found["input_ids"] == PADDING, found["attention_mask"] == 0)
    assert (found["attention_mask"] == 0).sum(-1).tolist() == list(GAPS)
    assert bool((found["attention_mask"][1, 0] == 0) == left)


def test_a_record_names_class_group_and_output() -> None:
    """Each projection is of one line of releases or of both, and ends with its scale."""
    assert record(RICH)
    for names in record(RICH).values():
        for name, lines in names.items():
            _, group, what = name.split("|")
            assert group in GROUPS
            assert what in (*MADE, "start")
            assert {*lines} <= {"", *LINES}
            assert all(len(values) >= 2 and values[-1] > 0 for values in lines.values())
