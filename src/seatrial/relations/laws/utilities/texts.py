"""R31.texts: ids become texts again, and a tokenizer that was saved is the one that is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from seatrial.relations.laws.utilities.numbers import Numbers
from seatrial.relations.laws.utilities.plain import Arguments, Plain, add_laws, relation_of

TEXTS = relation_of(
    "texts",
    "texts-are-those-of-their-tokens",
    "Decoding joins tokens with the options that it is given, one row or several; a saved tokenizer keeps its tokens, "
    "sides, longest text and template.",
)
MARK = "<mark>"
ROWS: Sequence[Sequence[str]] = (
    (*"do n't , it 's", MARK, *" so ."),
    (MARK, *"ab ! we 've", MARK),
    tuple("c ? i 'm"),
)
SPACES = (
    (" .", "."), (" ?", "?"), (" !", "!"), (" ,", ","), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m"), (" 's", "'s"),
    (" 've", "'ve"), (" 're", "'re"),
)  # fmt: skip
"""What cleaning up replaces."""


def _decoded_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield rows with options; `own` is the tokenizer's, which holds where a call says nothing."""
    for own, said, skip in product((False, True), (None, False, True), (False, True)):
        options = {"skip_special_tokens": skip}
        yield ROWS, own, options if said is None else {**options, "clean_up_tokenization_spaces": said}
    yield ROWS[:1], True, {}
    yield ROWS, False, {}


def decoded(rows: Sequence[Sequence[str]], own: bool, options: Mapping[str, Any]) -> list[str]:
    """Return the texts of rows of tokens."""
    found = []
    for row in rows:
        text = "".join(token for token in row if token != MARK or not options.get("skip_special_tokens"))
        if options.get("clean_up_tokenization_spaces", own):
            for spaced, joined in SPACES:
                text = text.replace(spaced, joined)
        found.append(text)
    return found


READ = "ab<one>c<two>dlong"
KEPT: Sequence[Mapping[str, Any]] = (
    {},
    {"padding_side": "left", "truncation_side": "left", "model_max_length": 77},
    {"special": ("<one>", "<two>"), "padding_side": "right"},
    {"special": ("<one>",), "plain": ("long",), "chat_template": "{{ messages[0]['content'] }}"},
    {"plain": ("<two>", "long"), "pad_token": "<two>"},
    {"special": ("<one>", "<two>"), "older": True},
)


def _kept_cases(case: Numbers) -> Iterator[Arguments]:
    """Yield what a tokenizer is made with; `older`: its files name further special tokens as releases of 4 do."""
    yield from ((options,) for options in KEPT)


