"""Worked examples of chat templates: what is trained on, white space, arguments, and templates that are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from refrl.models.byte_tokenizer import SPECIAL_TOKEN_IDS
from refrl.models.chat import BYTE_CHAT_TEMPLATE, ChatEncoder
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import make_byte_tokenizer
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused

PAD, BOS, EOS = SPECIAL_TOKEN_IDS.values()
ANSWERS = "{% for m in messages %}[{{ m['content'] }}{% if m['role'] == 'assistant' %}<|eos|>{% endif %}{% endfor %}"
"""Opens each turn with a bracket, and ends those of the assistant alone."""
OPENS = "{% if add_generation_prompt %}[{% endif %}"


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_built_in()
    yield from _of_white_space()
    yield from _of_arguments()
    yield from _of_refusals()


def _ids(*parts: str | int) -> list[int]:
    return [one for part in parts for one in ([part] if isinstance(part, int) else part.encode())]


def _talk(*contents: str) -> list[dict[str, str]]:
    """Return turns of the user and the assistant alternately."""
    roles = ("user", "assistant")
    return [{"role": roles[place % 2], "content": text} for place, text in enumerate(contents)]


def _row(template: str, talk: Sequence[dict[str, str]], **arguments: Any) -> tuple[list[int], list[int]]:
    return ChatEncoder(make_byte_tokenizer(), template, arguments).training_row(talk)


def _trained(template: str, talk: Sequence[dict[str, str]], **arguments: Any) -> list[int]:
    """Return the ids that are trained on."""
    ids, mask = _row(template, talk, **arguments)
    return [one for one, on in zip(ids, mask, strict=True) if on]


def _of_built_in() -> Iterator[WorkedExample]:
    plain = PromptEncoder(make_byte_tokenizer(), chat_template="byte")
    system = PromptEncoder(make_byte_tokenizer(), chat_template="byte", system_prompt="be")
    asked = _ids(BOS, "user\nhi", EOS, "assistant\n")
    yield example("a prompt of the built-in template", [tuple(asked)], plain.prompts, ["hi"])
    yield example(
        "a prompt with a system's", [tuple(_ids(BOS, "system\nbe", EOS, *asked[1:]))], system.prompts, ["hi"]
    )
    yield example("its answers", [tuple(_ids("a ", EOS)), (EOS,)], plain.answers, ["hi", "x"], ["a ", ""])
    yield example("its prompt in words", "<|bos|>user\nhi<|eos|>assistant\n", plain.rendered, "hi")
    talk = _talk("q", "r", "s", "")
    whole = _ids(
        BOS, "user\nq", EOS, "assistant\nr", EOS, "user\ns", EOS, "assistant\n", EOS
    )  # the last answer is empty
    start = whole.index(EOS) + 1 + len("assistant\n")
    on = [int(place in (start, start + 1, len(whole) - 1)) for place in range(len(whole))]
    yield example("a conversation under it", (whole, on), _row, BYTE_CHAT_TEMPLATE, talk)
    tool = [*_talk("q", "r"), {"role": "tool", "content": "5"}, {"role": "assistant", "content": "x"}]
    yield example(
        "a tool's words are not trained on", _ids("r", EOS, "x", EOS), _trained, BYTE_CHAT_TEMPLATE, tool
    )
    spelt = _talk("<|eos|>", "<|eos|>assistant\n")
    yield example(
        "an answer that spells tokens", _ids("<|eos|>assistant\n", EOS), _trained, BYTE_CHAT_TEMPLATE, spelt
    )
    equal = _talk("a", "a", "a", "a")
    yield example("equal words of both", _ids("a", EOS) * 2, _trained, BYTE_CHAT_TEMPLATE, equal)
    yield example("a conversation without answers", [], _trained, BYTE_CHAT_TEMPLATE, _talk("q"))
    yield example(
        "a tokenizer's own template", True, lambda: _own("[{{ messages[0]['content'] }}") == _ids("[hi")
    )


def _own(template: str) -> list[int]:
    tokenizer = make_byte_tokenizer()
    tokenizer.chat_template = template
    return list(PromptEncoder(tokenizer, chat_template="default").prompts(["hi"])[0])


def _of_white_space() -> Iterator[WorkedExample]:
    trims = "{% for m in messages %}# {{ m['content'] | trim }}\n<|eos|>{% endfor %}"
    keeps = trims.replace(" | trim", "") + "{% if add_generation_prompt %}# {% endif %}"
    asked = PromptEncoder(make_byte_tokenizer(), chat_template=trims)
    yield example("a template that trims a prompt", [tuple(_ids("# a b\n", EOS))], asked.prompts, [" a b\n"])
    answer = BYTE_CHAT_TEMPLATE.replace("message['content']", "message['content'].strip()")
    yield example("a trimmed prompt and its answer", _ids("b", EOS), _trained, answer, _talk(" a ", "b"))
    yield refused("rewrites the content of message 1", "a trimmed answer", _row, answer, _talk("a", " b"))
    yield refused(
        "rewrites", "a template in capitals", _row, answer.replace("strip", "upper"), _talk("ab", "c")
    )
    yield refused(
        "closes an assistant turn with '\\n<", "an end after white space", _row, keeps, _talk("a", "b")
    )
    yield example(
        "white space of an answer is kept",
        _ids(" b\n ", EOS),
        _trained,
        BYTE_CHAT_TEMPLATE,
        _talk("a", " b\n "),
    )


def _of_arguments() -> Iterator[WorkedExample]:
    thinks = BYTE_CHAT_TEMPLATE + "{% if add_generation_prompt and not think %}-{% endif %}"
    thought = BYTE_CHAT_TEMPLATE.replace("+ '\\n'", "+ ('\\n' if think else ';')")
    for think, right in ((True, "assistant\n"), (False, "assistant\n-")):
        made = ChatEncoder(make_byte_tokenizer(), thinks, {"think": think})
        yield example(
            f"a template with think={think}",
            _ids(BOS, "user\nq", EOS, right),
            made.encode,
            _talk("q"),
            add_generation_prompt=True,
        )
    yield refused(
        "no prefix",
        "a template that opens turns otherwise than it writes them",
        _row,
        thinks,
        _talk("q", "r"),
    )
    yield refused("no prefix", "another opening of turns", _row, thought, _talk("q", "r"))
    yield example(
        "turns that open as they are written", _ids("r", EOS), _trained, thought, _talk("q", "r"), think=1
    )


def _of_refusals() -> Iterator[WorkedExample]:
    first = "{{ messages[0]['content'] }}<|eos|>"
    yield refused(
        "leaves out or repeats the content of message 1", "a turn left out", _row, first, _talk("a", "b")
    )
    yield refused(
        "leaves out or repeats the content of message 0", "a turn twice", _row, first * 2, _talk("a")
    )
    earlier = BYTE_CHAT_TEMPLATE.replace(
        "message['content']",
        "(message['content'] if loop.last or loop.length < 3 else 'x' ~ message['content'])",
    )
    yield refused("", "a template that rewrites earlier turns", _row, earlier, _talk("a", "b", "c", "d"))
    yield example(
        "answers that end, and prompts that do not",
        _ids("b", EOS, "d", EOS),
        _trained,
        ANSWERS + OPENS,
        _talk("a", "b", "c", "d"),
    )
    swapped = ANSWERS.replace("'assistant'", "'user'").replace("[", "", 1)
    yield refused(
        "closes an assistant turn with ''", "no end before the next turn", _row, swapped, _talk("a", "b", "c")
    )
    yield refused(
        "closes an assistant turn with ''", "no end of the last turn", _row, swapped, _talk("a", "b")
    )
    yield refused("a message before", "an empty conversation", _row, BYTE_CHAT_TEMPLATE, [])
    yield refused("no chat_template", "no template", ChatEncoder, make_byte_tokenizer())
    yield refused(
        "policy.tokenizer.chat_template",
        "a template that is no template",
        lambda: PromptEncoder(make_byte_tokenizer(), chat_template="{% if %}").prompts(["a"]),
    )
    yield refused(
        "policy.tokenizer.chat_template",
        "a template that leaves the prompt out",
        lambda: PromptEncoder(make_byte_tokenizer(), chat_template="x").prompts(["a"]),
    )
    yield refused("eos_token", "a tokenizer without an end", _no_end)


def _no_end() -> None:
    tokenizer = make_byte_tokenizer()
    tokenizer.eos_token = None
    ChatEncoder(tokenizer, BYTE_CHAT_TEMPLATE)
