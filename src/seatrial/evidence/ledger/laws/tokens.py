"""Laws of tokens: ids and texts agree, the mask covers what was sampled, completions end for the reason given."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from seatrial.evidence.ledger.law import Fault, LawResult, at, having, missing, not_exercised
from seatrial.evidence.ledger.schema import LedgerFacts, LedgerRow

_SPECIAL = re.compile(r"<\|\w+\|>")
_CERTAIN = -1e-3
"""A token at least this likely may be logged at exactly 0."""
PER_TOKEN = ("generation_logprobs", "prev_logprobs", "reference_logprobs", "kept_support_sizes")


def tokens_valid(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """Ids are in the vocabulary, prompts are complete, columns have the completion's length, tokens spell the texts."""
    known = having(rows, "token_ids", "prompt_length")
    if not known:
        return not_exercised(missing("token_ids", "prompt_length"))
    byte_level = _is_byte_level(known) if facts.byte_level is None else facts.byte_level
    faults: list[Fault] = []
    for row in known:
        faults += _shape_faults(row, facts.vocabulary_size)
    if byte_level:
        faults += _misspelt_completions(known)
        faults += _misspelt_prompts(known)
    spelt = (
        ", tokens spell the rewarded text" if byte_level else "; text not compared (not a byte-level model)"
    )
    return LawResult(
        faults=sorted(faults, key=lambda fault: (fault.step, fault.row or 0)),
        num_samples=sum(len(row.token_ids or ()) for row in known),
        summary="ids in the vocabulary, lengths agree" + spelt,
        bound=f"ids < {facts.vocabulary_size}" if facts.vocabulary_size else None,
    )


def _shape_faults(row: LedgerRow, vocabulary_size: int | None) -> Iterator[Fault]:
    token_ids, length = row.token_ids or (), len(row.sampled_ids)
    if not 0 < (row.prompt_length or 0) < len(token_ids):
        yield at(row, f"prompt of {row.prompt_length} of {len(token_ids)} tokens")
    if not all(token >= 0 and (not vocabulary_size or token < vocabulary_size) for token in token_ids):
        size = f" of {vocabulary_size}" if vocabulary_size else ""
        yield at(row, f"a token outside the vocabulary{size}")
    sampled, scored = (
        length if column is None else len(column) for column in (row.generation_logprobs, row.prev_logprobs)
    )
    if not length == sampled == scored:
        yield at(row, f"{length} sampled tokens, {sampled} and {scored} log-probabilities")
    for name in PER_TOKEN[2:]:
        column = getattr(row, name)
        if column is not None and len(column) != length:
            yield at(row, f"{length} sampled tokens, {len(column)} {name}")


def _is_byte_level(rows: Sequence[LedgerRow]) -> bool:
    """Whether the tokens of most rows spell their completions as bytes."""
    known = [row for row in rows if row.completion]
    return sum(row.completion in _spellings(row) for row in known) * 2 > len(known) > 0


def _spellings(row: LedgerRow) -> set[str]:
    """Return the texts that a row may be rewarded for: all tokens, those that the model sampled, its last turn."""
    turns = row.turns
    return {
        text_of(row.sampled_ids),
        text_of([token for turn in turns for token in turn]),
        text_of(turns[-1] if turns else ()),
    }


def _misspelt_completions(rows: Sequence[LedgerRow]) -> Iterator[Fault]:
    for row in rows:
        if row.completion is not None and row.completion not in _spellings(row):
            yield at(row, f"the rewarded text {row.completion!r} is not the text of its tokens")


def _misspelt_prompts(rows: Sequence[LedgerRow]) -> Iterator[Fault]:
    """Yield rows whose prompt is not in its tokens, or is framed differently from those of the other rows."""
    known = having(rows, "prompt")
    frames = [_frame(row) for row in known]
    counted = Counter(frame for frame in frames if frame is not None)
    usual = counted.most_common(1)[0][0] if counted else None
    for row, frame in zip(known, frames, strict=True):
        given = text_of((row.token_ids or ())[: row.prompt_length])
        if frame is None:
            yield at(row, f"the prompt {row.prompt!r} is not the text of its tokens")
        elif frame != usual:
            yield at(row, f"the prompt {row.prompt!r} is in {given!r}, unlike the other rows' prompts")
        elif row.prompt_text is not None and _SPECIAL.sub("", row.prompt_text) != _SPECIAL.sub("", given):
            yield at(row, f"the rendered prompt {row.prompt_text!r} is not the text of its tokens")


def _frame(row: LedgerRow) -> tuple[str, str] | None:
    """Return what a chat template put before and after the prompt; None when the prompt is not in its tokens."""
    given = text_of((row.token_ids or ())[: row.prompt_length])
    # A template may strip the white space around a turn; the last place is the prompt's own turn.
    # Placeholders of images and sounds are no text.
    prompt = row.prompt or "" if row.media is None else _SPECIAL.sub("", row.prompt or "")
    for words in (prompt, prompt.strip()):
        before, found, after = given.rpartition(words) if words else ("", "", "")
        if found:
            return before, after
    return None


