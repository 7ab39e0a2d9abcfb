"""A small right ledger, made by hand, for tests to spoil."""

from __future__ import annotations

from pathlib import Path

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.targets.base import AdvantageFacts, TrainingJob

BOS, EOS = 257, 258


def make_job(directory: Path, **changes: object) -> TrainingJob:
    """Return a job of two steps with two groups of two rows."""
    settings: dict[str, object] = {
        "what": "test",
        "argv": ("true",),
        "log_dir": directory / "logs",
        "ledger_dir": directory / "logs",
        "initial_model": directory / "model",
        "final_model": directory / "checkpoints" / "final",
        "num_steps": 2,
        "num_rows_per_step": 4,
        "num_generations_per_prompt": 2,
        "precision": "float32",
        "ratio_clip": (0.8, 1.2),
        "advantage": AdvantageFacts(estimator="grpo", scale="group", epsilon=1e-6),
        "has_reference": True,
        "verifier": "exact_match",
        "vocabulary_size": 259,
        "byte_level": True,
        **changes,
    }
    return TrainingJob(**settings)  # type: ignore[arg-type]


def make_row(
    step: int, index: int, prompt: str, answer: str, completion: str, **changes: object
) -> LedgerRow:
    """Return a row whose completion is right (reward and advantage 1/sqrt 2) or wrong (0 and its opposite).

    In a group of two with rewards 1 and 0 the mean is 1/2 and the sample deviation 1/sqrt 2, so that the
    advantages are 1/sqrt 2 and -1/sqrt 2.
    """
    right = completion == answer
    sampled = (*completion.encode(), EOS)
    number = 4 * step + index
    logprobs = tuple(-0.1 * (place + 1) - 0.01 * number for place in range(len(sampled)))
    settings: dict[str, object] = {
        "step": step,
        "index": index,
        "prompt_id": 10 + index // 2,
        "prompt": prompt,
        "completion": completion,
        "answer": answer,
        "token_ids": (BOS, *prompt.encode(), *sampled),
        "prompt_length": 1 + len(prompt.encode()),
        "prompt_text": f"<|bos|>{prompt}",
        "loss_mask": (0.0,) * (1 + len(prompt.encode())) + (1.0,) * len(sampled),
        "generation_logprobs": logprobs,
        "prev_logprobs": logprobs,
        "weight_version": step - 1,
        "verifier_error": False,
        "reward": 1.0 if right else 0.0,
        "advantage": 0.5**0.5 if right else -(0.5**0.5),
        "finish_reason": "stop",
        **changes,
    }
    return LedgerRow(**settings)  # type: ignore[arg-type]


def right_rows() -> list[LedgerRow]:
    """Return two steps of two groups; in each group one completion is right."""
    return [
        row
        for step in (1, 2)
        for row in (
            make_row(step, 0, "12+7=", "19", "19"),
            make_row(step, 1, "12+7=", "19", "21"),
            make_row(step, 2, "reverse abc=", "cba", "abc"),
            make_row(step, 3, "reverse abc=", "cba", "cba"),
        )
    ]
