"""Worked examples of Transformers' tokenizers that gain tokens, are changed, saved and loaded."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.encodings import pieces
from seatrial.targets.transformers.worked.tiny_vocabularies import tokenizer_of
from seatrial.targets.transformers.worked.tokenizers import ENDS, TABLE, answers, class_name, words_of

PLACE = "transformers:PreTrainedTokenizerFast"
Asked = Callable[[Any], Any]
"""Takes a tokenizer of pieces: see `worked.encodings.pieces`; its 14 tokens are numbered 0 to 13."""


def _row(name: str, asked: Asked, right: Any, *, since: str = "4.57", **options: Any) -> Row:
    return Row("texts", PLACE, name, lambda made: asked(pieces(made, **options)), right, since=since)


def _auto() -> Any:
    return find_name("transformers", ["transformers:AutoTokenizer"])


def _again(tokenizer: Any, loader: Any = None, **options: Any) -> Any:
    """Return a tokenizer after it was saved and loaded, with options of the second time.

    The path has no letters: early releases of 5 guess a model from those of a folder's path.
    """
    folder = Path(new_folder())
    tokenizer.save_pretrained(folder / "1")
    with contextlib.chdir(folder):
        return (loader or type(tokenizer)).from_pretrained("./1", **options)


def _token(content: str, **options: Any) -> Any:
    from tokenizers import AddedToken

    return AddedToken(content, **options)


def _read(tokenizer: Any, text: str, **options: Any) -> list[str]:
    return list(tokenizer.tokenize(text, **options))


def _changed(tokenizer: Any, **values: Any) -> Any:
    """Return a tokenizer whose attributes are set."""
    for name, value in values.items():
        setattr(tokenizer, name, value)
    return tokenizer


def _every(tokenizer: Any, asked: Asked) -> list[Any]:
    """Return answers of a tokenizer, of its copies, and of itself after it was saved and loaded in each way."""
    return [
        asked(one)
        for one in (
            tokenizer, copy.deepcopy(tokenizer),
            _again(tokenizer), _again(_again(tokenizer)), _again(tokenizer, _auto()),
        )
    ]  # fmt: skip


def _with(add: Callable[[Any], Any], asked: Asked) -> Asked:
    """Return answers in every form of a tokenizer that is changed first, if they are all the same."""

    def called(tokenizer: Any) -> Any:
        given = add(tokenizer)
        found = _every(tokenizer, asked)
        return [given, found[0]] if all(one == found[0] for one in found) else [given, *found]

    return called


def _edges(options: Mapping[str, Any]) -> Asked:
    """Return the tokens and the text of an added token between blanks, in words and at the ends."""
    token = "zz"

    def asked(tokenizer: Any) -> Any:
        return [_read(tokenizer, f"a {token} b{token}c {token}"), tokenizer("a zz b")["input_ids"][1:-1]]

    return _with(lambda t: t.add_tokens([_token(token, **options)]), asked)


def _specials(t: Any) -> Any:
    return [sorted(t.all_special_tokens), sorted(t.all_special_ids), t.mask_token_id, t.bos_token]


def _files(tokenizer: Any, **options: Any) -> list[str]:
    folder = Path(new_folder())
    tokenizer.save_pretrained(folder, **options)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _templates(chat_template: Any, **options: Any) -> Any:
    """Return the template of a tokenizer that was saved, and which files that made."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = chat_template
    folder = Path(new_folder())
    tokenizer.save_pretrained(folder, **options)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jinja"))
    config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    loaded = type(tokenizer).from_pretrained(folder)
    return [
        names,
        config.get("chat_template"),
        loaded.chat_template,
        _auto().from_pretrained(folder).chat_template,
    ]


NAMED = {"default": "d {{ x }}\n", "tool_use": "t", "rag": "r"}
SAVED_NAMES = [
    "additional_chat_templates/rag.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.jinja",
]
LISTED = [{"name": name, "template": text} for name, text in NAMED.items()]


def _loaded_with(**options: Any) -> Asked:
    """Return an answer of a loaded tokenizer that gets options."""
    return lambda t: [
        [
            one.padding_side,
            one.truncation_side,
            one.model_max_length,
            one.pad_token,
            one("a")["input_ids"],
            len(one),
        ]
        for one in (_again(t, **options), _again(t, _auto(), **options), _again(_again(t, **options)))
    ]


