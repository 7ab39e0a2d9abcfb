"""Calls of Transformers' pipelines of texts, whose results are on record: classes, words, masks, answers, features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import Dataset

from seatrial.relations.not_served import NotServed
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    SIZES,
    drawn,
    encoder,
    tokens,
    words,
    written_text,
)
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of

ROWS = ["hello world", "my name is sarah and i live in london", "the cat sat on the mat.", "why?"]


class _Set(Dataset[str]):
    """Texts as a data set."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, place: int) -> str:
        return ROWS[place]


def _asked(pipe: Any, calls: Mapping[str, tuple[Any, Mapping[str, Any]]]) -> dict[str, Any]:
    return {
        name: refusal(lambda given=given, more=more: written_text(pipe(given, **more)))
        for name, (given, more) in calls.items()
    }


def _classes(made: Any) -> Any:
    """Return classes of texts by kind of problem, function, number of answers, pairs, batches and cuts."""
    kinds: Sequence[Mapping[str, Any]] = (
        {"num_labels": 3},
        {"num_labels": 1},
        {"num_labels": 3, "problem_type": "multi_label_classification"},
        {"num_labels": 1, "problem_type": "regression"},
        {"num_labels": 3, "problem_type": "regression"},
    )
    found = []
    for kind in kinds:
        pipe = made(model=encoder("SequenceClassification", **kind), tokenizer=words(), **ASKED)
        found.append(_asked(pipe, {
            "one": (ROWS[0], {}), "all": (ROWS[1], {"top_k": None}), "two": (ROWS[1], {"top_k": 2}),
            "one of a list": (ROWS[:1], {}), "first": (ROWS[2], {"top_k": 1}), "batch": (ROWS, {"batch_size": 3}),
            "batch, all": (ROWS, {"batch_size": 2, "top_k": None}),
            "sigmoid": (ROWS[0], {"function_to_apply": "sigmoid", "top_k": None}),
            "softmax": (ROWS[0], {"function_to_apply": "softmax", "top_k": None}),
            "none": (ROWS[0], {"function_to_apply": "none", "top_k": None}),
            "pair": ({"text": ROWS[0], "text_pair": ROWS[2]}, {"top_k": None}),
            "pairs": ([{"text": ROWS[0], "text_pair": ROWS[2]}, {"text": ROWS[3], "text_pair": ROWS[1]}], {}),
            "nested": ([[[ROWS[0], ROWS[2]]]], {}), "wrong": ([[ROWS[0], ROWS[2]]], {}),
            "cut": (ROWS[1], {"truncation": True, "max_length": 5, "top_k": None}),
        }))  # fmt: skip
    return found


def _streamed(made: Any) -> Any:
    """Return classes of a data set, of a generator and of lists, in batches and not, with options of the pipeline."""
    model = encoder("SequenceClassification", num_labels=3)
    model.config.id2label = {0: "low", 1: "mid", 2: "high"}
    pipe = made(model=model, tokenizer=words(), **ASKED, top_k=2, batch_size=3)

    def texts() -> Iterator[str]:
        yield from ROWS

    found = [list(pipe(_Set())), list(pipe(texts())), pipe(ROWS), list(pipe(texts(), batch_size=1, top_k=1))]
    found += [
        list(pipe(_Set(), batch_size=2, top_k=None)),
        pipe(ROWS[1]),
        [pipe.call_count, pipe._batch_size],
    ]
    return found


TAGS = {0: "O", 1: "B-PER", 2: "I-PER", 3: "B-LOC", 4: "I-LOC"}


def _tagger(made: Any, scores: Mapping[str, Sequence[float]] | None = None, **options: Any) -> Any:
    """Return a pipeline of tags; with scores its model gives those of each token."""
    model = encoder("TokenClassification", num_labels=5)
    model.config.id2label = TAGS
    if scores is not None:
        table = torch.zeros(len(tokens()), 5)
        table[:, 0] = 1.0
        for token, one in scores.items():
            table[tokens()[token]] = torch.tensor(one)
        of_ids = of_name("BertForTokenClassification")

        class Given(of_ids):  # type: ignore[misc, valid-type]
            def forward(self, input_ids: Any, **more: Any) -> Any:
                return {"logits": table[input_ids]}

        model = Given(model.config)
    return made(model=model, tokenizer=words(), **ASKED, **options)


