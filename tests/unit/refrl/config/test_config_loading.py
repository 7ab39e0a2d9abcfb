"""A configuration is read whole or refused with one line that names the key and the remedy."""

from pathlib import Path

import pytest

from refrl.config import ConfigError, GRPORunConfig, SFTRunConfig, load_config

BASE = """
policy:
  model_name: model
  train_global_batch_size: 4
  train_micro_batch_size: 2
  max_total_sequence_length: 32
  optimizer: {lr: 1e-3}
grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 2}
data: {task: reverse}
logger: {log_dir: logs}
checkpointing: {checkpoint_dir: checkpoints}
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return a valid GRPO configuration file."""
    path = tmp_path / "base.yaml"
    path.write_text(BASE)
    return path


def refusal(path: Path, *overrides: str) -> str:
    """Return the message of the refusal; it must be one line."""
    with pytest.raises(ConfigError) as caught:
        load_config(GRPORunConfig, path, overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_values_of_the_file_and_defaults_are_read(base: Path) -> None:
    """`1e-3` is a number; what the file leaves out has the schema's default."""
    config = load_config(GRPORunConfig, base)
    assert config.policy.optimizer.lr == 0.001
    assert config.policy.optimizer.betas == (0.9, 0.95)
    assert config.policy.generation.stop_token_ids is None


@pytest.mark.parametrize(
    ("override", "read", "expected"),
    [
        ("policy.optimizer.lr=5e-4", lambda c: c.policy.optimizer.lr, 5e-4),
        ("policy.optimizer.lr=0", lambda c: c.policy.optimizer.lr, 0.0),
        ("policy.optimizer.betas=[0.5, 0.6]", lambda c: c.policy.optimizer.betas, (0.5, 0.6)),
        ("policy.generation.stop_token_ids=[3, 4]", lambda c: c.policy.generation.stop_token_ids, (3, 4)),
        ("policy.max_grad_norm=null", lambda c: c.policy.max_grad_norm, None),
        ("policy.tokenizer.name=null", lambda c: c.policy.tokenizer.name, None),
        ("policy.tokenizer.name=a/b", lambda c: c.policy.tokenizer.name, "a/b"),
        ("grpo.val_at_start=true", lambda c: c.grpo.val_at_start, True),
        ("data.task_args.max_length=3", lambda c: c.data.task_args, {"max_length": 3}),
        ("cluster.num_threads=1", lambda c: c.cluster.num_threads, 1),
    ],
)
def test_an_override_replaces_or_adds_a_value(base: Path, override: str, read, expected) -> None:  # type: ignore[no-untyped-def]
    """Values are YAML; sections that the file leaves out are made."""
    assert read(load_config(GRPORunConfig, base, [override])) == expected


@pytest.mark.parametrize("text", ["2026", "true", "a: b", "[x]", "/tmp/run #3", "=x=", "nul"])
def test_a_key_that_takes_text_takes_it_as_it_stands(base: Path, text: str) -> None:
    """A directory may be named like a number, a boolean or a list."""
    assert load_config(GRPORunConfig, base, [f"logger.log_dir={text}"]).logger.log_dir == text


def test_the_last_override_wins(base: Path) -> None:
    """As on any command line."""
    assert load_config(GRPORunConfig, base, ["grpo.seed=1", "grpo.seed=2"]).grpo.seed == 2


@pytest.mark.parametrize(
    ("override", "unknown", "nearest"),
    [
        ("grpo.num_promts_per_step=2", "grpo.num_promts_per_step", "grpo.num_prompts_per_step"),
        ("policy.lr=1", "policy.lr", "policy.optimizer.lr"),
        ("policy.optimiser.lr=1", "policy.optimiser", "policy.optimizer"),
        ("datas.task=add", "datas", "data"),
        ("loss_fn.ratio_clip_mim=0.1", "loss_fn.ratio_clip_mim", "loss_fn.ratio_clip_min"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(
    base: Path, override: str, unknown: str, nearest: str
) -> None:
    """The dotted key and the suggestion stand in the message."""
    message = refusal(base, override)
    assert repr(unknown) in message
    assert repr(nearest) in message


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("policy.optimizer.lr=fast", "policy.optimizer.lr"),
        ("policy.optimizer.lr=-1", "policy.optimizer.lr"),
        ("policy.optimizer.lr=.nan", "policy.optimizer.lr"),
        ("policy.optimizer.lr=.inf", "policy.optimizer.lr"),
        ("policy.optimizer.betas=[0.9]", "policy.optimizer.betas"),
        ("grpo.seed=true", "grpo.seed"),
        ('grpo.seed="3"', "grpo.seed"),
        ("grpo.seed=1.5", "grpo.seed"),
        ("grpo.num_generations_per_prompt=1", "grpo.num_generations_per_prompt"),
        ("grpo.val_at_start=1", "grpo.val_at_start"),
        ("policy.generation.temperature=0", "policy.generation.temperature"),
        ("policy.precision=float16", "policy.precision"),
        ("loss_fn.kind=ppo", "loss_fn.kind"),
        ("data.task_args.max_length=[1]", "data.task_args.max_length"),
        ("grpo=3", "grpo"),
        ("loss_fn.reduction=fixed_length", "loss_fn.fixed_length"),
        ("policy.train_global_batch_size=3", "policy.train_global_batch_size"),
    ],
)
def test_a_wrong_type_or_range_names_the_key(base: Path, override: str, key: str) -> None:
    """Nothing is converted in silence: `true` is no integer, `"3"` is no number."""
    assert key in refusal(base, override)


def test_every_error_is_told_at_once(base: Path) -> None:
    """One run of the command shows all there is to mend."""
    message = refusal(base, "grpo.seed=-1", "data.taks=add")
    assert "grpo.seed" in message
    assert "data.taks" in message


@pytest.mark.parametrize(
    "override", ["grpo.seed", "=3", "grpo..seed=3", ".seed=3", "grpo.=3", "grpo seed=3", "", "--seed=3"]
)
def test_a_malformed_override_is_refused(base: Path, override: str) -> None:
    """The message shows the form."""
    assert "section.key=value" in refusal(base, override)


def test_an_override_below_a_value_is_refused(base: Path) -> None:
    """`policy.model_name` is no section."""
    assert "policy.model_name is a value" in refusal(base, "policy.model_name.x=1")


def test_an_override_whose_value_is_no_yaml_is_refused(base: Path) -> None:
    """The override stands in the message."""
    assert "grpo.seed=[1" in refusal(base, "grpo.seed=[1")


def test_a_missing_required_key_is_named(base: Path) -> None:
    """Nothing stands in for the model."""
    base.write_text(BASE.replace("  model_name: model\n", ""))
    assert "'policy.model_name' is missing" in refusal(base)


def test_a_key_that_stands_twice_is_refused(base: Path) -> None:
    """YAML would take the last one."""
    base.write_text(BASE + "data: {task: add}\n")
    assert "is there twice" in refusal(base)


@pytest.mark.parametrize("text", ["", "3", "[a]", "a: [", "a: !!python/object:os.system {}"])
def test_a_file_that_is_no_mapping_is_refused(base: Path, text: str) -> None:
    """Empty, a scalar, a list, broken, or with a tag that would build an object."""
    base.write_text(text)
    assert str(base) in refusal(base)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    """The path stands in the message."""
    assert "does not exist" in refusal(tmp_path / "none.yaml")
    assert str(tmp_path) in refusal(tmp_path)


def test_a_file_that_is_not_text_is_refused(base: Path) -> None:
    """A model file given by mistake."""
    base.write_bytes(b"\xff\xfe\x00")
    assert "cannot be read" in refusal(base)


def test_one_loop_does_not_take_the_configuration_of_another(base: Path) -> None:
    """`refrl sft` with a GRPO file names what is missing and what it does not know."""
    with pytest.raises(ConfigError, match=r"'sft' is missing.*'grpo'"):
        load_config(SFTRunConfig, base)


def test_stopping_at_an_accuracy_needs_validations(base: Path) -> None:
    """Otherwise the run would never stop early."""
    base.write_text(BASE.replace("grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2,", "sft: {"))
    load_config(SFTRunConfig, base, ["sft.stop_at_accuracy=0.3", "sft.val_period=1"])
    with pytest.raises(ConfigError, match=r"sft\.val_period"):
        load_config(SFTRunConfig, base, ["sft.stop_at_accuracy=0.3"])
