"""Worked examples of processors of text, of tokenizers in Python, and of the class that a folder gives."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.relations.laws.utilities.encodings import BETWEEN, ENCODING_FUNCTIONS, FIRST, PADDING
from seatrial.targets.common.target import find_name
from seatrial.targets.common.tiny import CHAT_TEMPLATE, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.encodings import pieces
from seatrial.targets.transformers.worked.templates import CHAT, MARKED, PLAIN
from seatrial.targets.transformers.worked.tiny_vocabularies import tokenizer_of

PROCESSOR = "transformers:ProcessorMixin"
Asked = Callable[[Any], Any]
"""Takes a processor of texts whose tokenizer is one of pieces: see `worked.encodings.pieces`."""


def _kinds() -> tuple[Any, Any]:
    """Return a processor class of texts alone, and the class of its options."""
    from transformers.processing_utils import ProcessingKwargs, ProcessorMixin

    class TextOptions(ProcessingKwargs, total=False):
        _defaults = {  # type: ignore[misc]  # noqa: RUF012  of Transformers
            "text_kwargs": {"padding": "max_length", "max_length": 6, "return_special_tokens_mask": True},
            "common_kwargs": {"return_tensors": "np"},
        }

    class TextProcessor(ProcessorMixin):
        """A processor of texts."""

        attributes = ["tokenizer"]  # noqa: RUF012  of Transformers
        tokenizer_class = "AutoTokenizer"
        valid_processor_kwargs = TextOptions
        valid_kwargs: Sequence[str] = ()

        def __init__(self, tokenizer: Any = None, chat_template: Any = None, **more: Any) -> None:
            super().__init__(tokenizer, chat_template=chat_template, **more)  # type: ignore[no-untyped-call]

        def __call__(self, text: Any = None, images: Any = None, **more: Any) -> Any:
            kind: Any = TextOptions
            merged = self._merge_kwargs(kind, tokenizer_init_kwargs=self.tokenizer.init_kwargs, **more)
            given = {
                name: value
                for name, value in merged["text_kwargs"].items()
                if not name.startswith(("return_mm", "return_text"))
            }
            return self.tokenizer(text, **given)

    return TextProcessor, TextOptions


def _row(
    name: str, asked: Asked, right: Any, *, since: str = "4.57", template: Any = None, **options: Any
) -> Row:
    def call(found: Any) -> Any:
        made: Any = find_name("transformers", ["transformers:PreTrainedTokenizerFast"])
        return asked(_kinds()[0](pieces(made, **options), chat_template=template))

    return Row("texts", PROCESSOR, name, call, right, since=since)


def _merged(processor: Any, **given: Any) -> Any:
    """Return the options of texts and of images that a processor takes."""
    kept = copy.deepcopy(given)
    found = processor._merge_kwargs(
        _kinds()[1], tokenizer_init_kwargs=processor.tokenizer.init_kwargs, **given
    )
    if given != kept:
        return "the caller's options are changed"
    names = ("padding", "max_length", "return_tensors", "padding_side", "truncation")
    texts = {name: value for name, value in found["text_kwargs"].items() if name in names}
    return [texts, {name: value for name, value in found["images_kwargs"].items() if name in names}]


DEFAULTS = {"padding": "max_length", "max_length": 6, "return_tensors": "np"}


def _saved(processor: Any) -> Any:
    """Return the templates and ids of a processor that was saved and loaded, and its files of templates."""
    folder = Path(new_folder())
    processor.save_pretrained(folder)
    loaded = type(processor).from_pretrained(folder)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.jinja"))
    return [
        loaded.chat_template, loaded.tokenizer.chat_template, loaded.tokenizer("a b")["input_ids"],
        loaded.tokenizer.padding_side, files,
    ]  # fmt: skip


def _error(call: Callable[[], Any]) -> str:
    try:
        return f"no error: {call()}"
    except (ValueError, TypeError, KeyError) as error:
        return type(error).__name__


def _chat(processor: Any, chat: Any = CHAT, **options: Any) -> Any:
    return processor.apply_chat_template(copy.deepcopy(chat), **options)


def _letters(template: Any, **options: Any) -> Any:
    """Return the tokens and the mask of a conversation of a processor whose tokenizer has letters."""
    processor = _kinds()[0](tiny_tokenizer(padding_side="right"), chat_template=template)
    given = {"padding": False, "max_length": None, "return_tensors": None}
    found = _chat(processor, tokenize=True, return_dict=True, processor_kwargs=given, **options)
    return {name: [list(row) for row in value] for name, value in found.items()}


NAMED = {"default": "d", "other": "o"}
IMAGES = [{"role": "user", "content": [
    {"type": "image_url", "image_url": {"url": "u"}}, {"type": "image_url", "image_url": "v"}, {"type": "text",
    "text": "x"}
]}]  # fmt: skip
PROCESSORS: Sequence[Row] = (
    _row("options of a processor", lambda p: _merged(p)[0], DEFAULTS),
    _row("options of a call", lambda p: [
        _merged(p, padding=True, max_length=9)[0], _merged(p, text_kwargs={"padding": False, "truncation": True})[0],
        _merged(p, common_kwargs={"return_tensors": "pt"})[0], _merged(p, return_tensors="pt")[0]],
        [{**DEFAULTS, "padding": True, "max_length": 9}, {**DEFAULTS, "padding": False, "truncation": True},
         {**DEFAULTS, "return_tensors": "pt"}, {**DEFAULTS, "return_tensors": "pt"}], since="5.0.1"),
    _row("options of a tokenizer", lambda p: _merged(p)[0], {**DEFAULTS, "padding_side": "left"}, padding_side="left"),
    _row("options that a tokenizer and a call have", lambda p: _merged(p, padding_side="right")[0],
         {**DEFAULTS, "padding_side": "right"}, padding_side="left"),
    _row("options of a tokenizer that is changed", lambda p: [
        setattr_of(p.tokenizer, "padding_side", "right"), _merged(p)[0]["padding_side"]], ["right", "right"],
        padding_side="left"),
    _row("options that are given twice", lambda p: _error(lambda: _merged(p, padding=True,
    text_kwargs={"padding": True})),
         "ValueError"),
    _row("options of several kinds of inputs", lambda p: _merged(p, return_tensors="pt")[1], {"return_tensors": "pt"}),
    _row("calls that follow one another", lambda p: [
        p("a", padding=False, return_tensors=None)["input_ids"], p("a", return_tensors=None)["input_ids"],
        p("a", text_kwargs={"padding_side": "left"}, return_tensors=None)["input_ids"],
        p("a", return_tensors=None)["input_ids"]],
        [[2, 5, 3], [2, 5, 3, 0, 0, 0], [0, 0, 0, 2, 5, 3], [2, 5, 3, 0, 0, 0]], since="5.8.2"),
    _row("texts of ids", lambda p: [p.decode([2, 5, 3]), p.decode([2, 5], skip_special_tokens=True),
                                    p.batch_decode([[5], [6, 3]], skip_special_tokens=True)],
         ["[CLS] a [SEP]", "a", ["a", "b"]]),
    _row("fields", lambda p: list(p.model_input_names), ["input_ids", "token_type_ids", "attention_mask"]),
    _row("parts that are missing or too many", lambda p: [
        _error(lambda: type(p)(p.tokenizer, other=1)), _error(lambda: type(p)("no tokenizer"))], ["TypeError"] * 2),
    _row("saved and loaded", _saved, ["t {{ x }}\n", "t {{ x }}\n", [2, 5, 6, 3], "left", ["chat_template.jinja"]],
         template="t {{ x }}\n", padding_side="left", since="5"),
    _row("saved and loaded with several templates", lambda p: _saved(p)[0::4],
         [NAMED, ["additional_chat_templates/other.jinja", "chat_template.jinja"]], template=dict(NAMED)),
    _row("saved and loaded without a template", lambda p: _saved(p)[0::4], [None, []]),
    _row("a template", lambda p: [_chat(p), _chat(p, [CHAT, CHAT[:1]]), _chat(p,
    chat_template="{{ messages[0].role }}")],
         ["u:ab;a:cde;", ["u:ab;a:cde;", "u:ab;"], "user"], template=PLAIN),
    _row("templates by name", lambda p: [_chat(p), _chat(p, chat_template="other"), _chat(p, chat_template="x")],
         ["d", "o", "x"], template=dict(NAMED)),
    _row("no template", lambda p: _error(lambda: _chat(p)), "ValueError"),
    _row("a prompt and a message to be continued", lambda p: [
        _chat(p, add_generation_prompt=True), _chat(p, continue_final_message=True),
        _error(lambda: _chat(p, continue_final_message=True, add_generation_prompt=True))],
        ["<|im_start|>user\nab<|im_end|><|im_start|>assistant\ncde<|im_end|><|im_start|>assistant\n",
         "<|im_start|>user\nab<|im_end|><|im_start|>assistant\ncde", "ValueError"], template=CHAT_TEMPLATE),
    _row("variables of a template", lambda p: _chat(p, x="y", documents=[{"text": "d"}]), "yd[SEP]",
         template="{{ x }}{{ documents[0].text }}{{ sep_token }}", since="5"),
    _row("addresses of images", lambda p: _chat(p, IMAGES), "imageu;imagev;text;",
         template="{% for m in messages[0].content %}{{ m.type }}{{ m.url }};{% endfor %}", since="5.0.1"),
    Row("texts", PROCESSOR, "masks of the assistant", lambda made: [
        _letters(MARKED, chat=[CHAT], return_assistant_tokens_mask=True)["assistant_masks"],
        _letters(MARKED, chat=[CHAT, CHAT + CHAT[:1]], return_assistant_tokens_mask=True)["assistant_masks"]],
        [[[0] * 4 + [1] * 4], [[0] * 4 + [1] * 4, [0] * 4 + [1] * 4 + [0] * 3]], since="5.24"),
)  # fmt: skip


def text_processors() -> Any:
    """Return a class of processors of texts alone."""
    return _kinds()[0]


def setattr_of(one: Any, name: str, value: Any) -> Any:
    """Set an attribute, and return it."""
    setattr(one, name, value)
    return getattr(one, name)


PYTHON = "transformers:PreTrainedTokenizer"


def _in_python(made: Any, **options: Any) -> Any:
    """Return a tokenizer in Python whose letters are tokens, with tokens before, between and after texts."""

    class Letters(made):  # type: ignore[misc]
        """Letters are tokens."""

        def __init__(self, **more: Any) -> None:
            self.letters = {one: at for at, one in enumerate(["<unk>", *"abcdefghijklmnopqrstuvwxyz "])}
            super().__init__(**more)

        @property
        def vocab_size(self) -> int:
            return len(self.letters)

        def get_vocab(self) -> dict[str, int]:
            return {**self.letters, **self.added_tokens_encoder}

        def _tokenize(self, text: str, **more: Any) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return self.letters.get(token, 0)

        def _convert_id_to_token(self, index: int) -> str:
            found: str = next(one for one, at in self.letters.items() if at == index)
            return found

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens)

        def build_inputs_with_special_tokens(
            self, token_ids_0: list[int], token_ids_1: list[int] | None = None
        ) -> list[int]:
            found = [self.cls_token_id, *token_ids_0, self.sep_token_id]
            return found if token_ids_1 is None else [*found, *token_ids_1, self.sep_token_id]

        def get_special_tokens_mask(
            self, token_ids_0: list[int], token_ids_1: Any = None, already_has_special_tokens: bool = False
        ) -> list[int]:
            if already_has_special_tokens:
                return [int(one in self.all_special_ids) for one in token_ids_0]
            found = [1, *[0] * len(token_ids_0), 1]
            return found if token_ids_1 is None else [*found, *[0] * len(token_ids_1), 1]

        def create_token_type_ids_from_sequences(
            self, token_ids_0: list[int], token_ids_1: list[int] | None = None
        ) -> list[int]:
            found = [0] * (len(token_ids_0) + 2)
            return found if token_ids_1 is None else [*found, *[1] * (len(token_ids_1) + 1)]

    tokens = {"unk_token": "<unk>", "cls_token": FIRST, "sep_token": BETWEEN, "pad_token": PADDING}
    return Letters(**{**tokens, **options})


def _options_in_python(number: int, made: Any) -> list[str]:
    """Return the options with which a tokenizer in Python does not give what plain lists do."""
    plain = ENCODING_FUNCTIONS[number]
    wrong = []
    for texts, options in plain.cases(None):  # type: ignore[arg-type]
        if options.get("return_overflowing_tokens") or not options.get("add_special_tokens", True):
            continue  # which have another form there, and types of one text
        due = plain.right(texts, options)
        own = {name: options[name] for name in ("truncation_side", "model_max_length") if name in options}
        tokenizer = _in_python(made, padding_side=options.get("padding_side", "right"), **own)
        given = {name: value for name, value in options.items() if name not in (*own, "padding_side")}
        if number:
            rows = [{**row, "input_ids": tokenizer.convert_tokens_to_ids(row["input_ids"])} for row in texts]
            found = tokenizer.pad(rows, **given)
        else:
            firsts, seconds = [list(column) for column in zip(*texts, strict=True)]
            pairs = (firsts,) if seconds[0] is None else (firsts, seconds)
            found = tokenizer(*pairs, return_token_type_ids=True, return_special_tokens_mask=True, **given)
        shown = {name: [list(row) for row in value] for name, value in found.items()}
        shown["input_ids"] = [tokenizer.convert_ids_to_tokens(row) for row in shown["input_ids"]]
        wrong += [
            f"{options}, {name}: {shown.get(name)}, {value} is due"
            for name, value in due.items()
            if shown.get(name) != value
        ]
    return wrong[:5]


def _added_in_python(made: Any) -> Any:
    from tokenizers import AddedToken

    one = _in_python(made)
    added = [one.add_tokens(["ab", AddedToken("<x>", lstrip=True)]), one.add_tokens(["ab"]),
             one.add_special_tokens({"mask_token": "<m>"})]  # fmt: skip
    return [
        added, one.tokenize("cab  <x>d<m>ab"), one.convert_tokens_to_ids(["ab", "<x>", "<m>", "?"]), len(one),
        one.decode(one("cab<m>d")["input_ids"], skip_special_tokens=True), one.vocab_size,
        one.tokenize("a<m>", split_special_tokens=True), one("cab", "d", add_special_tokens=False)["input_ids"],
    ]  # fmt: skip


IN_PYTHON: Sequence[Row] = (
    Row("texts", PYTHON, "options of calls", lambda made: _options_in_python(0, made), [], since="4.57"),
    Row("texts", PYTHON, "options of padding", lambda made: _options_in_python(1, made), [], since="4.57"),
    Row("texts", PYTHON, "tokens that are added", _added_in_python, [
        [2, 0, 1], ["c", "ab", "<x>", "d", "<m>", "ab"], [31, 32, 33, 0], 34, "cabd", 28,
        ["a", "<", "m", ">"], [3, 31, 4]], since="5"),
)  # fmt: skip
AUTO = "transformers:AutoTokenizer"


def _of_folder(
    auto: Any, kind: str, name: str, options: Mapping[str, Any], change: Mapping[str, Any], **given: Any
) -> Any:
    """Return the class and answers of the tokenizer of a folder, whose configurations are changed first."""
    made: Any = find_name("transformers", [f"transformers:{name}"])
    folder = Path(new_folder())
    tokenizer_of(made, kind, options).save_pretrained(folder / "1")
    path = folder / "1" / "tokenizer_config.json"
    written = json.loads(path.read_text(encoding="utf-8"))
    kept = {
        key: value for key, value in {**written, **change.get("tokenizer", {})}.items() if value is not None
    }
    path.write_text(json.dumps(kept), encoding="utf-8")
    if "model" in change:
        (folder / "1" / "config.json").write_text(json.dumps(change["model"]), encoding="utf-8")
    with contextlib.chdir(folder):
        found = auto.from_pretrained("./1", **given)
    return [type(found).__name__, found.tokenize("Hello abc"), found.padding_side]


def _of_given(given: Mapping[str, Any], auto: Any) -> Any:
    return _of_folder(auto, **given)


NO_CLASS = {"tokenizer": {"tokenizer_class": None}}
HELLO = ["hello", "abc"]
BERT: Mapping[str, Any] = {"kind": "words", "name": "BertTokenizer", "options": {}}
LLAMA: Mapping[str, Any] = {"kind": "metaspace", "name": "LlamaTokenizer", "options": {}}
SAID = ["▁", "H", "e", "ll", "o▁", "abc"]
AUTOMATIC: Sequence[Row] = tuple(
    Row("texts", AUTO, name, partial(_of_given, given), right, since="5.8.2")
    for name, given, right in (
        ("by the tokenizer's configuration", {**BERT, "change": {}}, ["BertTokenizer", HELLO, "right"]),
        ("by the model's type", {**BERT, "change": {**NO_CLASS, "model": {"model_type": "bert"}}},
         ["BertTokenizer", HELLO, "right"]),
        ("by the model's configuration", {**BERT, "change": {**NO_CLASS, "model": {
            "model_type": "bert", "tokenizer_class": "MPNetTokenizer"}}}, ["MPNetTokenizer", HELLO, "right"]),
        ("by the tokenizer's configuration of an older name", {**BERT, "change": {
            "tokenizer": {"tokenizer_class": "BertTokenizerFast"}}}, ["BertTokenizer", HELLO, "right"]),
        ("by a name", {**BERT, "change": NO_CLASS, "tokenizer_type": "bert"}, ["BertTokenizer", HELLO, "right"]),
        ("options", {**BERT, "change": {}, "padding_side": "left"}, ["BertTokenizer", HELLO, "left"]),
        ("Llama", {**LLAMA, "change": {}}, ["LlamaTokenizer", SAID, "left"]),
        ("a general class", {**BERT, "change": {"tokenizer": {"tokenizer_class": "PreTrainedTokenizerFast"}}},
         ["TokenizersBackend", HELLO, "right"]),
    )
)  # fmt: skip
PROCESSOR_ROWS: Sequence[Row] = (*PROCESSORS, *IN_PYTHON, *AUTOMATIC)