SCORES: Mapping[str, Sequence[float]] = {
    "sar": [0.0, 3.0, 2.0, 0.0, 1.0], "##ah": [2.5, 0.0, 2.0, 1.0, 4.0], "lon": [0.5, 0.0, 0.0, 2.0, 1.5],
    "##don": [0.0, 0.0, 3.0, 0.0, 2.5], "new": [0.0, 0.0, 0.0, 2.0, 1.0], "york": [0.0, 0.0, 0.0, 1.0, 1.5],
    "name": [0.0, 0.0, 1.0, 0.0, 0.0], "[UNK]": [0.0, 2.0, 0.0, 0.0, 0.0], ".": [1.0, 0.0, 0.0, 0.0, 3.0],
}  # fmt: skip
STRATEGIES = ("none", "simple", "first", "average", "max")
PLACES = ["sarah lives in new york.", "name Sarah London sarah new", "日本 and london", "the cat"]


def _tagged(made: Any) -> Any:
    """Return tags of texts by strategy, with labels that are left out, words of the caller's own, and in batches."""
    pipe = _tagger(made, SCORES)
    found: dict[str, Any] = {}
    for strategy in STRATEGIES:
        for place, text in enumerate(PLACES):
            found[f"{strategy}, {place}"] = refusal(
                lambda strategy=strategy, text=text: written_text(pipe(text, aggregation_strategy=strategy))
            )
        found[f"{strategy}, nothing left out"] = written_text(
            pipe(PLACES[0], aggregation_strategy=strategy, ignore_labels=[])
        )
        found[f"{strategy}, others left out"] = written_text(
            pipe(PLACES[0], aggregation_strategy=strategy, ignore_labels=["LOC", "B-LOC", "O"])
        )
    found["batch"] = written_text(pipe(PLACES, batch_size=3))
    found["batch, simple"] = written_text(pipe(PLACES, batch_size=2, aggregation_strategy="simple"))
    split = [["sarah", "lives", "in", "new", "york", "."], ["london"]]
    for more in ({}, {"delimiter": "  "}, {"aggregation_strategy": "first", "delimiter": ""}):
        found[f"words {sorted(more)}"] = refusal(
            lambda more=more: [written_text(pipe(one, is_split_into_words=True, **more)) for one in split]
        )
    offsets = [[(0, 0), (2, 5), (5, 7), (0, 0)]]
    found["places"] = refusal(lambda: written_text(pipe("sarah", offset_mapping=offsets)))
    found["words as text"] = refusal(lambda: pipe(split[0]))
    found["text as words"] = refusal(lambda: pipe("sarah", is_split_into_words=True))
    return found


def _tagged_windows(made: Any) -> Any:
    """Return tags of a text in windows that overlap, of all strategies."""
    found = {}
    for strategy in STRATEGIES[1:]:
        pipe = _tagger(made, SCORES)
        pipe.tokenizer.model_max_length = 9
        text = "sarah lives in new york and london and sarah is in new london. the name york"
        for stride in (0, 2, 4):
            found[f"{strategy}, {stride}"] = written_text(
                pipe(text, aggregation_strategy=strategy, stride=stride)
            )
            found[f"{strategy}, {stride}, batch"] = written_text(
                pipe([text, "sarah"], aggregation_strategy=strategy, stride=stride, batch_size=2)
            )
    found["too long"] = refusal(lambda: pipe(text, aggregation_strategy="simple", stride=9))
    found["no strategy"] = refusal(lambda: pipe(text, aggregation_strategy="none", stride=2))
    return found


def _tags_of_model(made: Any) -> Any:
    pipe = _tagger(made)
    return [written_text(pipe(ROWS, batch_size=batch, ignore_labels=[])) for batch in (1, 3)]


