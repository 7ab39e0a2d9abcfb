"""Everything that a loop needs, built from its configuration: checked first, loaded after."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from refrl.checkpointing import final_directory
from refrl.config import (
    ClusterConfig,
    ConfigError,
    DataConfig,
    GRPOConfig,
    GRPORunConfig,
    PolicyConfig,
    SFTConfig,
    SFTRunConfig,
)
from refrl.distributed import World, join, local_rank
from refrl.generation.base import SamplingParams
from refrl.generation.torch_engine import TorchGenerator
from refrl.logging import RunLogger
from refrl.models import load_model
from refrl.policy.base import Policy
from refrl.policy.hf import HFPolicy
from refrl.prompts import PromptEncoder
from refrl.rewards import make_verifier, make_weighted_verifier
from refrl.rewards.verifiers import Verifier
from refrl.rollout.shared import SharedGenerator
from refrl.rollout.sync import RolloutWorker
from refrl.tasks import Example, PromptSource, make_splits, make_task
from refrl.timing import Timer
from refrl.tokenization import load_tokenizer

GENERATORS = {"torch": TorchGenerator}
"""Generation engines by the name that `policy.generation.backend` takes."""


class TrainingError(ArithmeticError):
    """Training cannot go on; the message says at which step and why. The log holds the step."""


@dataclass(frozen=True)
class Session:
    """The parts of a run."""

    policy: Policy
    worker: RolloutWorker
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    sampling: SamplingParams
    prompts: PromptSource
    validation: Sequence[Example]
    verifier: Verifier
    logger: RunLogger
    timer: Timer
    final: Path | None
    """Where the model is exported at the end; None where it is not, or another process does."""
    world: World


@contextmanager
def open_session(
    config: GRPORunConfig | SFTRunConfig,
    loop: GRPOConfig | SFTConfig,
    *,
    num_updates: int,
    with_reference: bool,
) -> Iterator[Session]:
    """Build the parts; the log is closed when the block ends, however it ends.

    Args:
        config: the whole configuration.
        loop: its section of the loop.
        num_updates: optimizer steps of the whole run.
        with_reference: keep a frozen copy of the model.

    Raises:
        ConfigError: something that the configuration names is missing, too small, or cannot be written.
    """
    verifier = _make_verifier(config.data)
    splits = make_splits(config.data)
    validation = splits.validation[: loop.max_val_samples]
    final = final_directory(config.checkpointing)
    device = _set_up_torch(config.cluster, loop.seed)
    directory = Path(config.policy.model_name)
    model = load_model(directory)
    tokenizer_config = config.policy.tokenizer
    tokenizer = load_tokenizer(Path(tokenizer_config.name or directory))
    encoder = PromptEncoder(
        tokenizer, chat_template=tokenizer_config.chat_template, system_prompt=config.data.system_prompt
    )
    examples = [*splits.train, *validation]
    prompts = encoder.prompts([example.prompt for example in examples])
    prompt_ids = dict(zip([example.prompt_id for example in examples], prompts, strict=True))
    _check_prompts(prompts, config.policy, model)
    generation = config.policy.generation
    with join(config.cluster) as world:
        policy = HFPolicy(
            model,
            tokenizer,
            config.policy,
            device=device,
            num_updates=num_updates,
            temperature=generation.temperature,
            with_reference=with_reference,
            world=world,
        )
        generator = GENERATORS[generation.backend](policy.generation_model, tokenizer.pad_token_id)
        stop_token_ids = generation.stop_token_ids
        if stop_token_ids is None:
            stop_token_ids = tuple(sorted(generator.stop_ids() | {encoder.end_token_id()}))
        with RunLogger(config.logger, writes=world.rank == 0) as logger:
            logger.log_run_info(config, loop.seed, str(device))
            yield Session(
                policy=policy,
                worker=RolloutWorker(
                    generator if world.size == 1 else SharedGenerator(generator, world),
                    tokenizer,
                    prompt_ids,
                    world,
                ),
                tokenizer=tokenizer,
                encoder=encoder,
                sampling=SamplingParams(
                    max_new_tokens=generation.max_new_tokens,
                    temperature=generation.temperature,
                    top_p=generation.top_p,
                    top_k=generation.top_k,
                    stop_token_ids=stop_token_ids,
                ),
                prompts=PromptSource(splits.train, seed=loop.seed, shuffle=config.data.shuffle),
                validation=validation,
                verifier=verifier,
                logger=logger,
                timer=Timer(),
                final=final if world.rank == 0 else None,
                world=world,
            )


def _make_verifier(config: DataConfig) -> Verifier:
    """Return the verifier, or the weighted mean of several."""
    task = make_task(config.task, config.task_args)
    if config.verifiers is not None:
        return make_weighted_verifier(config.verifiers)
    return make_verifier(config.verifier or task.verifier)


def check_update(trained: Mapping[str, float], step: int, log_directory: Path) -> None:
    """Stop the run at a gradient that is not finite; call it when the step is logged.

    Raises:
        TrainingError: names the step.
    """
    if not math.isfinite(trained["grad_norm"]):
        raise TrainingError(
            f"step {step}: the gradient norm is {trained['grad_norm']} and the loss {trained['loss']}; the update "
            f"was not taken, the step is logged in {log_directory}"
        )


def _set_up_torch(config: ClusterConfig, seed: int) -> torch.device:
    """Set threads and the global seed (nothing should draw from it), and return the device.

    Raises:
        ConfigError: CUDA is asked for and there is none.
    """
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    torch.manual_seed(seed)
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ConfigError("cluster.device=cuda, and torch finds no CUDA device; use cluster.device=cpu")
    if not has_cuda or config.device == "cpu":
        return torch.device("cpu")
    if local_rank() >= torch.cuda.device_count():
        raise ConfigError(
            f"cluster.num_processes={config.num_processes} and {torch.cuda.device_count()} CUDA devices: every "
            "process of a host needs one of its own; lower it, or use cluster.device=cpu"
        )
    torch.cuda.set_device(local_rank())
    return torch.device("cuda", local_rank())


def _check_prompts(prompts: Collection[Sequence[int]], config: PolicyConfig, model: PreTrainedModel) -> None:
    """Hold the prompts' ids and the longest of them against the configuration and the model.

    Raises:
        ConfigError: they do not fit.
    """
    vocabulary = model.config.get_text_config().vocab_size
    largest = max(max(prompt) for prompt in prompts)
    if largest >= vocabulary:
        raise ConfigError(
            f"the tokenizer gives id {largest} and the model in {config.model_name} knows {vocabulary}: they do "
            "not belong together; set policy.tokenizer.name to the model's own"
        )
    limit = config.max_total_sequence_length
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if positions is not None and limit > positions:
        raise ConfigError(
            f"policy.max_total_sequence_length={limit} is more than the {positions} positions of "
            f"{config.model_name}"
        )
    longest = max(map(len, prompts))
    new_tokens = config.generation.max_new_tokens
    if longest + new_tokens > limit:
        raise ConfigError(
            f"the longest prompt has {longest} tokens and policy.generation.max_new_tokens={new_tokens}, together "
            f"more than policy.max_total_sequence_length={limit}"
        )
