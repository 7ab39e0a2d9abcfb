"""What the trials of level 4 give each of their two runs."""

from seatrial.trials.parallel import without_layout


def test_a_run_of_one_process_takes_no_options_of_layouts() -> None:
    """Other overrides are of both runs."""
    words = (
        "policy.megatron_cfg.sequence_parallel=true",
        "policy.precision=bfloat16",
        "policy.dtensor_cfg.enabled=true",
        "cluster.num_processes=2",
        "cluster.placement=ray",
        "cluster.num_threads=1",
    )
    assert without_layout(words) == ("policy.precision=bfloat16", "cluster.num_threads=1")
