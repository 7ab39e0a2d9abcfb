"""Worked examples of judges, rated steps, and collators and packs of texts that earlier releases have."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from inspect import signature
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.worked.rows import UTILS, Row

JUDGES = "trl.experimental.judges.judges", "trl.experimental.judges", "trl.trainer.judges"


def _read(prompt_kept: Sequence[bool], answer: str, judge_class: Any, of_openai: bool) -> list[Any]:
    """Return a judge's ranks of three pairs, of which some are swapped, and what it is asked."""
    asked: list[str] = []
    limits: list[Any] = []

    def complete(messages: Sequence[Mapping[str, str]], **given: Any) -> Any:
        asked.append(messages[0]["content"])
        limits.append((messages[0]["role"], given.get("max_tokens")))
        said = answer or ("0" if messages[0]["content"].split("|")[1] == "good" else "1")
        return SimpleNamespace(choices=[SimpleNamespace(message=SimpleNamespace(content=said))])

    judge = object.__new__(judge_class)
    judge.system_prompt = "{prompt}|{response0}|{response1}"
    if of_openai:
        judge.client = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=complete)))
        judge.model, judge.max_requests, judge.num_requests, judge._warned = "m", 3, 0, False
    else:
        judge.client = SimpleNamespace(chat_completion=complete)
    pairs = [["good", "bad"], ["bad", "good"], ["good", "bad"]]
    with patch.object(np.random, "choice", lambda *_, **__: np.array([not one for one in prompt_kept])):
        found = [int(one) for one in judge.judge(["p", "q", "r"], pairs, shuffle_order=not all(prompt_kept))]
        more = judge.judge(["p"], [["good", "bad"]]) if of_openai else None
    return [found, sorted(asked), {*limits} == {("user", 1)}, more]


def _judge_rows() -> Sequence[Row]:
    kept, turned = (True, True, True), (True, False, False)
    straight = ["p|good|bad", "q|bad|good", "r|good|bad"]
    swapped = ["p|good|bad", "q|good|bad", "r|bad|good"]
    cases = (
        ("answers in their order", kept, "", [[0, 1, 0], straight]),
        ("answers of which some are swapped", turned, "", [[0, 1, 0], swapped]),
        ("answers that are neither", kept, "x", [[-1, -1, -1], straight]),
    )
    rows = []
    for name, of_openai in (("HfPairwiseJudge", False), ("OpenAIPairwiseJudge", True)):
        place = " ".join(f"{one}:{name}" for one in JUDGES)
        rows += [
            Row(
                "judges",
                place,
                what,
                partial(_read, order, answer, of_openai=of_openai),
                [*right, True, [-1] if of_openai else None],
            )
            for what, order, answer, right in cases
        ]
    return rows


def _blended(judge_class: Any) -> list[Any]:
    """Return the ranks, and the probabilities of first answers at a temperature, with and without swapped pairs."""

    def rank(_: Any, pairs: Sequence[Sequence[str]], return_scores: bool = False, **__: Any) -> Any:
        values = np.array([[2.0 if one == "good" else 1.0 for one in pair] for pair in pairs])
        return values if return_scores else np.where(values > 1.5, 1, 2)

    judge = object.__new__(judge_class)
    judge.blender = SimpleNamespace(rank=rank)
    pairs = [["good", "bad"], ["bad", "good"]]
    found: list[Any] = []
    with patch.object(np.random, "choice", lambda *_, **__: np.array([True, False])):
        for shuffles in (False, True):
            found.append([int(one) for one in judge.judge(["p", "q"], pairs, shuffle_order=shuffles)])
            scores = judge.judge(
                ["p", "q"], pairs, shuffle_order=shuffles, return_scores=True, temperature=0.5
            )
            found.append([round(float(one), 5) for one in scores])
    return found


def _all_true(judge_class: Any) -> list[Any]:
    def binary(*answers: int) -> Any:
        return SimpleNamespace(judge=lambda prompts, *_: list(answers[: len(prompts)]))

    judge = judge_class([binary(1, 1, 1, 0), binary(1, 0, -1, -1)])
    try:
        odd = judge_class([binary(2)]).judge(["p"], ["a"])
    except ValueError:
        odd = "refused"
    return [judge.judge(["p", "q", "r", "s"], ["a", "b", "c", "d"]), odd]


STEPS = {"prompt": "pq", "completions": ["ab", "c"], "labels": [True, False]}