ADDED: Sequence[Row] = (
    _row("a token that is added", _edges({}), [1, [["a", "zz", "b", "zz", "c", "zz"], [5, 14, 6]]]),
    _row("a token that takes blanks before it", _edges({"lstrip": True}),
         [1, [["a", " zz", "b", "zz", "c", " zz"], [5, 14, 6]]]),
    _row("a token of whole words", _edges({"single_word": True}),
         [1, [["a", "zz", "[UNK]", "zz"], [5, 14, 6]]]),
    _row("a special token that takes blanks", _edges({"special": True, "rstrip": True, "normalized": False}),
         [1, [["a", "zz ", "b", "zz", "c", "zz"], [5, 14, 6]]]),
    _row("offsets of tokens that take blanks", lambda t: [
        t.add_tokens([_token("zz", lstrip=True), _token("yy", rstrip=True)]),
        t("a zz yy b", return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]],
        [2, [(0, 1), (1, 4), (5, 8), (8, 9)]]),
    _row("tokens that are added twice", lambda t: [
        t.add_tokens(["x", "y"]), t.add_tokens(["y", "x", "z"]), t.add_tokens("w"), t.add_tokens([]),
        t.convert_tokens_to_ids(["x", "y", "z", "w"]), len(t), t.vocab_size, sorted(t.get_added_vocab())[-3:]],
        [2, 1, 1, 0, [14, 15, 16, 17], 18, 14, ["x", "y", "z"]]),
    _row("special tokens that are added", _with(
        lambda t: t.add_special_tokens({"mask_token": "<m>", "bos_token": "<b>"}), _specials),
        [2, [["<b>", "<m>", "[CLS]", "[PAD]", "[SEP]", "[UNK]"], [0, 1, 2, 3, 14, 15], 14, "<b>"]]),
    _row("special tokens that are added in turn", _with(
        lambda t: [t.add_special_tokens({"mask_token": "<m>"}), t.add_special_tokens({"mask_token": "<n>"}),
                   t.add_special_tokens({"mask_token": "<m>"}), t.add_special_tokens({})],
        lambda t: [t.mask_token, t.mask_token_id, len(t), _read(t, "a<m><n>")]),
        [[1, 1, 0, 0], ["<m>", 14, 16, ["a", "<m>", "<n>"]]]),
    _row("further special tokens", _with(
        lambda t: t.add_special_tokens({"additional_special_tokens": ["<x>", _token("<y>", lstrip=True)]}),
        lambda t: [_read(t, "a <y><x>b"), t.decode(t("a<x>b")["input_ids"], skip_special_tokens=True),
                   t.convert_tokens_to_ids(["<x>", "<y>"]), "<x>" in t.all_special_tokens]),
        [2, [["a", " <y>", "<x>", "b"], "a b", [14, 15], True]]),
    _row("further special tokens that follow others", lambda t: [
        t.add_special_tokens({"additional_special_tokens": ["<x>"]}),
        t.add_special_tokens({"additional_special_tokens": ["<y>"]}, replace_extra_special_tokens=False),
        sorted(set(t.all_special_tokens) - {"[CLS]", "[SEP]", "[PAD]", "[UNK]"}),
        t.add_special_tokens({"additional_special_tokens": ["<z>"]}),
        sorted(set(t.all_special_tokens) - {"[CLS]", "[SEP]", "[PAD]", "[UNK]"}), _read(t, "<x>a<z>")],
        [1, 1, ["<x>", "<y>"], 1, ["<z>"], ["<x>", "a", "<z>"]], since="5"),
    _row("tokens set by name and id", lambda t: [
        _changed(t, eos_token="e").eos_token_id, _changed(t, pad_token_id=12).pad_token,
        t(["a", "a b"], padding=True)["input_ids"], _changed(t, mask_token=None).mask_token_id],
        [11, ".", [[2, 5, 3, 12], [2, 5, 6, 3]], None]),
    _row("tokens of other names", lambda t: [
        [one.image_token, one.image_token_id, one.special_tokens_map["image_token"], "<i>" in one.all_special_tokens,
         _read(one, "a<i>b")] for one in (t, _again(t), _again(t, _auto()))],
        [["<i>", 14, "<i>", True, ["a", "<i>", "b"]]] * 3, since="5", image_token="<i>"),
    _row("tokens of other names in a table", lambda t: [
        [one.image_token, one.image_token_id, _read(one, "a<i>b")] for one in (t, _again(t), _again(t, _auto()))],
        [["<i>", 14, ["a", "<i>", "b"]]] * 3, since="5", extra_special_tokens={"image_token": "<i>"}),
    _row("special tokens that are split", lambda t: [
        _read(t, "a[SEP]"), _read(t, "a[SEP]", split_special_tokens=True), _read(t, "a[SEP]"),
        t("[SEP]", split_special_tokens=True)["input_ids"], t("[SEP]")["input_ids"]],
        [["a", "[SEP]"], ["a", "[UNK]", "[UNK]", "[UNK]"], ["a", "[SEP]"], [2, 1, 1, 1, 3], [2, 3, 3]]),
    _row("a tokenizer that splits special tokens", lambda t: [
        [_read(one, "a[SEP]"), _read(one, "a[SEP]", split_special_tokens=False), _read(one, "a[SEP]")]
        for one in (t, _again(t), _again(t, _auto()))],
        [[["a", "[UNK]", "[UNK]", "[UNK]"], ["a", "[SEP]"], ["a", "[UNK]", "[UNK]", "[UNK]"]]] * 3,
        split_special_tokens=True),
    _row("a token in several places", lambda t: [
        t.add_special_tokens({"pad_token": "[SEP]"}), t.pad_token_id, t.sep_token_id, t.all_special_ids.count(3),
        t.get_special_tokens_mask([3, 0], already_has_special_tokens=True)], [0, 3, 3, 1, [1, 0]]),
)  # fmt: skip
SIDES: Mapping[str, Any] = {"padding_side": "left", "truncation_side": "left", "model_max_length": 9}
SAVED: Sequence[Row] = (
    _row("options that are kept", _with(lambda t: None, lambda t: [
        t.padding_side, t.truncation_side, t.model_max_length, t.clean_up_tokenization_spaces, t.model_input_names,
        t(["a", "a b c"], padding=True, truncation=True, max_length=4)["input_ids"]]),
        [None, ["left", "left", 9, True, ["input_ids"], [[0, 2, 5, 3], [2, 6, 7, 3]]]],
        clean_up_tokenization_spaces=True, **{**SIDES, "model_input_names": ["input_ids"]}),
    _row("options that are changed before they are saved", lambda t: [
        [one.padding_side, one.model_max_length, one.truncation_side] for one in (
            _again(_changed(t, padding_side="left", model_max_length=6, truncation_side="left")), _again(t, _auto()))],
        [["left", 6, "left"]] * 2, padding_side="right", truncation_side="right"),
    _row("options given when it is loaded", _loaded_with(**SIDES, pad_token="e"),
         [["left", "left", 9, "e", [2, 5, 3], 14]] * 3),
    _row("tokens given when it is loaded", lambda t: [
        [one.mask_token, one.mask_token_id, len(one), _read(one, "a<m>")]
        for one in (_again(t, mask_token="<m>"), _again(_again(t, mask_token="<m>"), _auto()))],
        [["<m>", 14, 15, ["a", "<m>"]]] * 2),
    _row("padding and truncation that an earlier call set", lambda t: [
        t(["a", "a b c"], padding=True, truncation=True, max_length=4)["input_ids"][1],
        *[[one("a b c")["input_ids"], one("a")["input_ids"]] for one in (_again(t), copy.deepcopy(t))]],
        [[2, 5, 6, 3], [[2, 5, 6, 7, 3], [2, 5, 3]], [[2, 5, 6, 7, 3], [2, 5, 3]]]),
    _row("files of a prefix", partial(_files, filename_prefix="my"), ["my-tokenizer.json", "my-tokenizer_config.json"],
         since="5"),
    _row("files", _files, ["tokenizer.json", "tokenizer_config.json"], since="5"),
    _row("a template in a file", lambda t: _templates("a {{ b }}\n\n"),
         [["chat_template.jinja"], None, "a {{ b }}\n\n", "a {{ b }}\n\n"]),
    _row("a template in the configuration", lambda t: _templates("a {{ b }}\n", save_jinja_files=False),
         [[], *["a {{ b }}\n"] * 3]),
    _row("several templates in files", lambda t: _templates(dict(NAMED)), [SAVED_NAMES, None, NAMED, NAMED]),
    _row("several templates in the configuration", lambda t: _templates(dict(NAMED), save_jinja_files=False),
         [[], LISTED, NAMED, NAMED]),
    _row("one template under the usual name", lambda t: _templates({"default": "d"}),
         [["chat_template.jinja"], None, "d", "d"]),
    _row("templates without the usual name", lambda t: _templates({"rag": "r"}),
         [["additional_chat_templates/rag.jinja"], None, {"rag": "r"}, {"rag": "r"}]),
    _row("no template", lambda t: _templates(None), [[], None, None, None]),
    _row("a template that leaves its folder", lambda t: _refused_template(), "ValueError", since="5.8.2"),
    _row("a template given when it is made", lambda t: [
        _again(t).chat_template, pieces(type(t), chat_template=LISTED).chat_template], ["x", NAMED], chat_template="x"),
    _row("what a tokenizer says of itself", lambda t: [
        "vocab_size=14" in repr(t), "padding_side='left'" in repr(t), "'cls_token': '[CLS]'" in repr(t)], [True] * 3,
        padding_side="left"),
    _row("sides that are none", lambda t: _named_error(lambda: pieces(type(t), padding_side="up")), "ValueError"),
    _row("truncation sides that are none", lambda t: _named_error(lambda: pieces(type(t), truncation_side="up")),
         "ValueError"),
)  # fmt: skip


