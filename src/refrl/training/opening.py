"""Opens a run: validates what can be validated first, builds the parts, and closes them at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict

from refrl.checkpointing.attempts import begin_attempt
from refrl.checkpointing.base import Stateful
from refrl.checkpointing.checkpointer import Checkpointer, RunFacts, metric_tag
from refrl.checkpointing.layout import final_directory
from refrl.config import GRPOConfig, GRPORunConfig, SFTConfig, SFTRunConfig
from refrl.distributed import join, placement
from refrl.generation.sampling import check_stop_ids
from refrl.logging import RunLogger
from refrl.masking import masked
from refrl.rewards.code import sandbox_of
from refrl.rollout.environments import make_environment
from refrl.rollout.progress import RolloutProgress
from refrl.rollout.sync import RolloutWorker, shared
from refrl.tasks import PromptSource
from refrl.timing import Timer
from refrl.training import build
from refrl.training.build_generation import build_generator, build_weight_sync
from refrl.training.session import Observer, Session, make_observer
from refrl.training.validation import check_validation_metric


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
    """Build the parts of a run, cheap checks first; the log is closed when the block ends.

    Args:
        config: the whole configuration.
        loop: its section of the loop.
        num_updates: optimizer steps of the whole run.
        with_reference: keep a frozen copy of the model.
        observer: notified of the run, in addition to those that `logger.observers` names.
        temperature: of the distribution that rows are scored under; None takes the sampling temperature.

    Raises:
        ConfigError: something that the configuration names is missing, too small, or cannot be written.
    """
    check_validation_metric(config, loop)
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
            config=masked(config.model_dump(mode="json")),
        )
        progress = build_progress(config, prompts)
        parts: dict[str, Stateful] = {"prompts": prompts} if progress is None else {"rollouts": progress}
        checkpointer = Checkpointer(config.checkpointing, policy, parts, facts=facts, world=world)
        if attempt.checkpoint is not None:
            checkpointer.restore(attempt.checkpoint)
        prompt_ids = build.build_prompt_ids(encoder, policy, config.policy, [splits.train, validation])
        generator = build_generator(config.policy, tokenizer, device=device, number=world.rank)
        check_stop_ids(generation.stop_token_ids or (), policy.vocab_size)
        sampling = build.build_sampling(generation, generator, encoder)
        sampler = shared(generator, world)
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
                worker=RolloutWorker(sampler, tokenizer, prompt_ids, world, environment),
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
    """Return the checkpointed state of asynchronous rollouts; None for synchronous rollouts and for SFT."""
    if isinstance(config, GRPORunConfig) and config.grpo.async_grpo.enabled:
        return RolloutProgress(prompts)
    return None
