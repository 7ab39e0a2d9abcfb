"""However a batch is laid out and cut, scores and updates are those of padded rows; what would not be is refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma2ForCausalLM, PhiConfig, PhiForCausalLM

from refrl.algorithms.batching import Batch
from refrl.algorithms.kept_ids import gather_kept_ids
from refrl.algorithms.packing import PackedBatch
from refrl.config import ConfigError, PolicyConfig, validate_config
from refrl.generation.lean_support import supports_lean
from refrl.policy.activations import checkpointed_forward
from refrl.policy.scoring import make_scoring

from .conftest import MakePolicy

FORMS: dict[str, dict[str, Any]] = {
    "packed": {"sequence_packing": {"enabled": True, "train_mb_tokens": 32}},
    "one pack": {"sequence_packing": {"enabled": True, "train_mb_tokens": 512, "logprob_mb_tokens": 32}},
    "token budget": {"dynamic_batching": {"enabled": True, "train_mb_tokens": 32}},
    "chunked": {"logprob_chunk_size": 3},
    "packed and chunked": {"sequence_packing": {"enabled": True}, "logprob_chunk_size": 3},
    "checkpointed": {"activation_checkpointing": True, "train_micro_batch_size": 2},
    "all": {
        "sequence_packing": {"enabled": True, "train_mb_tokens": 32},
        "logprob_chunk_size": 2,
        "activation_checkpointing": True,
    },
}


def make_config(**changes: Any) -> PolicyConfig:
    """Return `policy.*` for models that are made in memory."""
    values = {
        "model_name": "made here",
        "train_global_batch_size": 5,
        "train_micro_batch_size": 5,
        "max_total_sequence_length": 32,
        **changes,
    }
    return validate_config(PolicyConfig, values, source="test")


def logprob_and_entropy_loss(
    logprobs_BT: Tensor,
    entropy_BT: Tensor,
    batch: Batch,
    *,
    global_valid_tokens: Tensor,
    global_valid_seqs: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A loss that needs both results of scoring, and their gradients."""
    assert batch.advantages_B is not None
    terms_BT = batch.advantages_B.unsqueeze(1) * logprobs_BT + 0.3 * entropy_BT
    share = -(terms_BT * batch.mask_BT).sum() / global_valid_tokens
    return share, {"loss": share.detach(), "rows": torch.tensor(float(batch.num_rows))}


@pytest.fixture
def batch(batch: Batch) -> Batch:
    """The batch with a row that is masked whole, and one masked in part."""
    batch.mask_BT[3] = 0
    batch.mask_BT[1, 1:3] = 0
    return batch


@pytest.mark.parametrize("name", FORMS)
def test_scores_and_updates_are_those_of_padded_rows(
    make_policy: MakePolicy, batch: Batch, name: str
) -> None:
    """At a temperature other than 1; every row is trained on once."""
    padded, other = make_policy(temperature=0.7), make_policy(temperature=0.7, **FORMS[name])
    torch.testing.assert_close(other.logprobs(batch), padded.logprobs(batch), rtol=0, atol=2e-5)
    expected, found = (policy.train(batch, logprob_and_entropy_loss) for policy in (padded, other))
    assert found == pytest.approx(expected, rel=1e-4)
    assert found["rows"] == 5


def with_kept_ids(batch: Batch) -> tuple[Batch, list[list[list[int]]]]:
    """Return the batch with a support of its own for each token, and these supports."""
    stream = torch.Generator().manual_seed(8)
    supports = [
        [
            sorted({token, *torch.randperm(259, generator=stream)[: 3 + 7 * place].tolist()})
            for place, token in enumerate(ids)
        ]
        for ids in batch.completion_ids_BT.tolist()
    ]
    return replace(batch, kept_ids=gather_kept_ids(supports, batch.mask_BT.shape[1])), supports


@pytest.mark.parametrize("name", ["padded", *FORMS])
def test_filtered_tokens_are_scored_over_what_their_filter_kept(
    make_policy: MakePolicy, batch: Batch, name: str
) -> None:
    """By the policy and the reference, against a plain forward of each row; the update is that of padded rows."""
    filtered, supports = with_kept_ids(batch)
    policy = make_policy(temperature=0.7, with_reference=True, **FORMS.get(name, {}))
    expected_BT = torch.zeros_like(batch.mask_BT)
    for row, token in batch.mask_BT.nonzero().tolist():
        position = int(batch.prompt_lens_B[row]) + token
        with torch.no_grad():
            logits_V = policy.model(batch.input_ids_BS[row : row + 1, :position]).logits[0, -1].double()
        kept = supports[row][token]
        place = kept.index(int(batch.completion_ids_BT[row, token]))
        expected_BT[row, token] = (logits_V[kept] / 0.7).log_softmax(0)[place]
    torch.testing.assert_close(policy.logprobs(filtered), expected_BT, rtol=0, atol=2e-5)
    torch.testing.assert_close(policy.reference_logprobs(filtered), expected_BT, rtol=0, atol=2e-5)
    padded = make_policy(temperature=0.7).train(filtered, logprob_and_entropy_loss)
    assert policy.train(filtered, logprob_and_entropy_loss) == pytest.approx(padded, rel=1e-4)
    whole = make_policy(temperature=0.7).train(batch, logprob_and_entropy_loss)
    assert padded["grad_norm"] != pytest.approx(whole["grad_norm"], rel=1e-2)


