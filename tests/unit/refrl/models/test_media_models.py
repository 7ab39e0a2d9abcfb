"""Models that see or hear: as transformers would make them, and each row sampled and scored with its own media."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForMultimodalLM

from refrl.algorithms.batching import TrainSample, make_batch
from refrl.config import ConfigError, DataConfig, PolicyConfig, validate_config
from refrl.generation.base import Completion, SamplingParams
from refrl.media import PLACEHOLDER
from refrl.models.tiny import MEDIA_TOKEN_ID, Family, TinyModelSpec, make_model
from refrl.policy.hf import HFPolicy
from refrl.rollout.sync import RolloutWorker
from refrl.tasks import Example, make_splits
from refrl.training.build import build_encoder, build_policy, build_tokenizer
from refrl.training.build_generation import build_engine

TASKS: Mapping[Family, str] = {"llava": "colour", "qwen2_audio": "pitch"}
FROZEN = {"llava": [], "qwen2_audio": ["model.audio_tower.embed_positions.weight"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Return a model of each family."""
    folder = tmp_path_factory.mktemp("media")
    for family in TASKS:
        make_model(TinyModelSpec(family=family), folder / family)
    return {family: folder / family for family in TASKS}


def config_of(model: Path, **changes: object) -> PolicyConfig:
    """Return the options of a policy."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": 4,
        "train_micro_batch_size": 2,
        "max_total_sequence_length": 32,
        "generation": {"max_new_tokens": 5, "stop_token_ids": []},
        **changes,
    }
    return validate_config(PolicyConfig, values, source="test")


def policy_of(config: PolicyConfig) -> HFPolicy:
    """Return the policy that a run would have."""
    tokenizer = build_tokenizer(config)
    policy = build_policy(config, tokenizer, device=torch.device("cpu"), num_updates=1, with_reference=False)
    assert isinstance(policy, HFPolicy)
    return policy


def rolled_out(model: Path, task: str, **arguments: int) -> tuple[list[Example], list[Completion]]:
    """Return four examples, each with a completion, as a run samples them."""
    config = config_of(model)
    data = DataConfig(task=task, num_train=4, num_validation=1, task_args=dict(arguments))
    examples = list(make_splits(data).train)
    encoder = build_encoder(config, data, build_tokenizer(config))
    engine = build_engine(config, pad_token_id=256, device=torch.device("cpu"))
    worker = RolloutWorker(
        engine, build_tokenizer(config), lambda asked: encoder.prompts([one.prompt for one in asked])
    )
    params = SamplingParams(max_new_tokens=5, stop_token_ids=())
    return examples, worker.sample(examples, params, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("family", list(TASKS))
def test_what_is_written_is_what_transformers_would_make(models: Mapping[str, Path], family: str) -> None:
    """The same parameters of the same shapes."""
    config = AutoConfig.from_pretrained(str(models[family]))
    theirs = AutoModelForMultimodalLM.from_config(config).state_dict()
    ours = load_file(models[family] / "model.safetensors")
    sizes = sorted((tensor.shape for tensor in ours.values()), key=tuple)
    assert sizes == sorted((tensor.shape for tensor in theirs.values()), key=tuple)
    assert len(ours) == len(theirs)


@pytest.mark.parametrize("family", list(TASKS))
def test_each_row_is_sampled_and_scored_with_its_own(models: Mapping[str, Path], family: Family) -> None:
    """Equal words with other images are other prompts; with another row's image the scores are others."""
    examples, completions = rolled_out(models[family], TASKS[family])

    def scored(media: list[str | None]) -> torch.Tensor:
        batch = make_batch(
            [
                TrainSample(
                    prompt_ids=row.prompt_ids,
                    completion_ids=row.ids,
                    sampling_logprobs=row.logprobs,
                    reward=0.0,
                    group_id=number,
                    media=one,
                )
                for number, (row, one) in enumerate(zip(completions, media, strict=True))
            ],
            pad_token_id=256,
        )
        return policy_of(config_of(models[family])).logprobs(batch)

    media = [example.media for example in examples]
    sampled = torch.tensor([row.logprobs for row in completions])
    torch.testing.assert_close(scored(media), sampled, rtol=0, atol=2e-5)
    assert float((scored(media[::-1]) - sampled).abs().mean()) > 1e-2
    for row in completions:
        assert row.prompt_ids.count(MEDIA_TOKEN_ID) == 4
        assert MEDIA_TOKEN_ID not in row.ids


@pytest.mark.parametrize("family", list(TASKS))
def test_what_the_class_freezes_stays_frozen(models: Mapping[str, Path], family: str) -> None:
    """Though loading thaws it."""
    model = policy_of(config_of(models[family])).model
    assert [name for name, one in model.named_parameters() if not one.requires_grad] == FROZEN[family]


def test_a_placeholder_is_never_written(models: Mapping[str, Path]) -> None:
    """Its probability is 0 in every forward."""
    model = policy_of(config_of(models["llava"])).model
    logits_SV = model(input_ids=torch.tensor([[257, 5, 6]])).logits[0]
    assert not logits_SV.softmax(-1)[:, MEDIA_TOKEN_ID].any()


def test_a_wrong_number_of_places_is_refused_with_the_option(models: Mapping[str, Path]) -> None:
    """As the model says it."""
    with pytest.raises(ConfigError, match=r"data\.task_args\.num_features"):
        rolled_out(models["llava"], "colour", num_features=3)


@pytest.mark.parametrize("option", ["sequence_packing", "logprob_chunk_size"])
def test_forms_that_leave_the_image_out_are_refused(models: Mapping[str, Path], option: str) -> None:
    """When such a row is scored, or before."""
    value: object = {"enabled": True} if option == "sequence_packing" else 2
    row = TrainSample(
        prompt_ids=(257, *(MEDIA_TOKEN_ID,) * 4, 97),
        completion_ids=(1, 2),
        sampling_logprobs=(0.0, 0.0),
        reward=0.0,
        group_id=0,
        media=next(iter(make_splits(DataConfig(task="colour", num_train=1, num_validation=1)).train)).media,
    )
    with pytest.raises(ConfigError, match=option):
        policy_of(config_of(models["llava"], **{option: value})).logprobs(make_batch([row], pad_token_id=256))


def test_a_model_of_text_reads_the_word(tmp_path: Path) -> None:
    """A placeholder in a prompt is bytes to it."""
    make_model(TinyModelSpec(), tmp_path / "text")
    config = config_of(tmp_path / "text")
    encoder = build_encoder(config, DataConfig(task="reverse"), build_tokenizer(config))
    (ids,) = encoder.prompts([f"{PLACEHOLDER}a="])
    assert bytes(ids[1:]).decode() == f"{PLACEHOLDER}a="
