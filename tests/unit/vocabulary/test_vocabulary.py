"""The vocabulary tables are sound, and stacks are told by what they log."""

import pytest

from seatrial.errors import UsageError
from seatrial.vocabulary import canonical, metrics, recognise, stack_named, stacks

TRL_TAGS = """clip_ratio/high_max clip_ratio/high_mean clip_ratio/low_mean clip_ratio/low_min clip_ratio/region_mean
completions/clipped_ratio completions/max_length completions/max_terminated_length completions/mean_length
completions/mean_terminated_length completions/min_length completions/min_terminated_length entropy epoch
frac_reward_zero_std grad_norm learning_rate loss num_tokens reward reward_std step_time""".split()  # noqa: SIM905
"""What TRL 1.16.0's GRPOTrainer was seen to log (shared facts of the project; also held by tests/peers)."""


@pytest.mark.parametrize("stack", stacks().values(), ids=lambda stack: stack.name)
def test_every_tag_maps_to_a_canonical_metric_and_cites_its_source(stack) -> None:
    """No dangling names; every table says where it was read."""
    assert set(stack.tags.values()) <= set(metrics())
    assert len(stack.source) > 20
    assert stack.signature


@pytest.mark.parametrize("metric", metrics().values(), ids=lambda metric: metric.name)
def test_every_metric_has_meaning_unit_and_a_possible_range(metric) -> None:
    """Ranges are intervals."""
    assert metric.meaning
    assert metric.unit
    if metric.low is not None and metric.high is not None:
        assert metric.low < metric.high


def test_no_two_tags_of_a_stack_claim_one_meaning() -> None:
    """A canonical series has one source."""
    for stack in stacks().values():
        assert len(set(stack.tags.values())) == len(stack.tags), stack.name


@pytest.mark.parametrize("name", ["verl", "openrlhf", "prime_rl", "skyrl", "torchtitan", "trl", "nemo_rl"])
def test_a_stack_is_recognised_by_its_own_tags(name: str) -> None:
    """A log with a stack's tags is that stack's."""
    found = recognise(stacks()[name].tags)
    assert found is not None
    assert found.name == name


def test_a_real_trl_log_is_recognised_and_understood() -> None:
    """TRL's tags carry the train/ prefix in TensorBoard."""
    stack = recognise([f"train/{tag}" for tag in TRL_TAGS])
    assert stack is stacks()["trl"]
    metric = canonical("train/frac_reward_zero_std", stack)
    assert metric is not None
    assert metric.name == "reward/zero_variance_fraction"


def test_one_telling_tag_is_not_enough() -> None:
    """A lone `train/loss` says nothing about the stack."""
    assert recognise(["train/loss"]) is None
    assert recognise([]) is None


def test_unknown_tags_pass_through() -> None:
    """The vocabulary never invents a meaning."""
    assert canonical("custom/thing", stacks()["verl"]) is None
    assert canonical("actor/entropy", None) is None


def test_an_unknown_stack_names_the_nearest() -> None:
    """One message with the remedy."""
    assert stack_named("nemo-rl").name == "nemo_rl"
    with pytest.raises(UsageError, match="did you mean 'verl'"):
        stack_named("veral")


@pytest.mark.parametrize(
    ("stack", "tags"),
    [
        ("trl", ["reward_std", "completion_length", "kl", "loss"]),
        ("trl_dpo", ["rewards/chosen", "rewards/rejected", "rewards/margins", "loss"]),
        ("tinker", ["env/all/reward/total", "env/all/by_group/frac_mixed", "optim/lr"]),
        ("verl", ["val-core/gsm8k/acc/mean@1", "val-aux/gsm8k/reward/mean@1"]),
        ("llama_factory", ["loss", "lr", "percentage", "total_steps"]),
    ],
)
def test_a_stack_is_recognised_in_state_files_and_older_versions(stack: str, tags: list[str]) -> None:
    """Tags without the prefix, of DPO, of tinker, of an evaluation alone."""
    found = recognise(tags)
    assert found is not None and found.name == stack


