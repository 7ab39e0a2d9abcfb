"""One SFT step of a policy backend, as a share of the speed of a plain Hugging Face loop on the same rows.

    python benchmarks/policy_step.py [hf|megatron|dtensor ...]

Both train the same model on the same batch in one process, one step each in turn, so that a busy machine slows both;
the figure is the median over rounds of plain seconds divided by the backend's.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from refrl.algorithms.batching import Batch, TrainSample, make_batch
from refrl.algorithms.losses.supervised import sft_loss
from refrl.config import PolicyConfig, validate_config
from refrl.models.loading import load_model
from refrl.models.tiny import TinyModelSpec, make_model
from refrl.models.tokenization import make_byte_tokenizer
from refrl.training.build import build_policy

ROUNDS = 7
SPEC = TinyModelSpec(hidden_size=256, num_layers=6, num_heads=8, num_kv_heads=4, seed=1)
ROWS, PROMPT, ANSWER, MICRO = 16, 32, 96, 8


def rows() -> Batch:
    """Return rows of one length: the plain loop has no way with padding."""
    stream = torch.Generator().manual_seed(0)
    samples = []
    for row in range(ROWS):
        ids = torch.randint(0, 256, (PROMPT + ANSWER,), generator=stream).tolist()
        samples.append(
            TrainSample(tuple(ids[:PROMPT]), tuple(ids[PROMPT:]), (0.0,) * ANSWER, reward=0.0, group_id=row)
        )
    return make_batch(samples, pad_token_id=256)


def answer_loss(
    logprobs_BT: torch.Tensor,
    entropy_BT: torch.Tensor,
    batch: Batch,
    *,
    global_valid_tokens: torch.Tensor,
    global_valid_seqs: torch.Tensor,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the likelihood of answers as a loss (`refrl.policy.base.LossFunction`)."""
    del entropy_BT, global_valid_seqs
    return sft_loss(logprobs_BT, batch.mask_BT, global_valid_tokens=global_valid_tokens), {}


def backend_step(model: Path, backend: str, batch: Batch) -> Callable[[], object]:
    """Return one step of a backend."""
    values = {
        "model_name": str(model),
        "train_global_batch_size": ROWS,
        "train_micro_batch_size": MICRO,
        "max_total_sequence_length": PROMPT + ANSWER,
        **({} if backend == "hf" else {f"{backend}_cfg": {"enabled": True}}),
    }
    policy = build_policy(
        validate_config(PolicyConfig, values, source="benchmark"),
        make_byte_tokenizer(),
        device=torch.device("cpu"),
        num_updates=2 * ROUNDS,
        with_reference=False,
    )
    assert policy.backend.name == backend
    batch.old_logprobs_BT = batch.sampling_logprobs_BT
    return lambda: policy.train(batch, answer_loss)


def plain_step(directory: Path, batch: Batch) -> Callable[[], object]:
    """Return one step as anybody writes it with Transformers: labels, `loss.backward()`, AdamW."""
    model = load_model(directory)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    labels_BS = batch.input_ids_BS.clone()
    labels_BS[:, :PROMPT] = -100

    def step() -> None:
        for first in range(0, ROWS, MICRO):
            part = slice(first, first + MICRO)
            output = model(
                input_ids=batch.input_ids_BS[part],
                attention_mask=batch.attention_mask_BS[part],
                labels=labels_BS[part],
                use_cache=False,
            )
            (output.loss * (MICRO / ROWS)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def seconds(step: Callable[[], object]) -> float:
    """Return the processor seconds of one step: those of this process, on however busy a machine."""
    before = time.process_time()
    step()
    return time.process_time() - before


def main(backends: list[str]) -> None:
    """Print a line a backend."""
    torch.set_num_threads(1)
    batch = rows()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        make_model(SPEC, model)
        for backend in backends:
            plain, ours = plain_step(model, batch), backend_step(model, backend, batch)
            plain(), ours()
            pairs = [(seconds(plain), seconds(ours)) for _ in range(ROUNDS)]
            ratios = [one / other for one, other in pairs]
            print(
                f"{backend}: {statistics.median(ratios):.2f} of the plain loop's speed "
                f"(rounds {min(ratios):.2f} to {max(ratios):.2f}); a step takes "
                f"{statistics.median(other for _, other in pairs):.3f} s, the plain loop's "
                f"{statistics.median(one for one, _ in pairs):.3f} s"
            )


if __name__ == "__main__":
    main(sys.argv[1:] or ["hf", "megatron"])
