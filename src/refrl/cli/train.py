"""`refrl grpo` and `refrl sft`."""

from __future__ import annotations

import argparse
import gc

from refrl.config import GRPORunConfig, SFTRunConfig, load_config
from refrl.config.describe import effective_yaml
from refrl.recipes import find_config
from refrl.runtime.launcher import is_launcher, launch
from refrl.runtime.ray_cluster import ray_cluster


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `--config FILE [--print-config] key=value ...`."""
    parser.add_argument(
        "--config",
        required=True,
        metavar="FILE",
        help="a YAML configuration, or the name of a recipe (refrl recipes lists them)",
    )
    parser.add_argument(
        "--print-config",
        action="store_true",
        help="print the whole effective configuration with the doc of each option, and train nothing",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="values that replace the file's, such as grpo.seed=1",
    )


def _read_config(
    arguments: argparse.Namespace, schema: type[GRPORunConfig | SFTRunConfig]
) -> GRPORunConfig | SFTRunConfig | None:
    """Return the validated configuration; with `--print-config`, print it and return None.

    Raises:
        ConfigError: there is no such file or recipe, or what it holds cannot be used.
    """
    config = load_config(schema, find_config(arguments.config), arguments.overrides)
    if not arguments.print_config:
        return config
    print(effective_yaml(config), end="")
    return None


def _launch_processes(arguments: argparse.Namespace, config: GRPORunConfig | SFTRunConfig) -> bool:
    """Run the command as ranks if several are configured, and wait for them; return False if this process must train.

    Raises:
        ConfigError: a rank rejected the configuration, or the ranks cannot be placed.
        RankError: a rank ended in another way.
    """
    if not is_launcher(config.cluster):
        return False
    with ray_cluster(config):
        launch([arguments.command, "--config", arguments.config, *arguments.overrides], config.cluster)
    return True


def run(arguments: argparse.Namespace) -> None:
    """Train in this process or in several; the configuration is validated before torch is imported."""
    config = _read_config(arguments, GRPORunConfig if arguments.command == "grpo" else SFTRunConfig)
    if config is None or _launch_processes(arguments, config):
        return
    # Garbage collection frees nothing of thousands of imported modules: neither while they are imported nor later.
    gc.disable()
    from refrl.training.grpo import run_grpo
    from refrl.training.sft import run_sft

    gc.freeze()
    gc.enable()

    with ray_cluster(config):
        if isinstance(config, GRPORunConfig):
            run_grpo(config)
        else:
            run_sft(config)