def _named_error(call: Callable[[], Any]) -> str:
    try:
        return f"no error: {call()}"
    except (ValueError, TypeError) as error:
        return type(error).__name__


def _refused_template() -> str:
    return _named_error(lambda: _templates({"../out": "x"}))


def _trained(tokenizer: Any) -> Any:
    """Return what a tokenizer of the same kind gives that was trained on other texts."""
    made = tokenizer.train_new_from_iterator(
        [["ef ef gh", "ef"], ["gh"]], 60, new_special_tokens=["<n>"], special_tokens_map={"[SEP]": "[E]"}
    )
    text = made("ef gh", "ef")["input_ids"]
    return [
        made.convert_ids_to_tokens(text),
        made.sep_token,
        made.cls_token,
        _read(made, "<n>ef"),
        made.padding_side,
    ]


TRAINED = (
    _row("a tokenizer that is trained again", _trained, [
        ["[CLS]", "ef", "gh", "[E]", "ef", "[E]"], "[E]", "[CLS]", ["<n>", "ef"], "left"], padding_side="left"),
)  # fmt: skip


def _differences(kind: str, options: Mapping[str, Any], made: Any) -> list[str]:
    """Return what a tokenizer no longer answers as before after it is saved and loaded, by its class or any."""
    tokenizer = tokenizer_of(made, kind, options)
    due = {**answers(tokenizer), "words": words_of(tokenizer)}
    wrong = []
    for what, loader in (("its class", made), ("AutoTokenizer", _auto())):
        loaded = _again(tokenizer, loader)
        found = {**answers(loaded), "words": words_of(loaded), "class": type(loaded).__name__}
        wrong += [
            f"{what}, {name}: {found.get(name)}, {value} is due"
            for name, value in {**due, "class": type(tokenizer).__name__}.items()
            if found.get(name) != value
        ]
    return wrong


