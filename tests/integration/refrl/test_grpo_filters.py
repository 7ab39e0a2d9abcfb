"""Filters, dynamic sampling, length penalties, several verifiers, chat prompts in the loop: what they do is logged."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.errors import TrainingError
from refrl.rewards import VERIFIERS, VerifierError, make_verifier
from refrl.training.grpo import run_grpo
from refrl.training.sft import run_sft

from .conftest import CONFIGS
from .test_grpo_run import rows, series, smoke

Overrides = Callable[[str], list[str]]
ENDS_OFTEN = f"policy.generation.stop_token_ids={list(range(60))}"
CLOSENESS = make_verifier("byte_closeness")


@pytest.fixture
def flat_on_odd_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all completions of a prompt whose answer begins with an odd letter worth the same."""

    def flat(completion: str, answer: str) -> float:
        return 0.5 if ord(answer[0]) % 2 else CLOSENESS(completion, answer)

    monkeypatch.setitem(VERIFIERS, "byte_closeness", flat)


def run(overrides: list[str], *more: str) -> GRPORunConfig:
    """Run two steps of the smoke recipe."""
    config = smoke(
        overrides, "grpo.max_num_steps=2", "grpo.val_at_start=false", "grpo.val_at_end=false", *more
    )
    run_grpo(config)
    return config


@pytest.mark.usefixtures("flat_on_odd_letters")
def test_dynamic_sampling_fills_every_step_with_groups_that_differ(overrides: Overrides) -> None:
    """Whole groups of different prompts; every group sampled is trained on, dropped or discarded."""
    config = run(
        overrides("a"),
        "grpo.use_dynamic_sampling=true",
        "data.num_train=100",
        "data.task_args={max_length: 3, alphabet_size: 8}",
    )
    found = series(config)
    for step in (1, 2):
        trained = rows(config, step)
        assert sorted(Counter(row["prompt_id"] for row in trained).values()) == [4, 4, 4, 4]
        assert not any(ord(row["answer"][0]) % 2 for row in trained)
        batches, dropped, discarded = (
            found[f"train/dynamic_sampling_num_{name}"][step]
            for name in ("gen_batches", "dropped_groups", "discarded_valid_samples")
        )
        assert batches > 1
        assert 4 * batches == 4 + dropped + discarded / 4
        assert found["train/global_valid_seqs"][step] == 16


def test_dynamic_sampling_that_drops_nothing_changes_nothing(overrides: Overrides) -> None:
    """The first generation batch of a step is the one that is sampled without it."""
    plain, dynamic = run(overrides("a")), run(overrides("b"), "grpo.use_dynamic_sampling=true")
    assert [rows(plain, step) for step in (1, 2)] == [rows(dynamic, step) for step in (1, 2)]
    assert series(dynamic)["train/dynamic_sampling_num_gen_batches"] == {1: 1.0, 2: 1.0}


