"""What the reference adapter configures is served: a schema that grows must not leave relations without runs."""

from typing import Any

from seatrial.targets.reference.configuration import configuration, least, table, tuning_configuration


def test_both_loops_take_the_configuration_of_the_relations() -> None:
    """A section that one loop alone has would be refused by the other, and every law about that skipped."""
    assert tuning_configuration({}).sft.max_num_steps == 1
    assert configuration({}).grpo.max_num_steps == 2


def test_options_of_the_other_loop_are_left_out() -> None:
    """A cell is of both loops."""
    config = tuning_configuration({"grpo.seed": 5, "loss_fn.ratio_clip_min": 0.1, "sft.seed": 7})
    assert config.sft.seed == 7


def test_every_default_is_documented() -> None:
    """The guards of a run compare each default with the table; they are blind to an option that it does not name."""
    documented, found = table("defaults"), least()
    assert found.keys() <= documented.keys()
    assert [name for name, value in found.items() if _plain(value) != documented[name]] == []


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
