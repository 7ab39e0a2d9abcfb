"""The reference target: what it launches, what it refuses, and where it looks."""

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from seatrial.errors import BlockedError, UsageError
from seatrial.targets import get_target
from seatrial.targets.base import JobRequest, Target, TrainingJob
from seatrial.targets.reference import target as reference
from seatrial.targets.reference.target import ReferenceTarget


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a byte-level model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"vocab_size": 259}')
    (folder / "model.safetensors").write_bytes(b"")
    vocabulary = {chr(256 + number): number for number in range(256)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary, "merges": []}}))
    return folder


def smoke(model: Path, directory: Path, seed: int, overrides: Sequence[str]) -> TrainingJob:
    """Return the run of the smoke."""
    request = JobRequest(
        recipe="grpo-smoke", model=model, directory=directory, seed=seed, overrides=overrides
    )
    return ReferenceTarget().job(request)


def test_targets_are_found_by_name_and_the_nearest_is_named() -> None:
    """A typing error is answered with what was meant."""
    target: Target = get_target("reference")
    assert target.name == "reference"
    with pytest.raises(UsageError, match="did you mean 'reference'"):
        get_target("refrence")
    with pytest.raises(UsageError, match=r"there are: .*reference"):
        get_target("xyz")


def test_the_smoke_is_the_documented_command(model: Path, tmp_path: Path) -> None:
    """`python -m refrl grpo --config FILE key=value ...`, with the evidence in the trial's folder."""
    job = smoke(model, tmp_path / "trial", 7, ["grpo.max_num_steps=5", "policy.model_name=elsewhere"])
    words = list(job.argv[1:])
    assert words[:4] == ["-P", "-m", "refrl", "grpo"]
    settings = dict(word.split("=", 1) for word in words[6:])
    assert settings["policy.model_name"] == str(model)
    assert settings["grpo.seed"] == "7"
    assert settings["data.seed"] != "7"
    assert settings["grpo.max_num_steps"] == "5"
    assert job.num_steps == 5
    assert job.log_dir.is_relative_to(tmp_path / "trial")
    assert job.final_model.is_relative_to(tmp_path / "trial")
    assert (job.vocabulary_size, job.byte_level) == (259, True)
    assert job.environment["HF_HUB_OFFLINE"] == "1"


def test_the_facts_of_a_job_follow_the_overrides(model: Path, tmp_path: Path) -> None:
    """What is judged is what was asked for."""
    overrides = [
        "loss_fn.ratio_clip_max=0.28", "grpo.advantage.estimator=rloo", "data.task=add", "data.task_args={digits: 1}",
        "data.num_train=60", "data.num_validation=16", "data.verifier=null", "grpo.num_generations_per_prompt=8",
        "policy.precision=bfloat16",
    ]  # fmt: skip
    job = smoke(model, tmp_path / "trial", 0, overrides)
    assert job.ratio_clip == pytest.approx((0.8, 1.28))
    assert job.advantage is not None
    assert (job.advantage.estimator, job.advantage.scale) == ("rloo", "none")
    assert job.verifier == "exact_match"
    assert job.num_generations_per_prompt == 8
    assert job.precision == "bfloat16"
    in_reward = smoke(model, tmp_path / "trial", 0, ["loss_fn.kl_in=reward"])
    assert in_reward.advantage is None


@pytest.mark.parametrize(
    ("overrides", "backend", "mesh"),
    [
        ([], "hf", {}),
        (["cluster.num_processes=2"], "hf", {"data": 2}),
        (
            [
                "cluster.num_processes=8",
                "policy.dtensor_cfg.enabled=true",
                "policy.dtensor_cfg.tensor_parallel_size=2",
                "policy.dtensor_cfg.context_parallel_size=2",
                "policy.dtensor_cfg.expert_parallel_size=4",
            ],
            "dtensor",
            {"data": 2, "context": 2, "tensor": 2, "expert": 4},
        ),
        (
            [
                "cluster.num_processes=4",
                "policy.megatron_cfg.enabled=true",
                "policy.megatron_cfg.pipeline_model_parallel_size=2",
            ],
            "megatron",
            {"data": 2, "pipeline": 2},
        ),
    ],
)
def test_a_job_says_what_is_to_serve_its_policy(
    model: Path, tmp_path: Path, overrides: list[str], backend: str, mesh: dict[str, int]
) -> None:
    """So that a trial can hold it against what did."""
    job = smoke(model, tmp_path / "trial", 0, overrides)
    assert (job.backend, job.mesh) == (backend, mesh)


