"""Laws of rewards: present, finite, the completion's own, from a verifier that worked.

Answers and rewards of the reference tasks are recomputed from the prompt's words. This code is independent of the
stack's task and reward code on purpose: an error there must not be repeated here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest

from seatrial.evidence.ledger.law import Fault, LawResult, at, having, missing, not_exercised
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow

_USER = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_REVERSE = re.compile(r"reverse ([a-z]*)=")
_ADD = re.compile(r"(\d+)\+(\d+)=")
_COUNT = re.compile(r"count ([a-z]) in ([a-z]+)=")


def answer_of(prompt: str) -> str | None:
    """Return the right answer of a prompt of a reference task; None when its form is not known.

    Forms: `reverse abc=`, `12+7=`, `count b in abcb=`, also as the last message of a user in a ChatML template.
    """
    prompt = (_USER.findall(prompt) or [prompt])[-1]
    if match := _REVERSE.fullmatch(prompt):
        letters = list(match[1])
        letters.reverse()
        return "".join(letters)
    if match := _ADD.fullmatch(prompt):
        return _add_decimal(match[1], match[2])
    if match := _COUNT.fullmatch(prompt):
        return str(len([letter for letter in match[2] if letter == match[1]]))
    return None


def _add_decimal(left: str, right: str) -> str:
    """Add as on paper, digit by digit."""
    digits = []
    carry = 0
    for low, high in zip_longest(reversed(left), reversed(right), fillvalue="0"):
        carry, digit = divmod(int(low) + int(high) + carry, 10)
        digits.append(str(digit))
    return ("".join([str(carry), *reversed(digits)])).lstrip("0") or "0"


def _exact(completion: str, answer: str) -> float:
    return 1.0 if completion.strip() == answer else 0.0


def _characters(completion: str, answer: str) -> float:
    pairs = list(zip_longest(completion.strip(), answer))
    right = [left is not None and left == wanted for left, wanted in pairs]
    return right.count(True) / len(pairs) if pairs else 1.0


def _integer(completion: str, answer: str) -> float:
    try:
        wanted = str(int(answer))
    except ValueError:
        return math.nan
    match = re.fullmatch(r"[+-]?0*(\d+)", completion.strip(), re.ASCII)
    if match is None:
        return 0.0
    negative = completion.strip().startswith("-") and match[1] != "0"
    return 1.0 if ("-" if negative else "") + match[1] == wanted else 0.0


def _byte_nearness(completion: str, answer: str) -> float:
    pairs = list(zip_longest(completion.strip().encode(), answer.encode()))
    near = [
        0.0 if left is None or right is None else (255 - abs(left - right)) / 255 for left, right in pairs
    ]
    return sum(near) / len(pairs) if pairs else 1.0


def _program(completion: str, answer: str) -> float:
    """Judge the bytes of `print(` at the beginning and of `)` at the end: seven places, each with its nearness."""
    blocks = re.findall(r"```(?:python|py)?[ \t]*\n(.*?)```", completion, re.DOTALL)
    text = str(blocks.pop() if blocks else completion).strip().encode()
    nearness = [255 - abs(byte - right) for byte, right in zip(text[:-1], b"print(", strict=False)]
    nearness += [255 - abs(text[-1] - ord(")"))] if text else []
    return sum(nearness) / 255 / 7


REWARDS: dict[str, Callable[[str, str], float]] = {
    "exact_match": _exact,
    "character_match": _characters,
    "byte_closeness": _byte_nearness,
    "integer_match": _integer,
    "program_form": _program,
}
"""Reward rules by the name that the stack's configuration uses: (completion, answer) -> reward; NaN: the verifier
cannot judge that, and must report it."""


REWARD_TOLERANCE = 1e-6
"""Rewards are logged from float32."""


def rewards_finite(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Every reward is a finite number."""
    known = having(rows, "reward")
    if not known:
        return not_exercised(missing("reward"))
    faults = [
        at(row, f"the reward is {row.reward}")
        for row in known
        if row.reward is None or not math.isfinite(row.reward)
    ]
    distinct = len({row.reward for row in known})
    return LawResult(faults=faults, num_samples=len(known), summary=f"{distinct} different rewards")


