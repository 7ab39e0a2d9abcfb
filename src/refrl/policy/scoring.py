"""How a policy cuts a batch into micro-batches and scores them: padded or packed, all logits at once or in chunks.

A `Forward` scores one micro-batch with a model; a `Cut` says which rows form one. `make_scoring` picks both from the
configuration, and compares the forward with the model's own before training: an architecture that attends across the
borders of a pack, or changes its logits after the head, is rejected instead of trained wrongly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.chunked import DEVICE_CHUNKS, compute_logprobs_chunked
from refrl.algorithms.microbatches import split_by_rows, split_by_tokens
from refrl.algorithms.ops import compute_logprobs
from refrl.algorithms.packing import PackedBatch, assign_packs, compute_logprobs_packed, pack_batch
from refrl.config import ConfigError, PolicyConfig
from refrl.media import model_inputs
from refrl.policy.base import Forward
from refrl.policy.fused import FUSED_MODELS, FusedForward, why_not_fused


def check_text(option: str, batch: Batch) -> None:
    """Refuse images and sounds in a form of scoring that does not give them to the model.

    Raises:
        ConfigError: the batch has some.
    """
    if batch.media_BX is not None:
        raise ConfigError(f"{option} is not built for prompts with images or sounds: leave it out")


def check_head(model: PreTrainedModel) -> None:
    """Reject a head that is more than a matrix, by name: a probe of small weights would not detect it.

    Raises:
        ConfigError: names what the head does.
    """
    cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
    head = model.get_output_embeddings()
    if cap is not None:
        what = f"caps its logits softly after the head (final_logit_softcapping={cap:g})"
    elif getattr(head, "bias", None) is not None:
        what = "has a head with a bias"
    else:
        return
    raise ConfigError(
        f"policy.logprob_chunk_size: {type(model).__name__} {what}, which scoring in chunks leaves out; unset the "
        "option"
    )


PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25}
"""Largest difference of a probe's log-probability from the model's own forward, in nats. Measured rounding: 1e-6 in
float32 and 0.02 in bfloat16; a pack that leaks or logits that are capped differ by tenths and more."""


@dataclass(frozen=True)
class Cut:
    """Which rows form a micro-batch; every row is in exactly one."""

    rows: Callable[[Batch], Sequence[slice | list[int]]]
    trims: bool
    """Drop the columns that only padding fills: rows of like length were put together for that."""

    def micro_batches(self, batch: Batch) -> list[tuple[slice | list[int], Batch]]:
        """Return (rows, micro-batch) of each; a batch that is one micro-batch is not copied."""
        chosen = self.rows(batch)
        if len(chosen) == 1 and not self.trims:
            return [(slice(None), batch)]
        return [(rows, batch.rows(rows, trim=self.trims)) for rows in chosen]


@dataclass(frozen=True)
class Scoring:
    """How a policy scores."""

    forward: Forward
    train_forward: Forward
    """Of the same values, for a pass that is followed by backward."""
    train_cut: Cut
    logprob_cut: Cut
    kernels: str
    """See `refrl.policy.base.Backend`."""


def make_scoring(config: PolicyConfig, model: PreTrainedModel, temperature: float) -> Scoring:
    """Return the configured scoring.

    Args:
        config: batch form, sizes, chunking.
        model: on its device, in its precision.
        temperature: that of sampling.

    Raises:
        ConfigError: the model cannot be scored in that form; the message names the option.
    """
    packed, chunk = config.sequence_packing.enabled, config.logprob_chunk_size
    plain = padded_forward(temperature)
    forward: Forward = partial(_packed, temperature=temperature) if packed else plain
    if chunk is None and model.device.type == "cuda" and type(model) in FUSED_MODELS:
        chunk = DEVICE_CHUNKS[1]
    if chunk:
        check_head(model)
        states = _packed_states if packed else _padded_states
        forward = partial(_chunked, temperature=temperature, states=states, chunk=chunk)
    if packed:
        check_window("policy.sequence_packing.enabled", config, model)
    refused = _why_not_fused(config, model)
    if refused is None:
        forward = FusedForward(forward)
    if forward is not plain:
        options = {
            "policy.sequence_packing.enabled": packed,
            "policy.logprob_chunk_size": bool(chunk),
            "policy.fused_kernels": refused is None,
        }
        _probe(options, model, forward, plain, getattr(torch, config.precision))
    kernels = f"the model's own: {refused}" if refused else "fused"
    return assemble_scoring(config, model, forward, kernels)


def _why_not_fused(config: PolicyConfig, model: PreTrainedModel) -> str | None:
    for option in ("compile_layers", "activation_checkpointing"):
        if getattr(config, option):
            return f"policy.{option}=true"
    return why_not_fused(model) if config.fused_kernels else "policy.fused_kernels=false"


def assemble_scoring(
    config: PolicyConfig, model: PreTrainedModel, forward: Forward, kernels: str = "the model's own"
) -> Scoring:
    """Return scoring by this forward, with the configured cuts and activation checkpointing.

    Raises:
        ConfigError: the architecture has no layers whose activations can be checkpointed.
    """
    train_cut, logprob_cut = make_cuts(config)
    return Scoring(
        forward=forward,
        train_forward=_train_forward(config, model, forward),
        train_cut=train_cut,
        logprob_cut=logprob_cut,
        kernels=kernels,
    )


def padded_forward(temperature: float) -> Forward:
    """Return the forward of padded rows through the model's own code, by which every other one is judged."""
    return partial(_padded, temperature=temperature)


