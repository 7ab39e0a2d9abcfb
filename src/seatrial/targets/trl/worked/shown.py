"""What trainers of given texts make of each form of row, with tokenizers that begin texts with a token or do not.

The ids of a step are those of the row's whole text with one end, and what trains of them is the answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from packaging.version import Version

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import END, tiny_tokenizer
from seatrial.targets.trl.named import code_has
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.limits import made_rows, places
from seatrial.targets.trl.worked.rows import Row, by_trainer
from seatrial.targets.trl.worked.seen import Seen, or_refused, seen_of, takes

LENGTHS = ((3, 5, 7), (6, 2, 4), (8, 9, 3), (2, 7, 8))
TRAINERS = ("SFT", "DPO", "KTO", "Reward", "CPO", "ORPO")
LONGEST = 600
"""More tokens than any row has."""
ALL_TRAIN = ("ORPO",)
"""Trainers that train on prompts too."""
ANSWERS = ("completion", "chosen", "rejected")
TEMPLATE = (
    "{{ bos_token }}{% if tools %}{% for one in tools %}{{ '[' + one['function']['name'] + ']' }}{% endfor %}"
    "{% endif %}"
    "{{ mark }}{% for message in messages %}{{ message['role'][0] + message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'a' }}{% endif %}"
)
"""Begins with the first token of texts, the names of tools and the option `mark`."""
TOOLS: Sequence[Mapping[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {}}} for name in ("f", "gg")
]
KWARGS = {"mark": "M"}


class Text(NamedTuple):
    """A sequence of a row as text."""

    prompt: str
    answer: str


Made = tuple[list[dict[str, Any]], list[Text]]
"""Rows, and the texts of their sequences."""


def _tokenizer(begins: bool) -> Any:
    """Return a tokenizer; if `begins` is true, it begins each text with a token of its own."""
    tokenizer = tiny_tokenizer(padding_side="right")
    tokenizer.chat_template = TEMPLATE
    if begins:
        from tokenizers import processors

        tokenizer.bos_token = END
        first = [(END, tokenizer.convert_tokens_to_ids(END))]
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{END} $A", pair=f"{END} $A $B", special_tokens=first
        )
    return tokenizer


def _plain(name: str, ends: Mapping[str, Sequence[bool]]) -> Made:
    """Return rows of texts; `ends` says by column which of them have their end already."""
    kind = {"SFT": "completions", "KTO": "labels"}.get(name, "pairs")
    end, rows, texts = tiny_tokenizer().eos_token, [], []
    for number, row in enumerate(made_rows(kind, LENGTHS)):
        texts += [Text(row["prompt"], row[one] + end) for one in ANSWERS if one in row]
        rows.append(
            {
                key: value + end if key in ends and ends[key][number % len(ends[key])] else value
                for key, value in row.items()
            }
        )
    return rows, texts


def _joined(name: str) -> Made:
    """Return pairs whose prompt is the beginning of both answers."""
    rows, texts = [], []
    for row in made_rows("pairs", LENGTHS):
        texts += [Text(row["prompt"], row[one] + tiny_tokenizer().eos_token) for one in ANSWERS[1:]]
        rows.append({one: row["prompt"] + row[one] for one in ANSWERS[1:]})
    return rows, texts


def _pairs(name: str) -> Made:
    """Return pairs with a prompt of their own."""
    return _plain("DPO", {})


def _turns(name: str, given: Mapping[str, Any], shown: Mapping[str, Any], joins: bool = False) -> Made:
    """Return conversations.

    Args:
        name: of the trainer.
        given: more columns of the rows.
        shown: what the template is given by them.
        joins: whether the turns of the prompt are the first ones of the answer.
    """
    kind = {"SFT": "completions", "KTO": "labels"}.get(name, "pairs")
    begin = _written([], False, **shown)
    rows, texts = [], []
    for row in made_rows(kind, LENGTHS):
        asked = [{"role": "user", "content": row["prompt"]}]
        answers = {one: [{"role": "assistant", "content": row[one]}] for one in ANSWERS if one in row}
        prompt = _written(asked, True, **shown)
        assert prompt.startswith(begin)
        texts += [
            Text(prompt, _written(asked + one, False, **shown)[len(prompt) :]) for one in answers.values()
        ]
        made = {one: asked + turns if joins else turns for one, turns in answers.items()}
        own = {key: value for key, value in row.items() if key == "label"}
        rows.append({**({} if joins else {"prompt": asked}), **made, **own, **given})
    return rows, texts


def _written(turns: Sequence[Mapping[str, str]], cue: bool, *, tools: bool = False, mark: str = "") -> str:
    """Return what the template writes after the first token, worked out without it."""
    names = "".join(f"[{one['function']['name']}]" for one in TOOLS) if tools else ""
    said = "".join(f"{one['role'][0]}{one['content']}<|im_end|>" for one in turns)
    return names + mark + said + ("a" if cue else "")


def _messages(name: str, column: str) -> Made:
    """Return whole conversations, in the form of either of two columns."""
    keys = ("from", "value") if column == "conversations" else ("role", "content")
    rows, texts = [], []
    for row in made_rows("messages", LENGTHS):
        texts.append(Text("", _written(row["messages"], False)))
        rows.append({column: [dict(zip(keys, one.values(), strict=True)) for one in row["messages"]]})
    return rows, texts


def _whole(name: str, column: str, ends: Sequence[bool]) -> Made:
    """Return texts without a prompt, of which some have their end."""
    end, rows, texts = tiny_tokenizer().eos_token, [], []
    for number, row in enumerate(made_rows("texts", LENGTHS)):
        texts.append(Text("", row["text"] + end))
        rows.append({column: row["text"] + end * ends[number % len(ends)]})
    return rows, texts


class Limit(NamedTuple):
    """A longest row, and which end of longer ones stays."""

    length: int = LONGEST
    keep: str = "keep_start"


class Form(NamedTuple):
    """A form of row."""

    what: str
    make: Callable[[str], Made]
    needs: Sequence[str] = ()
    """Words of the code of a trainer that takes it, all of them."""
    options: Mapping[str, Any] = {}
    limit: Limit = Limit()


def _due(name: str, texts: Sequence[Text], begins: bool, limit: Limit) -> list[Seen]:
    """Return what a step sees of texts: without rows of which nothing is left to train, or pairs that are too long."""
    tokenizer = tiny_tokenizer()
    first = [tokenizer.convert_tokens_to_ids(END)] if begins else []
    kept = slice(limit.length) if limit.keep == "keep_start" else slice(-limit.length, None)
    found, wholes = [], []
    for one in texts:
        prompt, answer = (list(tokenizer(part)["input_ids"]) for part in one)
        ids, trains = [*first, *prompt, *answer], [0] * (len(first) + len(prompt)) + [1] * len(answer)
        if name in ALL_TRAIN:
            trains = [0] * len(ids)
        elif name == "Reward":
            trains = [0] * (len(ids) - 1) + [1]
        elif not any(trains[kept]):
            continue
        wholes.append(len(ids))
        trained = [token for token, one in list(zip(ids, trains, strict=True))[kept][1:] if one]
        found.append(Seen(tuple(ids[kept]), tuple(trained)))
    if name == "Reward":
        fits = [max(wholes[place // 2 * 2 :][:2]) <= limit.length for place in range(len(wholes))]
        found = [one for one, is_kept in zip(found, fits, strict=True) if is_kept]
    return sorted(found)


def _shown(name: str, form: Form, begins: bool, _: Any) -> list[str]:
    """Return what a step sees of rows otherwise than it is due.

    Raises:
        NotServed: the trainer does not read rows of this form.
    """
    if not all(code_has(one, find_trainer(name)[0]) for one in form.needs):
        raise NotServed(f"{name}Trainer of trl {release('trl')} does not read {form.what}")
    rows, texts = form.make(name)
    tokenizer = _tokenizer(begins)
    limit = form.limit._replace(length=form.limit.length + begins)
    limits: dict[str, Any] = {
        one: LONGEST for one in ("max_length", "max_completion_length") if takes(name, one)
    }
    if form.limit.length < LONGEST:
        limits["max_length"] = limit.length
    if takes(name, "truncation_mode") and name in LIMITS:
        limits["truncation_mode"] = limit.keep
    found = seen_of(name, rows, {**limits, **form.options}, tokenizer=tokenizer)
    if name in ALL_TRAIN:
        found = sorted(Seen(one.ids, ()) for one in found)
    due = _due(name, texts, begins, limit)
    text = tokenizer.decode
    said = [
        f"{text(one.ids)}, of which {text(one.trained)} is trained, for {text(right.ids)}"
        for one, right in zip(found, due, strict=False)
        if one != right
    ]
    return [*said, *([f"{len(found)} sequences for {len(due)}"] if len(found) != len(due) else [])][:2]


BOTH = (Limit(8), Limit(8, "keep_end"))
LIMITS: Mapping[str, Sequence[Limit]] = {
    **dict.fromkeys(("SFT", "DPO"), BOTH),
    "KTO": BOTH[:1],
    "Reward": (Limit(11),),
}
"""Longest rows: within and beyond those of the rows here; the prompt of one is as long as the shorter limit."""
WIDE = {"per_device_train_batch_size": 8}
"""One step of all answers of pairs."""
SINCE: Mapping[str, str] = {"SFT": "0.24", "DPO": "0.29", "Reward": "0.24"}
"""The first release whose rows are these by trainer; earlier ones write a second end or a second first token, train on
the cue of an answer, or leave out the prompt and the end of pairs."""
EARLIER: Mapping[tuple[str, str], str] = {
    ("SFT", "texts"): "0.17",
    ("SFT", "texts that end"): "0.17",
    ("SFT", "whole texts in a column of another name"): "1.16",
    ("DPO", "texts"): "0",
    ("DPO", "pairs without a prompt"): "0",
}
"""The same by form, of tokenizers without a first token."""
EXTRACTS: Mapping[str, Sequence[str]] = dict.fromkeys(("DPO", "KTO"), ("extract_prompt",))
"""Words of the code of trainers that take the prompt out of pairs."""
LIMITED = "1.9"
"""The first release that leaves out rows of which truncation leaves no answer."""
SOME, OTHERS = (True, False, True, False), (False, False, True, True)
ENDED: Sequence[tuple[str, Mapping[str, Sequence[bool]]]] = (
    ("texts", {}),
    ("texts that end", dict.fromkeys(ANSWERS, (True,))),
    ("texts of which some end", {"completion": SOME, "chosen": SOME, "rejected": OTHERS}),
)
CONVERSATIONS: Sequence[tuple[str, Mapping[str, Any], Mapping[str, Any], Sequence[str]]] = (
    ("conversations", {}, {}, ()),
    ("conversations with tools", {"tools": TOOLS}, {"tools": True}, ('"tools"',)),
    (
        "conversations with tools as JSON",
        {"tools": json.dumps(TOOLS)},
        {"tools": True},
        ("json.loads(tools)",),
    ),
    (
        "conversations with an option of the template",
        {"chat_template_kwargs": KWARGS},
        KWARGS,
        ("chat_template_kwargs",),
    ),
    (
        "conversations with tools and an option of the template",
        {"tools": TOOLS, "chat_template_kwargs": KWARGS},
        {"tools": True, **KWARGS},
        ('"tools"', "chat_template_kwargs"),
    ),
)
"""Columns of rows, what the template is given by them, and words of the code of a trainer that reads them."""


def _forms(name: str) -> Iterator[Form]:
    for what, ends in ENDED:
        yield Form(what, lambda own, ends=ends: _plain(own, ends))  # type: ignore[misc]
    for what, given, shown, words in CONVERSATIONS:
        yield Form(what, partial(_turns, given=given, shown=shown), words)
    for limit in LIMITS.get(name, ()):
        what = f"texts of which some are longer than {limit.length}, {limit.keep}"
        yield Form(what, partial(_plain, ends={}), limit=limit)
    if name == "SFT":
        for one in ("messages", "conversations"):
            yield Form(f"whole conversations in `{one}`", partial(_messages, column=one))
        yield Form("whole texts of which some end", partial(_whole, column="text", ends=SOME))
        column, call = {"dataset_text_field": "words"}, partial(_whole, column="words", ends=SOME)
        yield Form("whole texts in a column of another name", call, options=column)
    if name in ("DPO", "Reward", "KTO"):
        yield Form("pairs without a prompt", _joined, EXTRACTS.get(name, ()), WIDE)
    if name in ("DPO", "Reward"):
        joined = partial(_turns, given={}, shown={}, joins=True)
        yield Form("pairs of conversations without a prompt", joined, EXTRACTS.get(name, ()))
    if name == "KTO":
        yield Form("pairs", _pairs, ("unpair_preference_dataset",), WIDE)


def _since(name: str, form: Form, begins: bool) -> str:
    """Return the first release that gives what is due of a form."""
    if form.limit.length < LONGEST:
        return LIMITED
    every, own = SINCE.get(name, "0"), EARLIER.get((name, form.what))
    if own is None:
        return every
    return max(every, own, key=Version) if begins else own


def _rows_of(name: str) -> Sequence[Row]:
    return [
        Row(
            "texts",
            places(name),
            f"{form.what}{', a first token' if begins else ''}",
            or_refused(partial(_shown, name, form, begins)),
            [],
            _since(name, form, begins),
        )
        for form in _forms(name)
        for begins in (False, True)
    ]


SHOWN = by_trainer("shown", TRAINERS, _rows_of)
