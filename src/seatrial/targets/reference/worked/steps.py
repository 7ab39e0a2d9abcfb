"""Worked examples of steps: what they train on, log and pass to observers, and in which order."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from refrl.algorithms.batching import Batch
from refrl.config import GRPORunConfig
from refrl.distributed import ALONE
from refrl.generation.base import SamplingParams
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rollout.collect import Collected, GroupFate
from refrl.rollout.sync import Rollouts
from refrl.timing import Timer
from refrl.training import grpo
from refrl.training.build import build_batch
from refrl.training.step_records import Filtered, train_rows
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.made import batch, example, refused, rollouts


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_rows()
    yield from _of_grpo()


class _Logger:
    """A log that is a list."""

    directory = Path("log")

    def __init__(self) -> None:
        self.scalars: list[tuple[str, int, dict[str, float]]] = []
        self.rows: list[tuple[str, int, list[Any]]] = []

    def log(self, metrics: Mapping[str, float], step: int, prefix: str) -> None:
        self.scalars.append((prefix, step, dict(metrics)))

    def log_rows(self, rows: Any, name: str, step: int) -> None:
        self.rows.append((name, step, json.loads(json.dumps(list(rows)))))

    def value_at(self, tag: str, step: int) -> float | None:
        found = [
            of.get(tag.partition("/")[2])
            for prefix, at, of in self.scalars
            if (prefix, at) == (tag.partition("/")[0], step)
        ]
        return found[-1] if found else None

    def of(self, prefix: str, step: int) -> dict[str, float]:
        """Return what was logged under a prefix at a step."""
        return {
            name: value
            for at, when, of in self.scalars
            if (at, when) == (prefix, step)
            for name, value in of.items()
        }


class _Policy:
    """A policy whose scores are the number of trained updates, and whose reference scores are -9."""

    def __init__(self, noted: list[Any]) -> None:
        self.version, self.noted = 0, noted

    def logprobs(self, made: Batch) -> torch.Tensor:
        self.noted.append("scored")
        return torch.full_like(made.mask_BT, -float(self.version + 1)) * made.mask_BT

    def reference_logprobs(self, made: Batch) -> torch.Tensor:
        self.noted.append("scored by the reference")
        return torch.full_like(made.mask_BT, -9.0)

    def train(self, made: Batch, loss: Any, on_update: Any) -> dict[str, float]:
        self.version += 1
        self.noted.append(
            (
                "trained",
                made.mask_BT.sum(1).tolist(),
                None if made.advantages_B is None else made.advantages_B.tolist(),
            )
        )
        value, metrics = loss(
            self._scores(made),
            None,
            made,
            global_valid_tokens=made.num_valid_tokens,
            global_valid_seqs=made.num_valid_seqs,
        )
        if on_update is not None:
            on_update("update")
        return {
            "loss": float(value),
            "grad_norm": 2.0,
            "lr": 0.5,
            "global_valid_toks": float(metrics["global_valid_toks"]),
        }

    def _scores(self, made: Batch) -> torch.Tensor:
        return torch.zeros_like(made.mask_BT)

    def free_gradients(self) -> None:
        self.noted.append("freed")


class _Observer:
    """An observer that notes each event with its step."""

    def __init__(self, noted: list[Any]) -> None:
        self.noted, self.needs_gradients = noted, True
        self.last: tuple[Any, ...] = ()

    def __getattr__(self, name: str) -> Callable[..., None]:
        def note(session: Any, *words: Any) -> None:
            self.last = words
            self.noted.append(
                (
                    name,
                    *(
                        getattr(word, "step", word)
                        for word in words
                        if isinstance(getattr(word, "step", word), int)
                    ),
                )
            )

        return note


def made_session(**more: Any) -> Any:
    """Return a made session, its parts by name; `noted` are events in order."""
    noted: list[Any] = []
    tokenizer = make_byte_tokenizer()
    parts = {
        "noted": noted,
        "policy": _Policy(noted),
        "logger": _Logger(),
        "observer": _Observer(noted),
        "timer": Timer(),
        "tokenizer": tokenizer,
        "encoder": PromptEncoder(tokenizer),
        "verifier": lambda completion, answer: 1.0,
        "world": ALONE,
        "sampling": SamplingParams(max_new_tokens=4),
        **more,
    }
    return SimpleNamespace(**parts)


def quietly(function: Callable[..., Any], *words: Any) -> str:
    """Call a function, and return what it prints."""
    printed = StringIO()
    with contextlib.redirect_stdout(printed):
        function(*words)
    return printed.getvalue()


def _whole() -> Batch:
    """Return the batch of the four rows of `rollouts`, scored and with advantages."""
    made = build_batch(rollouts().samples(), configuration({}).policy, pad_token_id=0)
    return replace(
        made,
        old_logprobs_BT=made.sampling_logprobs_BT - 1,
        ref_logprobs_BT=made.sampling_logprobs_BT - 2,
        advantages_B=torch.tensor([0.5, -0.5, 0.25, -0.25]),
    )


def _row(index: int, *, reference: bool = True) -> dict[str, Any]:
    made = _whole()
    if not reference:
        made.ref_logprobs_BT = None
    config = configuration({"data.verifier": "byte_closeness"})
    filtered = Filtered(made, [False, True, False, False], {})
    rows = list(train_rows(made_session(), config, 6, rollouts(), filtered))
    found: dict[str, Any] = json.loads(json.dumps(rows[index]))
    return found


def _of_rows() -> Iterator[WorkedExample]:
    common = {"step": 6, "task": "made", "verifier": "byte_closeness"}
    first = {"prompt_id": 5, "prompt": "p", "prompt_text": "p", "answer": "a", "prompt_length": 2}
    second = {"prompt_id": 3, "prompt": "q", "prompt_text": "q", "answer": "b", "prompt_length": 1}
    yield example(
        "a logged row with a tool's words",
        {
            **common,
            **first,
            "index": 1,
            "completion": "y",
            "token_ids": [1, 2, 3, 8, 8, 5, 6],
            "loss_mask": [0, 0, 1, 0, 0, 1, 1],
            "filtered": True,
            "generation_logprobs": [-0.1, 0.0, 0.0, -0.3, -0.4],
            "prev_logprobs": [-1.1, -1.0, -1.0, -1.3, -1.4],
            "reference_logprobs": [-2.1, -2.0, -2.0, -2.3, -2.4],
            "reward": 0.25,
            "length_penalty": -0.25,
            "verifier_error": False,
            "advantage": -0.5,
            "finish_reason": "length",
            "weight_version": 3,
        },
        _row,
        1,
    )
    yield example(
        "a logged row with kept ids that the verifier could not judge",
        {
            **common,
            **second,
            "index": 2,
            "completion": "z",
            "token_ids": [7, 6],
            "loss_mask": [0, 1, 0, 0, 0, 0],
            "filtered": False,
            "generation_logprobs": [-0.7],
            "prev_logprobs": [-1.7],
            "reward": 0.0,
            "length_penalty": 0.0,
            "verifier_error": True,
            "advantage": 0.25,
            "finish_reason": "stop",
            "weight_version": 5,
            "kept_support_sizes": [2],
        },
        _row,
        2,
        reference=False,
    )
    yield example(
        "weights that changed within a row", [[0, 5], [1, 6]], lambda: _row(3)["weight_version_segments"]
    )
    yield refused(
        "was trained on",
        "rows of a batch without advantages",
        lambda: list(
            train_rows(made_session(), configuration({}), 6, rollouts(), Filtered(batch(), [False] * 3, {}))
        ),
    )


class _Source:
    """A source of the same rows at each step, as a collector is."""

    def __init__(self, noted: list[Any], rows: Rollouts) -> None:
        self.noted, self.rows = noted, rows

    def consume(self, step: int, train: Callable[[Rollouts], Any]) -> Any:
        fates = [GroupFate(9, 5, "stale", 0, step), GroupFate(10, 5, "trained", 1, step)]
        counts = {"synced": 3.0, "reward": 9.0}  # the reward that is logged is that of the rows
        discarded = self.rows.rows([2])
        collected = Collected(self.rows, self.rows.examples[::2], counts, discarded=discarded, fates=fates)
        return collected, train(self.rows)

    def trained(self, step: int) -> None:
        self.noted.append(("source", step))


def options_of(**more: Any) -> GRPORunConfig:
    """Return the configuration of nine steps of four rows, with options whose dots are two underscores."""
    chosen = {
        "grpo.num_prompts_per_step": 2,
        "grpo.num_generations_per_prompt": 2,
        "policy.train_global_batch_size": 4,
        "grpo.max_num_steps": 9,
        "grpo.advantage.estimator": "dr_grpo",
        "grpo.overlong_filtering": True,
        "loss_fn.reference_policy_kl_penalty": 0.0,
        **{name.replace("__", "."): value for name, value in more.items()},
    }
    return configuration(chosen)


def stepped(rows: Rollouts | None = None, steps: Sequence[int] = (7,), **more: Any) -> Any:
    """Train steps of GRPO; return the session and what each printed."""
    session = made_session()
    session.collector = _Source(session.noted, rollouts() if rows is None else rows)
    printed = [quietly(grpo.train_step, session, options_of(**more), step) for step in steps]
    return session, printed


def _of_grpo() -> Iterator[WorkedExample]:
    def order() -> Any:
        session, _ = stepped(steps=(7, 8))
        return session.noted

    def events(step: int) -> list[Any]:  # rows 1 and 3 were cut off
        trained = ("trained", [3.0, 0.0, 1.0, 0.0], [0.375, -0.375, 0.25, -0.25])
        return [
            "scored",
            "scored by the reference",
            trained,
            ("passed",),
            ("trained", step),
            ("source", step),
        ]

    def padding() -> Any:
        session, found = made_session(), []

        def note(made: Batch) -> torch.Tensor:
            found.append(sorted({*made.input_ids_BS[made.attention_mask_BS == 0].tolist()}))
            return torch.zeros_like(made.mask_BT)

        session.policy.logprobs = note
        grpo.update_policy(session, options_of(), 1, rollouts())
        return found == [[session.tokenizer.pad_token_id]]

    yield example("a step pads with the tokenizer's own id", True, padding)
    yield example("two steps in order", [*events(7), *events(8)], order)

    def logged() -> Any:
        session, (printed,) = stepped()
        log = session.logger
        train, seconds = log.of("train", 7), log.of("timing/train", 7)
        names = (
            "reward",
            "synced",
            "num_overlong_filtered",
            "num_verifier_errors",
            "advantages/max",
            "total_num_tokens",
        )
        (step,) = session.observer.last
        return {
            "prefixes": [(prefix, at) for prefix, at, _ in log.scalars],
            "train": {name: train[name] for name in (*names, "global_valid_toks", "lr", "grad_norm")},
            "phases": sorted(seconds),
            "rates": [
                name in log.of("performance", 7)
                for name in ("tokens_per_sec", "policy_training_tokens_per_sec")
            ],
            "rows": [(name, at, len(rows)) for name, at, rows in log.rows],
            "fates": [one["fate"] for one in log.rows[1][2]],
            "old": log.rows[0][2][0]["prev_logprobs"],
            "filtered": [row["filtered"] for row in log.rows[0][2]],
            "observer": (
                step.metrics == train,
                len(step.updates),
                step.discarded.texts,
                [one.prompt_id for one in step.served],
            ),
            "printed": printed.splitlines()[0],
        }

    phases = [
        "advantage_calculation",
        "logprob_inference_prep",
        "policy_and_reference_logprobs",
        "policy_training",
    ]
    yield example(
        "what a step logs",
        {
            "prefixes": [("train", 7), ("timing/train", 7), ("performance", 7)],
            "train": {
                "reward": 0.1875,
                "synced": 3.0,
                "num_overlong_filtered": 2.0,
                "num_verifier_errors": 2.0,
                "advantages/max": 0.375,
                "total_num_tokens": 15.0,
                "global_valid_toks": 4.0,
                "lr": 0.5,
                "grad_norm": 2.0,
            },
            "phases": [*phases, "total_step_time"],
            "rates": [True, True],
            "rows": [("train_data", 7, 4), ("group_data", 7, 2)],
            "fates": ["stale", "trained"],
            "old": [-1.0, -1.0, -1.0],
            "filtered": [False, True, False, True],
            "observer": (True, 1, ["z"], [5, 3]),
            "printed": "step 7  2 verifier errors: row 2: no",
        },
        logged,
    )
    yield refused(
        "step 7: the verifier could not judge 40%",
        "a step with too many errors",
        stepped,
        grpo__max_verifier_error_share=0.3,
    )
