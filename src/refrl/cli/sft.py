"""`refrl sft`."""

from __future__ import annotations

import argparse
import gc

from refrl.cli.arguments import add_config_arguments, launch_processes, read_config
from refrl.config import SFTRunConfig
from refrl.runtime.ray_cluster import ray_cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the configuration file and its overrides."""
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    """Train in this process or in several; the configuration is validated before torch is imported."""
    config = read_config(arguments, SFTRunConfig)
    if config is None or launch_processes(arguments, config):
        return
    gc.disable()  # garbage collection during the import of thousands of modules frees nothing
    from refrl.training.sft import run_sft

    gc.enable()

    with ray_cluster(config):
        run_sft(config)
