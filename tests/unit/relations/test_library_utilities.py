"""R31 of a library's parts: definitions hold, and each fault that people make breaks its law."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.relations.defined_utilities import DEFINED, Defined

from seatrial.relations.engine import run_relation
from seatrial.relations.laws.utilities.scores import TABLE
from seatrial.relations.registry import select
from seatrial.verdict import Outcome

RELATIONS = (
    "R31.encodings", "R31.texts", "R31.schemas", "R31.scores", "R31.stops", "R31.visible", "R31.training_parts",
    "R31.gathered", "R31.samplers", "R31.packed_attention",
    "R31.short_runs", "R31.adapter_steps", "R31.run_events",
)  # fmt: skip


@pytest.mark.parametrize("name", RELATIONS)
def test_definitions_hold(name: str) -> None:
    """On two seeds, every law."""
    (relation,) = select([name])
    verdict = run_relation(relation, Defined(), seeds=[0, 1])
    assert verdict.outcome is Outcome.PASS, verdict.reason
    assert set(verdict.details["laws"]) == {law.name for law in relation.laws}


def with_options(name: str, place: int = 1, **changed: Any) -> tuple[str, Callable[..., Any]]:
    """Return a function that takes other options than it is given."""

    def faulty(*arguments: Any) -> Any:
        given = list(arguments)
        given[place] = {
            **given[place],
            **{key: value for key, value in changed.items() if key in given[place]},
        }
        return DEFINED[name](*given)

    return name, faulty


def window_off_by_one(kind: str, padding: Any, num_queries: int, *more: Any) -> Any:
    """Return a mask whose windows show one key more."""
    found = DEFINED["attended"](kind, padding, num_queries, *more)
    wide = DEFINED["attended"]("causal", padding, num_queries, *more)
    shifted = torch.cat([found[..., 1:], torch.zeros_like(found[..., :1])], dim=-1)
    return found | (shifted & wide) if kind == "sliding" else found


def not_begun_again(kind: str, steps: Any) -> Any:
    """Return the keys of a cache that is never reset."""
    return DEFINED["cached"](kind, [step for step in steps if step[0] != "reset"])


FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {
    "texts and pairs": with_options("encoded", truncation_side="right"),
    "steps with A frozen": (
        "steps of LoRA-FA",
        lambda options, first, slopes: DEFINED["steps of LoRA-FA"](options, first, slopes[::-1]),
    ),
    "steps with A frozen, other scales": with_options(
        "steps of LoRA-FA", 0, use_rslora=False, rank_pattern={}, alpha_pattern={}
    ),
    "steps that are preconditioned": (
        "preconditioned steps",
        lambda options, first, slopes: DEFINED["preconditioned steps"](options, first, slopes[::-1]),
    ),
    "ranks that a budget leaves": with_options("ranks within a budget", 0, deltaT=1, tfinal=1, beta2=0.1),
    "events of a run": with_options("events of a run", 0, eval_delay=0),
    "losses that are logged": ("logged losses", lambda losses, filters: [sum(losses) / len(losses)] * 2),
    "losses that are not finite": (
        "logged losses",
        lambda losses, filters: [sum(losses[:3]) / 3, sum(losses) / 3],
    ),
    "losses that are not finite, filtered": (
        "logged losses",
        lambda losses, filters: DEFINED["logged losses"](losses, False),
    ),
    "columns that a collator is given": with_options("columns of a run", 0, label_names=[]),
    "rows after a resume": with_options("rows after a resume", 0, ignore_data_skip=False),
    "padding of encodings": with_options("padded encodings", pad_to_multiple_of=None),
    "conversations": with_options("chat", continue_final_message=False),
    "texts of ids": (
        "decoded",
        lambda rows, own, options: DEFINED["decoded"](rows, own and len(rows) == 1, options),
    ),
    "texts of a batch of ids": (
        "decoded together",
        lambda rows, own, options: DEFINED["decoded"](rows, own and len(rows) == 1, options),
    ),
    "tokenizers that were saved": (
        "saved tokenizer",
        lambda options: {**DEFINED["saved tokenizer"](options), "special": []},
    ),
    "templates": (
        "rendered chat",
        lambda template, messages, options: DEFINED["rendered chat"](template, messages, options).replace(
            "<", "&lt;"
        ),
    ),
    "templates, fields that are None": ("rendered chat", lambda template, messages, options: "None"),
    "byte pairs": ("byte pairs", lambda merges, word: DEFINED["byte pairs"](merges[1:], word)),
    "types": (
        "schema of a type",
        lambda hint: {
            name: value for name, value in DEFINED["schema of a type"](hint).items() if name != "nullable"
        },
    ),
    "tools with a nested description": (
        "schema of a tool",
        lambda text, hints, needed: DEFINED["schema of a tool"](text.replace("note: ", ""), hints, needed),
    ),
    "tools": (
        "schema of a tool",
        lambda text, hints, needed: DEFINED["schema of a tool"](text, hints, list(hints)),
    ),
    **{
        name.removesuffix("LogitsProcessor").removesuffix("LogitsWarper"): (
            "processed scores",
            lambda name, options, ids, scores: DEFINED["processed scores"](
                name, options, ids[:, :-1] + ids[:, -1:] * 0, scores.flip(0)
            ).flip(1),
        )
        for name, _ in TABLE
    },
    "guidance": ("guided scores", lambda scores, scale: DEFINED["guided scores"](scores, 1 / scale)),
    "strings that stop": (
        "stopped by strings",
        lambda rows, strings: ["".join(row).endswith(tuple(strings)) for row in rows],
    ),
    "strings of several bytes that stop": (
        "stopped by bytes",
        lambda rows, strings: [row.decode(errors="replace").endswith(strings[0]) for row in rows],
    ),
    "sequences that begin with the row": (
        "processed scores",
        lambda name, options, ids, scores: scores.double(),
    ),
    "lengths and ends that stop": (
        "stopped",
        lambda name, options, ids: DEFINED["stopped"](
            name, {key: value + 1 if key == "max_length" else value for key, value in options.items()}, ids
        ),
    ),
    "keys that a query sees": ("attended", window_off_by_one),
    "keys that a cache keeps": ("cached", not_begun_again),
    "activations": (
        "activated",
        lambda name, values: DEFINED["activated"](name.replace("gelu_new", "gelu"), values),
    ),
    "loss of next ids": (
        "causal loss",
        lambda logits, labels, items, shifted: DEFINED["causal loss"](logits, labels, None, shifted),
    ),
    "Adafactor": with_options("adafactor", 0, warmup_init=False),
    "rates that follow a metric": with_options("greedy rates", 0, threshold_mode="abs"),
    "optimizers by name": with_options("named optimizer", adam_beta2=0.999),
    "early stops and the best checkpoint": with_options("early stop", threshold=0.0),
    "the best checkpoint in every way of saving": (
        "early stop",
        lambda metrics, options: {
            **DEFINED["early stop"](metrics, options),
            **({"best step": 0} if options.get("saves") == "best" else {}),
        },
    ),
    "texts that are streamed": (
        "streamed text",
        lambda text, prompt, skip: (prompt + text)[: -1 if text else None],
    ),
    "allowed tokens": (
        "allowed scores",
        lambda ids, scores, beams, tokens: DEFINED["allowed scores"](
            ids.flip(0),
            scores,
            beams,
            {**tokens, **{(one, 2): [4] for one in range(4)}, **{(one, 3): [3] for one in range(4)}},
        ),
    ),
    "allowed tokens, none of which is left": (
        "allowed scores",
        lambda ids, scores, beams, tokens: scores.double(),
    ),
    "batches of an evaluation": (
        "joined batches",
        lambda batches, padding, *more: DEFINED["joined batches"](batches, -100, *more),
    ),
    "rows that are cut": ("first rows", lambda nested, limit: DEFINED["first rows"](nested, limit + 1)),
    "the number of rows": ("number of rows", lambda nested: 5),
    "smoothed labels": (
        "smoothed loss",
        lambda logits, labels, epsilon, ignored, shifted, items: DEFINED["smoothed loss"](
            logits, labels, epsilon, ignored, shifted, None
        ),
    ),
    "parameters that decay": (
        "names that decay",
        lambda names: [f"{name}.weight" for name, kind in sorted(names.items()) if kind != "norm"],
    ),
    "checkpoints that are kept": (
        "rotated checkpoints",
        lambda steps, limit, best: DEFINED["rotated checkpoints"](steps, limit, None),
    ),
    "the last checkpoint": ("last of checkpoints", lambda steps: max(steps, key=str, default=None)),
    "noise on embeddings": (
        "noise of embeddings",
        lambda rows, length, width, alpha, training: DEFINED["noise of embeddings"](
            rows, length, width, alpha, True
        ),
    ),
    "rows by their lengths": (
        "order by length",
        lambda lengths, *more: DEFINED["order by length"]([-one for one in lengths], *more),
    ),
    "rows by their lengths, of processes": (
        "shares by length",
        lambda lengths, batch, processes, epoch, options: DEFINED["shares by length"](
            lengths, batch, processes, 0, options
        ),
    ),
    "rows of processes": (
        "shares of rows",
        lambda number, batch, processes, drop: DEFINED["shares of rows"](number, batch, processes, False),
    ),
    "rows of a stream of processes": (
        "shares of a stream",
        lambda *given: DEFINED["shares of a stream"](*given)[::-1],
    ),
    "rebalanced micro-batches": (
        "rebalanced batches",
        lambda lengths, size, processes, parts, options: [
            own[::-1] for own in DEFINED["rebalanced batches"](lengths, size, processes, parts, options)
        ],
    ),
    "attention of rows": (
        "packed attention",
        lambda *given: DEFINED["packed attention"](
            *given[:6], {name: value for name, value in given[6].items() if name != "softcap"}
        ),
    ),
    "rows without padding": (
        "unpadded",
        lambda values, mask: {**DEFINED["unpadded"](values, mask), "longest": len(mask[0])},
    ),
    "log of a run": with_options("logged training", 0, logging_first_step=False),
    "rows in their order": (
        "served rows",
        lambda form, options, number: [
            [part for update in DEFINED["served rows"](form, options, number) for part in update]
        ],
    ),
    "rows of a stream that ends within an update": (
        "served rows",
        lambda form, options, number: DEFINED["served rows"](form, {**options, "max_steps": 4}, number),
    ),
    "what metrics are given": with_options("evaluated metrics", 0, cut=False),
    "tokens that are counted": (
        "counted tokens",
        lambda counts, masked, lengths: DEFINED["counted tokens"](
            "all" if masked else counts, masked, lengths
        ),
    ),
    "noise in training alone": (
        "noise of a run",
        lambda alpha, steps: {**DEFINED["noise of a run"](alpha, steps), "afterwards": [alpha is not None]},
    ),
    **dict.fromkeys(
        ("predictions by generation", "predictions by generation, no limit given"),
        ("generated predictions", lambda options, batch: ({"ids": [[1]]}, {"ids": [[1, 0]]})),
    ),
    "options in a text": (
        "options of text",
        lambda text: {**DEFINED["options of text"](text), "scale_attn_weights": True},
    ),
}


@pytest.mark.parametrize("law", FAULTS)
def test_a_fault_breaks_its_law(law: str) -> None:
    """And it is that law."""
    name, faulty = FAULTS[law]
    (own,) = [one for relation in RELATIONS for one in select([relation])[0].laws if one.name == law]
    assert not own.measure(Defined(name, faulty), own.make(None, 0, False)).holds  # type: ignore[union-attr]


def test_every_law_has_a_fault() -> None:
    """One of each."""
    assert set(FAULTS) == {law.name for name in RELATIONS for law in select([name])[0].laws}
