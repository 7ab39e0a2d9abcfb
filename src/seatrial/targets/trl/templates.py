"""Chat templates that TRL ships, written and read with a tokenizer of bytes, in the contract's form."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from inspect import signature
from itertools import groupby
from typing import Any

from seatrial.relations.contracts.utilities import Template
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.common.tiny import tiny_tokenizer

ENDING, TRAINING = "_chat_template", "_training"
THINKING = ("gptoss",)
"""Templates that write a text before a call as a thought: their models have no other place for it."""
WITHOUT_PREFIX = ("qwen3",)
"""Templates whose prompts begin nothing of an answer, and whose calls say the types of their arguments."""
CALL = {"type": "function", "function": {"name": "probe", "arguments": {"word": "probed"}}}
CALLING: Sequence[Mapping[str, Any]] = (
    {"role": "user", "content": "asked"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "name": "probe", "content": "found"},
)
"""A call whose arguments are a dictionary, which some templates cannot write."""
Turns = Sequence[Mapping[str, Any]]


def _module() -> Any:
    return importlib.import_module("trl.chat_template_utils")


@cache
def _texts() -> Mapping[str, str]:
    """Return the templates by name, without those that are not text."""
    found = vars(_module()).items()
    return {
        name.removesuffix(ENDING): text
        for name, text in found
        if name.endswith(ENDING) and isinstance(text, str)
    }


@cache
def _tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<s>"
    return tokenizer


def _with(template: str) -> Any:
    """Return a tokenizer of its own with a template."""
    tokenizer = tiny_tokenizer()
    tokenizer.bos_token = "<s>"
    tokenizer.chat_template = template
    return tokenizer


def _blocks(turns: Turns) -> list[dict[str, Any]]:
    return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in turns]


def _apply(name: str, turns: Turns, **options: Any) -> Any:
    given = _blocks(turns) if _takes_blocks(name) else [dict(turn) for turn in turns]
    return _tokenizer().apply_chat_template(given, chat_template=_texts()[name], **options)


@cache
def _takes_blocks(name: str) -> bool:
    """Return whether a template takes the text of a turn as a list of blocks alone, as those of images do."""
    turns = [{"role": "user", "content": "probe"}]
    return not _holds(name, turns)


def _holds(name: str, turns: Turns) -> bool:
    """Return whether a template writes turns of plain texts, and the last one's text among them."""
    try:
        text = _tokenizer().apply_chat_template(list(turns), tokenize=False, chat_template=_texts()[name])
    except Exception:  # noqa: BLE001  templates refuse with errors of their own, and Jinja's
        return False
    return turns[-1]["content"] in text


@cache
def _listed() -> tuple[Template, ...]:
    found = []
    for name in _texts():
        base = name.removesuffix(TRAINING)
        system = [{"role": "system", "content": "rules"}, {"role": "user", "content": "asked"}]
        found.append(
            Template(
                name=name,
                trains=name.endswith(TRAINING) and _marks_answers(),
                replaces=base if name.endswith(TRAINING) else "",
                takes_system=_takes(name, system),
                takes_tools=not _takes_blocks(name) and _says_tools(name) and _takes(name, CALLING),
                reads=name == base and _reads(name),
                thinks=base in THINKING,
            )
        )
    return tuple(found)


def _takes(name: str, turns: Turns) -> bool:
    try:
        _apply(name, turns, tokenize=False)
    except Exception:  # noqa: BLE001  as in `_holds`
        return False
    return True


@cache
def _marks_answers() -> bool:
    """Return whether templates for training mark answers; the first ones wrote turns one by one, and no more."""
    return any("endgeneration" in text for name, text in _texts().items() if name.endswith(TRAINING))


def _says_tools(name: str) -> bool:
    """Return whether the release says so; one before it says anything, whether calls and results are written."""
    if says := getattr(_module(), "supports_tool_calling", None):
        try:
            return bool(says(_with(_texts()[name])))
        except TypeError:  # of a template that takes no arguments but texts
            return False
    if not _takes(name, CALLING):
        return False
    text = _apply(name, CALLING, tokenize=False)
    return "probed" in text and "found" in text


def _reads(name: str) -> bool:
    """Return whether answers of a template are read; Qwen3's alone where nothing says which prompt they follow."""
    if name not in WITHOUT_PREFIX and not (_parses_with("prefix") and _parses_with("tools")):
        return False
    try:
        _module().add_response_schema(_with(_texts()[name]))
    except ValueError:
        return False
    return True


def _written(template: Template, turns: Turns, opens: bool) -> str:
    found: str = _apply(template.name, turns, tokenize=False, add_generation_prompt=opens)
    return found


def _trained_spans(template: Template, turns: Turns) -> list[str]:
    found = _apply(template.name, turns, return_dict=True, return_assistant_tokens_mask=True)
    pairs = zip(found["assistant_masks"], found["input_ids"], strict=True)
    parts = groupby(pairs, key=lambda pair: pair[0])
    return [_tokenizer().decode([token for _, token in part]) for trained, part in parts if trained]


def _for_training(name: str) -> str | None:
    given = _module().get_training_chat_template(_with(_texts()[name]))
    return None if given is None else next(one for one, text in _texts().items() if text == given)


def _read_answer(template: Template, prompt: str, answer: str, tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `parse_response` reads, with what the installed release takes."""
    parse = _module().parse_response
    tokenizer = _module().add_response_schema(_with(_texts()[template.name]))
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]
    given = {"prefix": ids[0], "tools": tools}
    try:
        found: dict[str, Any] = parse(
            tokenizer, ids[1], **{name: given[name] for name in given if _parses_with(name)}
        )
    except AttributeError as error:
        if "response_template" not in str(error):
            raise
        # The release writes a schema, and this release of Transformers reads a template in its place.
        raise NotServed(f"parse_response of trl {release('trl')}: {error}") from error
    return found


def _parses_with(name: str) -> bool:
    return name in signature(_module().parse_response).parameters


def functions() -> dict[str, Callable[..., Any]]:
    """Return what the installed release has; nothing where it has no templates for training."""
    try:
        module = _module()
    except ModuleNotFoundError:
        return {}
    if not hasattr(module, "get_training_chat_template"):
        return {}
    found: dict[str, Callable[..., Any]] = {
        "templates": lambda: list(_listed()),
        "written": _written,
        "template for training": _for_training,
    }
    if _marks_answers():
        found["trained spans"] = _trained_spans
    if hasattr(module, "supports_tool_calling"):
        found["takes tools"] = lambda template: _says_tools(template.name)
    tokenizers = importlib.import_module("transformers").PreTrainedTokenizerBase
    reads = hasattr(tokenizers, "parse_response")  # since Transformers 5
    if reads and hasattr(module, "parse_response") and hasattr(module, "add_response_schema"):
        found["read answer"] = _read_answer
    return found
