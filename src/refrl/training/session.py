"""The parts of a run, put together by `refrl.training.build` and closed at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from refrl.checkpointing.attempts import Attempt, begin_attempt
from refrl.checkpointing.base import Stateful
from refrl.checkpointing.checkpointer import Checkpointer, RunFacts, metric_tag
from refrl.checkpointing.export import final_directory
from refrl.config import GRPOConfig, GRPORunConfig, SFTConfig, SFTRunConfig
from refrl.distributed import World, join, placement
from refrl.generation.base import Generator, SamplingParams
from refrl.generation.sampling import check_stop_ids
from refrl.logging import RunLogger
from refrl.models.prompts import PromptEncoder
from refrl.policy.base import Policy
from refrl.rewards.code import sandbox_of
from refrl.rewards.verifiers import Verifier
from refrl.rollout.collect import RolloutSource
from refrl.rollout.environments import make_environment
from refrl.rollout.progress import RolloutProgress
from refrl.rollout.shared import SharedGenerator
from refrl.rollout.sync import RolloutWorker
from refrl.tasks import Example, PromptSource
from refrl.timing import Timer
from refrl.training import build
from refrl.training.build_generation import build_generator, build_weight_sync
from refrl.training.observer import Observer, make_observer
from refrl.weight_sync.base import WeightSync


@dataclass(frozen=True)
class Session:
    """The parts of a run."""

    policy: Policy
    generator: Generator
    """Of this process; where rollouts are asynchronous the replicas sample in its place."""
    weight_sync: WeightSync
    worker: RolloutWorker
    tokenizer: PreTrainedTokenizerBase
    encoder: PromptEncoder
    sampling: SamplingParams
    prompts: PromptSource
    train_examples: Sequence[Example]
    """What `prompts` draws from."""
    validation: Sequence[Example]
    verifier: Verifier
    logger: RunLogger
    timer: Timer
    final: Path | None
    """Where the model is exported at the end, by the first process; None where it is not."""
    attempt: Attempt
    checkpointer: Checkpointer
    checkpoint_metric: str | None
    """Tag of the metric that tells better checkpoints, as it is logged."""
    world: World
    observer: Observer
    progress: RolloutProgress | None = None
    """Where asynchronous rollouts stand; None where there are none."""
    collector: RolloutSource | None = None
    """Where a GRPO step gets its rollouts; None in a loop that samples nothing."""

    def save(self, step: int, *, finished: bool) -> None:
        """Save a checkpoint after a step.

        Args:
            step: the last one taken.
            finished: whether the loop ends with it, though it was to take more.
        """
        tag = self.checkpoint_metric
        with self.timer.time("checkpointing"):
            metric = None if tag is None else self.logger.value_at(tag, step)
            self.checkpointer.save(step, metric, finished=finished)
        self.logger.log(self.timer.take(), step, "timing/train")
        self.observer.saved(self, step)

    def prepare_for_generation(self) -> Mapping[str, float]:
        """Free what only training needs, and bring the generator's weights up to date: before every sampling.

        Returns:
            What there is to log of the weights' way.
        """
        with self.timer.time("prepare_for_generation/total"):
            self.policy.free_gradients()
            with self.timer.time("prepare_for_generation/transfer_and_update_weights"):
                figures = self.weight_sync.sync()
        self.observer.synced(self)
        return figures


@contextmanager
def open_session(
    config: GRPORunConfig | SFTRunConfig,
    loop: GRPOConfig | SFTConfig,
    *,
    num_updates: int,
    with_reference: bool,
    observer: Observer | None = None,
    temperature: float | None = None,
) -> Iterator[Session]:
    """Build the parts, what is checked first and what is loaded after; the log is closed when the block ends.

    Args:
        config: the whole configuration.
        loop: its section of the loop.
        num_updates: optimizer steps of the whole run.
        with_reference: keep a frozen copy of the model.
        observer: sees the run, beside those that `logger.observers` names.
        temperature: of the distribution that rows are scored under; None is that of sampling.

    Raises:
        ConfigError: something that the configuration names is missing, too small, or cannot be written.
    """
    watching = make_observer(config, observer)
    verifier = build.build_rewards(config.data)
    sandbox = sandbox_of(config.data.verifiers or [build.verifier_name(config.data)])
    environment = make_environment(config.data)
    splits = build.build_splits(config.data)
    validation = splits.validation[: loop.max_val_samples]
    final = final_directory(config.checkpointing)
    device = build.build_device(config.cluster, loop.seed)
    tokenizer = build.build_tokenizer(config.policy)
    encoder = build.build_encoder(config.policy, config.data, tokenizer)
    generation = config.policy.generation
    with join(config.cluster) as world:
        attempt = begin_attempt(config, config.checkpointing, config.logger, world)
        policy = build.build_policy(
            config.policy,
            tokenizer,
            device=device,
            num_updates=num_updates,
            with_reference=with_reference,
            world=world,
            temperature=temperature,
        )
        prompts = build.build_prompts(config.data, splits, seed=loop.seed)
        facts = RunFacts(
            run_id=attempt.run_id,
            seed=loop.seed,
            examples=splits.train,
            config=config.model_dump(mode="json"),
        )
        progress = build_progress(config, prompts)
        parts: dict[str, Stateful] = {"prompts": prompts} if progress is None else {"rollouts": progress}
        checkpointer = Checkpointer(config.checkpointing, policy, parts, facts=facts, world=world)
        if attempt.checkpoint is not None:
            checkpointer.restore(attempt.checkpoint)
        prompt_ids = build.build_prompt_ids(encoder, policy, config.policy, [splits.train, validation])
        generator = build_generator(config.policy, tokenizer, device=device)
        check_stop_ids(generation.stop_token_ids or (), policy.vocab_size)
        sampling = build.build_sampling(generation, generator, encoder)
        shared = generator if world.size == 1 else SharedGenerator(generator, world)
        timer = Timer()
        log = RunLogger(config.logger, writes=world.rank == 0, continues=attempt.continues_log)
        with closing(generator), log as logger, closing(checkpointer):
            facts_of_run = {
                **attempt.log_facts,
                "placement": placement(world),
                "policy": asdict(policy.backend),
                "generator": generator.engine,
            }
            logger.log_run_info(config, loop.seed, str(device), sandbox, attempt=facts_of_run)
            if world.rank == 0:
                for note in splits.notes:
                    print(f"data: {note}", flush=True)
                if sandbox is not None:
                    print(f"code: programs run in the sandbox: {sandbox}", flush=True)
            session = Session(
                policy=policy,
                generator=generator,
                weight_sync=build_weight_sync(generation, policy, generator, timer),
                worker=RolloutWorker(shared, tokenizer, prompt_ids, world, environment),
                tokenizer=tokenizer,
                encoder=encoder,
                sampling=sampling,
                prompts=prompts,
                train_examples=splits.train,
                validation=validation,
                verifier=verifier,
                logger=logger,
                timer=timer,
                final=final,
                attempt=attempt,
                checkpointer=checkpointer,
                checkpoint_metric=metric_tag(config.checkpointing),
                world=world,
                observer=watching,
                progress=progress,
            )
            if attempt.checkpoint is not None:
                checkpointer.restore_streams(attempt.checkpoint)
            session.observer.started(session)
            yield session
            session.observer.ended(session)


def build_progress(config: GRPORunConfig | SFTRunConfig, prompts: PromptSource) -> RolloutProgress | None:
    """Return what a checkpoint keeps of asynchronous rollouts; None where a step samples its own, or nothing."""
    if isinstance(config, GRPORunConfig) and config.grpo.async_grpo.enabled:
        return RolloutProgress(prompts)
    return None