def _overlapping(made: Any) -> Any:
    """Return what is kept of entities that overlap: the longer, the surer, the first."""
    pipe = _tagger(made)

    def entity(start: int, end: int, score: float) -> dict[str, Any]:
        return {"start": start, "end": end, "score": score}

    tables: Sequence[Sequence[dict[str, Any]]] = (
        [], [entity(0, 3, 0.5), entity(2, 4, 0.9), entity(4, 6, 0.2)], [entity(0, 2, 0.5), entity(1, 3, 0.9)],
        [entity(0, 2, 0.9), entity(1, 3, 0.5)], [entity(5, 9, 0.1), entity(0, 3, 0.2), entity(6, 8, 0.9)],
    )  # fmt: skip
    return [pipe.aggregate_overlapping_entities(list(one)) for one in tables]


def _filled(made: Any) -> Any:
    """Return what fills one mask and two, of targets and of all, of cut and padded texts, and what is refused."""
    pipe = made(model=encoder("MaskedLM"), tokenizer=words(), **ASKED)
    one, two = "the [MASK] sat on the mat.", "hello [MASK], the [MASK]"
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "one": (one, {}), "three": (one, {"top_k": 3}), "two masks": (two, {"top_k": 2}),
        "a list of one": ([one], {"top_k": 2}), "a list": ([one, two], {"top_k": 1}),
        "batch": ([one, "[MASK]", two], {"top_k": 2, "batch_size": 3}),
        "targets": (one, {"targets": ["cat", "mat", "london"]}), "a target": (two, {"targets": "cat"}),
        "targets and fewer": (one, {"targets": ["cat", "mat", "world"], "top_k": 2}),
        "the same target": (one, {"targets": ["cat", "cat"]}), "no mask": ("the cat", {}),
        "unknown target": (one, {"targets": ["Cats"]}), "no targets": (one, {"targets": []}),
        "cut": ("[MASK] the cat sat on", {"tokenizer_kwargs": {"truncation": True, "max_length": 4}, "top_k": 1}),
        "padded": (one, {"tokenizer_kwargs": {"padding": "max_length", "max_length": 14}, "top_k": 2}),
    }  # fmt: skip
    return _asked(pipe, calls)


def _zero_shot(made: Any) -> Any:
    """Return labels by what a model of three relations says of them: one of all, each alone, templates, batches."""
    found = []
    for names in (
        {"contradiction": 0, "neutral": 1, "entailment": 2},
        {"ENTAIL": 0, "not": 1},
        {"no": 0, "yes": 1},
    ):
        model = encoder("SequenceClassification", num_labels=len(names))
        model.config.label2id = names
        pipe = made(model=model, tokenizer=words(), **ASKED)
        labels = ["sports", "politics", "my cat"]
        long = " ".join(["cat"] * 70)
        found.append(_asked(pipe, {
            "labels": (ROWS[0], {"candidate_labels": labels}), "text": (ROWS[0], {"candidate_labels": "sports, cat"}),
            "each": (ROWS[0], {"candidate_labels": labels, "multi_label": True}),
            "one": (ROWS[0], {"candidate_labels": ["sports"]}),
            "template": (ROWS[0], {"candidate_labels": labels, "hypothesis_template": "{} about this"}),
            "without a place": (ROWS[0], {"candidate_labels": labels, "hypothesis_template": "this"}),
            "batch": (ROWS, {"candidate_labels": labels, "batch_size": 4}), "none": (ROWS[0], {"candidate_labels": []}),
            "long": (long, {"candidate_labels": labels}), "long, each": (long, {"candidate_labels": labels,
                                                                                "multi_label": True}),
        }))  # fmt: skip
        found.append(written_text(pipe(ROWS[0], labels)))
    return found


