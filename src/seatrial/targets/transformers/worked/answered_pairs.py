"""Worked examples of pipelines of encoders for pairs of options: classes, tags and masks by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.cases.pairwise import names_of, pairwise
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.pipes import (
    ASKED,
    encoder,
    tokens,
    words,
    written_text,
)
from seatrial.targets.transformers.worked.plain_decoding import refused

Factor = Mapping[str, Any]
Table = Mapping[str, Factor]
TEXTS = ("my name is sarah and she lives", "hello", "the cat sat on the mat in london")
PAIR = {"text": "hello world", "text_pair": "my name is sarah"}
GIVEN: Factor = {
    "a text": TEXTS[0], "texts": list(TEXTS), "a generator": "generator", "a list of one": [TEXTS[2]],
}  # fmt: skip
SHARED: Table = {
    "batch": {"by default": {}, "batches of two": {"batch_size": 2}, "a batch of three": {"batch_size": 3}},
    "where": {"in the call": "call", "at the start": "start"},
}  # fmt: skip


def any_case(case: Mapping[str, Any]) -> bool:
    """Return True."""
    return True


def cases_of_pairs(
    table: Table, allowed: Callable[[Mapping[str, Any]], bool] = any_case
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield values of every factor, any two together where that is allowed, and their names."""
    names = {name: list(values) for name, values in table.items()}

    def chosen(row: Mapping[str, int]) -> dict[str, Any]:
        return {name: list(table[name].values())[index] for name, index in row.items()}

    for row in pairwise({name: len(one) for name, one in table.items()}, lambda row: allowed(chosen(row))):
        yield names_of(row, names), chosen(row)