def verifier_worked(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """The verifier failed on at most the stated share of rows."""
    bound = f"<= {facts.max_verifier_error_share:.0%}"
    if not having(rows, "verifier_error"):
        return not_exercised(missing("verifier_error"), bound)
    failed = [row for row in rows if row.verifier_error]
    share = len(failed) / len(rows)
    faults = [at(row, "the verifier failed on it") for row in failed]
    return LawResult(
        faults=faults if share > facts.max_verifier_error_share else (),
        num_samples=len(rows),
        summary=f"the verifier failed on {len(failed)} of {len(rows)} rows",
        value=share,
        bound=bound,
    )


def rewards_right(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """The logged reward of each row is the reward of that row's own completion for its own prompt."""
    known = having(rows, "reward", "prompt", "completion")
    if not known:
        return not_exercised(missing("reward", "prompt", "completion"))
    faults = list(_unjudged(known))
    if faults:
        return LawResult(faults=faults, num_samples=len(known))
    others = [row for row in known if facts.verifier and row.verifier not in (None, facts.verifier)]
    if others:
        what = f"rewarded by {others[0].verifier}, the run is configured with {facts.verifier}"
        return LawResult(faults=[at(row, what) for row in others], num_samples=len(known))
    ruled = [row for row in known if _rule_of(row, facts) in REWARDS]
    if not ruled:
        name = _rule_of(known[0], facts)
        return not_exercised(
            f"there is no independent rule for verifier {name!r}"
            if name
            else "not exercised: needs the name of the verifier (a column `verifier`, or --verifier)"
        )
    answered = [row for row in ruled if _answer(row) is not None and not row.verifier_error]
    if not answered:
        return not_exercised(
            f"there is no answer for prompts such as {ruled[0].prompt!r}, recomputed or logged"
        )
    largest = 0.0
    for row in answered:
        of_row, gap = _compare(row, facts)
        faults += of_row
        if not gap <= largest:
            largest = gap
    return LawResult(
        faults=faults,
        num_samples=len(answered),
        summary="each row has the reward of its own completion",
        value=largest,
        bound=f"<= {REWARD_TOLERANCE:g}",
    )


def _unjudged(rows: Sequence[LedgerRow]) -> Iterator[Fault]:
    """Yield rows that the verifier could not judge, with another reward than the first of them."""
    failed = [(row, (row.reward or 0.0) - (row.length_penalty or 0.0)) for row in rows if row.verifier_error]
    for row, reward in failed:
        if not abs(reward - failed[0][1]) <= REWARD_TOLERANCE:
            yield at(
                row,
                f"the verifier failed on it, and its reward is {reward:.6g}; on row {failed[0][0].index} of step "
                f"{failed[0][0].step} it failed too, and the reward is {failed[0][1]:.6g}",
            )


def _rule_of(row: LedgerRow, facts: LedgerFacts) -> str | None:
    return row.verifier or facts.verifier


def _answer(row: LedgerRow) -> str | None:
    """Return the answer computed from the prompt's words, or the logged one where the form of the prompt is unknown."""
    computed = answer_of(row.prompt or "")
    return row.answer if computed is None else computed


def _compare(row: LedgerRow, facts: LedgerFacts) -> tuple[list[Fault], float]:
    """Return what is wrong with a row's answer and reward, and how far the reward is off."""
    answer = _answer(row) or ""
    logged = math.nan if row.reward is None else row.reward
    earned = REWARDS[_rule_of(row, facts) or ""](row.completion or "", answer) + (row.length_penalty or 0.0)
    faults = []
    if row.answer is not None and answer != row.answer:
        faults.append(at(row, f"the answer of {row.prompt!r} is {answer!r}, logged is {row.answer!r}"))
    gap = abs(logged - earned)
    if not gap <= REWARD_TOLERANCE:
        faults.append(
            at(row, f"{row.completion!r} for {row.prompt!r} earns {earned:.6g}, logged is {logged:.6g}")
        )
    return faults, gap