def _features(made: Any) -> Any:
    pipe = made(model=drawn("BertModel", **SIZES, vocab_size=len(tokens())), tokenizer=words(), **ASKED)
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "cut": (ROWS[1], {"truncation": True, "tokenize_kwargs": {"max_length": 4}}),
        "tensors": (ROWS[0], {"return_tensors": True}), "twice": (ROWS[0], {"truncation": True, "tokenize_kwargs": {
            "truncation": True}}), "batch": (ROWS, {"batch_size": 3, "return_tensors": True}),
        "bare": (ROWS[0], {"tokenize_kwargs": {"add_special_tokens": False}, "return_tensors": True}),
    }  # fmt: skip
    found = _asked(pipe, calls)
    lists = pipe(ROWS[:2])
    return [found, torch.tensor(lists[1][0]), len(lists), len(lists[0])]


def _answers(made: Any) -> Any:
    """Return answers of contexts in windows, by number, length and whether there may be none."""
    pipe = made(model=encoder("QuestionAnswering"), tokenizer=words(), **ASKED)
    asked = {"question": "where does sarah live?", "context": "my name is sarah. i live in london, new york!"}
    other = {"question": "who?", "context": "the cat sat on the mat. hello world"}
    calls: dict[str, tuple[Any, Mapping[str, Any]]] = {
        "one": (asked, {}), "three": (asked, {"top_k": 3}), "short": (asked, {"max_answer_len": 1, "top_k": 2}),
        "none": (asked, {"handle_impossible_answer": True, "top_k": 3}),
        "windows": (asked, {"max_seq_len": 18, "doc_stride": 4, "top_k": 3}),
        "windows, stride": (asked, {"max_seq_len": 20, "doc_stride": 2, "max_question_len": 3}),
        "padded": (asked, {"padding": "max_length", "top_k": 2}), "batch": ([asked, other], {"batch_size": 2}),
        "of words": (asked, {"align_to_words": False, "top_k": 2}), "zero": (asked, {"top_k": 0}),
        "no length": (asked, {"max_answer_len": 0}), "no context": ({"question": "who?", "context": ""}, {}),
        "strided too far": (asked, {"max_seq_len": 12, "doc_stride": 20}),
    }  # fmt: skip
    found = _asked(pipe, calls)
    named = refusal(lambda: pipe(question=["who?", "where?"], context=asked["context"], top_k=1))
    return [found, named]


def _spans(made: Any) -> Any:
    """Return the spans that scores of starts and ends make, and those that are dropped."""
    import numpy as np

    function = made if callable(made) else None
    if function is None:
        raise NotServed("spans are not chosen by a function")
    starts, ends = (numbers(1, 6, seed=one).abs().numpy() for one in (1, 2))
    found = []
    for top, longest in ((1, 6), (3, 2), (9, 1)):
        for mask in (np.ones(6), np.array([0, 1, 1, 0, 1, 1])):
            got = function(starts, ends, top, longest, mask)
            found.append([np.asarray(one).tolist() for one in got])
    return found


CALLS: Sequence[Call] = (
    Call("calls", "transformers:TextClassificationPipeline", "classes of texts", _classes),
    Call("calls", "transformers:TextClassificationPipeline", "streams of texts", _streamed),
    Call("calls", "transformers:TokenClassificationPipeline", "tags of texts", _tagged),
    Call("calls", "transformers:TokenClassificationPipeline", "tags of windows", _tagged_windows),
    Call("calls", "transformers:TokenClassificationPipeline", "tags of a model", _tags_of_model),
    Call("calls", "transformers:TokenClassificationPipeline", "entities that overlap", _overlapping),
    Call("calls", "transformers:FillMaskPipeline", "masks that are filled", _filled),
    Call("calls", "transformers:ZeroShotClassificationPipeline", "labels of the caller's own", _zero_shot),
    Call("calls", "transformers:FeatureExtractionPipeline", "features of texts", _features),
    Call("calls", "transformers:QuestionAnsweringPipeline", "answers in contexts", _answers),
    Call("calls", "transformers.pipelines.question_answering:decode_spans", "spans of scores", _spans),
    Call("calls", "transformers.pipelines.question_answering:select_starts_ends", "spans of scores", partial(
        lambda made: _spans(lambda s, e, top, longest, mask: made(s, e, mask, None, top_k=top,
                                                                  max_answer_len=longest)))),
)  # fmt: skip
PIPE_TEXT_ROWS = rows_of(CALLS)