def _train_forward(config: PolicyConfig, model: PreTrainedModel, forward: Forward) -> Forward:
    if not config.activation_checkpointing:
        return forward
    from refrl.policy.activations import checkpointed_forward

    return checkpointed_forward(forward, model)


def make_cuts(config: PolicyConfig) -> tuple[Cut, Cut]:
    """Return how a batch is cut for training, and for scoring alone."""
    form = config.sequence_packing if config.sequence_packing.enabled else config.dynamic_batching
    return (
        _make_cut(config, config.train_micro_batch_size, form.train_mb_tokens),
        _make_cut(config, config.logprob_batch_size, form.logprob_mb_tokens),
    )


def _make_cut(config: PolicyConfig, num_rows: int, num_tokens: int | None) -> Cut:
    """Return the cut by rows, or by tokens where a form by tokens is enabled (None: as many rows of the longest)."""
    tokens = num_tokens or num_rows * config.max_total_sequence_length
    if config.sequence_packing.enabled:
        return Cut(partial(_rows_by_packs, max_tokens=tokens), trims=True)
    if config.dynamic_batching.enabled:
        return Cut(partial(_rows_by_tokens, max_tokens=tokens), trims=True)
    return Cut(partial(_rows_in_order, num_rows=num_rows), trims=False)


def _rows_in_order(batch: Batch, num_rows: int) -> list[slice | list[int]]:
    # Slices are views: nothing is copied.
    return [slice(rows[0], rows[-1] + 1) for rows in split_by_rows(batch.num_rows, num_rows)]


def _rows_by_tokens(batch: Batch, max_tokens: int) -> list[list[int]]:
    return split_by_tokens(batch.prompt_lens_B.tolist(), batch.completion_lens_B.tolist(), max_tokens)


def _rows_by_packs(batch: Batch, max_tokens: int) -> list[list[int]]:
    return assign_packs(batch.attention_mask_BS.sum(1).tolist(), max_tokens)


