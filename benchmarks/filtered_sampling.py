"""Measure what recording the kept ids of top-p costs, and what scoring under them costs.

    python benchmarks/filtered_sampling.py [--rows 512] [--tokens 4096] [--vocab 151936] [--width 1024] [--device cuda]

Sampling: one step of `rows` rows, filter and draw and the transfer of the sampled ids, with and without recording.
Scoring: forward plus backward of `tokens` tokens, plain (given the logits) and chunked (given hidden states and head),
with and without a support. Times are medians of the repeats after one warm-up; memory is the allocator's peak (CUDA
only).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.kept_ids import KeptIds, gather_kept_ids
from refrl.algorithms.ops import compute_logprobs
from refrl.generation.base import SamplingParams
from refrl.generation.decoding import KeptRecorder
from refrl.generation.sampling import draw


def main() -> None:
    arguments = _parser().parse_args()
    stream = torch.Generator(arguments.device).manual_seed(0)
    logits_RV = 4 * torch.randn(
        arguments.rows, arguments.vocab, generator=stream, device=arguments.device, dtype=torch.float32
    )
    uniforms_R = torch.rand(arguments.rows, generator=stream, device=arguments.device, dtype=torch.float64)
    print("sampling     top_p  recorded  kept mean / max  ms per step")
    for top_p in (0.5, 0.95):
        params = SamplingParams(1, top_p=top_p)
        rows = _recorded(logits_RV, uniforms_R, params).rows(arguments.rows)
        counts = [len(row[0]) for row in rows]
        kept = f"{sum(counts) / len(counts):9.0f} / {max(counts)}"
        plain = _milliseconds(partial(_sampled, logits_RV, uniforms_R, params))
        both = _milliseconds(partial(_recorded, logits_RV, uniforms_R, params))
        print(f"             {top_p:5}        no  {kept}  {plain:.2f}")
        print(f"             {top_p:5}       yes  {kept}  {both:.2f}")
        _score(arguments, [row[0] for row in rows], top_p)


def _sampled(logits_RV: Tensor, uniforms_R: Tensor, params: SamplingParams) -> list[int]:
    ids: list[int] = draw(logits_RV, uniforms_R, params).ids_B.tolist()
    return ids


def _recorded(logits_RV: Tensor, uniforms_R: Tensor, params: SamplingParams) -> KeptRecorder:
    """Sample one token of each row and record, as `decode` does."""
    ids_R, _, kept_RV = draw(logits_RV, uniforms_R, params)
    assert kept_RV is not None
    _, counts = torch.stack([ids_R, kept_RV.sum(-1)]).tolist()
    recorder = KeptRecorder()
    if logits_RV.is_cuda:
        torch.cuda.set_sync_debug_mode("error")
    recorder.add(range(len(ids_R)), kept_RV, counts)
    if logits_RV.is_cuda:
        torch.cuda.set_sync_debug_mode("default")
    return recorder


def _score(arguments: argparse.Namespace, supports: list[tuple[int, ...]], top_p: float) -> None:
    device, num_tokens = arguments.device, arguments.tokens
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    chosen = [supports[token % len(supports)] for token in range(num_tokens)]
    kept_ids = gather_kept_ids([chosen], num_tokens).to(device)
    ids_BT = torch.tensor([[support[0] for support in chosen]], device=device)
    prompt_lens_B = torch.ones(1, dtype=torch.long, device=device)
    hidden_BSD = torch.randn(1, num_tokens, arguments.width, device=device, dtype=dtype).requires_grad_()
    head_VD = (
        0.05 * torch.randn(arguments.vocab, arguments.width, device=device, dtype=dtype)
    ).requires_grad_()
    logits_BSV = (hidden_BSD @ head_VD.T).detach().requires_grad_()

    def plain(kept: KeptIds | None) -> tuple[Tensor, Tensor]:
        return compute_logprobs(logits_BSV, ids_BT, prompt_lens_B, kept_ids=kept)

    def chunked(kept: KeptIds | None) -> tuple[Tensor, Tensor]:
        return compute_logprobs_chunked(hidden_BSD, head_VD, ids_BT, prompt_lens_B, kept_ids=kept)

    for form in (plain, chunked):
        for kept in (None, kept_ids):

            def step(form: Callable[..., tuple[Tensor, Tensor]] = form, kept: KeptIds | None = kept) -> None:
                logprobs_BT, entropy_BT = form(kept)
                torch.autograd.backward(logprobs_BT.sum() + entropy_BT.sum())
                logits_BSV.grad = hidden_BSD.grad = head_VD.grad = None

            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
                held = torch.cuda.memory_allocated()
            took = _milliseconds(step)
            peak = f"{(torch.cuda.max_memory_allocated() - held) / 2**30:.2f} GiB" if device == "cuda" else ""
            print(f"{form.__name__:12} {top_p:5}  {'kept ids' if kept else 'all ids'}  {took:.1f} ms  {peak}")


def _milliseconds(step: Callable[[], object], repeats: int = 7) -> float:
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return 1e3 * statistics.median(seconds[1:])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return parser


if __name__ == "__main__":
    main()
