"""R31 of templates, collators, tiles and images: plain ones hold, and each fault that people make breaks its law."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.relations.plain_templates import MADE, OWN, TRAINING, Made, said, trained_spans, written

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities import collated
from seatrial.relations.registry import select
from seatrial.verdict import Outcome


@pytest.mark.parametrize("name", ["R31.templates", "R31.collated", "R31.tiled", "R31.images"])
def test_plain_ones_hold(name: str) -> None:
    """On two seeds, every law."""
    (relation,) = select([name])
    verdict = run_relation(relation, Made(), seeds=[0, 1])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


def changed(kind: str, column: str, change: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return batches of which one column of a kind is changed."""

    def batch(name: str, rows: Any, options: Any, pad: int) -> Any:
        found = dict(collated.DEFINITIONS[name](rows, options))
        return {**found, column: change(found[column])} if name == kind and column in found else found

    return batch


def only_training(change: Callable[[str], str]) -> Callable[..., Any]:
    """Return texts of which those of the template for training are changed."""
    return lambda template, turns, opens: (
        change(written(template, turns, opens)) if template.trains else written(template, turns, opens)
    )


def later_only(template: Any, turns: Any, opens: bool) -> str:
    """Return a text whose earlier answers have no brackets."""
    text = written(template, turns, opens)
    last = max((place for place, one in enumerate(turns) if one["role"] == "assistant"), default=0)
    for place, one in enumerate(turns):
        if one["role"] == "assistant" and place < last:
            text = text.replace(f"[assistant]{said(one)}", f"<>{said(one)}")
    return text