def text_of(token_ids: Sequence[int]) -> str:
    """Return the text of byte-level ids; ids above a byte are special and have none."""
    return bytes(token for token in token_ids if 0 <= token < 256).decode("utf-8", errors="replace")


def mask_is_sampled(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """The loss counts each sampled token and nothing else: no prompt, no padding, no tool's words.

    A token was sampled where the sampler logged a probability for it. A row that a filter keeps out counts none.
    """
    known = having(rows, "loss_mask", "token_ids", "prompt_length")
    if not known:
        return not_exercised(missing("loss_mask", "token_ids", "prompt_length"))
    faults: list[Fault] = []
    for row in known:
        faults += [at(row, what) for what in row.misplaced]
        if not (row.filtered and not any(row.loss_mask or ())):
            faults += _mask_faults(row)
    return LawResult(
        faults=faults,
        num_samples=sum(len(row.loss_mask or ()) for row in known),
        summary="the loss counts each sampled token, no prompt and no padding",
    )


def _mask_faults(row: LedgerRow) -> Iterator[Fault]:
    mask, end = row.loss_mask or (), len(row.token_ids or ())
    start = min(max(row.prompt_length or 0, 0), end)
    if len(mask) < end:
        yield at(row, f"a mask of {len(mask)} for {end} tokens")
        return
    if odd := [weight for weight in mask if weight not in (0.0, 1.0)]:
        yield at(row, f"the mask holds {odd[0]:g}, not 0 or 1")
    for name, places in (("prompt", range(start)), ("padding", range(end, len(mask)))):
        if covered := [place for place in places if mask[place]]:
            yield at(row, f"the mask counts {len(covered)} tokens of the {name}, the first at {covered[0]}")
    sampled = row.generation_logprobs
    for place in range(start, end):
        token = place - start
        drawn = None if sampled is None or token >= len(sampled) else sampled[token]
        if not mask[place] and (drawn is None or drawn != 0):
            if drawn is not None or row.filtered is not True:
                yield at(row, f"the mask leaves out the sampled token {token}")
                return
        elif mask[place] and drawn == 0 and _scored_below_certain(row, token):
            yield at(row, f"the mask counts token {token}, which was not sampled")
            return


def _scored_below_certain(row: LedgerRow, token: int) -> bool:
    scored = row.prev_logprobs
    return scored is not None and token < len(scored) and scored[token] < _CERTAIN


def ends_as_said(rows: Sequence[LedgerRow], facts: LedgerFacts) -> LawResult:
    """A completion that stopped ends in an end token, one that was cut does not and is as long as the limit.

    An end token is never inside a turn: where the end tokens are not known, they are inferred from that.
    """
    known = [row for row in having(rows, "finish_reason", "token_ids", "prompt_length") if row.sampled_ids]
    if not known:
        return not_exercised(missing("finish_reason", "token_ids", "prompt_length"))
    stops = Counter(row.sampled_ids[-1] for row in known if row.finish_reason == "stop")
    ends = facts.end_ids or _end_ids(known, stops)
    cut = [row for row in known if row.finish_reason == "length"]
    limits = _limits([len(row.sampled_ids) for row in cut])
    row_limits = _limits([len(row.token_ids or ()) for row in cut])
    faults = []
    for row in known:
        last, length = row.sampled_ids[-1], len(row.sampled_ids)
        if passed := [token for turn in row.turns for token in turn[:-1] if token in ends]:
            faults.append(at(row, f"sampling continued after the end token {passed[0]}"))
        if row.finish_reason == "stop" and last not in ends:
            faults.append(at(row, f"finish_reason is stop, and its last token {last} ends nothing"))
        elif row.finish_reason == "length" and last in ends:
            faults.append(at(row, f"finish_reason is length, and its last token {last} is an end token"))
        elif row.finish_reason == "length" and not (
            length in limits or len(row.token_ids or ()) in row_limits
        ):
            what = f"finish_reason is length after {length} tokens, others are cut after {min(limits)}"
            faults.append(at(row, what))
        elif row.finish_reason not in ("stop", "length"):
            faults.append(at(row, f"finish_reason is {row.finish_reason!r}, not stop or length"))
    return LawResult(
        faults=faults,
        num_samples=len(known),
        summary=f"{stops.total()} stopped, {len(known) - stops.total()} at the limit",
    )


def _end_ids(rows: Sequence[LedgerRow], stops: Counter[int]) -> frozenset[int]:
    """Return the tokens that completions stop at more often than they hold them inside or are cut at them."""
    passed = Counter(token for row in rows for turn in row.turns for token in turn[:-1])
    passed.update(row.sampled_ids[-1] for row in rows if row.finish_reason != "stop")
    return frozenset(token for token, number in stops.items() if number > passed[token])


def _limits(lengths: Sequence[int]) -> set[int]:
    """Return the lengths that are limits: the usual one of rows that were cut, and the largest."""
    return {Counter(lengths).most_common(1)[0][0], max(lengths)} if lengths else set()
