"""`refrl grpo`."""

from __future__ import annotations

import argparse

from refrl.cli.arguments import add_config_arguments, launch_processes
from refrl.config import GRPORunConfig, load_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configuration file and its overrides."""
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train, in this process or in several; the configuration is validated before torch is imported."""
    config = load_config(GRPORunConfig, arguments.config, arguments.overrides)
    if launch_processes(arguments, config.cluster.num_processes):
        return
    from refrl.algorithms.grpo import run_grpo

    run_grpo(config)
