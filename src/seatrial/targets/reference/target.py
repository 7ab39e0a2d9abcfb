"""The reference target: refrl, the stack that comes with the harness, on made or given models."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import seatrial
from seatrial.errors import BlockedError, UsageError
from seatrial.targets.base import CHECKOUT_VARIABLE, AdvantageFacts, Job, JobRequest, TrainingJob

if TYPE_CHECKING:
    from refrl.config import CheckpointingConfig, DataConfig, GRPORunConfig, SFTRunConfig

_OBSERVED = "logger.observers=[seatrial.targets.reference.guards.observer:{}]"
_GUARDS = [_OBSERVED.format(name) for name in ("TrialGuards", "GuardsWithExamples")]
GUARDS_FILE = "guards.json"
_SOURCES = Path(seatrial.__file__).resolve().parent.parent
OVERRIDDEN = ("grpo-smoke", "grpo-async", "grpo-refit-delta", "grpo-lora", "grpo-checkpoint-save")
"""Recipes that overrides are checked against; an option may need another that only one of them sets."""
_RESERVED = {
    "logger.log_dir": "the trial's folder holds the log",
    "logger.tensorboard_enabled": "the trial judges the log",
    "logger.log_train_data": "the trial judges the trained rows",
    "checkpointing.checkpoint_dir": "the trial's folder holds the checkpoints",
    "checkpointing.enabled": "the trial compares the weights",
    "logger.observers": "the guards of the trial watch the run",
    "grpo.seed": "give --seed",
    "data.seed": "give --seed",
}
"""Keys that a trial sets itself, with the reason."""
ARCHITECTURES = {
    "dense": ("--family", "llama"),
    "tied": ("--tie-word-embeddings",),
    "moe": ("--family", "qwen3_moe"),
    "quantised": ("--initializer-range", "0.1"),  # peaked: a sampler that errs exceeds the rounding to int8
    "draft": ("--draft-head",),
    "vlm": ("--family", "llava"),
    "audio": ("--family", "qwen2_audio"),
    "sharp": ("--initializer-range", "0.1"),
    "peaked": ("--initializer-range", "0.1", "--small-norms"),  # small: a norm of 1 does not move in bfloat16
}
"""Words of `refrl make-model`, by what trials call an architecture."""
SAVED = ("grpo-smoke", "grpo-vlm", "grpo-audio", "grpo-refit-", "grpo-async", "grpo-generation-")
"""Beginnings of recipes that a trial lets save after every step, so that every update can be computed again."""
_DISTRIBUTED = ("policy.dtensor_cfg.", "policy.megatron_cfg.", "cluster.num_processes", "cluster.launcher")
"""Beginnings of words with which a policy is spread, or started otherwise."""
FROZEN = {"qwen2_audio": ("audio_tower.embed_positions.weight",)}
"""Tensors that transformers' own code keeps fixed, by the type of model."""
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Nothing is downloaded: models and tokenizers are local folders."""
SPLITS_SEED = 33
"""Added to the trial's seed for splits, which shows mixed-up seeds; the empty word is trained on up to 39."""
_SMALL_MODEL_BYTES = 16 * 2**20
"""Below this, threads cost more than they bring: with two of them on two busy cores a step took ten times as long."""
_STACK = ("torch", "transformers", "tokenizers", "safetensors")


