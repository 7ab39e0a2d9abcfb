"""A draft head learns from the policy's forward, and the policy trains as it would without it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.policy.draft import load_draft

from .conftest import MakePolicy
from .test_hf_policy import mean_logprob_loss

DRAFT = {"draft": {"enabled": True}}


@pytest.fixture(scope="module")
def drafted(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a model with a draft head; its weights are large enough for distributions to differ."""
    directory = tmp_path_factory.mktemp("draft") / "model"
    shape = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1}
    make_model(TinyModelSpec(draft_head=True, initializer_range=0.2, **shape), directory)  # type: ignore[arg-type]
    return str(directory)


@pytest.mark.parametrize("micro", [1, 2, 5])
def test_loss_and_acceptance_are_those_of_each_token(
    make_policy: MakePolicy, batch: Batch, drafted: str, micro: int
) -> None:
    """Token by token, unpadded, under the temperature; the first two tokens of a row have no draft."""
    policy = make_policy(model_name=drafted, temperature=0.7, train_micro_batch_size=micro, **DRAFT)
    model, head = policy.model, load_draft(Path(drafted) / "draft")
    losses, accepted = [], []
    for row in range(batch.num_rows):
        ids_S = batch.input_ids_BS[row][batch.attention_mask_BS[row].bool()]
        with torch.no_grad():
            states_SD = model.model(ids_S[None]).last_hidden_state[0]
            probs_SV = (model.lm_head(states_SD) / 0.7).softmax(-1)
            for place in range(max(2, int(batch.prompt_lens_B[row])), len(ids_S)):
                embedding_D = model.model.embed_tokens(ids_S[place - 1])
                guess_V = (model.lm_head(head(states_SD[place - 2], embedding_D)) / 0.7).softmax(-1)
                losses.append(-float(guess_V[ids_S[place]].log()))
                accepted.append(float(torch.minimum(guess_V, probs_SV[place - 1]).sum()))
    metrics = policy.train(batch, mean_logprob_loss)
    assert metrics["draft/num_tokens"] == len(losses) == 18
    assert metrics["draft/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert metrics["draft/acceptance_rate"] == pytest.approx(sum(accepted) / len(accepted), rel=1e-4)
    assert metrics["draft/acceptance_rate"] < 0.9


def test_the_policy_trains_as_without_it(
    make_policy: MakePolicy, batch: Batch, drafted: str, tmp_path: Path
) -> None:
    """To the bit, clipping included; the head moves, and is exported beside the model."""
    alone, together = make_policy(model_name=drafted), make_policy(model_name=drafted, **DRAFT)
    for policy in (alone, together):
        for _ in range(2):
            policy.train(batch, mean_logprob_loss)
    theirs: dict[str, Tensor] = dict(alone.named_weights())
    for name, weight in together.named_weights():
        assert torch.equal(weight, theirs[name]), name
    together.save(tmp_path / "final")
    before = load_file(Path(drafted) / "draft" / "model.safetensors")
    after = load_file(tmp_path / "final" / "draft" / "model.safetensors")
    assert before.keys() == after.keys()
    assert not [name for name in before if torch.equal(before[name], after[name])]
    assert load_draft(tmp_path / "final" / "draft").hidden_proj.in_features == 32


def test_it_goes_on_from_its_state(make_policy: MakePolicy, batch: Batch, drafted: str) -> None:
    """Two updates are one, its tensors written into a new policy, and one more."""
    options = {"model_name": drafted, "scheduler": {"name": "linear"}, **DRAFT}
    first, second = make_policy(**options), make_policy(**options)
    first.train(batch, mean_logprob_loss)
    with torch.no_grad():
        for name, tensor in second.state_tensors().items():
            tensor.copy_(first.state_tensors()[name])
    second.load_state_facts(first.state_facts())
    for policy in (first, second):
        policy.train(batch, mean_logprob_loss)
    state, other = first.state_tensors(), second.state_tensors()
    assert any(name.startswith("draft.optimizer.") for name in state)
    assert [name for name in state if not torch.equal(state[name], other[name])] == []


def test_a_model_without_a_head_is_refused_with_the_remedy(make_policy: MakePolicy) -> None:
    """Which names the command that makes one."""
    with pytest.raises(ConfigError, match=r"no draft head in .*make-model --draft-head"):
        make_policy(**DRAFT)


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("sequence_packing", {}),
        ("lora_cfg", {}),
        ("megatron_cfg", {}),
        ("dtensor_cfg", {"context_parallel_size": 2}),
        ("dtensor_cfg", {"tensor_parallel_size": 2, "sequence_parallel": True}),
    ],
)
def test_what_it_is_not_built_for_is_refused(
    make_policy: MakePolicy, drafted: str, section: str, values: dict[str, object]
) -> None:
    """By name."""
    option = [name for name in values if name != "tensor_parallel_size"] or ["enabled"]
    with pytest.raises(ConfigError, match=rf"draft\.enabled.*{section}\.{option[0]}"):
        make_policy(model_name=drafted, **DRAFT, **{section: {"enabled": True, **values}})
