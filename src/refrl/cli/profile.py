"""`refrl profile`: where the time of one training step goes."""

from __future__ import annotations

import argparse
from pathlib import Path

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.errors import ConfigError
from refrl.recipes import find_config
from refrl.runtime.launcher import is_launcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the loop, its configuration, the step and where to write."""
    parser.add_argument("--loop", choices=["grpo", "sft"], default="grpo", help="default: %(default)s")
    parser.add_argument("--config", required=True, metavar="FILE", help="as for refrl grpo and refrl sft")
    parser.add_argument(
        "--step",
        type=int,
        default=3,
        help="the step to profile; the run ends after it (default: %(default)s)",
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="DIR",
        help="gets trace.json, for chrome://tracing or Perfetto, table.txt and the run's log",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="values that replace the file's")


def run(arguments: argparse.Namespace) -> None:
    """Train up to the step, and profile it.

    Raises:
        ConfigError: the step is not positive, the output is in use, or the run takes several processes.
    """
    loop, output = arguments.loop, arguments.output
    if arguments.step < 1:
        raise ConfigError(f"--step {arguments.step}: give a step from 1 on")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output} is not an empty directory: name another one")
    options = [
        *arguments.overrides,
        f"{loop}.max_num_steps={arguments.step}",
        f"logger.log_dir={output / 'logs'}",
        "checkpointing.enabled=false",
        f"checkpointing.checkpoint_dir={output / 'checkpoints'}",
    ]
    schema: type[GRPORunConfig | SFTRunConfig] = GRPORunConfig if loop == "grpo" else SFTRunConfig
    config = load_config(schema, find_config(arguments.config), options)
    if is_launcher(config.cluster):
        raise ConfigError("cluster.num_processes: a profile is of one process; set it to 1")
    from refrl.training.grpo import run_grpo
    from refrl.training.profiling import StepProfiler
    from refrl.training.sft import run_sft

    profiler = StepProfiler(arguments.step, output)
    if isinstance(config, GRPORunConfig):
        run_grpo(config, profiler)
    else:
        run_sft(config, profiler)
    print(f"profile of step {arguments.step}: {output / 'table.txt'} and {output / 'trace.json'}")
