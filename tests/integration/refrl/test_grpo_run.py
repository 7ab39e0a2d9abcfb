"""A GRPO run leaves the evidence that trials read, reproducibly, and stops where it must."""

import json
import math
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from refrl.config import ConfigError, GRPORunConfig, load_config
from refrl.errors import TrainingError
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rewards import VERIFIERS, VerifierError, make_verifier
from refrl.training import build
from refrl.training.grpo import run_grpo

from .conftest import CONFIGS

Overrides = Callable[[str], list[str]]


def smoke(overrides: list[str], *more: str) -> GRPORunConfig:
    """Return the smoke configuration under overrides."""
    return load_config(GRPORunConfig, CONFIGS / "grpo-smoke.yaml", [*overrides, *more])


def series(config: GRPORunConfig) -> dict[str, dict[int, float]]:
    """Return every scalar by tag and step."""
    (path,) = (Path(config.logger.log_dir) / "tensorboard").iterdir()
    found: dict[str, dict[int, float]] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            found.setdefault(value.tag, {})[event.step] = value.tensor.float_val[0]
    return found


def rows(config: GRPORunConfig, step: int, name: str = "train_data") -> list[dict[str, Any]]:
    """Return the rows of a step."""
    path = Path(config.logger.log_dir) / f"{name}_step{step}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


NEMO_RL_NAMES = """
train/loss train/reward train/token_mult_prob_error train/gen_kl_error train/probs_ratio
train/probs_ratio_min train/probs_ratio_max train/probs_ratio_clamped train/probs_ratio_clamped_min
train/probs_ratio_clamped_max train/approx_entropy train/kl_penalty train/grad_norm train/lr
train/global_valid_toks train/global_valid_seqs train/mean_prompt_length train/total_num_tokens
train/mean_gen_tokens_per_sample train/max_gen_tokens_per_sample train/truncation_rate
train/natural_termination_rate train/advantages/mean train/advantages/min train/advantages/max
train/baseline_reward/pct_0 train/baseline_reward/pct_1 train/baseline_reward/pct_mixed
train/sampling_importance_ratio train/num_verifier_errors
timing/train/total_step_time timing/train/generation timing/train/reward_calculation
timing/train/data_processing timing/train/advantage_calculation timing/train/policy_training
timing/train/policy_and_reference_logprobs timing/train/prepare_for_generation/total
performance/tokens_per_sec performance/samples_per_sec performance/generation_tokens_per_sec
performance/policy_training_tokens_per_sec
"""


def test_every_metric_is_logged_at_every_step(overrides: Overrides) -> None:
    """Under NeMo RL's names, steps counted from 1; validation before the first step is step 0."""
    config = smoke(overrides("a"))
    run_grpo(config)
    found = series(config)
    for tag in NEMO_RL_NAMES.split():
        assert list(found[tag]) == [1, 2, 3], tag
        assert all(math.isfinite(value) for value in found[tag].values()), tag
    assert list(found["validation/accuracy"]) == [0, 3]
    assert set(found["timing/validation/total_validation_time"]) == {0, 3}
    for step in (1, 2, 3):
        assert found["train/token_mult_prob_error"][step] == pytest.approx(1.0, abs=1e-4)
        assert found["train/probs_ratio_max"][step] == pytest.approx(1.0, abs=1e-4)
        assert found["train/global_valid_seqs"][step] == 16
        phases = [
            seconds[step]
            for tag, seconds in found.items()
            if tag.startswith("timing/train/") and tag != "timing/train/total_step_time"
        ]
        assert sum(phases) <= found["timing/train/total_step_time"][step] * (1 + 1e-6)
    assert found["train/kl_penalty"][1] == pytest.approx(0.0, abs=1e-6)
    assert found["train/kl_penalty"][3] > 1e-4


