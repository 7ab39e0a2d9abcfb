"""Short runs of TRL's own trainers as jobs: commands, places of evidence, and what they declare of their rows."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import seatrial
from seatrial.errors import BlockedError, UsageError
from seatrial.nearest import hint
from seatrial.targets.base import AdvantageFacts, Job, JobRequest, TrainingJob
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.trl.recipes import RECIPES, Recipe

_SOURCES = Path(seatrial.__file__).resolve().parent.parent
_MODULE = "seatrial.targets.trl.training"
_MODEL = "model="
RESERVED: Mapping[str, str] = {
    "output_dir": "the trial's folder holds the rows",
    "logging_dir": "the trial's folder holds the log",
    "report_to": "the trial judges the log",
    "logging_steps": "the trial judges every step",
    "log_completions": "the trial judges the trained rows",
    "seed": "give --seed",
    "max_steps": "the trial knows how many steps are to be there",
    "num_generations": "the trial knows how large a group is",
    "per_device_train_batch_size": "the trial knows how many rows a step has",
    "scale_rewards": "the trial recomputes the advantages",
    "save_strategy": "the trial compares the weights",
}
"""Options that a trial sets itself, with the reason."""
_NO_SAMPLER = "its sampler is the model in training, unless vLLM samples"
_NO_RATIO = "it logs shares of clipped tokens in place of ratios"
_NO_COUNTS = "it counts the tokens of the whole run, and none of a step"
UNLOGGED: Mapping[str, str] = {
    "train/probs_ratio_min": _NO_RATIO,
    "train/probs_ratio_max": _NO_RATIO,
    "train/token_mult_prob_error": _NO_SAMPLER,
    "train/gen_kl_error": _NO_SAMPLER,
    "train/global_valid_toks": _NO_COUNTS,
    "train/global_valid_seqs": _NO_COUNTS,
}
NUM_TOKENS = KnownFailure(
    "num_tokens begins again at 0 after a resume", finding="TRL: num_tokens after a resume"
).of("diamond: same counters")
OWN_CHECKS: Mapping[str, str] = {
    'max(data["train/clip_ratio/region_mean"]) <= 0': "one update a batch: every ratio is 1, and no token is clipped"
}


def training_job(request: JobRequest) -> TrainingJob:
    """Return a run by one of the recipes; its evidence is under the request's directory.

    Raises:
        UsageError: there is no such recipe for TRL.
        BlockedError: it trains adapters, and PEFT is not installed.
    """
    recipe = _recipe(request.recipe)
    if recipe.has_adapters and importlib.util.find_spec("peft") is None:
        raise BlockedError("peft is not installed with TRL, which trains adapters with it: pip install peft")
    directory = request.directory
    options = [word for word in request.overrides if not word.startswith(_MODEL)]
    words = (
        *(request.recipe, "--model", str(request.model), "--directory", str(directory)),
        *("--seed", str(1000 * request.seed + request.number), "--data-seed", str(request.seed)),
        *(("--ends-early",) if request.ends_early else ()),
        *(options if recipe.trainer == "GRPO" else ()),
    )
    is_grpo = recipe.trainer == "GRPO"
    return TrainingJob(
        what=f"TRL's {recipe.trainer}Trainer, {request.recipe}, run {request.number + 1}",
        argv=_argv(words),
        environment={**_environment(), "TENSORBOARD_LOGGING_DIR": str(directory / "logs")},
        log_dir=directory / "logs",
        ledger_dir=directory / "rows",
        initial_model=request.model,
        final_model=directory / "final",
        num_steps=recipe.num_steps,
        num_rows_per_step=recipe.num_rows,
        num_generations_per_prompt=recipe.num_generations,
        precision="float32",
        advantage=AdvantageFacts(estimator="grpo", scale="group", epsilon=1e-4) if is_grpo else None,
        has_reference=bool(recipe.options.get("beta")),
        verifier=recipe.verifier if is_grpo else None,
        checkpoint_dir=directory / "checkpoints" if recipe.kept_steps else None,
        checkpoint_steps=recipe.kept_steps,
        adapter_dir=directory / "adapter" if recipe.has_adapters else None,
        unlogged=UNLOGGED,
        expected_failures=dict.fromkeys(NUM_TOKENS.laws, str(NUM_TOKENS)),
        own_checks=OWN_CHECKS if is_grpo else {},
        vocabulary_size=_vocabulary_size(request.model),
        byte_level=False,
    )


def making_job(output: Path, seed: int) -> Job:
    """Return the command that makes a tiny model with a byte-level tokenizer."""
    argv = (
        sys.executable,
        "-m",
        "seatrial.targets.common.tiny",
        "--output",
        str(output),
        "--seed",
        str(seed),
    )
    return Job(what="making a tiny model", argv=argv, environment=_environment())


def check_options(overrides: Sequence[str]) -> None:
    """Hold `name=value` words against the fields of `GRPOConfig` as it is installed.

    Raises:
        UsageError: a name is unknown (the nearest is named), or set by the trial.
    """
    from seatrial.targets.trl.preferences import find_trainer

    _, config_class = find_trainer("GRPO")
    known = [item.name for item in fields(config_class)]
    for word in overrides:
        name, equals, _ = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is no name=value")
        if name in RESERVED:
            raise UsageError(f"{name} is set by the trial: {RESERVED[name]}")
        if name not in known and name != "model":
            raise UsageError(f"GRPOConfig of this release has no {name}; {hint(name, known)}")


def model_of(overrides: Sequence[str]) -> Path | None:
    """Return the folder of `model=DIR`, made absolute; None where none is given.

    Raises:
        BlockedError: it holds no model or no tokenizer.
    """
    names = [word.removeprefix(_MODEL) for word in overrides if word.startswith(_MODEL)]
    if not names:
        return None
    model = Path(names[-1])
    if not (model / "config.json").is_file() or not any(model.glob("*.safetensors")):
        raise BlockedError(
            f"model={model} holds no model (config.json, *.safetensors); leave model= out to have one made"
        )
    if not (model / "tokenizer.json").is_file():
        raise BlockedError(f"model={model} holds no tokenizer.json: put the model's tokenizer there")
    return model.resolve()


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise UsageError(f"there is no run of TRL for {name}; there are {', '.join(RECIPES)}")
    return RECIPES[name]


def _argv(words: Sequence[str]) -> tuple[str, ...]:
    return (sys.executable, "-m", _MODULE, *words)


def _environment() -> dict[str, str]:
    """Return the variables of a command; variables that are set already are kept."""
    path = os.pathsep.join(filter(None, [str(_SOURCES), os.environ.get("PYTHONPATH", "")]))
    fixed = {
        "PYTHONPATH": path,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return fixed if "OMP_NUM_THREADS" in os.environ else {**fixed, "OMP_NUM_THREADS": "1"}


def _vocabulary_size(model: Path) -> int | None:
    try:
        size = json.loads((model / "config.json").read_text()).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None
