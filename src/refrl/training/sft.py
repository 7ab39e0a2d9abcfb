"""Supervised fine-tuning on the answers, with the same policy, batches and log as GRPO: the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from refrl.algorithms.batching import Batch, TrainSample
from refrl.algorithms.losses import sft_loss
from refrl.config import SFTRunConfig
from refrl.logging import console_line
from refrl.policy.base import Update
from refrl.tasks import Example
from refrl.training.build import build_batch
from refrl.training.opening import open_session
from refrl.training.performance import performance_metrics, utilization_metrics
from refrl.training.session import Observer, Session, TunedStep, shown
from refrl.training.step_records import check_update
from refrl.training.steps import Steps
from refrl.training.validation import is_validation_step, validate

SHOWN = ("loss", "grad_norm", "lr", "global_valid_toks", "seconds")
"""Metrics of the console line."""


def run_sft(config: SFTRunConfig, observer: Observer | None = None) -> None:
    """Train, log, validate, save and export; resume from the last checkpoint if there is one.

    Raises:
        ConfigError: the configuration names something that is missing or does not fit.
        TrainingError: the gradient is not finite; the step is in the log.
    """
    num_updates = config.sft.max_num_steps
    with open_session(
        config,
        config.sft,
        num_updates=num_updates,
        with_reference=False,
        observer=observer,
        temperature=1.0,  # answers are not sampled: score them under the model's own distribution
    ) as session:
        steps = Steps(session, num_updates)
        if session.attempt.checkpoint is None and is_accurate(session, config, 0):
            steps.finish()
        for step in steps:
            train_step(session, config, step)
            if is_accurate(session, config, step):
                steps.finish()
        steps.export()


def is_accurate(session: Session, config: SFTRunConfig, step: int) -> bool:
    """Validate after a step if it is due; return whether the accuracy reaches `stop_at_accuracy`."""
    if not is_validation_step(config.sft, step):
        return False
    accuracy = validate(session, config.sft, step)
    log_validation_loss(session, config, step)
    return config.sft.stop_at_accuracy is not None and accuracy >= config.sft.stop_at_accuracy


def train_step(session: Session, config: SFTRunConfig, step: int) -> None:
    """Draw examples, update, log."""
    time = session.timer.time
    updates: list[Update] = []
    with time("total_step_time"):
        with time("data_processing"):
            examples = session.prompts.draw(config.policy.train_global_batch_size)
            batch = make_answer_batch(session, config, examples)
        with time("policy_training"):
            trained = session.policy.train(
                batch,
                shown(session, answer_loss),
                updates.append if session.observer.needs_gradients else None,
            )
    seconds = session.timer.take()
    num_tokens = float(batch.attention_mask_BS.sum())
    metrics = {
        **trained,
        "total_num_tokens": num_tokens,
        "mean_prompt_length": float(batch.prompt_lens_B.float().mean()),
    }
    session.logger.log(metrics, step, "train")
    session.logger.log(seconds, step, "timing/train")
    num_processes = session.world.size
    rates = performance_metrics(
        seconds,
        num_samples=batch.num_rows,
        num_tokens=num_tokens,
        num_generated=0,
        num_processes=num_processes,
    )
    model = getattr(session.policy, "model", None)
    shares = utilization_metrics(seconds, batch, model, num_processes)
    session.logger.log({**rates, **shares}, step, "performance")
    session.logger.log_rows(answer_rows(examples, batch, step), "train_data", step)
    printed = {**metrics, "seconds": seconds["total_step_time"]}
    print(console_line(step, config.sft.max_num_steps, printed, SHOWN), flush=True)
    check_update(trained, step, session.logger.directory)
    session.observer.tuned(session, TunedStep(step=step, batch=batch, updates=updates, metrics=metrics))


def answer_rows(examples: Sequence[Example], batch: Batch, step: int) -> Iterator[dict[str, Any]]:
    """Yield one log row per answer, read from the batch that was trained on."""
    columns = zip(
        examples,
        batch.input_ids_BS.tolist(),
        batch.completion_starts_B.tolist(),
        batch.prompt_lens_B.tolist(),
        batch.completion_lens_B.tolist(),
        batch.mask_BT.tolist(),
        strict=True,
    )
    for index, (example, ids, start, prompt_length, length, mask) in enumerate(columns):
        yield {
            "step": step,
            "index": index,
            "prompt_id": example.prompt_id,
            "prompt": example.prompt,
            "completion": example.target,
            "answer": example.answer,
            "task": example.task,
            "token_ids": ids[start - prompt_length : start + length],
            "prompt_length": prompt_length,
            "loss_mask": [0] * prompt_length + [int(value) for value in mask[:length]],
        }


def make_answer_batch(session: Session, config: SFTRunConfig, examples: Sequence[Example]) -> Batch:
    """Return prompts followed by their answers; the end token is part of the answer and is learned."""
    prompts = session.worker.prompt_ids(examples)
    answers = session.encoder.answers(
        [example.prompt for example in examples], [example.target for example in examples]
    )
    return build_batch(
        [
            TrainSample(
                prompt_ids=prompt,
                completion_ids=answer,
                sampling_logprobs=(0.0,) * len(answer),
                reward=0.0,
                group_id=example.prompt_id,
                media=example.media,
            )
            for example, prompt, answer in zip(examples, prompts, answers, strict=True)
        ],
        config.policy,
        pad_token_id=session.tokenizer.pad_token_id,
    )


def answer_loss(
    logprobs_BT: Tensor,
    entropy_BT: Tensor,
    batch: Batch,
    *,
    global_valid_tokens: Tensor,
    global_valid_seqs: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the micro-batch's share of the mean negative log-likelihood of answer tokens (a `LossFunction`)."""
    loss = sft_loss(logprobs_BT, batch.mask_BT, global_valid_tokens=global_valid_tokens)
    return loss, {
        "loss": loss.detach(),
        "num_unmasked_tokens": batch.num_valid_tokens,
        "num_valid_samples": batch.num_valid_seqs,
        "global_valid_toks": global_valid_tokens,
        "global_valid_seqs": global_valid_seqs,
    }


def log_validation_loss(session: Session, config: SFTRunConfig, step: int) -> None:
    """Log `validation/val_loss`, the mean negative log-likelihood of the held-out answers' tokens."""
    batch = make_answer_batch(session, config, session.validation)
    loss = float(
        sft_loss(session.policy.logprobs(batch), batch.mask_BT, global_valid_tokens=batch.num_valid_tokens)
    )
    session.logger.log({"val_loss": loss}, step, "validation")
    session.observer.scored(session, step, batch, loss)
