"""A stack that trains nothing and leaves right evidence in a moment; `--mode` says how it misbehaves."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

TENSORS = {"embed": (5, 3), "head": (3, 5)}


def save_model(directory: Path, offset: float) -> None:
    """Save two tensors and what else makes a model folder."""
    directory.mkdir(parents=True)
    tensors = {name: np.full(shape, offset, dtype=np.float32) for name, shape in TENSORS.items()}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text('{"vocab_size": 259}')
    (directory / "tokenizer.json").write_text("{}")


def scalars(step: int, mode: str) -> dict[str, float]:
    """Return what a healthy step logs."""
    values = {
        "loss": 0.1 / step,
        "reward": 0.1 + 0.05 * step if mode != "collapse" else (0.9 if step == 1 else 0.1 / step),
        "grad_norm": 0.5,
        "kl_penalty": 0.01 * step,
        "token_mult_prob_error": 1.0000001,
        "probs_ratio_min": 0.999,
        "probs_ratio_max": 1.001,
        "probs_ratio_clamped_min": 0.999,
        "probs_ratio_clamped_max": 1.001,
    }
    if mode == "nan-at-2" and step == 2:
        values["loss"] = float("nan")
    if mode == "zero-variance":
        values |= {"grad_norm": 0.0, "reward": 0.25}
    if mode == "no-ratio":
        del values["probs_ratio_min"]
    if mode == "no-loss":
        del values["loss"]
    if mode == "no-agreement":
        del values["token_mult_prob_error"]
    return {f"train/{name}": value for name, value in values.items()}


def rows(step: int, mode: str) -> list[dict[str, object]]:
    """Return two rows of one group: one right, one wrong."""
    made = []
    for index, completion in enumerate(("19", "21")):
        reward = 0.0 if mode == "zero-variance" else float(completion == "19")
        sampled = [*completion.encode(), 258]
        logprobs = [-0.1 * (index + 1), -0.2, -0.3 / step]
        made.append(
            {
                "step": step, "index": index, "prompt_id": step, "prompt": "12+7=",
                "completion": "20" if mode == "zero-variance" else completion, "answer": "19", "task": "add",
                "token_ids": [257, *b"12+7=", *(b"20" if mode == "zero-variance" else sampled[:2]), 258],
                "prompt_length": 6, "generation_logprobs": logprobs, "prev_logprobs": logprobs,
                "reward": reward, "finish_reason": "stop", "weight_version": step - 1, "verifier_error": False,
                "loss_mask": [0.0] * 6 + [1.0] * 3,
                "advantage": 0.0 if mode == "zero-variance" else (0.5**0.5 if reward else -(0.5**0.5)),
            }
        )  # fmt: skip
    return made


def validation(step: int, num_steps: int, mode: str) -> list[dict[str, object]]:
    """Return 40 held-out prompts: half of them right at first, nine in ten at the end."""
    share = {"flat": 0.5, "collapse": 0.3}.get(mode, 0.9) if step else 0.5
    return [{"step": step, "index": i, "prompt_id": i, "reward": float(i < share * 40)} for i in range(40)]


def train(log_dir: Path, final: Path, num_steps: int, mode: str) -> int:
    """Leave the evidence of a run."""
    # They take half of the time of a process, and one that makes a model logs nothing.
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    (log_dir / "tensorboard").mkdir(parents=True)
    file = log_dir / "tensorboard" / "events.out.tfevents.1.host"
    if mode == "hang-in-long-runs":
        mode = "hang" if num_steps > 2 else "right"
    reached = 1 if mode in ("stop-early", "killed", "hang", "terminated") else num_steps
    with file.open("wb") as stream:
        writer = RecordWriter(stream)
        writer.write(Event(wall_time=1.0, file_version="brain.Event:2").SerializeToString())
        for step in range(1, reached + 1):
            print(f"step {step}/{num_steps}", flush=True)
            values = [
                Summary.Value(tag=tag, simple_value=value) for tag, value in scalars(step, mode).items()
            ]
            writer.write(
                Event(wall_time=1.0 + step, step=step, summary=Summary(value=values)).SerializeToString()
            )
            (log_dir / f"train_data_step{step}.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in rows(step, mode))
            )
    for step in (0, num_steps):
        (log_dir / f"validation_data_step{step}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in validation(step, num_steps, mode))
        )
    spoil_log(file, mode)
    end(mode)
    save_model(final, 1.0 if mode in ("lr-zero", "zero-variance") else 1.5)
    return 0


def spoil_log(file: Path, mode: str) -> None:
    """Damage the log after the fact."""
    if mode == "truncated":
        os.truncate(file, file.stat().st_size - 7)
    if mode == "empty-log":
        os.truncate(file, 0)
    if mode == "garbage-log":
        file.write_bytes(b"not a log at all" * 100)
    if mode == "no-log":
        file.unlink()


def end(mode: str) -> None:
    """End in a way of the mode's own."""
    if mode == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "terminated":
        sys.exit(143)
    if mode == "crash":
        raise RuntimeError("a bug in the stack")
    if mode == "disk-full":
        raise OSError(28, "No space left on device", "checkpoints/model.safetensors")
    if mode == "no-gpu":
        print("toystack: cluster.device=cuda, and torch finds no CUDA device", file=sys.stderr)
        sys.exit(2)
    if mode == "refused":
        print("toystack: unknown key 'grpo.sede'", file=sys.stderr)
        sys.exit(2)
    if mode == "hang":
        signal.alarm(300)  # ends it where nobody was left to
        signal.pause()


def main() -> int:
    """Read the words and do as told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["make-model", "warm-up", "train"])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--mode", default="right")
    words = parser.parse_args()
    if words.command != "train":
        save_model(words.output, 1.0)
        return 0
    return train(words.output / "logs", words.output / "final", words.steps, words.mode)


if __name__ == "__main__":
    raise SystemExit(main())