LOST = KnownFailure(
    "options that the class takes by other names than those of every tokenizer are not read again",
    finding="Transformers: options of tokenizers that are lost when they are saved",
)
"""Of a tokenizer that is saved and loaded, by class and options."""
LOSING: Mapping[str, Sequence[str]] = {
    "Bertweet": ("",),
    "Clvp": ("",),
    "CodeLlama": ("add_bos_token", "fill_token"),
    "GPTNeoX": ("add_bos_token",),
    "Llama": ("legacy",),
    "Splinter": ("question_token",),
    "Wav2Vec2CTC": ("word_delimiter_token",),
}
"""Classes and beginnings of the options that they lose; every option, and merges, where it is empty."""
UNSAVED = ("BertTokenizerLegacy: do_basic_tokenize",)
"""Which cannot be saved at all."""


def _of_classes() -> Iterator[Row]:
    for name, (kind, table) in TABLE.items():
        for options in ({}, *table):
            said = ", ".join(f"{one}={value}" for one, value in options.items()) or "no options"
            if f"{name}: {said}".startswith(UNSAVED):
                continue
            lost = any(said.startswith(one) for one in LOSING.get(name, ()))
            call = partial(_differences, kind, options)
            since = "5.0.1" if options is ENDS else "5"  # which refuses an end where there is no start
            yield Row(
                "texts", f"transformers:{class_name(name)}", f"saved, {said}", call, [], since=since,
                known=LOST if lost else None,
            )  # fmt: skip


def _rembert(made: Any) -> Any:
    """Return the ids of a text and a pair of a tokenizer that is made of a vocabulary, and of it when loaded."""
    names = ("[CLS]", "[SEP]", "<unk>", "<pad>", "[MASK]", "▁", "a")
    tokenizer = made(vocab=[(name, -float(number)) for number, name in enumerate(names)])
    return [[one("a")["input_ids"], one("a", "a")["input_ids"]] for one in (tokenizer, _again(tokenizer))]


REMBERT = Row(
    "texts",
    "transformers:RemBertTokenizer",
    "special tokens",
    _rembert,
    [[[0, 5, 6, 1], [0, 5, 6, 1, 5, 6, 1]]] * 2,
    since="5",
    known=KnownFailure(
        "the frame of texts is replaced by none",
        finding="Transformers: places of special tokens of RemBERT",
    ),
)
SAVED_ROWS: Sequence[Row] = (*ADDED, *SAVED, *TRAINED, *_of_classes(), REMBERT)