FAULTS: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "turns are written": (
        "R31.templates",
        "written",
        lambda t, turns, opens: written(t, [one for one in turns if one["role"] != "system"], opens),
    ),
    "trained part of a conversation": (
        "R31.templates",
        "trained spans",
        lambda t, turns: [span.removesuffix("<end>") for span in trained_spans(t, turns)],
    ),
    "trained part and the prompt": (
        "R31.templates",
        "trained spans",
        lambda t, turns: ["[assistant]" + span for span in trained_spans(t, turns)],
    ),
    "prompt of an answer": (
        "R31.templates",
        "written",
        lambda t, turns, opens: written(t, turns, opens) + ("\n" if opens and t.trains else ""),
    ),
    "first turns of a conversation": ("R31.templates", "written", later_only),
    "template for training and the one it replaces": (
        "R31.templates",
        "written",
        only_training(lambda text: text.replace("[user]", "[human]")),
    ),
    "choice of a template": ("R31.templates", "template for training", lambda name: "own_training"),
    "tools of a template": ("R31.templates", "takes tools", lambda template: template.trains),
    "answers are read as written": (
        "R31.templates",
        "read answer",
        lambda t, prompt, answer, tools: MADE["read answer"](t, prompt, answer.replace("7", '"7"'), tools),
    ),
    "divergence of log-probabilities": (
        "R31.tiled",
        "divergence of log-probabilities",
        lambda student, teacher, alpha: MADE["divergence of log-probabilities"](student, teacher, 1 - alpha),
    ),
    "the rest of all ids": (
        "R31.tiled",
        "rest of ids",
        lambda logprobs: MADE["rest of ids"](logprobs.log_softmax(-1) - 0.1),
    ),
    "losses times ratios": (
        "R31.tiled",
        "weighted losses",
        lambda losses, now, before, most: MADE["weighted losses"](losses, before, now, most),
    ),
    "divergence of sampled ids": (
        "R31.tiled",
        "divergence of sampled ids",
        lambda student, teacher, ids: {
            "gradient": -MADE["divergence of sampled ids"](student, teacher, ids)["gradient"]
        },
    ),
    "words of two tokenizers": (
        "R31.tiled",
        "words of two tokenizers",
        lambda one, other: tuple(groups[:-1] or groups for groups in MADE["words of two tokenizers"](one, other)),
    ),
    "probabilities of words of several tokens": (
        "R31.tiled",
        "probabilities of words",
        lambda probs, words, ids, merge: torch.stack([probs[word].mean(0) for word in words]),
    ),
    "texts": ("R31.collated", "batch of rows", changed("texts", "labels", lambda x: [row[::-1] for row in x])),
    "texts that are flattened": (
        "R31.collated",
        "batch of rows",
        changed("texts", "position_ids", lambda x: [list(range(len(x[0])))]),
    ),
    "packed texts": (
        "R31.collated",
        "batch of rows",
        changed("texts", "position_ids", lambda x: [list(range(len(row))) for row in x]),
    ),
    "multiples of a length in each mode": (
        "R31.collated",
        "batch of rows",
        lambda kind, rows, options, pad: MADE["batch of rows"](
            kind, rows, {"padding_free": True} if options.get("padding_free") else options, pad
        ),
    ),
    "pairs": ("R31.collated", "batch of rows", changed("pairs", "input_ids", lambda x: x[::-1])),
    "triples": ("R31.collated", "batch of rows", changed("triples", "input_ids", lambda x: x[:-1])),
    "answers with labels": (
        "R31.collated",
        "batch of rows",
        changed("labelled", "KL_input_ids", lambda x: [x[0]] * len(x)),
    ),
    "pairs for a reward model": (
        "R31.collated", "batch of rows", changed("scored", "margin", lambda x: sorted(x, reverse=True))
    ),
    "columns by their names": (
        "R31.collated",
        "batch of rows",
        changed("named", "prompt_attention_mask", lambda x: [row[::-1] for row in x]),
    ),
    "head in tiles": (
        "R31.tiled",
        "head in tiles",
        lambda h, w, b, t, options, tile: MADE["head in tiles"](
            h, w, b, t.remainder(tile), options, tile
        ),
    ),
    "divergence in tiles": (
        "R31.tiled",
        "divergence in tiles",
        lambda s, t, beta, heat, options: MADE["divergence in tiles"](s, t, 1 - beta, heat, options),
    ),
    "divergence of the student's largest ids": (
        "R31.tiled",
        "divergence of the largest",
        lambda s, t, number, tail, alpha: MADE["divergence of the largest"](s, t, number, not tail, alpha),
    ),
    "divergence of logits": (
        "R31.tiled", "divergence of logits", lambda s, t, alpha: MADE["divergence of logits"](t, s, alpha)
    ),
    "images of samples": (
        "R31.images",
        "images of samples",
        lambda batch: {**MADE["images of samples"](batch), **{k: batch[k] for k in ("image_sizes",) if k in batch}},
    ),
    "images joined again": (
        "R31.images", "images joined again", lambda batch: MADE["images of samples"](batch)
    ),
}  # fmt: skip


@pytest.mark.parametrize("law", FAULTS)
def test_a_fault_breaks_its_law(law: str) -> None:
    """Each law has a fault that people make."""
    relation_id, name, fault = FAULTS[law]
    (relation,) = select([relation_id])
    verdict = run_relation(relation, Made(**{name: fault}), seeds=[0])
    assert law in verdict.details["laws_broken"], verdict.reason


def test_every_law_has_a_fault() -> None:
    """Of these relations."""
    laws = [
        law.name
        for one in ("templates", "collated", "tiled", "images")
        for law in select([f"R31.{one}"])[0].laws
    ]
    assert set(laws) == set(FAULTS)
    assert OWN.name == TRAINING.replaces


@pytest.mark.parametrize("name", ["trained spans", "takes tools", "read answer"])
def test_a_release_without_one_of_the_functions_breaks_nothing(name: str) -> None:
    """Laws that call it are not exercised."""
    stack = Made()
    stack.utilities = {own: function for own, function in stack.utilities.items() if own != name}
    (relation,) = select(["R31.templates"])
    verdict = run_relation(relation, stack, seeds=[0])
    assert verdict.outcome is Outcome.PASS, verdict.reason