def answers_of(
    made: Any, model: Any, tokenizer: Any, case: Mapping[str, Any], options: Mapping[str, Any]
) -> Any:
    """Return the answers of a pipeline, twice."""
    given, start = case["given"], case["where"] == "start"
    shared = {**options, **case["batch"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            pipe = made(model=model, tokenizer=tokenizer, **ASKED, **(shared if start else {}))
            more = {} if start else shared
            asked = (one for one in TEXTS) if given == "generator" else given
            first = pipe(asked, **more)
            first = list(first) if given == "generator" else first
            again = first if given == "generator" else pipe(given, **more)
        except (ValueError, NotImplementedError) as error:
            raise refused(error) from error
    return written_text(first), written_text(again)


def _unlike(found: Any, due: Any, what: str) -> Iterator[str]:
    """Yield where two answers differ; numbers may be rounded."""
    if isinstance(due, Mapping) and isinstance(found, Mapping) and {*found} == {*due}:
        for name, one in due.items():
            yield from _unlike(found[name], one, f"{what} {name}")
    elif isinstance(due, list | tuple) and isinstance(found, list | tuple) and len(found) == len(due):
        for place, (one, right) in enumerate(zip(found, due, strict=True)):
            yield from _unlike(one, right, f"{what}[{place}]")
    elif isinstance(due, float) and isinstance(found, int | float):
        if not abs(found - due) <= 1e-4:
            yield f"{what}: {found}, {due} is due"
    elif found != due:
        yield f"{what}: {str(found)[:80]}, {str(due)[:80]} is due"


def compared(answers: tuple[Any, Any], due: Any) -> list[str]:
    """Return where two answers of one call are not the right one."""
    return [*_unlike(answers[0], due, "answer"), *_unlike(answers[1], due, "again")][:3]


def items_of(given: Any) -> tuple[list[Any], bool]:
    """Return what is asked one by one, and whether the answer is a list of answers."""
    if given == "generator":
        return list(TEXTS), True
    return (list(given), True) if isinstance(given, list) else ([given], False)


def run_alone(model: Any, inputs: Mapping[str, Any]) -> Any:
    """Return the outputs of one row."""
    with torch.no_grad():
        return model(**{name: torch.tensor([one]) for name, one in inputs.items()})


CLASSES: Table = {
    "given": {**GIVEN, "a pair": PAIR, "pairs": [PAIR, {"text": "hello"}]},
    **SHARED,
    "top": {"the best": {}, "top 1": {"top_k": 1}, "top 2": {"top_k": 2}, "all": {"top_k": None}},
    "function": {"its function": {}, "softmax": {"function_to_apply": "softmax"}, "sigmoid": {
        "function_to_apply": "sigmoid"}, "no function": {"function_to_apply": "none"}},
    "problem": {"classes": (3, None), "several classes": (3, "multi_label_classification"),
                "a number": (2, "regression"), "one class": (1, None)},
    "cut": {"whole": {}, "cut": {"truncation": True, "max_length": 5}, "padded": {"padding": "max_length",
                                                                                "max_length": 20}},
}  # fmt: skip


def _classes(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where classes are not those of the logits of each text alone."""
    number, problem = case["problem"]
    model, tokenizer = encoder("SequenceClassification", num_labels=number, problem_type=problem), words()
    kind = case["function"].get("function_to_apply") or {
        "regression": "none", "multi_label_classification": "sigmoid",
    }.get(problem, "sigmoid" if number == 1 else "softmax")  # fmt: skip
    items, several = items_of(case["given"])
    due: list[Any] = []
    for one in items:
        text = one if isinstance(one, Mapping) else {"text": one}
        logits = run_alone(model, tokenizer(**text, **case["cut"])).logits[0].double()
        scores = {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid(), "none": logits}[kind].tolist()
        ranked: list[Any] = [
            {"label": f"LABEL_{place}", "score": scores[place]}
            for place in sorted(range(number), key=lambda place, scores=scores: -scores[place])  # type: ignore[misc]
        ]
        due.append(ranked[: case["top"]["top_k"]] if case["top"] else ranked[0])
    # A text without a number of classes has its answer in a list.
    right = due if several else due if isinstance(items[0], str) and not case["top"] else due[0]
    options = {**case["top"], **case["function"], **case["cut"]}
    return compared(answers_of(made, model, tokenizer, case, options), right)


LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
TAGS: Table = {
    "given": GIVEN,
    **SHARED,
    "strategy": {"no groups": {}, "simple": {"aggregation_strategy": "simple"},
                 "first": {"aggregation_strategy": "first"}, "average": {"aggregation_strategy": "average"},
                 "max": {"aggregation_strategy": "max"}},
    "ignored": {"O is ignored": {}, "nothing ignored": {"ignore_labels": []},
                "two ignored": {"ignore_labels": ["O", "PER", "B-PER"]}},
}  # fmt: skip


def _tagger() -> Any:
    model = encoder("TokenClassification", num_labels=5, id2label=dict(enumerate(LABELS)))
    with torch.no_grad():
        model.classifier.weight.mul_(3.0)
    return model


def _tags_of(model: Any, tokenizer: Any, text: str, strategy: str, ignored: Sequence[str]) -> list[Any]:
    given = tokenizer(text, return_offsets_mapping=True)
    offsets = given.pop("offset_mapping")
    chances = run_alone(model, given).logits[0].double().softmax(-1)
    parts = [
        {
            "word": token,
            "scores": chances[place],
            "index": place,
            "start": offsets[place][0],
            "end": offsets[place][1],
        }
        for place, token in enumerate(tokenizer.convert_ids_to_tokens(given["input_ids"]))
        if token not in ("[CLS]", "[SEP]")
    ]
    if strategy in ("none", "simple"):
        found = [
            {
                "entity": LABELS[int(one["scores"].argmax())], "score": float(one["scores"].max()),
                "index": one["index"], "word": one["word"], "start": one["start"], "end": one["end"],
            }
            for one in parts
        ]  # fmt: skip
    else:
        whole: list[list[Any]] = []
        for one in parts:
            if one["word"].startswith("##") and whole:
                whole[-1].append(one)
            else:
                whole.append([one])
        found = []
        for group in whole:
            scores = _scores_of(group, strategy)
            found.append({
                "entity": LABELS[int(scores.argmax())], "score": float(scores.max()),
                "word": _joined(one["word"] for one in group), "start": group[0]["start"], "end": group[-1]["end"],
            })  # fmt: skip
    if strategy != "none":
        found = _grouped(found)
    return [one for one in found if one.get("entity", one.get("entity_group")) not in ignored]


def _scores_of(group: Sequence[Mapping[str, Any]], strategy: str) -> Tensor:
    """Return the scores of a word by those of its parts."""
    rows: list[Tensor] = [one["scores"] for one in group]
    if strategy == "average":
        return torch.stack(rows).mean(0)
    return rows[0] if strategy == "first" else max(rows, key=lambda one: float(one.max()))


def _joined(parts: Iterable[str]) -> str:
    return " ".join(parts).replace(" ##", "")


def _grouped(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return neighbours of one tag together; a tag that begins opens another group."""
    groups: list[list[Mapping[str, Any]]] = []
    for one in found:
        last = groups[-1][-1]["entity"].rpartition("-")[2] if groups else None
        if last == one["entity"].rpartition("-")[2] and not one["entity"].startswith("B-"):
            groups[-1].append(one)
        else:
            groups.append([one])
    return [
        {
            "entity_group": group[0]["entity"].rpartition("-")[2],
            "score": sum(one["score"] for one in group) / len(group),
            "word": _joined(one["word"] for one in group), "start": group[0]["start"], "end": group[-1]["end"],
        }
        for group in groups
    ]  # fmt: skip


def _tags(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where tags are not those of the logits of each text alone."""
    model, tokenizer = _tagger(), words()
    strategy = case["strategy"].get("aggregation_strategy", "none")
    items, several = items_of(case["given"])
    due = [
        _tags_of(model, tokenizer, one, strategy, case["ignored"].get("ignore_labels", ["O"]))
        for one in items
    ]
    options = {**case["strategy"], **case["ignored"]}
    return compared(answers_of(made, model, tokenizer, case, options), due if several else due[0])


MASKED = ("my name is [MASK]", "[MASK] cat sat on the mat", "hello [MASK] sarah lives")
MASKS: Table = {
    "given": {"a text": MASKED[0], "texts": list(MASKED), "two masks": "the [MASK] sat on [MASK] mat",
              "a list of one": [MASKED[2]], "texts of two masks": ["[MASK] [MASK]", "the [MASK] is [MASK]"]},
    **SHARED,
    "top": {"five": {}, "one": {"top_k": 1}, "two": {"top_k": 2}},
    "targets": {"any": {}, "targets": {"targets": ["cat", "london", "mat", "world"]}, "a target": {"targets": "mat"},
                "a target twice": {"targets": ["mat", "cat", "mat"]}},
    "cut": {"whole": {}, "padded": {"tokenizer_kwargs": {"padding": "max_length", "max_length": 16}},
            "cut": {"tokenizer_kwargs": {"truncation": True, "max_length": 6}}},
}  # fmt: skip


def _masks(case: Mapping[str, Any], made: Any) -> list[str]:
    """Return where words of masks are not those of the logits of each text alone."""
    model, tokenizer = encoder("MaskedLM"), words()
    items, several = items_of(case["given"])
    targets = case["targets"].get("targets")
    listed = [targets] if isinstance(targets, str) else targets
    # Of a word that the vocabulary has not the first part is meant.
    allowed = None if listed is None else sorted({tokenizer(one)["input_ids"][1] for one in listed})
    due: list[Any] = []
    for text in items:
        given = tokenizer(text, **case["cut"].get("tokenizer_kwargs", {}))
        ids, rows = given["input_ids"], list[Any]()
        chances = run_alone(model, given).logits[0].double().softmax(-1)
        places = [place for place, one in enumerate(ids) if one == tokenizer.mask_token_id]
        for place in places:
            known = range(len(tokens())) if allowed is None else allowed
            ranked = sorted(known, key=lambda one, place=place: -float(chances[place][one]))
            row = []
            for one in ranked[: case["top"].get("top_k", 5)]:
                filled = [one if at == place else token for at, token in enumerate(ids)]
                filled = [token for token in filled if token != tokenizer.pad_token_id]
                if len(places) == 1:
                    filled = [token for token in filled if token not in tokenizer.all_special_ids]
                row.append({
                    "score": float(chances[place][one]), "token": one, "token_str": tokenizer.decode([one]),
                    "sequence": tokenizer.decode(filled),
                })  # fmt: skip
            rows.append(row)
        due.append(rows[0] if len(rows) == 1 else rows)
    several = several and not (isinstance(case["given"], list) and len(items) == 1)
    options = {**case["top"], **case["targets"], **case["cut"]}
    return compared(answers_of(made, model, tokenizer, case, options), due if several else due[0])


def rows_of_pairs(place: str, what: str, call: Callable[[Mapping[str, Any], Any], list[str]], table: Table,
                  allowed: Callable[[Mapping[str, Any]], bool] = any_case) -> list[Row]:  # fmt: skip
    """Return a row for each case of a table."""
    return [
        Row(
            "combinations",
            f"transformers.pipelines.{place}",
            f"{what}: {name}",
            partial(call, case),
            [],
            since="4.57",
        )
        for name, case in cases_of_pairs(table, allowed)
    ]


def _of_classes(case: Mapping[str, Any]) -> bool:
    return not (case["where"] == "start" and case["top"])


def _of_masks(case: Mapping[str, Any]) -> bool:
    several = isinstance(case["given"], list) and len(case["given"]) > 1
    return not (
        "truncation" in case["cut"].get("tokenizer_kwargs", {}) and (several or "two" in case["given"])
    )


CALLS: Sequence[tuple[str, str, Callable[[Mapping[str, Any], Any], list[str]], Table, Any]] = (
    ("text_classification:TextClassificationPipeline", "classes", _classes, CLASSES, _of_classes),
    ("token_classification:TokenClassificationPipeline", "tags", _tags, TAGS, any_case),
    ("fill_mask:FillMaskPipeline", "masks", _masks, MASKS, _of_masks),
)
ANSWERED_ROWS: Sequence[Row] = [row for call in CALLS for row in rows_of_pairs(*call)]
