"""Measure chunked against plain log-probabilities: peak memory and time of forward plus backward.

    python benchmarks/chunked_logprobs.py [--rows 4] [--tokens 2048] [--vocab 151936] [--width 1024] [--device cuda]

Each form runs in a child process of its own, so that neither finds memory that the other left. Memory is the peak
above what the process held with its inputs (resident set on CPU, allocator on CUDA); time is the median of the
repeats after one warm-up. The forms:

  chunked        refrl.algorithms.chunked.compute_logprobs_chunked
  plain          refrl.algorithms.ops.compute_logprobs(hidden @ head.T): log-probabilities and entropies
  cross_entropy  torch's cross_entropy(hidden @ head.T): log-probabilities only, the leanest form without chunks

Exit 0 when chunked takes at most 25 % of plain's memory at 0.9 or more of its speed, 1 when it does not, 3 when plain
does not fit this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
from torch import Tensor

from refrl.algorithms.chunked import compute_logprobs_chunked
from refrl.algorithms.ops import compute_logprobs

MEMORY_BOUND = 0.25
SPEED_BOUND = 0.9
PLAIN_COPIES_OF_LOGITS = 9
FORMS = ("chunked", "plain", "cross_entropy")


def main() -> int:
    arguments = _parser().parse_args()
    if arguments.form:
        print(json.dumps(_measure(arguments)))
        return 0
    need = PLAIN_COPIES_OF_LOGITS * arguments.rows * arguments.tokens * arguments.vocab * 4
    free = torch.cuda.mem_get_info()[0] if arguments.device == "cuda" else psutil.virtual_memory().available
    if need > free:
        print(
            f"the plain form needs about {need / 2**30:.0f} GiB and {free / 2**30:.0f} GiB are free: "
            f"take --tokens {int(arguments.tokens * free / need)} or fewer",
            file=sys.stderr,
        )
        return 3
    results = {form: _run_child(form) for form in FORMS}
    _print(arguments, results)
    chunked, plain = results["chunked"], results["plain"]
    memory, speed = chunked["peak_bytes"] / plain["peak_bytes"], plain["seconds"] / chunked["seconds"]
    return 0 if memory <= MEMORY_BOUND and speed >= SPEED_BOUND else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens scored in each row")
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--width", type=int, default=1024, help="width of the hidden states")
    parser.add_argument("--vocab-chunk", type=int, help="default: that of the function")
    parser.add_argument("--row-chunk", type=int, help="default: that of the function")
    parser.add_argument("--keep-bytes", type=int, help="default: that of the function")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--entropy-gradient", action="store_true", help="differentiate the entropies too")
    parser.add_argument("--form", choices=FORMS, help="measure one form in this process and print it as JSON")
    return parser


def _run_child(form: str) -> dict[str, float]:
    command = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--form", form]
    finished = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(finished.stdout.splitlines()[-1]))


def _measure(arguments: argparse.Namespace) -> dict[str, float]:
    step = _step(arguments)
    seconds = []
    peak = 0
    for repeat in range(arguments.repeats + 1):
        before = _reset_peak(arguments.device)
        start = time.perf_counter()
        step()
        _synchronise(arguments.device)
        if repeat:
            seconds.append(time.perf_counter() - start)
        peak = max(peak, _peak(arguments.device) - before)
    return {"peak_bytes": peak, "seconds": statistics.median(seconds)}


def _step(arguments: argparse.Namespace) -> Callable[[], None]:
    """Return one forward and backward of the form."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, arguments.dtype)
    shape = (arguments.rows, arguments.tokens + 1, arguments.width)
    hidden = torch.randn(shape, generator=generator).to(arguments.device, dtype).requires_grad_()
    head = torch.randn(arguments.vocab, arguments.width, generator=generator) * arguments.width**-0.5
    head = head.to(arguments.device, dtype).requires_grad_()
    ids = torch.randint(arguments.vocab, (arguments.rows, arguments.tokens), generator=generator)
    ids = ids.to(arguments.device)
    prompt_lens = torch.ones(arguments.rows, dtype=torch.long, device=arguments.device)
    names = ("vocab_chunk", "row_chunk", "keep_bytes")
    options = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}

    def score() -> tuple[Tensor, Tensor]:
        if arguments.form == "chunked":
            return compute_logprobs_chunked(hidden, head, ids, prompt_lens, temperature=0.7, **options)
        if arguments.form == "plain":
            return compute_logprobs(hidden @ head.T, ids, prompt_lens, temperature=0.7)
        logits = (hidden[:, :-1] @ head.T).float().div_(0.7).flatten(0, 1)
        losses = torch.nn.functional.cross_entropy(logits, ids.flatten(), reduction="none")
        return losses, losses.detach()

    def step() -> None:
        hidden.grad = head.grad = None
        logprobs, entropy = score()
        total = logprobs.sum() + (entropy.sum() if arguments.entropy_gradient else 0)
        total.backward()

    return step


def _reset_peak(device: str) -> int:
    """Forget the peak so far and return what is held now, in bytes."""
    if device == "cuda":
        _synchronise(device)
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5")
    return psutil.Process().memory_info().rss


def _peak(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _print(arguments: argparse.Namespace, results: dict[str, dict[str, float]]) -> None:
    name = (
        torch.cuda.get_device_name()
        if arguments.device == "cuda"
        else f"{torch.get_num_threads()} CPU threads"
    )
    print(
        f"{arguments.rows} x {arguments.tokens} tokens, vocabulary {arguments.vocab}, width {arguments.width}, "
        f"{arguments.dtype}, {name}, torch {torch.__version__}"
    )
    print(f"{'form':14} {'peak MiB':>9} {'seconds':>8}   chunked: {'memory':>7} {'speed':>6}")
    chunked = results["chunked"]
    for form, result in results.items():
        memory, speed = chunked["peak_bytes"] / result["peak_bytes"], result["seconds"] / chunked["seconds"]
        print(
            f"{form:14} {result['peak_bytes'] / 2**20:9.0f} {result['seconds']:8.3f} {memory:17.1%} {speed:6.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
