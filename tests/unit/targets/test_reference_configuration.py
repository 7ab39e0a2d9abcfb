"""What the reference adapter configures is served: a schema that grows must not leave relations without runs."""

from seatrial.targets.reference.configuration import configuration, tuning_configuration


def test_both_loops_take_the_configuration_of_the_relations() -> None:
    """A section that one loop alone has would be refused by the other, and every law about that skipped."""
    assert tuning_configuration({}).sft.max_num_steps == 1
    assert configuration({}).grpo.max_num_steps == 2


def test_options_of_the_other_loop_are_left_out() -> None:
    """A cell is of both loops."""
    config = tuning_configuration({"grpo.seed": 5, "loss_fn.ratio_clip_min": 0.1, "sft.seed": 7})
    assert config.sft.seed == 7