def test_rows_are_what_was_trained_on(overrides: Overrides, tiny_model: Path) -> None:
    """Each row against its own prompt: text of the tokens, reward by hand, scores by a plain forward, advantages."""
    from transformers import AutoModelForCausalLM

    config = smoke(overrides("a"))
    run_grpo(config)
    first = rows(config, 1)
    assert [row["index"] for row in first] == list(range(16))
    assert set(Counter(row["prompt_id"] for row in first).values()) == {4}
    model = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    stop_ids = config.policy.generation.stop_token_ids
    assert stop_ids is not None
    for row in first:
        prompt_ids, ids = row["token_ids"][: row["prompt_length"]], row["token_ids"][row["prompt_length"] :]
        assert bytes(prompt_ids[1:]).decode() == row["prompt"]
        assert bytes(token for token in ids if token < 256).decode(errors="replace") == row["completion"]
        assert row["answer"] == row["prompt"][len("reverse ") : -1][::-1]
        assert row["reward"] == pytest.approx(
            make_verifier("byte_closeness")(row["completion"], row["answer"])
        )
        assert row["finish_reason"] == ("stop" if ids[-1] in stop_ids else "length")
        with torch.no_grad():
            logprobs_SV = model(torch.tensor([row["token_ids"]])).logits[0].log_softmax(-1)
        expected = [float(logprobs_SV[row["prompt_length"] + t - 1, token]) for t, token in enumerate(ids)]
        assert row["prev_logprobs"] == pytest.approx(expected, abs=1e-4)
        assert row["generation_logprobs"] == pytest.approx(expected, abs=1e-4)
    for prompt_id in {row["prompt_id"] for row in first}:
        group = [row for row in first if row["prompt_id"] == prompt_id]
        rewards = torch.tensor([row["reward"] for row in group], dtype=torch.float64)
        expected_advantages = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        assert [row["advantage"] for row in group] == pytest.approx(expected_advantages.tolist(), abs=1e-4)
    held_out = rows(config, 0, "validation_data")
    assert len(held_out) == config.grpo.max_val_samples
    trained_on = {row["prompt"] for step in (1, 2, 3) for row in rows(config, step)}
    assert not trained_on & {row["prompt"] for row in held_out}


def weights(config: GRPORunConfig) -> dict[str, torch.Tensor]:
    """Return the exported weights."""
    return load_file(Path(config.checkpointing.checkpoint_dir) / "final" / "model.safetensors")


def test_one_seed_is_one_run_to_the_bit(overrides: Overrides) -> None:
    """Weights, scalars and rows; another seed differs. Validations in between change nothing."""
    runs = {
        "a": smoke(overrides("a")),
        "b": smoke(overrides("b"), "grpo.val_at_start=false", "grpo.val_at_end=false"),
        "c": smoke(overrides("c"), "grpo.seed=1"),
    }
    for config in runs.values():
        run_grpo(config)
    a, b, c = (weights(config) for config in runs.values())
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)
    assert [rows(runs["a"], step) for step in (1, 2, 3)] == [rows(runs["b"], step) for step in (1, 2, 3)]
    first, second = series(runs["a"]), series(runs["b"])
    for tag, values in second.items():
        if tag.startswith("train/"):
            assert values == first[tag]


@pytest.mark.parametrize(
    "change",
    ["policy.train_micro_batch_size=3", "policy.logprob_batch_size=5", "policy.sequence_length_buckets=[48]"],
)
def test_how_a_batch_is_cut_or_padded_changes_only_rounding(overrides: Overrides, change: str) -> None:
    """The same completions, and losses equal to float32 rounding."""
    plain, cut = smoke(overrides("a")), smoke(overrides("b"), change)
    run_grpo(plain)
    run_grpo(cut)
    assert [row["token_ids"] for row in rows(plain, 1)] == [row["token_ids"] for row in rows(cut, 1)]
    for tag in ("train/loss", "train/grad_norm"):
        assert series(plain)[tag][1] == pytest.approx(series(cut)[tag][1], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("cut", [16, 4])
def test_scoring_within_the_training_pass_is_the_same_run(overrides: Overrides, cut: int) -> None:
    """One forward pass less, whether in one micro-batch or several; the rows still hold the scores."""
    size = f"policy.train_micro_batch_size={cut}"
    twice, once = (
        smoke(
            overrides(name), size, f"policy.logprob_batch_size={cut}", f"loss_fn.force_on_policy_ratio={name}"
        )
        for name in ("false", "true")
    )
    for config in (twice, once):
        run_grpo(config)
    for before, after in zip(rows(twice, 3), rows(once, 3), strict=True):
        assert after["token_ids"] == before["token_ids"]
        assert after["prev_logprobs"] == pytest.approx(before["prev_logprobs"], abs=1e-5)
    found = series(once)
    assert set(found["train/probs_ratio_max"].values()) == {1.0}
    assert found["train/token_mult_prob_error"][3] == pytest.approx(1.0, abs=1e-4)
    for name, weight in weights(twice).items():
        assert float(((weight - weights(once)[name]).abs() < 1e-5).float().mean()) > 0.99, name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("policy.train_global_batch_size=4", "several: set it to 16"),
        ("loss_fn.kl_in=reward", "needs the log-probabilities before the update"),
        ("grpo.overlong_filtering=true", "leave one of them out"),
        ("grpo.zero_variance_filter=true", "leave one of them out"),
    ],
)
def test_an_on_policy_ratio_is_refused_where_it_would_be_wrong(
    overrides: Overrides, change: str, words: str
) -> None:
    """Several updates, or a penalty that needs the scores first."""
    with pytest.raises(ConfigError, match=words):
        smoke(overrides("a"), "loss_fn.force_on_policy_ratio=true", change)


