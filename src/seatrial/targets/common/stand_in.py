"""Replaces `uv`, `python3` and installers while a script of a stack is resolved, and composes its configuration.

It is written as JSON. This is a program of its own, for an interpreter with hydra-core and omegaconf; it imports
nothing of Seatrial.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RECORD, ROOT = "SEATRIAL_RESOLVED", "SEATRIAL_CHECKOUT"
"""Variables: the file that is written, and the checkout."""
INSTALLERS = ("apt-get", "apt", "sudo", "pip", "pip3", "conda", "curl", "wget", "ray")
"""Programs that a script may call before its training, and that must change nothing here."""


def main() -> int:
    """Answer a device probe, compose at the training command, and do nothing else."""
    words, root = sys.argv[1:], Path(os.environ[ROOT])
    if Path(sys.argv[0]).name in INSTALLERS:
        return 0
    if words[:2] == ["run", "bash"]:
        os.execvp("bash", words[1:])
    if words in (["-"], []):
        sys.stdin.read()
        print("cuda")
        return 0
    try:
        if "verl.trainer.main_ppo" in words:
            found = _verl(root, words[words.index("verl.trainer.main_ppo") + 1 :])
        elif any(Path(word).name.startswith("run_") and word.endswith(".py") for word in words):
            found = _nemo_rl(root, words)
        else:
            return 0
    except Exception as error:  # noqa: BLE001  of hydra and omegaconf; the message is the result
        lines = [line for line in str(error).splitlines() if line.strip()] or [repr(error)]
        Path(os.environ[RECORD]).write_text(json.dumps({"error": " ".join(lines[:3])}), encoding="utf-8")
        return 1
    Path(os.environ[RECORD]).write_text(json.dumps(found, default=str), encoding="utf-8")
    return 0


def _nemo_rl(root: Path, words: Sequence[str]) -> dict[str, Any]:
    """Compose by the checkout's own functions, loaded from their file: the package would import torch."""
    from omegaconf import OmegaConf

    source = root / "nemo_rl" / "utils" / "config.py"
    spec = importlib.util.spec_from_file_location("nemo_rl_config", source)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    script = next(at for at, word in enumerate(words) if Path(word).name.startswith("run_"))
    given = list(words[script + 1 :])
    file = f"examples/configs/{Path(words[script]).stem.removeprefix('run_')}.yaml"
    if given[:1] == ["--config"]:
        file, given = given[1], given[2:]
    module.register_omegaconf_resolvers()
    config = module.parse_hydra_overrides(module.load_config(root / file), given)
    return dict(_flat(OmegaConf.to_container(config, resolve=True), ""))


def _verl(root: Path, words: Sequence[str]) -> dict[str, Any]:
    from hydra import compose, initialize_config_dir  # type: ignore[import-not-found,unused-ignore]
    from omegaconf import OmegaConf

    name = next(
        (word.partition("=")[2] for word in words if word.startswith("--config-name=")), "ppo_trainer"
    )
    overrides = [word for word in words if not word.startswith("--config-")]
    with initialize_config_dir(config_dir=str(root / "verl" / "trainer" / "config"), version_base=None):
        config = compose(config_name=name.removesuffix(".yaml"), overrides=overrides)
    return dict(_flat(OmegaConf.to_container(config, resolve=False), ""))


def _flat(tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


if __name__ == "__main__":
    sys.exit(main())
