"""Heads of models of several parts: tied to the embeddings or not, as the configurations of the whole and its text say.

The record has by release and kind, for what the whole says (nothing, yes, no) and the text says (yes, no), whether
head and embeddings are one weight: 1, 0, or e where the model is refused.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.common.worked_rows import Row, Worked
from seatrial.targets.transformers.small_models import is_small, model_class
from seatrial.targets.transformers.worked.every_class import classes, configuration, release_on_record
from seatrial.targets.transformers.worked.weights import saved

RECORD = Path(__file__).with_name("recorded_text_ties.json")
LARGEST = 3_000_000
OPTION = "tie_word_embeddings"
SAID: Sequence[tuple[bool | None, bool]] = tuple(
    (whole, text) for whole in (None, True, False) for text in (True, False)
)
"""What the whole and its text say."""


@cache
def record() -> Mapping[str, Mapping[str, str]]:
    """Return codes by release and kind."""
    found: Mapping[str, Mapping[str, str]] = json.loads(RECORD.read_text("utf-8"))
    return found


def _class_of(kind: str) -> Any:
    """Return the class of a kind that has a head, if the kind has a text within it.

    Raises:
        NotServed: it has none, or no small model of it is made.
    """
    config = configuration(kind)
    if getattr(config, "get_text_config", lambda: config)() is config:
        raise NotServed(f"{kind} has no text within it")
    for name in classes().get(kind, ()):
        made = model_class(name)
        if not name.endswith(("ForConditionalGeneration", "ForCausalLM")):
            continue
        if is_small(made, config, LARGEST):
            return made
    raise NotServed(f"no small model of {kind} is made")


def _said(kind: str, whole: bool | None, text: bool) -> Any:
    """Return a configuration that was written and read with what the whole and its text say."""
    config = configuration(kind)
    words = copy.deepcopy(config.to_dict())
    inner = config.get_text_config()
    places = [name for name, value in vars(config).items() if value is inner]
    if not places or places[0] not in words:
        raise NotServed("its text is deeper")
    words.pop(OPTION, None)
    words[places[0]][OPTION] = text
    if whole is not None:
        words[OPTION] = whole
    return type(config).from_dict(words)


def _halves(model: Any) -> tuple[Any, Any]:
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or table is None or not hasattr(head, "weight"):
        raise NotServed("no head")
    return head.weight, table.weight


def _made(made: Any, config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return made._from_config(config, attn_implementation="eager").float()


def code_of(kind: str) -> tuple[str, list[str]]:
    """Return whether the head is tied, for all that is said, and what changes when such a model is read from files."""
    made, code, wrong = _class_of(kind), "", []
    for whole, text in SAID:
        config = _said(kind, whole, text)
        try:
            model = _made(made, copy.deepcopy(config))
        except (ValueError, TypeError) as error:
            if isinstance(error, TypeError) and OPTION not in str(error):
                raise
            code += "e"
            continue
        head, table = _halves(model)
        code += "1" if head is table else "0"
        read, said = made.from_pretrained(saved(model), attn_implementation="eager", output_loading_info=True)
        one, other = _halves(read)
        what = f"whole {whole}, text {text}"
        if (one is other) is not (head is table):
            wrong.append(f"{what}: {'tied' if one is other else 'apart'} when it is read")
        if not (torch.equal(one, head) and torch.equal(other, table)):
            wrong.append(f"{what}: other weights when it is read")
        count, due = (sum(value.numel() for value in each.parameters()) for each in (read, model))
        wrong += [] if count == due else [f"{what}: {count} numbers train when it is read, {due} are due"]
        wrong += [f"{what}: {name} is missing" for name in sorted(said["missing_keys"])[:1]]
    return code, wrong


def _wrong(kind: str, function: Any) -> list[str]:
    """Return where a head is not tied as on record, or not as before when its model is read."""
    due = record()[release_on_record()].get(kind)
    if due is None:
        raise NotServed(f"{kind} is not on record")
    code, wrong = code_of(kind)
    for (whole, text), found, right in zip(SAID, code, due, strict=True):
        if found != right:
            wrong.append(f"whole {whole}, text {text}: {found}, {right} is due")
    return wrong[:4]


PLACE = "transformers:PreTrainedModel"
# Source: the documentation of tie_word_embeddings; what releases 4.57.6 and 5.24 give.
TIE_ROWS: Sequence[Row] = tuple(
    Row("models", PLACE, f"a head of {kind} that its text ties", partial(_wrong, kind), [])
    for kind in sorted({kind for one in record().values() for kind in one})
)


class OfTies(Worked):
    """Heads of models of several parts; see `contracts.worked`."""

    package = "transformers"
    worked_rows = TIE_ROWS


ADAPTERS: dict[str, type[Any]] = {"worked-text-ties": OfTies}


def _lines() -> Iterator[str]:
    for kind in sorted(classes()):
        try:
            yield json.dumps([kind, *code_of(kind)])
        except Exception as error:  # noqa: BLE001  not on record then
            if not isinstance(error, NotServed):
                yield json.dumps([kind, error_line(error)])


def main() -> None:
    """Print the codes of all kinds of the installed release."""
    for line in _lines():
        print(line, flush=True)


if __name__ == "__main__":
    main()