def test_a_rate_of_zero_moves_no_weight(overrides: Overrides, tiny_model: Path) -> None:
    """The export is the model that went in; with a rate every weight moves."""
    still, moving = smoke(overrides("a"), "policy.optimizer.lr=0"), smoke(overrides("b"))
    run_grpo(still)
    run_grpo(moving)
    before = load_file(tiny_model / "model.safetensors")
    after, moved = weights(still), weights(moving)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(torch.equal(before[name], moved[name]) for name in before)


def test_several_updates_of_one_rollout(overrides: Overrides) -> None:
    """In the first the ratio is 1; later ones move it, and the clamp holds."""
    config = smoke(overrides("a"), "policy.train_global_batch_size=4", "policy.optimizer.lr=1e-2")
    run_grpo(config)
    found = series(config)
    assert found["train/probs_ratio_max"][1] > 1.05
    assert found["train/probs_ratio_clamped_min"][1] > 0.79
    assert found["train/probs_ratio_clamped_max"][1] < 1.21
    assert found["train/global_valid_seqs"][1] == 4


def test_sampling_at_another_temperature_is_scored_at_it(overrides: Overrides) -> None:
    """Sampler and trainer agree at 0.7 as they do at 1."""
    config = smoke(overrides("a"), "policy.generation.temperature=0.7")
    run_grpo(config)
    assert series(config)["train/token_mult_prob_error"][2] == pytest.approx(1.0, abs=1e-4)


def test_the_kl_in_the_loss_holds_the_policy_back(overrides: Overrides) -> None:
    """A heavy penalty leaves the policy nearer to where it began."""
    end = []
    for name, weight in (("free", "1e-9"), ("held", "5.0")):
        config = smoke(
            overrides(name),
            f"loss_fn.reference_policy_kl_penalty={weight}",
            "grpo.max_num_steps=12",
            "policy.optimizer.lr=3e-3",
        )
        run_grpo(config)
        end.append(series(config)["train/kl_penalty"][12])
    assert end[1] < 0.7 * end[0]


def test_the_kl_in_the_reward_moves_the_advantages(overrides: Overrides, tiny_model: Path) -> None:
    """They are those of reward minus 5 times the KL, whose reference scores are taken from the model on disk."""
    from transformers import AutoModelForCausalLM

    config = smoke(
        overrides("a"),
        "loss_fn.kl_in=reward",
        "loss_fn.reference_policy_kl_penalty=5.0",
        "policy.optimizer.lr=1e-2",
    )
    run_grpo(config)
    reference = AutoModelForCausalLM.from_pretrained(str(tiny_model))
    penalised: dict[int, list[float]] = {}
    for row in rows(config, 3):
        ids = row["token_ids"][row["prompt_length"] :]
        with torch.no_grad():
            logprobs_SV = reference(torch.tensor([row["token_ids"]])).logits[0].log_softmax(-1)
        difference = [
            float(logprobs_SV[row["prompt_length"] + t - 1, token]) - row["prev_logprobs"][t]
            for t, token in enumerate(ids)
        ]
        kl = sum(math.exp(d) - 1 - d for d in difference)
        assert kl > 1e-3
        penalised.setdefault(row["prompt_id"], []).append(row["reward"] - 5.0 * kl)
    for prompt_id, rewards in penalised.items():
        values = torch.tensor(rewards, dtype=torch.float64)
        expected = (values - values.mean()) / (values.std() + 1e-6)
        logged = [row["advantage"] for row in rows(config, 3) if row["prompt_id"] == prompt_id]
        assert logged == pytest.approx(expected.tolist(), abs=2e-3)