@pytest.mark.parametrize(
    ("stack", "tag", "name"),
    [
        ("trl", "completion_length", "length/completion_mean"),
        ("trl", "rewards/format/mean", "reward/component"),
        ("trl", "train/clip_ratio/low_mean", "clip_fraction/low"),
        ("trl", "eval_reward", "validation/score"),
        ("trl", "eval_kl", "validation/component"),
        ("trl_dpo", "rewards/margins", "preference/margin"),
        ("verl", "actor/entropy_loss", "entropy"),
        ("verl", "critic/kl", "kl/reference"),
        ("verl", "critic/rewards/mean", "reward/component"),
        ("verl", "val/test_score/openai/gsm8k", "validation/component"),
        ("tinker", "env/all/correct", "reward/component"),
        ("tinker", "optim/lr", "learning_rate"),
    ],
)
def test_tags_that_a_health_rule_wants_are_known(stack: str, tag: str, name: str) -> None:
    """Also those of other versions, and families of tags."""
    metric = canonical(tag, stacks()[stack])
    assert metric is not None and metric.name == name


@pytest.mark.parametrize(
    ("tags", "stack"),
    [
        (["loss", "grad_norm", "learning_rate", "epoch", "eval_loss"], "transformers"),
        (["loss", "learning_rate", "epoch", "memory(GiB)", "train_speed(iter/s)", "token_acc"], "ms_swift"),
        (
            ["loss", "reward", "reward_std", "completions/mean_length", "memory(GiB)", "train_speed(iter/s)"],
            "ms_swift",
        ),
        (["loss", "learning_rate", "epoch", "mean_token_accuracy", "num_tokens"], "trl"),
        (["loss", "learning_rate", "epoch", "reward"], None),
        (["train/loss", "train/lr(1e-3)", "val/loss"], "verl_sft"),
        (["Reward", "KL_ref", "Actor Loss", "Avg Response Len"], "minimind"),
        (["loss", "lr", "tokens_per_second_per_gpu", "peak_memory_active"], "torchtune"),
    ],
)
def test_fine_tuning_is_distinguished_from_other_stacks(tags: list[str], stack: str | None) -> None:
    found = recognise(tags)
    assert (found.name if found else None) == stack


@pytest.mark.parametrize("stack", ["trl", "trl_dpo", "transformers", "ms_swift"])
@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("eval_runtime", "time/evaluation"),
        ("eval/math_runtime", "time/evaluation"),
        ("eval/samples_per_second", "throughput/evaluation"),
        ("eval_steps_per_second", "throughput/evaluation"),
        ("eval/num_tokens", "total_tokens"),
    ],
)
def test_what_an_evaluation_costs_is_no_metric_of_validation(stack: str, tag: str, name: str) -> None:
    metric = canonical(tag, stacks()[stack])
    assert metric is not None and metric.name == name


@pytest.mark.parametrize("stack", stacks().values(), ids=lambda stack: stack.name)
def test_no_family_takes_costs_or_counts_for_a_reward_or_a_score(stack) -> None:
    """Each pattern that ends in a star, filled with the words of timings and counts."""
    words = ("runtime", "samples_per_second", "steps_per_second")
    prefixes = {pattern.removesuffix("*") for pattern in stack.families if pattern.startswith("eval/")}
    taken = {
        f"{prefix}{word}": metric.name
        for prefix in prefixes - {"eval/rewards/"}
        for word in words
        if (metric := canonical(f"{prefix}{word}", stack)) is not None and metric.name.endswith("/component")
    }
    assert not taken


@pytest.mark.parametrize(
    ("stack", "tag"),
    [
        ("tinker", "env/all/by_group/frac_mixed"),
        ("tinker", "test/env/all/total_episodes"),
        ("tinker", "env/all/turns_per_episode"),
        ("verl", "val-aux/num_turns/mean"),
        ("verl", "val-aux/gsm8k/response_length/mean"),
    ],
)
def test_counts_next_to_rewards_are_not_parts_of_a_reward(stack: str, tag: str) -> None:
    assert canonical(tag, stacks()[stack]) is None