def _steps(options: Mapping[str, Any], begins: bool, trainer_class: Any) -> list[Any]:
    """Return the tokens of steps that are rated, and the labels of those that train."""
    tokenizer = tiny_tokenizer()
    if begins:
        tokenizer.bos_token = "<|im_start|>"
    given = {
        "step_separator": "--",
        "max_length": None,
        "max_completion_length": None,
        "train_on_last_step_only": False,
        "is_eval": False,
        **options,
    }
    if "max_prompt_length" in signature(trainer_class.tokenize_row).parameters:
        given["max_prompt_length"] = None
    found = trainer_class.tokenize_row(dict(STEPS), tokenizer, **given)
    return [tokenizer.decode(found["input_ids"]), [None if one == -100 else one for one in found["labels"]]]


N = None
RATED: Sequence[tuple[str, Mapping[str, Any], bool, list[Any]]] = (
    ("every step", {}, False, ["pqab--c--", [N, N, N, N, N, 1, N, N, 0]]),
    ("a first token", {}, True, ["<|im_start|>pqab--c--", [N, N, N, N, N, N, 1, N, N, 0]]),
    ("the last step", {"train_on_last_step_only": True}, False, ["pqab--c--", [N] * 8 + [0]]),
    (
        "the last step, an evaluation",
        {"train_on_last_step_only": True, "is_eval": True},
        False,
        ["pqab--c--", [N, N, N, N, N, 1, N, N, 0]],
    ),
    ("completions of five tokens", {"max_completion_length": 5}, False, ["pqab--c", [N] * 5 + [1, N]]),
    ("rows of six tokens", {"max_length": 6}, False, ["pqab--", [N] * 5 + [1]]),
)


def _answers(texts: Sequence[str], is_asked: bool, flat: bool, collator_class: Any) -> list[Any]:
    """Return by row what trains of texts whose answers begin with `=`, and whose questions with `?` if `is_asked`."""
    tokenizer = tiny_tokenizer(padding_side="right")
    more = {"instruction_template": "?", "padding_free": flat} if is_asked else {"padding_free": flat}
    collate = collator_class(response_template="=", tokenizer=tokenizer, **more)
    batch = collate([tokenizer(one) for one in texts])
    if flat and "position_ids" not in batch:
        raise NotServed("batches keep their padding")
    ids, labels = batch["input_ids"], batch["labels"]
    found = ["".join(tokenizer.decode(row[own != -100])) for row, own in zip(ids, labels, strict=True)]
    return [*found, batch["position_ids"].tolist()] if flat else found


def _constant(options: Mapping[str, Any], set_class: Any) -> list[str]:
    """Return packs of three tokens of texts."""
    from datasets import Dataset

    tokenizer = tiny_tokenizer()
    texts = Dataset.from_dict({"text": ["abcd", "ef", "ghi"]})
    given = {
        "dataset_text_field": "text",
        "seq_length": 3,
        "num_of_sequences": 4,
        "shuffle": False,
        **options,
    }
    found = [one["input_ids"] for one in set_class(tokenizer, texts, **given)]
    return [tokenizer.decode(one).replace(tokenizer.eos_token, "$") for one in found]


COMPLETIONS = f"{UTILS}:DataCollatorForCompletionOnlyLM"
PACKS = f"{UTILS}:ConstantLengthDataset"
PRM = "trl.experimental.prm:PRMTrainer trl:PRMTrainer"
HALF = round(1 / (1 + math.exp(-2)), 5)

JUDGED_ROWS: Sequence[Row] = (
    *_judge_rows(),
    Row(
        "judges",
        " ".join(f"{one}:PairRMJudge" for one in JUDGES),
        "ranks and probabilities",
        _blended,
        [[0, 1], [round(HALF, 5), round(1 - HALF, 5)]] * 2,
    ),
    Row(
        "judges",
        " ".join(f"{one}:AllTrueJudge" for one in JUDGES),
        "every answer",
        _all_true,
        [[1, 0, -1, -1], "refused"],
    ),
    *(
        Row("texts", PRM, what, partial(_steps, options, begins), right)
        for what, options, begins, right in RATED
    ),
    Row(
        "texts",
        COMPLETIONS,
        "answers after their mark",
        partial(_answers, ["ab=cd", "e=f=g", "hij"], False, False),
        ["cd", "g", ""],
    ),
    Row(
        "texts",
        COMPLETIONS,
        "turns",
        partial(_answers, ["?a=bc?d=e", "?f=g?h", "?i"], True, False),
        ["bce", "g", ""],
    ),
    Row(
        "texts",
        COMPLETIONS,
        "answers of texts that are flattened",
        partial(_answers, ["ab=cd", "e=f"], False, True),
        ["cdf", [[0, 1, 2, 3, 4, 0, 1, 2]]],
    ),
    Row("batches", PACKS, "ends between texts", partial(_constant, {}), ["abc", "d$e", "f$g", "hi$"]),
    Row(
        "batches", PACKS, "no ends", partial(_constant, {"append_concat_token": False}), ["abc", "def", "ghi"]
    ),
)