def test_a_gradient_that_is_not_finite_ends_the_run_in_words_after_logging(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 2 breaks: it is in the log with its NaN, nothing is exported."""
    config = smoke(overrides("a"))
    calls = []

    def broken(*args: Any) -> torch.Tensor:
        advantages = compute(*args)
        calls.append(1)
        return advantages * math.nan if len(calls) == 2 else advantages

    compute = build.compute_advantages
    monkeypatch.setattr(build, "compute_advantages", broken)
    with pytest.raises(TrainingError, match="step 2: the gradient norm is nan"):
        run_grpo(config)
    found = series(config)
    assert list(found["train/loss"]) == [1, 2]
    assert math.isnan(found["train/grad_norm"][2])
    assert not Path(config.checkpointing.checkpoint_dir, "final").exists()


def test_what_the_verifier_cannot_judge_is_logged_and_printed(
    overrides: Overrides, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on with reward 0 for these rows."""

    def uncertain(completion: str, answer: str) -> float:
        if len(completion) % 2:
            raise VerifierError(f"cannot judge {len(completion)} characters")
        return 0.5

    monkeypatch.setitem(VERIFIERS, "byte_closeness", uncertain)
    config = smoke(overrides("a"))
    run_grpo(config)
    odd = sum(len(row["completion"]) % 2 for row in rows(config, 1))
    assert odd > 0
    assert series(config)["train/num_verifier_errors"][1] == odd
    assert f"step 1  {odd} verifier errors: row" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("policy.max_total_sequence_length=12", "the longest prompt has 13 tokens"),
        ("policy.max_total_sequence_length=1000", "more than the 512 positions"),
        ("policy.model_name=nowhere", "policy.model_name=nowhere is not a directory"),
        ("policy.tokenizer.name=nowhere", "tokenizer directory nowhere does not exist"),
        ("data.task=sort", "data.task='sort' is unknown"),
        ("data.task_args.length=3", "data.task_args.length is unknown to reverse"),
        ("data.num_train=100000", "different prompts"),
        ("data.verifier=fuzzy", "data.verifier='fuzzy' is unknown"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_written(
    overrides: Overrides, tmp_path: Path, change: str, words: str
) -> None:
    """Nothing is left that looks like the log of a run."""
    config = smoke(overrides("a"), change)
    with pytest.raises(ConfigError) as caught:
        run_grpo(config)
    assert words in str(caught.value)
    assert not Path(config.logger.log_dir).exists()


def edit_json(path: Path, **changes: Any) -> None:
    """Replace values of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_tokenizer_of_another_model_is_refused(
    overrides: Overrides, tiny_model: Path, tmp_path: Path
) -> None:
    """It gives ids that the model does not know."""
    tokenizer = make_byte_tokenizer()
    tokenizer.add_tokens(["reverse"])
    tokenizer.save_pretrained(str(tmp_path / "other"))
    config = smoke(overrides("a"), f"policy.tokenizer.name={tmp_path / 'other'}")
    with pytest.raises(ConfigError, match=r"id 259, and the model in .* has 259 ids"):
        run_grpo(config)


def test_completions_end_at_the_tokenizers_end_too(
    overrides: Overrides, tiny_model: Path, tmp_path: Path
) -> None:
    """Also where the model's files name no end token."""
    model = shutil.copytree(tiny_model, tmp_path / "endless")
    edit_json(model / "config.json", eos_token_id=None)
    edit_json(model / "generation_config.json", eos_token_id=None)
    config = smoke(overrides("a"), f"policy.model_name={model}")
    run_grpo(config)
    sampled = [row["token_ids"][row["prompt_length"] :] for step in (1, 2, 3) for row in rows(config, step)]
    assert any(ids[-1] == 258 for ids in sampled)
    assert not any(258 in ids[:-1] for ids in sampled)


def test_results_of_an_earlier_run_are_not_touched(overrides: Overrides) -> None:
    """Neither its log nor its model: a second run under the same names is refused."""
    config = smoke(overrides("a"), "grpo.max_num_steps=1")
    run_grpo(config)
    with pytest.raises(ConfigError, match="final exists"):
        run_grpo(config)
    elsewhere = smoke(overrides("a"), f"checkpointing.checkpoint_dir={config.logger.log_dir}/other")
    with pytest.raises(ConfigError, match="holds the log of another run"):
        run_grpo(elsewhere)


def test_an_export_can_be_switched_off(overrides: Overrides) -> None:
    """Then no directory is made."""
    config = smoke(overrides("a"), "checkpointing.enabled=false", "grpo.max_num_steps=1")
    run_grpo(config)
    assert not Path(config.checkpointing.checkpoint_dir).exists()