def _padded(model: PreTrainedModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """One row per sequence, through the model's own forward; no logits before the first completion's predictor."""
    first = max(0, int(batch.prompt_lens_B.min()) - 1)
    num_kept = batch.input_ids_BS.shape[1] - first
    logits_BSV = model(
        input_ids=batch.input_ids_BS,
        attention_mask=batch.attention_mask_BS,
        use_cache=False,
        logits_to_keep=num_kept,
        **model_inputs(batch.media_BX, model.dtype),
    ).logits[:, -num_kept:]  # some models compute all logits regardless of logits_to_keep
    return compute_logprobs(
        logits_BSV,
        batch.completion_ids_BT,
        batch.prompt_lens_B - first,
        temperature=temperature,
        mask_BT=batch.mask_BT,
        kept_ids=batch.kept_ids,
    )


def _packed(model: PreTrainedModel, batch: Batch, temperature: float) -> tuple[Tensor, Tensor]:
    """All rows in one pack; attention ends at the border of a sequence."""
    packed, inputs = _pack(model, batch)
    return compute_logprobs_packed(
        model(**inputs).logits,
        packed,
        batch.completion_ids_BT,
        temperature=temperature,
        mask_BT=batch.mask_BT,
        kept_ids=batch.kept_ids,
    )


def _chunked(
    model: PreTrainedModel,
    batch: Batch,
    temperature: float,
    *,
    states: Callable[[PreTrainedModel, Batch], Tensor],
    chunk: int,
) -> tuple[Tensor, Tensor]:
    """Logits of `chunk` tokens at a time, straight from the last hidden states."""
    head: Any = model.get_output_embeddings()
    return compute_logprobs_chunked(
        states(model, batch),
        head.weight,
        batch.completion_ids_BT,
        batch.prompt_lens_B,
        temperature=temperature,
        row_chunk=chunk,
        mask_BT=batch.mask_BT,
        kept_ids=batch.kept_ids,
    )


def _padded_states(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return states_BSD after the final norm."""
    check_text("policy.logprob_chunk_size", batch)
    return model.base_model(
        input_ids=batch.input_ids_BS, attention_mask=batch.attention_mask_BS, use_cache=False
    ).last_hidden_state


def _packed_states(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return states_BSD after the final norm, computed in one pack and laid out in padded rows again."""
    packed, inputs = _pack(model, batch)
    states_PSD = model.base_model(**inputs).last_hidden_state
    return packed.unpack(states_PSD, batch.input_ids_BS.shape[1])


def _pack(model: PreTrainedModel, batch: Batch) -> tuple[PackedBatch, dict[str, Any]]:
    """Return all rows in one pack of exactly their tokens, and what the model takes of it."""
    check_text("policy.sequence_packing.enabled", batch)
    packed = pack_batch(batch, pack_length=int(batch.attention_mask_BS.sum()), pad_token_id=0)
    return packed, {
        "input_ids": packed.input_ids_PS,
        "position_ids": packed.position_ids_PS,
        "attention_mask": packed.attention_mask_P1SS(model.dtype),
        "use_cache": False,
    }


def check_window(option: str, config: PolicyConfig, model: PreTrainedModel) -> None:
    """Refuse sliding windows that a row may outgrow: the mask that the option needs would replace them.

    Raises:
        ConfigError: names the window.
    """
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if window is not None and config.max_total_sequence_length > window:
        raise ConfigError(
            f"{option}: the model attends over a sliding window of {window} tokens, which the mask that it needs does "
            f"not keep; lower policy.max_total_sequence_length={config.max_total_sequence_length} to it, or leave the "
            "option out (policy.dynamic_batching saves padding too)"
        )


@torch.no_grad()
def _probe(
    options: Mapping[str, bool],
    model: PreTrainedModel,
    forward: Forward,
    plain: Forward,
    precision: torch.dtype,
) -> None:
    """Compare a forward with the model's own on a few generated rows of unequal length.

    The precision is that of the computation: weights in float32 may be rounded for it (dtensor).

    Raises:
        ConfigError: they disagree, or the model does not take the form at all.
    """
    batch = probe_batch(model).to(model.device)
    name = " with ".join(option for option, is_set in options.items() if is_set)
    try:
        difference = float((forward(model, batch)[0] - plain(model, batch)[0]).abs().max())
    except (AttributeError, TypeError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{name}: {type(model).__name__} does not take it ({reason}); leave it out"
        ) from error
    tolerance = PROBE_TOLERANCE[precision]
    if not difference <= tolerance:
        raise ConfigError(
            f"{name}: log-probabilities of {type(model).__name__} differ by {difference:.3g} from its own forward, "
            f"more than {tolerance:g}: the architecture does not allow it; leave it out"
        )


def probe_batch(model: PreTrainedModel) -> Batch:
    """Return a few made rows of unequal length, on the CPU."""
    vocabulary = model.config.get_text_config().vocab_size
    samples = [
        TrainSample(
            prompt_ids=tuple((7 * row + 3 * place + 1) % vocabulary for place in range(prompt_length)),
            completion_ids=tuple((11 * row + 5 * place + 2) % vocabulary for place in range(length)),
            sampling_logprobs=(0.0,) * length,
            reward=0.0,
            group_id=row,
        )
        for row, (prompt_length, length) in enumerate([(3, 2), (1, 5), (4, 1)])
    ]
    return make_batch(samples, pad_token_id=0)