def kept(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a loaded tokenizer makes of a text, and its options."""
    special, plain = options.get("special", ()), options.get("plain", ())
    tokens, place = [], 0
    while place < len(READ):
        whole = next((one for one in (*special, *plain) if READ.startswith(one, place)), READ[place])
        tokens.append(whole)
        place += len(whole)
    left_out = {*special, options.get("pad_token")}
    return {
        "tokens": tokens,
        "text": READ,
        "text without special tokens": "".join(token for token in tokens if token not in left_out),
        "special": sorted(special),
        **{name: options[name] for name in options if name not in ("special", "plain", "older")},
    }


Message = Mapping[str, Any]
SAID: Sequence[Message] = ({"role": "user", "content": "a<b & é\n"}, {"role": "assistant", "content": "c"})
CALLED: Sequence[Message] = (
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"name": "f", "arguments": {"x": [1, "é"], "a": None}}],
    },
)
TEMPLATES: Sequence[tuple[str, Sequence[Message], Mapping[str, Any], str]] = (
    ("{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}", SAID, {},
     "a<b & é\n\n"),
    ("{{ messages | tojson }}", SAID, {},
     '[{"role": "user", "content": "a<b & é\\n"}, {"role": "assistant", "content": "c"}]'),
    ("{{ messages[1] | tojson(indent=1) }}", SAID, {}, '{\n "role": "assistant",\n "content": "c"\n}'),
    ("{% for m in messages %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ m.role }}{% endfor %}", SAID, {},
     "user"),
    ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}", SAID, {},
     "assistant"),
    ("{{ bos }}{{ messages | length }}{{ documents[0].text }}", SAID, {"bos": "<s>", "documents": [{"text": "d"}]},
     "<s>2d"),
    ("{{ messages[0].tool_calls[0].arguments | tojson }}", CALLED, {}, '{"x": [1, "é"], "a": null}'),
    ("{{ 'yes' if add_generation_prompt else 'no' }}", SAID, {"add_generation_prompt": True}, "yes"),
    ("{{ tools[0].function.name if tools else 'none' }}", SAID, {}, "none"),
    ("{{ tools[0].function.name }}", SAID, {"tools": [{"type": "function", "function": {"name": "g"}}]}, "g"),
)  # fmt: skip
"""Templates, messages and variables, with the text that is due by Jinja's rules and those of chat templates."""
MISSING: Sequence[tuple[str, Sequence[Message], Mapping[str, Any], str]] = (
    ("{{ 'given' if messages[0].content is defined else 'left out' }}", CALLED, {}, "left out"),
    ("{{ messages[0].role }}{% if 'name' in messages[0] %}{{ messages[0].name }}{% endif %}",
     ({"role": "user", "content": "a", "name": None},), {}, "user"),
)  # fmt: skip
"""The same of fields that are None, which are none."""


def _rendered_cases(table: Sequence[tuple[Any, ...]]) -> Callable[[Numbers], Iterable[Arguments]]:
    return lambda case: [row[:-1] for row in table]


def rendered(template: str, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
    """Return the text that is due of a row of the tables."""
    return next(text for *given, text in (*TEMPLATES, *MISSING) if given == [template, messages, options])


STREAMED = (
    "plain words, and more.", "two\nlines\n\nand a third \n", "ünï cödé wörds",
    "本日は 晴天 なり\n本 a", "<br> [x]*2*\t= 3",
    "a 日b\n\n c", "",
)  # fmt: skip


def _streamed_cases(case: Numbers) -> Iterable[Arguments]:
    return [(text, prompt, skip) for text in STREAMED for prompt in ("", "say: ") for skip in (False, True)]


def streamed(text: str, prompt: str, skip: bool) -> str:
    """Return what pieces that are streamed are together."""
    return text if skip else prompt + text


TEXT_FUNCTIONS: Sequence[Plain] = (
    Plain(
        name="decoded",
        law="texts of ids",
        suspects="an option of the tokenizer that a batch ignores, special tokens that stay",
        cases=_decoded_cases,
        right=decoded,
    ),
    Plain(
        name="decoded together",
        law="texts of a batch of ids",
        suspects="an option of the tokenizer, or of the call, that only rows by themselves have",
        cases=_decoded_cases,
        right=decoded,
    ),
    Plain(
        name="saved tokenizer",
        law="tokenizers that were saved",
        suspects="an added token that is lost or no longer special, an option that is not written",
        cases=_kept_cases,
        right=kept,
    ),
    Plain(
        name="rendered chat",
        law="templates",
        suspects="characters that are escaped, blanks around blocks, a variable that is not passed on",
        cases=_rendered_cases(TEMPLATES),
        right=rendered,
    ),
    Plain(
        name="rendered chat",
        law="templates, fields that are None",
        suspects="None that is written",
        cases=_rendered_cases(MISSING),
        right=rendered,
    ),
    Plain(
        name="streamed text",
        law="texts that are streamed",
        suspects="a piece twice or not at all, half a letter, a prompt that is shown or hidden otherwise",
        cases=_streamed_cases,
        right=streamed,
    ),
)
add_laws(TEXTS, TEXT_FUNCTIONS)
