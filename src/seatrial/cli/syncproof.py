"""`seatrial syncproof TRAINED SERVED`: check that the sampler's weights are the trainer's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from seatrial.cli.verdict_table import print_verdicts, verdicts_json
from seatrial.comparisons.sync import compare_served
from seatrial.errors import BlockedError
from seatrial.evidence.weights import Checkpoint, served
from seatrial.files import write_text
from seatrial.verdict import combine, exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `seatrial syncproof`."""
    parser.add_argument(
        "trained", metavar="TRAINED", type=Path, help="folder of the policy's weights (safetensors)"
    )
    parser.add_argument(
        "served",
        metavar="SERVED",
        type=Path,
        help="the sampler's weights: a folder of safetensors, or a file that "
        "seatrial.comparisons.tensors.write_tensors wrote in its process",
    )
    parser.add_argument(
        "--before",
        metavar="FOLDER",
        type=Path,
        help="weights of an earlier version: tensors that still equal them are reported as stale",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, help="also write the verdicts to this file as JSON"
    )


def run(arguments: argparse.Namespace) -> int:
    """Compare the weights tensor by tensor.

    Returns:
        0 Pass, 1 Fail.

    Raises:
        BlockedError: either side cannot be read.
    """
    verdicts = compare_served(
        _checkpoint(arguments.trained),
        served(arguments.served),
        _checkpoint(arguments.before) if arguments.before is not None else None,
    )
    outcome = combine(verdicts)
    if arguments.json:
        write_text(arguments.json, verdicts_json(verdicts, argv=sys.argv[1:]), option="--json")
    print_verdicts(verdicts, outcome)
    return exit_code(outcome)


def _checkpoint(path: Path) -> Checkpoint:
    if not path.is_dir():
        raise BlockedError(f"{path} is not a folder: give the one with the policy's *.safetensors")
    return Checkpoint(path)
