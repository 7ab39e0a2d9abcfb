"""Worked examples of pipelines of pictures, sounds and labels for pairs of options: each row alone, in plain loops."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.answered_pairs import (
    SHARED,
    TEXTS,
    Table,
    any_case,
    cases_of_pairs,
    compared,
    rows_of_pairs,
)
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    SIZES,
    drawn,
    encoder,
    of_config,
    tokens,
    words,
    written_text,
)
from seatrial.targets.transformers.worked.pipes_media import PIXELS, RATE, VISION, picture, speech
from seatrial.targets.transformers.worked.plain_decoding import refused

Case = Mapping[str, Any]
FORMS: Table = {
    "given": {"one": "one", "several": "several", "a generator": "generator", "a list of one": "list of one"},
    **SHARED,
}
FUNCTIONS = {
    "its function": {}, "softmax": {"function_to_apply": "softmax"}, "sigmoid": {"function_to_apply": "sigmoid"},
    "no function": {"function_to_apply": "none"},
}  # fmt: skip
PROBLEMS = {
    "classes": (3, None), "said classes": (3, "single_label_classification"),
    "several classes": (3, "multi_label_classification"), "numbers": (3, "regression"),
}  # fmt: skip
CLASSES: Table = {
    **FORMS, "function": FUNCTIONS, "problem": PROBLEMS,
    "top": {"all": {}, "one": {"top_k": 1}, "two": {"top_k": 2}, "more than all": {"top_k": 9}},
}  # fmt: skip


def _compared(case: Case, made: Any, parts: Mapping[str, Any], items: Sequence[Any], due: Callable[[Any], Any],
              start: Mapping[str, Any], call: Mapping[str, Any] = ASKED) -> list[str]:  # fmt: skip
    """Return where the answers of a call, made twice, are not those of each row alone."""
    form, first = case["given"], {**start, **case["batch"]}
    later = {name: one for name, one in call.items() if name not in ASKED}
    asked = items[0] if form == "one" else list(items[:1]) if form == "list of one" else list(items)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pipe = made(**parts, **ASKED, **(first if case["where"] == "start" else {}))
            more = {**later, **({} if case["where"] == "start" else first)}
            for _ in range(2):
                answer = pipe((one for one in items) if form == "generator" else asked, **more)
                found.append(written_text(list(answer) if form == "generator" else answer))
        except (ValueError, NotImplementedError) as error:
            raise refused(error) from error
    right = due(asked) if form == "one" else [due(one) for one in (items if form == "generator" else asked)]
    return compared((found[0], found[1]), right)


def _outputs(model: Any, inputs: Mapping[str, Any]) -> Any:
    with torch.no_grad():
        return model(**inputs)


def _ranked(scores: Tensor, labels: Sequence[str], top: int | None = None) -> list[dict[str, Any]]:
    """Return labels with their scores, the largest first."""
    rows = zip(scores.tolist(), labels, strict=True)
    return [{"score": score, "label": label} for score, label in sorted(rows, key=lambda row: -row[0])][:top]


def _scored(case: Case, logits: Tensor) -> list[dict[str, Any]]:
    """Return classes by the function that is asked for, or by that of the problem."""
    problem = case["problem"][1]
    own = {"regression": "none", "multi_label_classification": "sigmoid"}.get(problem, "softmax")
    kind = case["function"].get("function_to_apply", own)
    rows = logits.double()
    scores = {"softmax": rows.softmax(-1), "sigmoid": rows.sigmoid(), "none": rows}[kind]
    return _ranked(scores, ["low", "mid", "high"], case["top"].get("top_k"))


def _named(model: Any, problem: str | None) -> Any:
    model.config.id2label, model.config.problem_type = {0: "low", 1: "mid", 2: "high"}, problem
    return model


def _pictures(case: Case, made: Any) -> list[str]:
    """Return where classes of pictures are not those of their logits."""
    model = _named(drawn("ViTForImageClassification", **VISION, num_labels=3), case["problem"][1])
    pixels = of_name("ViTImageProcessor")(**PIXELS)

    def due(one: Any) -> Any:
        return _scored(case, _outputs(model, pixels(images=one, return_tensors="pt")).logits[0])

    parts = {"model": model, "image_processor": pixels}
    return _compared(
        case, made, parts, [picture(seed) for seed in range(3)], due, {**case["function"], **case["top"]}
    )


def _sounds(case: Case, made: Any) -> list[str]:
    """Return where classes of sounds are not those of their logits."""
    model, extractor = speech("SequenceClassification")
    model = _named(model, case["problem"][1])

    def due(one: Any) -> Any:
        sound = one["raw"] if isinstance(one, Mapping) else one
        given = extractor(sound, sampling_rate=RATE, return_tensors="pt")
        return _scored(case, _outputs(model, given).logits[0])

    sounds: list[Any] = [numbers(1, 120, seed=seed)[0].float().numpy() for seed in range(2)]
    items = [*sounds, {"raw": sounds[0][::-1].copy(), "sampling_rate": RATE}]
    parts = {"model": model, "feature_extractor": extractor}
    return _compared(case, made, parts, items, due, {**case["function"], **case["top"]})


OWN: Table = {
    **FORMS,
    "labels": {
        "three labels": ["cat", "new york", "my name"],
        "one label": ["sports"],
        "two labels": ["he", "she"],
    },
    "template": {"its template": {}, "a template": {"hypothesis_template": "the {} is on"}},
}
NLI: Table = {
    **OWN,
    "labels": {**OWN["labels"], "labels in a text": "cat, new york ,my name,", "a label in a text": "sports"},
    "several": {"one of them": {}, "any of them": {"multi_label": True}},
    "classes": {"entailment last": ("contradiction", "neutral", "entailment"),
                "entailment first": ("ENTAILS", "neutral", "contradicts"),
                "two classes": ("no", "entailed"), "no entailment": ("a", "b", "c")},
}  # fmt: skip
SHOWN: Table = {**OWN, "model": {"CLIP": "CLIP", "SigLIP": "Siglip"}}


def _labels(case: Case, made: Any) -> list[str]:
    """Return where labels of texts are not by the logits of each pair of a text and a hypothesis."""
    names, labels = case["classes"], case["labels"]
    if isinstance(labels, str):
        labels = [one.strip() for one in labels.split(",") if one.strip()]
    model, tokenizer = encoder("SequenceClassification", num_labels=len(names)), words()
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: place for place, name in enumerate(names)}
    follows = next(
        (place for place, name in enumerate(names) if name.lower().startswith("entail")), len(names) - 1
    )  # the last where none is named so
    against = 0 if follows else len(names) - 1
    template = case["template"].get("hypothesis_template", "This example is {}.")

    def due(text: Any) -> Any:
        rows = torch.stack([
            _outputs(model, tokenizer(text, template.format(one), return_tensors="pt")).logits[0].double()
            for one in labels
        ])  # fmt: skip
        alone = case["several"] or len(labels) == 1
        scores = rows[:, [against, follows]].softmax(-1)[:, 1] if alone else rows[:, follows].softmax(0)
        ranked = _ranked(scores, labels)
        return {
            "sequence": text, "labels": [one["label"] for one in ranked], "scores": [one["score"] for one in ranked],
        }  # fmt: skip

    options = {"candidate_labels": case["labels"], **case["template"], **case["several"]}
    return _compared(case, made, {"model": model, "tokenizer": tokenizer}, TEXTS, due, options)


@cache
def _two_towers(kind: str) -> Any:
    text: dict[str, Any] = {**SIZES, "vocab_size": len(tokens()), "bos_token_id": 2, "eos_token_id": 3}
    more = {} if kind == "Siglip" else {"projection_dim": 8}
    config = of_name(f"{kind}Config")(text_config=text, vision_config={**VISION}, **more)
    return of_config(f"{kind}Model", config)


def _shown(case: Case, made: Any) -> list[str]:
    """Return where labels of pictures are not by the logits of each picture and its hypotheses."""
    model, tokenizer = _two_towers(case["model"]), words()
    labels, sure = case["labels"], case["model"] == "Siglip"
    tokenizer.model_input_names = ["input_ids"] if sure else ["input_ids", "attention_mask"]
    pixels = of_name("CLIPImageProcessor")(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})
    template = case["template"].get("hypothesis_template", "This is a photo of {}.")

    def due(one: Any) -> Any:
        padding = (
            {"padding": "max_length", "max_length": 64, "truncation": True} if sure else {"padding": True}
        )
        texts = tokenizer([template.format(label) for label in labels], return_tensors="pt", **padding)
        found = _outputs(model, {**texts, **pixels(images=one, return_tensors="pt")})
        logits = found.logits_per_image[0].double()
        return _ranked(logits.sigmoid() if sure else logits.softmax(-1), labels)

    parts = {"model": model, "tokenizer": tokenizer, "image_processor": pixels}
    items = [picture(seed) for seed in range(3)]
    return _compared(case, made, parts, items, due, case["template"], {"candidate_labels": labels})


def _of_sounds(case: Case) -> bool:
    """Return False for a number of classes that is set at the start, which releases lose in every call."""
    return not (case["where"] == "start" and case["top"].get("top_k", 9) < 3)


def _row(row: Row, case: Case) -> Row:
    """Return a row with its first release."""
    if "function" in case and not case["function"] and case["problem"][1] in (
        "regression", "multi_label_classification",
    ):  # fmt: skip
        row = row._replace(since="5.24")
    if row.function.startswith("Audio") and case["where"] == "start" and case["function"]:
        row = row._replace(since="5.24")
    return row


KINDS: Sequence[tuple[str, str, Callable[[Case, Any], list[str]], Table, Callable[[Case], bool]]] = (
    ("image_classification:ImageClassificationPipeline", "pictures", _pictures, CLASSES, any_case),
    ("audio_classification:AudioClassificationPipeline", "sounds", _sounds, CLASSES, _of_sounds),
    ("zero_shot_classification:ZeroShotClassificationPipeline", "labels", _labels, NLI, any_case),
    (
        "zero_shot_image_classification:ZeroShotImageClassificationPipeline",
        "pictures",
        _shown,
        SHOWN,
        any_case,
    ),
)
# Source: the documentation of each pipeline.
MEDIA_PAIR_ROWS: Sequence[Row] = [
    _row(row, case)
    for place, what, call, table, allowed in KINDS
    for row, (_, case) in zip(
        rows_of_pairs(place, what, call, table, allowed), cases_of_pairs(table, allowed), strict=True
    )
]
