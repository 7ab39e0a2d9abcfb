"""Milliseconds of a token step of the static decoder on one GPU, against the floor by memory bandwidth.

    python benchmarks/gpu/token_step.py [--rows 256] [--prompt-tokens 32] [--new-tokens 256]

The floor is the time in which the device reads the weights and the filled cache once, at 4.3 TB/s (a device-to-device
copy on an H200).
"""

from __future__ import annotations

import argparse
import json
import time

BANDWIDTH = 4.3e12


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--block-tokens", type=int, default=16)
    arguments = parser.parse_args()

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from refrl.generation.base import SamplingParams
    from refrl.generation.torch_engine import TorchGenerator

    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        model = Qwen3ForCausalLM(config).to(torch.bfloat16).eval()
    weight_bytes = sum(weight.nbytes for weight in model.parameters())
    cache_bytes = 24 * 2 * arguments.rows * 2 * 64 * 2 * (arguments.prompt_tokens + arguments.new_tokens / 2)
    floor = (weight_bytes + cache_bytes) / BANDWIDTH
    prompts = [
        [100 + row // 8 + place for place in range(arguments.prompt_tokens)] for row in range(arguments.rows)
    ]
    for name, params in {
        "temperature 1": SamplingParams(arguments.new_tokens, stop_token_ids=()),
        "top_k 20": SamplingParams(arguments.new_tokens, stop_token_ids=(), top_k=20),
        "greedy": SamplingParams(arguments.new_tokens, stop_token_ids=(), greedy=True),
    }.items():
        engine = TorchGenerator(model, 0, block_tokens=arguments.block_tokens)
        seconds = []
        for seed in range(4):
            torch.cuda.synchronize()
            start = time.perf_counter()
            engine.generate(prompts, params, torch.Generator().manual_seed(seed))
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
        result = {
            "sampling": name,
            "calls_s": [round(one, 3) for one in seconds],
            "ms_per_token_step": round(min(seconds[1:]) / arguments.new_tokens * 1e3, 3),
            "floor_ms": round(floor * 1e3, 3),
            "peak_GiB": round(torch.cuda.max_memory_allocated() / 2**30, 1),
        }
        print(json.dumps(result), flush=True)
    engine = TorchGenerator(model, 0)
    params = SamplingParams(arguments.new_tokens, stop_token_ids=())
    engine.generate(prompts, params, torch.Generator().manual_seed(0))
    with torch.profiler.profile() as profiler:
        engine.generate(prompts, params, torch.Generator().manual_seed(0))
        torch.cuda.synchronize()
    print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=25, max_name_column_width=60))


if __name__ == "__main__":
    main()