def test_packs_work_in_bfloat16(make_policy: MakePolicy, batch: Batch) -> None:
    """The mask is of the model's own precision."""
    half = make_policy(precision="bfloat16", **FORMS["packed and chunked"])
    torch.testing.assert_close(half.logprobs(batch), make_policy().logprobs(batch), rtol=0, atol=0.05)


def test_micro_batches_hold_no_more_tokens_than_asked_for(make_policy: MakePolicy, batch: Batch) -> None:
    """The longest row has 13 tokens and the five 39 together: three packs of at most 16."""
    policy = make_policy()
    for name, form in {"sequence_packing": 39, "dynamic_batching": None}.items():
        config = make_config(max_total_sequence_length=16, **{name: {"enabled": True, "train_mb_tokens": 16}})
        micros = make_scoring(config, policy.model, 1.0).train_cut.micro_batches(batch)
        assert sorted(row for rows, _ in micros for row in rows) == [0, 1, 2, 3, 4]
        if form is None:
            assert all(micro.input_ids_BS.numel() <= 16 for _, micro in micros)
        else:
            totals = [int(micro.attention_mask_BS.sum()) for _, micro in micros]
            assert sum(totals) == form
            assert max(totals) <= 16
            assert len(totals) == 3


def test_a_layer_is_computed_again_in_backward_and_left_as_it_was(
    make_policy: MakePolicy, batch: Batch
) -> None:
    """Two forwards of each layer and one backward; sampling keeps its fast path."""
    policy = make_policy(activation_checkpointing=True)
    calls: list[bool] = []
    layer = policy.model.model.layers[0]
    handle = layer.mlp.register_forward_pre_hook(lambda module, inputs: calls.append(torch.is_grad_enabled()))
    policy.train(batch, logprob_and_entropy_loss)
    assert calls == [True, True]
    policy.logprobs(batch)
    assert calls == [True, True, False]
    handle.remove()
    assert supports_lean(policy.model)


def leaky_mask(self: PackedBatch, dtype: torch.dtype = torch.float32) -> Tensor:
    """Causal within the whole pack: a sequence sees those before it."""
    length = self.input_ids_PS.shape[1]
    causal_SS = torch.ones(length, length, dtype=torch.bool).tril()
    mask_SS = torch.zeros(length, length, dtype=dtype).masked_fill(~causal_SS, torch.finfo(dtype).min)
    return mask_SS.expand(len(self.input_ids_PS), 1, -1, -1)


def test_a_pack_that_leaks_is_refused(make_policy: MakePolicy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found before the first step, by a few made rows."""
    monkeypatch.setattr(PackedBatch, "attention_mask_P1SS", leaky_mask)
    with pytest.raises(
        ConfigError, match=r"sequence_packing.enabled: log-probabilities of Qwen3ForCausalLM differ"
    ):
        make_policy(**FORMS["packed"])


def test_logits_that_change_after_the_head_are_refused_in_chunks(make_policy: MakePolicy) -> None:
    """As in models that cap or scale them."""
    policy = make_policy()

    def scale(module: nn.Module, inputs: Any, output: Any) -> Any:
        output.logits = output.logits * 0.5
        return output

    policy.model.register_forward_hook(scale)
    with pytest.raises(ConfigError, match=r"logprob_chunk_size: log-probabilities .* differ by"):
        make_scoring(make_config(logprob_chunk_size=4), policy.model, 1.0)


SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_a_head_that_is_more_than_a_matrix_is_refused_in_chunks_by_name() -> None:
    """Logits of fresh weights are too small, and their bias is 0: a probe of values would not tell."""
    config = make_config(logprob_chunk_size=4)
    capped = Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8))
    with pytest.raises(ConfigError, match=r"logprob_chunk_size: .*final_logit_softcapping=30\)"):
        make_scoring(config, capped, 1.0)
    make_scoring(make_config(), capped, 1.0)
    make_scoring(
        config, Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=None)), 1.0
    )
    with pytest.raises(ConfigError, match=r"logprob_chunk_size: PhiForCausalLM has a head with a bias"):
        make_scoring(config, PhiForCausalLM(PhiConfig(**SMALL)), 1.0)


def test_rows_longer_than_a_sliding_window_are_not_packed(make_policy: MakePolicy) -> None:
    """The mask of a pack would replace the window's."""
    policy = make_policy()
    config = make_config(**FORMS["packed"])
    policy.model.config.sliding_window = 31
    with pytest.raises(ConfigError, match="sliding window of 31 tokens"):
        make_scoring(config, policy.model, 1.0)
    policy.model.config.sliding_window = 32
    make_scoring(config, policy.model, 1.0)


def test_a_model_without_layers_to_checkpoint_is_refused(make_policy: MakePolicy) -> None:
    """It would keep every activation, and say nothing."""
    with pytest.raises(ConfigError, match="Linear has no layers that allow it"):
        checkpointed_forward(lambda model, batch: (torch.zeros(1), torch.zeros(1)), nn.Linear(2, 2))  # type: ignore[arg-type]