def test_dynamic_sampling_gives_up_in_words(overrides: Overrides, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verifier that always says the same is no reason to wait for ever."""
    monkeypatch.setitem(VERIFIERS, "byte_closeness", lambda completion, answer: 0.5)
    with pytest.raises(
        TrainingError, match=r"step 1: 3 generation batches gave 0 of 4 groups .*verifier is constant"
    ):
        run(overrides("a"), "grpo.use_dynamic_sampling=true", "grpo.dynamic_sampling_max_gen_batches=3")


def test_cut_off_completions_are_kept_out_of_the_loss(overrides: Overrides) -> None:
    """They are marked, counted, and not among the valid tokens; their rewards stay in the baseline."""
    config = run(overrides("a"), "grpo.overlong_filtering=true", ENDS_OFTEN)
    plain = run(overrides("b"), ENDS_OFTEN)
    found, trained = series(config), rows(config, 1)
    kept = [row for row in trained if row["finish_reason"] == "stop"]
    assert 0 < len(kept) < 16
    assert [row.get("filtered", False) for row in trained] == [
        row["finish_reason"] == "length" for row in trained
    ]
    assert (
        found["train/num_overlong_filtered"][1] == 16 - len(kept) == 16 - found["train/global_valid_seqs"][1]
    )
    assert found["train/global_valid_toks"][1] == sum(len(row["generation_logprobs"]) for row in kept)
    assert [row["advantage"] for row in trained] == [row["advantage"] for row in rows(plain, 1)]


def test_a_step_of_which_nothing_is_left_ends_the_run_in_words(overrides: Overrides) -> None:
    """Not with a division by zero tokens."""
    with pytest.raises(
        TrainingError, match=r"step 1: the filters leave nothing .*num_overlong_filtered 16 of 16"
    ):
        run(overrides("a"), "grpo.overlong_filtering=true", "policy.generation.stop_token_ids=[]")


@pytest.mark.usefixtures("flat_on_odd_letters")
def test_groups_without_spread_are_kept_out_of_the_loss(overrides: Overrides) -> None:
    """One group is an update here: one that is masked whole is left out, the others are taken."""
    options = ("grpo.zero_variance_filter=true", "policy.train_global_batch_size=4", "data.seed=0")
    config = run(overrides("a"), *options)
    found, trained = series(config), rows(config, 1)
    filtered = [row.get("filtered", False) for row in trained]
    assert filtered == [ord(row["answer"][0]) % 2 == 1 for row in trained]
    assert 0 < sum(filtered) < 16
    assert found["train/num_zero_variance_filtered"][1] == sum(filtered)
    assert found["train/global_valid_seqs"][1] == 4


def test_the_penalty_on_length_is_in_the_reward_and_beside_it(overrides: Overrides) -> None:
    """By hand: nothing up to 4 tokens, 0.6 at 8."""
    config = run(
        overrides("a"),
        ENDS_OFTEN,
        "grpo.reward_shaping={enabled: true, overlong_buffer_length: 4, overlong_buffer_penalty: 0.6}",
    )
    found, trained = series(config), rows(config, 1)
    penalties = [-0.6 * max(0, len(row["generation_logprobs"]) - 4) / 4 for row in trained]
    assert min(penalties) < max(penalties) == 0
    verified = [CLOSENESS(row["completion"], row["answer"]) for row in trained]
    assert [row["length_penalty"] for row in trained] == pytest.approx(penalties)
    assert [row["reward"] for row in trained] == pytest.approx(
        [reward + penalty for reward, penalty in zip(verified, penalties, strict=True)], abs=1e-6
    )
    assert found["train/reward"][1] == pytest.approx(sum(verified + penalties) / 16, abs=1e-6)
    assert found["train/length_penalty/mean"][1] == pytest.approx(sum(penalties) / 16, abs=1e-6)
    assert found["train/length_penalty/reward_before"][1] == pytest.approx(sum(verified) / 16, abs=1e-6)
    assert found["train/length_penalty/pct_penalised"][1] == pytest.approx(sum(p < 0 for p in penalties) / 16)


def test_several_verifiers_are_weighed_and_each_is_measured(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reward, seconds and errors of each; what one of them cannot judge counts as an error of the row."""

    def uncertain(completion: str, answer: str) -> float:
        if len(completion) % 2:
            raise VerifierError("odd")
        return 1.0

    monkeypatch.setitem(VERIFIERS, "exact_match", uncertain)
    config = run(
        overrides("a"),
        "data.verifier=null",
        "data.verifiers={byte_closeness: 3, exact_match: 1}",
        "grpo.val_at_start=true",
    )
    found, trained = series(config), rows(config, 1)
    odd = sum(len(row["completion"]) % 2 for row in trained)
    assert 0 < odd < 16
    for row in trained:
        closeness = CLOSENESS(row["completion"], row["answer"])
        expected = 0.0 if len(row["completion"]) % 2 else (3 * closeness + 1) / 4
        assert row["reward"] == pytest.approx(expected, abs=1e-6)
    assert found["train/verifier/exact_match/num_errors"][1] == odd == found["train/num_verifier_errors"][1]
    assert found["train/verifier/exact_match/reward"][1] == 1.0
    mean = sum(CLOSENESS(row["completion"], row["answer"]) for row in trained) / 16
    assert found["train/verifier/byte_closeness/reward"][1] == pytest.approx(mean, abs=1e-6)
    assert found["timing/train/reward_calculation/byte_closeness"][1] > 0
    assert list(found["validation/verifier/byte_closeness/reward"]) == [0]


BYTE_CHAT = ("policy.tokenizer.chat_template=byte", "data.system_prompt=be brief")


def test_prompts_are_turns_of_a_conversation(overrides: Overrides) -> None:
    """The tokens that the model sees, by hand; completions begin where the assistant's turn does."""
    config = run(overrides("a"), *BYTE_CHAT, "policy.max_total_sequence_length=80")
    for row in rows(config, 1):
        turns = [257, *b"system\nbe brief", 258, *b"user\n", *row["prompt"].encode(), 258, *b"assistant\n"]
        assert row["token_ids"][: row["prompt_length"]] == turns
    assert series(config)["train/token_mult_prob_error"][2] == pytest.approx(1.0, abs=1e-4)


def test_fine_tuning_learns_the_assistants_words_and_their_end(overrides: Overrides) -> None:
    """A digit or two and the end token of each answer; no token of the turns around it."""
    config = load_config(
        SFTRunConfig,
        CONFIGS / "sft-warmup.yaml",
        [
            *overrides("a"),
            *BYTE_CHAT,
            "data.task=add",
            "data.task_args={digits: 1}",
            "data.num_train=60",
            "data.num_validation=40",
            "sft.max_num_steps=1",
            "sft.val_period=0",
            "sft.stop_at_accuracy=null",
            "policy.train_global_batch_size=32",
            "policy.max_total_sequence_length=80",
        ],
    )
    run_sft(config)
    assert Path(config.checkpointing.checkpoint_dir, "final").exists()
    assert 32 * 2 <= series(config)["train/global_valid_toks"][1] <= 32 * 3  # type: ignore[arg-type]
