"""`refrl make-model`."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the output directory and the model's shape; defaults are those of `TinyModelSpec`."""
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="a new or empty directory")
    parser.add_argument(
        "--family", choices=["qwen3", "qwen3_moe", "llama", "llava", "qwen2_audio"], default=argparse.SUPPRESS
    )
    for name, text in {
        "hidden-size": "width of the model",
        "num-layers": "transformer layers",
        "num-heads": "query heads",
        "num-kv-heads": "key and value heads",
        "head-dim": "width of a head, at least 32",
        "intermediate-size": "width of the feed-forward layers",
        "num-experts": "experts of a layer of qwen3_moe",
        "experts-per-token": "of them, how many a token goes through",
        "max-positions": "longest sequence",
        "seed": "of the random weights",
    }.items():
        parser.add_argument(f"--{name}", type=int, metavar="N", default=argparse.SUPPRESS, help=text)
    parser.add_argument(
        "--initializer-range",
        type=float,
        metavar="X",
        default=argparse.SUPPRESS,
        help="standard deviation of the random weights; 0.1 makes peaked distributions",
    )
    parser.add_argument(
        "--small-norms",
        action="store_true",
        default=argparse.SUPPRESS,
        help="make every fourth element of a norm so small that a small step moves it in bfloat16 too",
    )
    parser.add_argument(
        "--tie-word-embeddings",
        action="store_true",
        default=argparse.SUPPRESS,
        help="share the input embedding with the output layer",
    )
    parser.add_argument(
        "--draft-head",
        action="store_true",
        default=argparse.SUPPRESS,
        help="write a head that predicts the token after next into draft/",
    )


def run(arguments: argparse.Namespace) -> None:
    """Make the model and print its directory."""
    from refrl.models.tiny import TinyModelSpec, make_model

    shape = {key: value for key, value in vars(arguments).items() if key not in ("command", "output")}
    make_model(TinyModelSpec(**shape), arguments.output)
    print(f"made {arguments.output}")