class ReferenceTarget:
    """A `seatrial.targets.base.Target`."""

    name = "reference"
    modules: tuple[str, ...] = ("refrl",)
    packages: tuple[str, ...] = (*_STACK, "math-verify")
    relation_jobs = 2

    def __init__(
        self, entry: Sequence[str] = ("-m", "refrl"), environment: Mapping[str, str] | None = None
    ) -> None:
        """Choose how refrl is started.

        Args:
            entry: words of Python's command line before refrl's own (`-m seatrial.faults.launch lr-zero --`
                plants a fault).
            environment: variables that its commands need in addition to ours.
        """
        self._entry = tuple(entry)
        self._environment = {**_ENVIRONMENT, **(environment or {})}

    def preflight(self) -> None:
        """Look for the packages of the stack."""
        missing = [name for name in _STACK if importlib.util.find_spec(name) is None]
        if missing:
            names = ", ".join(missing)
            raise BlockedError(f"{names} not installed, needed by refrl: pip install 'seatrial[stack]'")

    def check_overrides(self, overrides: Sequence[str]) -> None:
        """Check the overrides against the schema of refrl's configuration: some recipe must accept them."""
        for override in overrides:
            key = override.partition("=")[0]
            if key in _RESERVED:
                raise UsageError(f"{key} is set by the trial: {_RESERVED[key]}")
        refusals = []
        for recipe in OVERRIDDEN:
            try:
                self._load(recipe, overrides)
                return
            except UsageError as error:
                refusals.append(error)
        raise refusals[0]

    def expected_origins(self) -> Mapping[str, Path]:
        """Return the refrl that came with this seatrial, as one distribution; or that of the commit under test."""
        checkout = os.environ.get(CHECKOUT_VARIABLE)
        return {"refrl": (_SOURCES if checkout is None else Path(checkout) / "src") / "refrl"}

    def given_model(self, overrides: Sequence[str]) -> Path | None:
        """Return the folder of `policy.model_name=DIR`, made absolute, after a look at what it holds."""
        names = [word.partition("=")[2] for word in overrides if word.startswith("policy.model_name=")]
        if not names:
            return None
        model = Path(names[-1])
        remedy = "give a Hugging Face folder, or leave policy.model_name out to have a tiny model made"
        if not model.is_dir():
            raise BlockedError(f"policy.model_name={model} is no folder; {remedy}")
        if not (model / "config.json").is_file() or not any(model.glob("*.safetensors")):
            raise BlockedError(
                f"policy.model_name={model} holds no model (config.json, *.safetensors); {remedy}"
            )
        given = [word.partition("=")[2] for word in overrides if word.startswith("policy.tokenizer.name=")]
        tokenizer = Path(given[-1]) if given else model
        if not any(
            (tokenizer / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")
        ):
            raise BlockedError(
                f"{tokenizer} holds no tokenizer (tokenizer.json); copy the model's tokenizer files there, or set "
                "policy.tokenizer.name to the folder that has them"
            )
        return model.resolve()

    def make_model(self, output: Path, seed: int) -> Job:
        """Return the command that makes a tiny byte-level model."""
        words = ("make-model", "--output", str(output), "--seed", str(seed))
        return Job(
            what="making a tiny model", argv=self._argv(words), environment=self._environment_for(None)
        )

    def make_architecture(self, name: str, output: Path, seed: int) -> Job:
        """Return the command that makes a tiny model of an architecture (see `ARCHITECTURES`)."""
        words = ("make-model", "--output", str(output), "--seed", str(seed), *ARCHITECTURES[name])
        return Job(
            what=f"making a tiny model ({name})",
            argv=self._argv(words),
            environment=self._environment_for(None),
        )

    def job(self, request: JobRequest) -> TrainingJob:
        """Return a run of refrl by one of its recipes; its evidence is under the request's directory."""
        if request.recipe.startswith("sft"):
            return self._sft(request)
        # The first run has the trial's own seed, and every other one of any trial another.
        loop_seed = (
            request.seed
            if request.recipe in ("grpo-smoke", "grpo-vlm", "grpo-audio")
            else 1000 * request.seed + request.number
        )
        chosen = [word for word in request.overrides if not word.startswith("policy.model_name=")]
        own = _own_words(request, "grpo", loop_seed)
        words = [*own, _GUARDS[request.runs_examples], *chosen, *request.words]
        if _saves_every_step(request):
            words, config = self._saving(request.recipe, own, words)
        else:
            config = self._load(request.recipe, words)
        advantage = config.grpo.advantage
        loss = config.loss_fn
        recomputable = advantage.is_built_in and (
            loss.kl_in == "loss" or loss.reference_policy_kl_penalty == 0
        )
        return self._training(
            request,
            words,
            config,
            what=f"{request.recipe}, run {request.number + 1}",
            num_steps=config.grpo.max_num_steps,
            num_rows_per_step=config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt,
            num_generations_per_prompt=config.grpo.num_generations_per_prompt,
            num_updates_per_step=config.grpo.num_prompts_per_step
            * config.grpo.num_generations_per_prompt
            // config.policy.train_global_batch_size,
            ratio_clip=(1 - loss.ratio_clip_min, 1 + loss.ratio_clip_max)
            if loss.is_built_in
            else (0.0, math.inf),
            advantage=AdvantageFacts(
                estimator=advantage.estimator, scale=advantage.resolved_scale, epsilon=advantage.epsilon
            )
            if recomputable
            else None,
            has_reference=loss.reference_policy_kl_penalty > 0,
            max_lag=_max_lag(config),
            lag_is_exact=lag_is_exact(config),
            guards_file=request.directory / "logs" / GUARDS_FILE,
            verifier=effective_verifier(config.data),
            max_verifier_error_share=config.grpo.max_verifier_error_share
            if "max_verifier_error_share" in config.grpo.model_fields_set
            else None,
        )

    def components(self) -> object:
        """Return refrl's components under the configuration of the relations."""
        from seatrial.targets.reference.components import ReferenceComponents

        return ReferenceComponents()

    def _sft(self, request: JobRequest) -> TrainingJob:
        from refrl.config import SFTRunConfig, load_config

        is_judged = request.recipe != "sft-warmup"
        observers = [_GUARDS[request.runs_examples]] * is_judged
        words = [*_own_words(request, "sft", request.seed), *observers, *request.words]
        if request.ends_early:
            words.append("checkpointing.checkpoint_must_save_by=00:00:00:00")
        config = load_config(SFTRunConfig, _config(request.recipe), words)
        return self._training(
            request,
            words,
            config,
            what="SFT" if request.recipe != "sft-warmup" else "SFT warm-up",
            num_steps=config.sft.max_num_steps,
            num_rows_per_step=config.policy.train_global_batch_size,
            guards_file=request.directory / "logs" / GUARDS_FILE if is_judged else None,
        )

    def _training(
        self, request: JobRequest, words: Sequence[str], config: GRPORunConfig | SFTRunConfig, **facts: Any
    ) -> TrainingJob:
        """Return the command with what all recipes share."""
        from refrl.masking import masked

        loop, directory, model = request.recipe.partition("-")[0], request.directory, request.model
        return TrainingJob(
            argv=self._argv((loop, "--config", str(_config(request.recipe)), *words)),
            environment=self._environment_for(model),
            log_dir=directory / "logs" / "tensorboard",
            ledger_dir=directory / "logs",
            initial_model=model,
            final_model=directory / "checkpoints" / "final",
            backend=config.policy.backend,
            configuration=masked(config.model_dump(mode="json")),
            mesh=asked_mesh(config),
            precision=config.policy.generation.quantization or config.policy.precision,
            vocabulary_size=vocabulary_size(model),
            byte_level=is_byte_level(Path(config.policy.tokenizer.name or model)),
            frozen=FROZEN.get(model_type(model), ()),
            checkpoint_dir=directory / "checkpoints",
            adapter_dir=directory / "checkpoints" / "final" / "adapter"
            if config.policy.lora_cfg.enabled
            else None,
            checkpoint_steps=_kept_steps(config.checkpointing, facts["num_steps"]),
            **facts,
        )

    def _saving(self, recipe: str, own: Sequence[str], words: list[str]) -> tuple[list[str], GRPORunConfig]:
        """Return the words of a run that saves after every step, unless an option forbids it, and its configuration."""
        saving = [*own, "checkpointing.save_period=1", *words[len(own) :]]
        try:
            return saving, self._load(recipe, saving)
        except UsageError:
            return words, self._load(recipe, words)

    def _environment_for(self, model: Path | None) -> dict[str, str]:
        """Return the variables of a command on a model, or one to be made (None); keep those that are set already."""
        size = 0 if model is None else _size(model)
        threads = (
            {} if size > _SMALL_MODEL_BYTES or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
        )
        return {**self._environment, **threads}

    def _argv(self, words: Sequence[str]) -> tuple[str, ...]:
        return (sys.executable, "-P", *self._entry, *words)

    def _load(self, recipe: str, overrides: Sequence[str]) -> GRPORunConfig:
        from refrl.config import ConfigError, GRPORunConfig, load_config

        try:
            return load_config(GRPORunConfig, _config(recipe), list(overrides))
        except ConfigError as error:
            raise UsageError(str(error)) from error


def _saves_every_step(request: JobRequest) -> bool:
    """Return whether a run saves after every step: a small model, in one process."""
    return (
        request.recipe.startswith(SAVED)
        and _size(request.model) <= _SMALL_MODEL_BYTES
        and not any(word.startswith(_DISTRIBUTED) for word in (*request.words, *request.overrides))
    )


def _size(model: Path) -> int:
    """Return the bytes of a model's weights."""
    return sum(file.stat().st_size for file in model.glob("*.safetensors"))


def _config(recipe: str) -> Path:
    from refrl.config import ConfigError
    from refrl.recipes import recipe_path

    try:
        return recipe_path(recipe)
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _own_words(request: JobRequest, loop: str, loop_seed: int) -> list[str]:
    """Return the overrides that the trial itself gives."""
    return [
        f"policy.model_name={request.model}",
        f"logger.log_dir={request.directory / 'logs'}",
        f"checkpointing.checkpoint_dir={request.directory / 'checkpoints'}",
        f"{loop}.seed={loop_seed}",
        f"data.seed={request.seed + SPLITS_SEED}",
    ]


def _max_lag(config: GRPORunConfig) -> int | None:
    """Return the steps that rows may be old; None where filters may leave an update out, so that versions say less."""
    rows = config.grpo.num_prompts_per_step * config.grpo.num_generations_per_prompt
    filters = config.grpo.overlong_filtering or config.grpo.zero_variance_filter
    if filters and rows != config.policy.train_global_batch_size:
        return None
    rollouts = config.grpo.async_grpo
    return rollouts.max_trajectory_age_steps if rollouts.enabled else 0


def lag_is_exact(config: GRPORunConfig) -> bool:
    """Return whether the configuration alone says with which weights each group is sampled.

    Where weights change in flight, a group begins with those of its time; where a filter drops groups, others are
    sampled in their place.
    """
    rollouts = config.grpo.async_grpo
    drops = rollouts.drop_longer_than is not None or rollouts.drop_zero_variance
    return not rollouts.in_flight_weight_updates and not drops


def _kept_steps(config: CheckpointingConfig, num_steps: int) -> tuple[int, ...]:
    """Return the steps whose checkpoints are kept, where the later of two is the better."""
    if not config.save_period:
        return ()
    saved = [*range(config.save_period, num_steps, config.save_period), num_steps]
    return tuple(saved if config.keep_top_k is None else saved[-config.keep_top_k :])


def effective_verifier(data: DataConfig) -> str | None:
    """Return the name of the effective reward rule; None for a mean of several."""
    from refrl.tasks import default_verifier

    if data.verifiers is not None:
        return None
    return data.verifier or default_verifier(data)


def asked_mesh(config: GRPORunConfig | SFTRunConfig) -> dict[str, int]:
    """Return the processes of each dimension, as the policy names them; dimensions of one process are left out."""
    policy, sizes = config.policy, {"data": config.cluster.num_processes // config.policy.model_parallel_size}
    if policy.backend == "dtensor":
        dtensor = policy.dtensor_cfg
        sizes |= {"tensor": dtensor.tensor_parallel_size, "context": dtensor.context_parallel_size}
        sizes |= {"expert": dtensor.expert_parallel_size}
    elif policy.backend == "megatron":
        megatron = policy.megatron_cfg
        sizes |= {"tensor": megatron.tensor_model_parallel_size, "context": megatron.context_parallel_size}
        sizes |= {
            "pipeline": megatron.pipeline_model_parallel_size,
            "expert": megatron.expert_model_parallel_size,
        }
    return {dimension: size for dimension, size in sizes.items() if size > 1}


def vocabulary_size(model: Path) -> int | None:
    """Return how many ids a model knows; None where its configuration does not say."""
    try:
        config = json.loads((model / "config.json").read_text())
        size = config.get("text_config", config).get("vocab_size")
    except (OSError, ValueError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def model_type(model: Path) -> str:
    """Return the name of its kind in transformers; nothing where its configuration does not say."""
    try:
        return str(json.loads((model / "config.json").read_text()).get("model_type"))
    except (OSError, ValueError, AttributeError):
        return ""


def is_byte_level(tokenizer: Path) -> bool:
    """Whether the tokenizer has one token per byte and no merges."""
    try:
        model = json.loads((tokenizer / "tokenizer.json").read_text())["model"]
        return sorted(model["vocab"].values()) == list(range(256)) and not model["merges"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
