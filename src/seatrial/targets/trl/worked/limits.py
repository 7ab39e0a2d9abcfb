"""Limits of lengths, by trainer: what a step sees of rows with each limit, compared with the same rows without any."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from typing import Any

from seatrial.targets.common.known import KnownFailure, before, between
from seatrial.targets.common.target import Gone, release
from seatrial.targets.common.tiny import tiny_tokenizer
from seatrial.targets.trl.former import FUNCTIONS
from seatrial.targets.trl.named import code_has
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.worked.rows import Row
from seatrial.targets.trl.worked.seen import Seen, known_options, or_refused, seen_of, takes

LENGTHS = ((3, 5, 7), (20, 6, 4), (8, 30, 25), (25, 28, 30))
"""Letters of a prompt, an answer and another one, by row: within a limit of 16, and beyond it in each of its parts."""
LONG = ((700, 520, 410), (4, 6, 3), (9, 900, 7))
"""Beyond every default of a limit."""
LIMIT, LIMIT_OF_TURNS, ENDLESS = 16, 48, 5000
PAIRS = ((12, 16), (16, 16), (24, 12))
"""The longest row, and the longest prompt or answer."""
PADDING_KEPT = KnownFailure(
    "padding is kept in place of the end of a row (trl-3398)", FUNCTIONS, before("trl", "0.18.2")
).of(
    "R34.worked/batches::*{'max_length': 16}, *{'max_length': 16 'truncation_mode': 'keep_end'}",
    "R34.worked/combinations::*{'max_length': 12 *, *{'max_length': 16 *",
    "R34.worked/edges::*{'max_length': *",
)

KINDS: Mapping[str, Sequence[str]] = {
    "SFT": ("texts", "completions", "messages"),
    "DPO": ("pairs",),
    "CPO": ("pairs",),
    "ORPO": ("pairs",),
    "KTO": ("labels",),
    "Reward": ("pairs",),
    "GKD": ("messages",),
    "GRPO": ("prompts",),
    "RLOO": ("prompts",),
    "OnlineDPO": ("prompts",),
}
"""Kinds of rows by trainer."""
LIMITS = ("max_length", "max_seq_length", "max_prompt_length", "max_completion_length")
OLDER: Mapping[str, str] = {"max_seq_length": "max_length"}
"""Names of options that releases replaced, by the older name."""


def made_rows(kind: str, lengths: Sequence[tuple[int, int, int]] = LENGTHS) -> list[dict[str, Any]]:
    """Return rows whose prompts are lowercase letters, answers uppercase letters, and rejected answers digits."""
    stream = random.Random(0)

    def text(length: int, letters: str) -> str:
        return "".join(stream.choice(letters) for _ in range(length))

    found = []
    for number, (asked, said, other) in enumerate(lengths):
        prompt, answer = text(asked, string.ascii_lowercase), text(said, string.ascii_uppercase)
        rejected = text(other, string.digits)
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        made: dict[str, dict[str, Any]] = {
            "texts": {"text": prompt + answer},
            "completions": {"prompt": prompt, "completion": answer},
            "messages": {"messages": turns},
            "pairs": {"prompt": prompt, "chosen": answer, "rejected": rejected},
            "labels": {"prompt": prompt, "completion": answer, "label": number % 2 == 0},
            "prompts": {"prompt": prompt},
        }
        found.append(made[kind])
    return found


def _without(name: str) -> dict[str, Any]:
    """Return the limits of a trainer without their effect; the completions that are sampled have one."""
    samples = "prompts" in KINDS[name]
    return {
        one: None
        for one in LIMITS
        if takes(name, one) and one not in OLDER and not (samples and one != "max_prompt_length")
    }


def _text(ids: Sequence[int]) -> str:
    """Return ids as a text with a character for each."""
    return "".join(map(chr, ids))


def _is_part(cut: str, whole: str) -> bool:
    """Return whether a text is two pieces of another one, in their order."""
    for first in range(len(cut), -1, -1):
        at = whole.find(cut[:first])
        if at >= 0 and cut[first:] in whole[at + first :]:
            return True
    return False


Mistakes = tuple[list[str], list[str]]
"""Of lengths and parts; and of rows without an answer or a prompt."""


def _mistakes(
    found: Sequence[Seen], free: Sequence[Seen], limit: int | None, *, scores: bool, keeps_end: bool
) -> Mistakes:
    """Return what is wrong with rows that have limits, by the same rows without."""
    tokenizer = tiny_tokenizer()
    wholes = [(_text(one.ids), _text(one.trained)) for one in free]
    wrong: list[str] = []
    emptied: list[str] = []
    for one in found:
        said, ids, trained = tokenizer.decode(one.ids), _text(one.ids), _text(one.trained)
        if limit is not None and len(ids) > limit:
            wrong.append(f"{len(ids)} tokens of {said}")
        if not trained and any(part for _, part in wholes):
            emptied.append(f"nothing is trained of {said}")
        matching = [(whole, part) for whole, part in wholes if _is_part(ids, whole)]
        if not keeps_end and any(ids in part and len(part) < len(whole) - 1 for whole, part in matching):
            emptied.append(f"nothing of the prompt is left of {said}")
        if not matching:
            wrong.append(f"no row has {said}")
        elif not scores and not any(_is_part(trained, part) for _, part in matching):
            wrong.append(f"{tokenizer.decode(one.trained)} is trained of {said}")
    kept = {_text(one.ids) for one in found}
    for one in free:
        if limit is not None and len(one.ids) <= limit and _text(one.ids) not in kept:
            wrong.append(f"{tokenizer.decode(one.ids)} fits, and is not there")
    return wrong, emptied


def _wrong_prompts(found: Sequence[Seen], limit: int) -> list[str]:
    """Return which rows do not begin with the end of a prompt; what follows is sampled, and not all have gradients."""
    ends = [row["prompt"][-limit:] for row in made_rows("prompts")]
    texts = [tiny_tokenizer().decode(one.ids) for one in found]
    return [f"no prompt begins {text}" for text in texts if not any(map(text.startswith, ends))]


def _keeps_end(name: str, options: Mapping[str, Any]) -> bool:
    """Return whether rows keep their ends, as those of DPO do by default in releases before 0.29."""
    default = known_options(find_trainer(name)[1]).get("truncation_mode") if name == "DPO" else None
    return bool(options.get("truncation_mode", default) == "keep_end")


@lru_cache(maxsize=64)
def _judged(name: str, kind: str, given: tuple[tuple[str, Any], ...]) -> Mistakes:
    """Return what is wrong with rows under limits."""
    options = dict(given)
    if kind == "prompts":
        tokenizer = tiny_tokenizer(padding_side="right")
        tokenizer.truncation_side = "left"  # as TRL loads them; some releases leave it to the given one
        found = seen_of(name, made_rows(kind), options, tokenizer=tokenizer)
        return _wrong_prompts(found, options["max_prompt_length"]), []
    free, found = (seen_of(name, made_rows(kind), {**_without(name), **one}) for one in ({}, options))
    limit = options.get("max_length", options.get("max_seq_length"))
    own = [value for one in ("max_prompt_length", "max_completion_length") if (value := options.get(one))]
    wrong, emptied = _mistakes(
        found,
        free,
        None if own and min(own) < (limit or ENDLESS) else limit,
        scores=name == "Reward",
        keeps_end=_keeps_end(name, options),
    )
    return [
        *wrong,
        *(f"{len(one.ids)} tokens" for one in found if own and limit and len(one.ids) > limit),
    ], emptied


def _cut(name: str, kind: str, options: Mapping[str, Any], which: int, _: Any) -> list[str]:
    return _judged(name, kind, tuple(sorted(options.items())))[which]


def _same(name: str, kind: str, options: Mapping[str, Any], others: Mapping[str, Any], _: Any) -> list[str]:
    """Return what a step sees with one set of options alone, of long rows."""
    rows = made_rows(kind, LONG)
    first, second = (seen_of(name, rows, one) for one in (options, others))
    if first == second:
        return []
    lengths = [[len(one.ids) for one in found] for found in (first, second)]
    return [f"{dict(options)}: {lengths[0]} tokens; {dict(others)}: {lengths[1]} tokens"]


def places(name: str) -> str:
    """Return where releases keep a trainer."""
    folder = {"OnlineDPO": "online_dpo"}.get(name, name.lower())
    return " ".join(f"{place}:{name}Trainer" for place in ("trl", f"trl.experimental.{folder}"))


def _row(subject: str, name: str, what: str, call: Callable[..., Any]) -> Row:
    return Row(subject, places(name), what, or_refused(call), [])


def _rows_of(name: str) -> Iterator[Row]:
    """Yield the rows of the options that the installed release has."""
    known = known_options(find_trainer(name)[1])
    samples = "prompts" in KINDS[name]
    limits = [one for one in LIMITS if one in known and (not samples or one == "max_prompt_length")]
    if samples and not code_has("max_prompt_length", find_trainer(name)[0]):
        limits = []  # releases before 0.28 have it without effect, and say so
    modes: list[dict[str, Any]] = [{}]
    if "truncation_mode" in known:
        modes += [{"truncation_mode": "keep_start"}, {"truncation_mode": "keep_end"}]
    for kind, limit in product(KINDS[name], limits):
        sets = partial(_same, name, kind)
        what = f"{kind}, {limit}"
        if OLDER.get(limit) in known:  # its None is that it is not given
            newer = {OLDER[limit]: LIMIT}
            yield _row("options", name, f"{what} and {OLDER[limit]}", partial(sets, {limit: LIMIT}, newer))
        else:
            free, endless = {limit: None}, {limit: ENDLESS}
            yield _row("options", name, f"{what}=None and {ENDLESS}", partial(sets, free, endless))
        lengths = (LIMIT, LIMIT_OF_TURNS) if name == "GKD" else (LIMIT,)
        cases: list[dict[str, Any]] = [{limit: one, **mode} for mode, one in product(modes, lengths)]
        yield from _of_cases("batches", name, kind, cases)
        if limit in ("max_prompt_length", "max_completion_length") and not samples:
            cases = [{"max_length": longest, limit: own} for longest, own in PAIRS]
            yield from _of_cases("combinations", name, kind, cases)


def _of_cases(subject: str, name: str, kind: str, cases: Sequence[Mapping[str, Any]]) -> Iterator[Row]:
    for options in cases:
        for which, own in enumerate((subject, "edges")):
            yield _row(own, name, f"{kind}, {options}", partial(_cut, name, kind, options, which))


def _made(name: str) -> Sequence[Row]:
    """Return the rows of a trainer.

    Raises:
        Gone: the release does not have it, or no limit of it.
    """
    if rows := list(_rows_of(name)):
        return rows
    raise Gone(f"{name}Config of trl {release('trl')} has no limit of lengths")


LIMITED: Mapping[str, Callable[[], Sequence[Row]]] = {
    f"limits-{name.lower()}": partial(_made, name) for name in KINDS
}


NONE = KnownFailure(
    "a longest length of None becomes 512, and 1024 in GKD", finding="TRL: the longest length of None"
).of("R34.worked/options::*=None and 5000")
_FILLED_TOGETHER = (
    "::*{'max_length': 12 *, *{'max_length': 16 *, *{'max_length': 24 'max_completion_length': *"
)
FILLED = KnownFailure(
    "a prompt that fills the longest length keeps all its tokens, and both answers are empty",
    finding="TRL: prompts that fill a row of CPO and ORPO",
).of(
    "R34.worked/batches::*{'max_length': 16}, *{'max_length': 16 'truncation_mode': *",
    f"R34.worked/combinations{_FILLED_TOGETHER}",
    f"R34.worked/edges::*{{'max_length': 16}}, {_FILLED_TOGETHER[2:]}",
)
FILLED_OF_CPO = replace(
    FILLED, releases=lambda adapter: not takes("CPO", "max_prompt_length") or before("trl", "0.17")(adapter)
)
"""Releases between those raise an error."""
FILLED_OF_KTO = replace(FILLED, releases=before("trl", "1.3")).of("R34.worked/batches::*{'max_length': 16}")
NONE_OF_KTO = replace(NONE, releases=before("trl", "1.3"))
UNANSWERED = KnownFailure(
    "rows are kept of which truncation leaves no token of an answer (trl-6320)",
    finding="TRL: rows without an answer, before 1.9",
    releases=before("trl", "1.9"),
).of("R34.worked/edges::*{'max_length': 16}, *{'max_length': 16 'truncation_mode': 'keep_start'}")
FAILURES: Mapping[str, Sequence[KnownFailure]] = {
    "limits-cpo": (NONE, FILLED_OF_CPO),
    "limits-orpo": (NONE, FILLED),
    "limits-gkd": (NONE, replace(UNANSWERED, releases=before("trl", "1.6"))),
    "limits-sft": (UNANSWERED,),
    "limits-dpo": (UNANSWERED, PADDING_KEPT),
    "limits-kto": (NONE_OF_KTO, FILLED_OF_KTO, replace(UNANSWERED, releases=between("trl", "1.3", "1.9"))),
}
"""By adapter."""