def test_learning_runs_share_the_data_and_not_the_luck(model: Path, tmp_path: Path) -> None:
    """One split, another seed of the loop for each run and each seed of the trial."""
    seeds, splits = set(), set()
    for seed in (0, 1):
        for number in (0, 1, 2):
            job = ReferenceTarget().job(
                JobRequest(recipe="grpo-learning", model=model, directory=tmp_path, seed=seed, number=number)
            )
            settings: dict[str, str] = {}
            for word in job.argv[7:]:
                key, _, value = word.partition("=")
                settings[key] = value
            splits.add((seed, settings["data.seed"]))
            seeds.add(settings["grpo.seed"])
    assert len(splits) == 2
    assert len(seeds) == 6


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("grpo.sede=1", "unknown key 'grpo.sede'; the nearest known key is 'grpo.seed'"),
        ("grpo.max_num_steps=many", "grpo.max_num_steps"),
        ("grpo.max_num_steps=0", "grpo.max_num_steps"),
        ("nonsense", "malformed"),
        ("logger.log_dir=/x", "logger.log_dir is set by the trial"),
        (
            "checkpointing.enabled=false",
            "checkpointing.enabled is set by the trial: the trial compares the weights",
        ),
        ("grpo.seed=1", "give --seed"),
    ],
)
def test_wrong_overrides_are_refused_before_anything_runs(override: str, words: str) -> None:
    """The key and the remedy are named."""
    with pytest.raises(UsageError) as refused:
        ReferenceTarget().check_overrides([override])
    assert words in str(refused.value)


def test_a_given_model_is_looked_at(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken by its absolute path; the last one given counts."""
    monkeypatch.chdir(model.parent)
    target = ReferenceTarget()
    assert target.given_model([]) is None
    assert target.given_model(["policy.model_name=gone", "policy.model_name=model"]) == model.resolve()


@pytest.mark.parametrize(
    ("lose", "words"),
    [
        ("", "is no folder"),
        ("config.json", "holds no model"),
        ("model.safetensors", "holds no model"),
        ("tokenizer.json", "holds no tokenizer"),
    ],
)
def test_a_model_that_lacks_something_is_blocked(model: Path, lose: str, words: str) -> None:
    """Missing folder, weights or tokenizer: the message says which, and what to do."""
    if lose:
        (model / lose).unlink()
        override = f"policy.model_name={model}"
    else:
        override = f"policy.model_name={model}-elsewhere"
    with pytest.raises(BlockedError, match=words) as blocked:
        ReferenceTarget().given_model([override])
    assert str(model) in str(blocked.value)


def test_a_tokenizer_of_its_own_folder(model: Path, tmp_path: Path) -> None:
    """`policy.tokenizer.name` is looked at in the model's stead."""
    (tmp_path / "tokenizer").mkdir()
    (model / "tokenizer.json").rename(tmp_path / "tokenizer" / "tokenizer.json")
    words = [f"policy.model_name={model}", f"policy.tokenizer.name={tmp_path / 'tokenizer'}"]
    assert ReferenceTarget().given_model(words) == model


def test_a_missing_extra_is_blocked_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is not a dependency of the harness."""
    right = importlib.util.find_spec
    monkeypatch.setattr(
        reference.importlib.util, "find_spec", lambda name: None if name == "torch" else right(name)
    )
    with pytest.raises(BlockedError, match=r"torch not installed.*pip install 'seatrial\[stack\]'"):
        ReferenceTarget().preflight()


def test_refrl_is_expected_beside_this_seatrial(repository: Path) -> None:
    """They are one distribution."""
    assert ReferenceTarget().expected_origins() == {"refrl": repository / "src" / "refrl"}


def test_a_merging_tokenizer_is_not_byte_level(model: Path, tmp_path: Path) -> None:
    """The text of its tokens is not compared."""
    file = model / "tokenizer.json"
    content = json.loads(file.read_text())
    content["model"]["merges"] = ["a b"]
    file.write_text(json.dumps(content))
    assert not smoke(model, tmp_path, 0, []).byte_level
    file.unlink()
    assert not smoke(model, tmp_path, 0, []).byte_level


@pytest.mark.parametrize(
    ("size", "given", "threads"), [(0, None, "1"), (17 * 2**20, None, None), (0, "4", None)]
)
def test_a_small_model_runs_on_one_thread_unless_told(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    given: str | None,
    threads: str | None,
) -> None:
    """What the environment says already stands."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(size)
    assert smoke(model, tmp_path, 0, []).environment.get("OMP_NUM_THREADS") == threads


def test_nothing_is_claimed_of_a_loss_and_an_estimator_from_outside(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows what interval it clips to, nor how advantages follow from rewards."""
    (tmp_path / "own_parts_of_a_target.py").write_text(
        "from refrl.algorithms.losses.ppo_clip import PPOClip\n"
        "from refrl.algorithms.advantages import GroupBaseline\n"
        "class Own(PPOClip): pass\n"
        "class Base(GroupBaseline): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    words = ("loss_fn.kind=own_parts_of_a_target:Own", "grpo.advantage.estimator=own_parts_of_a_target:Base")
    request = JobRequest(recipe="grpo-smoke", model=model, directory=tmp_path, seed=0, overrides=words)
    job = ReferenceTarget().job(request)
    assert job.ratio_clip == (0.0, math.inf)
    assert job.advantage is None
