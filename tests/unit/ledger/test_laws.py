"""Each law holds on a right ledger, and names the row that breaks it."""

import math
import random
from dataclasses import replace

import pytest
from tests.unit.ledger.made_ledgers import EOS, Rows, Spoiler, change, exchange, place, right_ledger

from seatrial.evidence.ledger.law import verdict_of
from seatrial.evidence.ledger.laws import LAWS
from seatrial.evidence.ledger.laws.logprobs import sampler_agrees
from seatrial.evidence.ledger.schema import LedgerFacts
from seatrial.verdict import Outcome, Verdict

FACTS = LedgerFacts(stack="refrl", precision="float32", vocabulary_size=259, group_size=4, max_lag=2)
NOT_MADE = {"rewards recomputed equal the logged"}
"""Laws that the made ledger cannot arm: there is no independent rule for its rewards."""


def judge(law: str, rows: Rows, facts: LedgerFacts = FACTS) -> Verdict:
    return verdict_of(law, LAWS[law], rows, facts)


@pytest.mark.parametrize("seed", range(5))
def test_a_right_ledger_keeps_every_law(seed: int) -> None:
    verdicts = {name: judge(name, right_ledger(seed)) for name in LAWS}
    assert {name for name, verdict in verdicts.items() if verdict.outcome is not Outcome.PASS} == NOT_MADE
    assert all(verdicts[name].outcome is Outcome.SKIPPED for name in NOT_MADE)


@pytest.mark.parametrize("law", LAWS)
def test_no_rows_are_no_evidence(law: str) -> None:
    assert judge(law, []).outcome is Outcome.FAIL


@pytest.mark.parametrize("law", LAWS)
def test_bare_rows_arm_no_law_but_those_of_presence(law: str) -> None:
    """Rows of three columns: what cannot be judged is Skipped and says what would arm it."""
    bare = [type(row)(step=row.step, index=row.index, prompt_id=row.prompt_id) for row in right_ledger()]
    verdict = judge(law, bare)
    if law in ("every trained row is there, once", "steps follow one another"):
        assert verdict.outcome is Outcome.PASS
    else:
        assert verdict.outcome is Outcome.SKIPPED
        assert "needs" in verdict.reason


def without(step: int, index: int) -> Spoiler:
    return lambda rows: [row for row in rows if (row.step, row.index) != (step, index)]


def every(**fields: object) -> Spoiler:
    def spoil(rows: Rows) -> Rows:
        return [
            replace(row, **{name: value(row) if callable(value) else value for name, value in fields.items()})
            for row in rows
        ]

    return spoil


def copy_step(rows: Rows) -> Rows:
    """Train the rows of step 1 again at step 3, under the weights that sampled them."""
    return [row for row in rows if row.step < 3] + [replace(row, step=3) for row in rows if row.step == 1]


def same_draws(rows: Rows) -> Rows:
    """Give a row the sampled tokens of another row of its group, at its own log-probabilities."""
    one, other = rows[place(rows, 2, 4)], rows[place(rows, 2, 6)]
    sampled = one.sampled_ids
    rows[place(rows, 2, 6)] = replace(
        other,
        token_ids=(*(other.token_ids or ())[: other.prompt_length], *sampled),
        completion=one.completion,
        generation_logprobs=tuple(value - 0.01 for value in one.generation_logprobs or ()),
    )
    return rows


def first(column: str, value: float) -> Spoiler:
    """Return a spoiler of the first cell of a list in step 2 row 5."""
    return change(2, 5, **{column: lambda row: (value, *getattr(row, column)[1:])})


def mask(where: int, weight: float) -> Spoiler:
    def changed(row: object) -> tuple[float, ...]:
        cells = list(row.loss_mask)  # type: ignore[attr-defined]
        cells[where] = weight
        return tuple(cells)

    return change(2, 5, loss_mask=changed)


PRESENT = "every trained row is there, once"
STEPS = "steps follow one another"
ONCE = "no row is trained again at another step"
GROUPS = "a group is the completions of one prompt"
TOKENS = "tokens are valid and are the rewarded text"
MASK = "the loss counts the sampled tokens"
ENDS = "completions end for the reason given"
POSSIBLE = "log-probabilities are possible and the row's own"
AGREE = "sampler and trainer agree per token"
RANDOM = "every row draws its own randomness"
VERSIONS = "weight versions are in order"
FINITE = "every reward is finite"
VERIFIER = "verifier errors stay below 5 % of rows"
ADVANTAGES = "advantages recomputed equal the logged"
ORDER = "advantages follow the rewards of their group"


@pytest.mark.parametrize(
    ("law", "spoil", "words"),
    [
        (PRESENT, without(2, 5), "step 2 has 15 rows, not 16"),
        (PRESENT, without(2, 5), "step 2 row 5 is missing"),
        (PRESENT, without(2, 15), "prompt 7 has 3 completions"),
        (PRESENT, change(2, 5, index=4), "step 2 row 4 is there 2 times"),
        (PRESENT, change(2, 5, prompt_id=99), "prompt 99 has 1 completions"),
        (PRESENT, change(2, 5, reward=None), "step 2 row 5: has no reward, which other rows have"),
        (PRESENT, lambda rows: [*rows, *rows], "is there 2 times"),
        (STEPS, every(step=lambda row: row.step + (row.step == 3)), "step 2 is followed by step 4"),
        (ONCE, copy_step, "step 3 row 0: is step 1 row 0 again"),
        (GROUPS, change(2, 5, prompt="prompt 9"), "step 2 row 5: prompt 5 is 'prompt 9'"),
        (GROUPS, change(2, 5, prompt_id=6), "step 2 row 8: prompt 6 is"),
        (GROUPS, change(2, 5, token_ids=lambda row: (7, *row.token_ids[1:])), "step 2 row 5: the tokens of prompt 5"),
        (TOKENS, first("token_ids", 259), "step 2 row 5: a token outside the vocabulary of 259"),
        (TOKENS, change(2, 5, completion="another"), "step 2 row 5: the rewarded text 'another'"),
        (TOKENS, change(2, 5, prompt_text="<|bos|>another"), "step 2 row 5: the rendered prompt"),
        (TOKENS, change(2, 5, prev_logprobs=(-1.0,)), "step 2 row 5: "),
        (TOKENS, change(2, 5, reference_logprobs=(-1.0,)), "1 reference_logprobs"),
        (TOKENS, exchange((2, 5), (2, 9), "completion"), "step 2 row 5"),
        (MASK, mask(0, 1.0), "step 2 row 5: the mask counts 1 tokens of the prompt"),
        (MASK, mask(-1, 0.0), "step 2 row 5: the mask leaves out the sampled token"),
        (MASK, mask(12, 0.0), "step 2 row 5: the mask leaves out the sampled token"),
        (MASK, mask(12, 0.5), "step 2 row 5: the mask holds 0.5"),
        (MASK, change(2, 5, loss_mask=(0.0, 1.0)), "step 2 row 5: a mask of 2"),
        (MASK, change(2, 5, loss_mask=lambda row: (*row.loss_mask, 1.0)), "1 tokens of the padding"),
        (MASK, first("generation_logprobs", 0.0), "step 2 row 5: the mask counts token 0, which was not sampled"),
        (POSSIBLE, first("generation_logprobs", 0.5), "step 2 row 5: token 0 has generation_logprobs 0.5"),
        (POSSIBLE, first("prev_logprobs", math.nan), "step 2 row 5: token 0 has prev_logprobs nan"),
        (POSSIBLE, first("reference_logprobs", -math.inf), "step 2 row 5: token 0 has reference_logprobs -inf"),
        (POSSIBLE, every(generation_logprobs=lambda row: (-1.0,) * len(row.sampled_ids)), "is -1 for all"),
        (POSSIBLE, first("kept_support_sizes", 1), "step 2 row 5: token 0 was the only one left"),
        (POSSIBLE, first("kept_support_sizes", 0), "drawn from a support of 0 tokens"),
        (
            POSSIBLE,
            change(2, 5, generation_logprobs=lambda row: right_ledger()[0].generation_logprobs),
            "step 2 row 5: its generation_logprobs are those of step 1 row 0",
        ),
        (AGREE, first("prev_logprobs", -1.0), "step 2 row 5 token 0: sampled at"),
        (AGREE, first("prev_logprobs", math.nan), "scored at nan"),
        (AGREE, every(prev_logprobs=lambda row: row.prev_logprobs[1:] + row.prev_logprobs[:1]), "step 1 row 0"),
        (RANDOM, same_draws, "step 2 row 6: has the"),
        (VERSIONS, change(2, 5, weight_version=2), "step 2 row 5: sampled by weights 2, trained at weights 1"),
        (VERSIONS, change(2, 5, weight_version=-3), "step 2 row 5: sampled by weights -3"),
        (VERSIONS, every(weight_version=lambda row: 1 if row.step == 2 else 0), "step 3 is sampled by weights 0"),
        (FINITE, change(2, 5, reward=math.nan), "step 2 row 5: the reward is nan"),
        (FINITE, change(2, 5, reward=math.inf), "step 2 row 5: the reward is inf"),
        (VERIFIER, every(verifier_error=lambda row: row.index < 1), "step 1 row 0: the verifier failed"),
        (ADVANTAGES, change(2, 5, advantage=0.123), "step 2 row 5: advantage 0.123"),
        (ADVANTAGES, change(2, 5, advantage=math.nan), "step 2 row 5: advantage nan"),
        (ADVANTAGES, every(advantage=lambda row: -row.advantage), "opposite sign"),
        (ADVANTAGES, every(advantage=lambda row: 2 * row.advantage), "no known estimator explains all rows"),
        (
            ADVANTAGES,
            change(2, 5, advantage=None, token_advantages=(0.1, 0.2)),
            "step 2 row 5: its advantage differs from token to token",
        ),
        (ORDER, change(2, 7, advantage=-9.0), "step 2 row 7: advantage -9"),
        (ORDER, change(2, 7, advantage=math.nan), "step 2 row 7: reward 1 and advantage nan"),
        (ORDER, every(advantage=lambda row: -row.advantage), "advantage -"),
        (ORDER, every(advantage=0.1), "for reward 0 in"),
        (ORDER, every(advantage=0.0), "for reward 0 in"),
    ],
)  # fmt: skip
def test_a_broken_law_names_the_row(law: str, spoil: Spoiler, words: str) -> None:
    verdict = judge(law, spoil(right_ledger()))
    assert verdict.outcome is Outcome.FAIL, verdict
    assert words in verdict.reason, verdict.reason


def test_ends_are_told_from_the_rows_themselves() -> None:
    """An end token never stands inside a completion; no list of end tokens is needed."""
    rows = right_ledger()
    stopped = next(row for row in rows if row.finish_reason == "stop")
    cut = next(row for row in rows if row.finish_reason == "length")
    where, limit = (stopped.step, stopped.index), (cut.step, cut.index)
    for spoil, words in (
        (change(*where, finish_reason="length"), "its last token 258 is an end token"),
        (change(*limit, finish_reason="stop"), "ends nothing"),
        (change(*where, token_ids=lambda row: (*row.token_ids, 40)), "continued after the end token 258"),
        (
            change(*limit, token_ids=lambda row: row.token_ids[:-4]),
            "finish_reason is length after 8 tokens, others are cut after 12",
        ),
        (change(*where, finish_reason="abort"), "finish_reason is 'abort'"),
    ):
        verdict = judge(ENDS, spoil(right_ledger()))
        assert verdict.outcome is Outcome.FAIL
        assert f"step {where[0]}" in verdict.reason or f"step {limit[0]}" in verdict.reason
        assert words in verdict.reason, verdict.reason


def test_a_lone_end_token_may_be_declared() -> None:
    facts = replace(FACTS, end_ids=frozenset({EOS}))
    assert judge(ENDS, right_ledger(), facts).outcome is Outcome.PASS
    assert judge(ENDS, right_ledger(), replace(FACTS, end_ids=frozenset({5}))).outcome is Outcome.FAIL


def test_a_chat_template_is_no_fault() -> None:
    """A template puts the same words around every prompt; another prompt within it is still seen."""

    def framed(row: object) -> dict[str, object]:
        text = f"user\n{row.prompt}assistant\n"  # type: ignore[attr-defined]
        given = (257, *text.encode()[:-10], 258, *b"assistant\n")
        return {
            "token_ids": (*given, *row.sampled_ids),  # type: ignore[attr-defined]
            "prompt_length": len(given),
            "prompt_text": f"<|bos|>user\n{row.prompt}<|eos|>assistant\n",  # type: ignore[attr-defined]
        }

    rows = [replace(row, **framed(row)) for row in right_ledger()]
    assert judge(TOKENS, rows).outcome is Outcome.PASS
    assert judge(TOKENS, [replace(row, prompt_text=None) for row in rows]).outcome is Outcome.PASS
    strange = [replace(row, prompt=row.prompt[:-1]) if row.index == 5 else row for row in rows]
    found = judge(TOKENS, strange)
    assert found.outcome is Outcome.FAIL
    assert "step 1 row 5" in found.reason
    assert "unlike the other rows' prompts" in found.reason


def test_a_filtered_row_counts_nothing() -> None:
    kept_out = change(2, 5, filtered=True, loss_mask=lambda row: (0.0,) * len(row.loss_mask))
    assert judge(MASK, kept_out(right_ledger())).outcome is Outcome.PASS
    silent = change(2, 5, loss_mask=lambda row: (0.0,) * len(row.loss_mask))
    assert judge(MASK, silent(right_ledger())).outcome is Outcome.FAIL


def test_words_of_a_tool_are_left_out_of_the_loss() -> None:
    """A token that the sampler logged nothing for was not sampled: the mask is to leave it out."""
    tool = change(
        2,
        5,
        generation_logprobs=lambda row: (*row.generation_logprobs[:3], 0.0, *row.generation_logprobs[4:]),
        loss_mask=lambda row: tuple(
            0.0 if place == row.prompt_length + 3 else weight for place, weight in enumerate(row.loss_mask)
        ),
    )
    assert judge(MASK, tool(right_ledger())).outcome is Outcome.PASS


def test_a_completion_of_several_turns_ends_a_turn_where_the_environment_answers() -> None:
    """An end token before the environment's words ends its turn; the reward is that of the last turn."""

    def of_two_turns(row: object) -> dict[str, object]:
        said, heard = row.sampled_ids, b"12;"  # type: ignore[attr-defined]
        zeros, end = (0.0,) * len(heard), (*said[:2], EOS)
        columns = {
            name: (*getattr(row, name)[:3], *zeros, *getattr(row, name))
            for name in ("generation_logprobs", "prev_logprobs", "reference_logprobs")
        }
        given = row.token_ids[: row.prompt_length]  # type: ignore[attr-defined]
        return {
            **columns,
            "token_ids": (*given, *end, *heard, *said),
            "loss_mask": (*(0.0,) * len(given), 1.0, 1.0, 1.0, *zeros, *(1.0,) * len(said)),
            "kept_support_sizes": (2, 2, 2, *(0 for _ in heard), *row.kept_support_sizes),  # type: ignore[attr-defined]
        }

    rows = [replace(row, **of_two_turns(row)) for row in right_ledger()]
    unfiltered = [replace(row, kept_support_sizes=None) for row in rows]
    for law in (TOKENS, MASK, ENDS, POSSIBLE):
        assert judge(law, rows).outcome is Outcome.PASS, judge(law, rows).reason
        assert judge(law, unfiltered).outcome is Outcome.PASS, judge(law, unfiltered).reason
    went_on = [replace(row, loss_mask=None, kept_support_sizes=None) for row in rows]
    declared = replace(FACTS, end_ids=frozenset({EOS}))
    assert "continued after the end token 258" in judge(ENDS, went_on, declared).reason
    heard_too = change(2, 5, completion=lambda row: f"12;{row.completion}")(rows)
    assert "step 2 row 5: the rewarded text" in judge(TOKENS, heard_too).reason


def test_tokens_without_a_choice_are_certain() -> None:
    """Where filters left one token, its log-probability is 0; where several were left, 0 everywhere is none."""

    def certain(size: int) -> Rows:
        zeros = every(
            **dict.fromkeys(
                ("generation_logprobs", "prev_logprobs", "reference_logprobs"),
                lambda row: (0.0,) * len(row.sampled_ids),
            ),
            kept_support_sizes=lambda row: (size,) * len(row.sampled_ids),
        )
        return zeros(right_ledger())

    assert judge(POSSIBLE, certain(1)).outcome is Outcome.PASS
    assert "is 0 for all" in judge(POSSIBLE, certain(2)).reason


def test_likely_completions_may_repeat() -> None:
    """Of short answers that a model is sure of, equal ones are no fault, and no evidence either."""
    sure = every(
        generation_logprobs=lambda row: tuple(
            -0.01 if row.step == 2 else cell for cell in row.generation_logprobs
        )
    )
    assert judge(RANDOM, same_draws(right_ledger())).outcome is Outcome.FAIL
    assert judge(RANDOM, same_draws(sure(right_ledger()))).outcome is Outcome.PASS
    assert judge(RANDOM, [row for row in sure(right_ledger()) if row.step == 2]).outcome is Outcome.SKIPPED
    cold = replace(FACTS, temperature=0.0)
    assert judge(RANDOM, right_ledger(), cold).outcome is Outcome.SKIPPED


def test_groups_of_one_text_are_told_without_probabilities() -> None:
    text_only = every(
        token_ids=None, generation_logprobs=None, completion=lambda row: (row.completion or "") * 3
    )
    assert judge(RANDOM, text_only(right_ledger())).outcome is Outcome.PASS
    alike = every(
        token_ids=None,
        generation_logprobs=None,
        completion=lambda row: f"the answer to {row.prompt} is {row.step}",
    )
    assert judge(RANDOM, alike(right_ledger())).outcome is Outcome.FAIL


def test_a_batch_may_serve_several_steps_where_the_run_says_so() -> None:
    rows = copy_step(right_ledger())
    assert judge(ONCE, rows, replace(FACTS, steps_per_batch=2)).outcome is Outcome.PASS
    assert judge(ONCE, rows, replace(FACTS, steps_per_batch=None)).outcome is Outcome.SKIPPED


def test_a_step_of_long_texts_that_stands_twice_is_seen() -> None:
    """Without log-probabilities only whole steps tell, and short texts tell nothing."""
    texts = every(token_ids=None, generation_logprobs=None, completion=lambda row: (row.completion or "") * 5)
    assert judge(ONCE, texts(right_ledger())).outcome is Outcome.PASS
    assert judge(ONCE, texts(copy_step(right_ledger()))).outcome is Outcome.FAIL
    short = every(token_ids=None, generation_logprobs=None)
    assert judge(ONCE, short(copy_step(right_ledger()))).outcome is Outcome.SKIPPED


def test_older_weights_are_to_differ() -> None:
    """Rows sampled before the last update are left out of the agreement; none left is no evidence."""
    late = [replace(row, weight_version=0) for row in first("prev_logprobs", -1.0)(right_ledger())]
    verdict = judge(AGREE, late)
    assert verdict.outcome is Outcome.PASS
    assert "32 rows by older weights left out" in verdict.reason
    assert judge(AGREE, [row for row in late if row.step > 1]).outcome is Outcome.SKIPPED
    assert judge(VERSIONS, late, replace(FACTS, max_lag=1)).outcome is Outcome.FAIL


def test_rows_are_as_far_ahead_as_the_run_says() -> None:
    """A row that is newer was sampled late, or in place of one that was dropped as too old."""
    ahead = [replace(row, weight_version=max(0, row.step - 2)) for row in right_ledger()]
    exact = replace(FACTS, max_lag=1, lag_is_exact=True)
    assert judge(VERSIONS, ahead, exact).outcome is Outcome.PASS
    late = [replace(row, weight_version=2) if (row.step, row.index) == (3, 5) else row for row in ahead]
    assert judge(VERSIONS, late, replace(exact, lag_is_exact=False)).outcome is Outcome.PASS
    verdict = judge(VERSIONS, late, exact)
    assert verdict.outcome is Outcome.FAIL
    assert "step 3 row 5: sampled by weights 0 steps behind, the run samples 1 ahead" in verdict.reason


def test_the_verifier_rule_is_held_against_the_run() -> None:
    named = replace(FACTS, verifier="exact_match")
    verdict = judge("rewards recomputed equal the logged", right_ledger(), named)
    assert verdict.outcome is Outcome.FAIL
    assert "the run is configured with exact_match" in verdict.reason


def test_a_penalty_on_length_belongs_to_the_reward() -> None:
    sums = every(
        prompt="12+7=",
        answer="19",
        completion="19",
        verifier="exact_match",
        reward=0.75,
        length_penalty=-0.25,
    )
    law = "rewards recomputed equal the logged"
    assert judge(law, sums(right_ledger())).outcome is Outcome.PASS
    wrong = change(2, 5, length_penalty=0.0)(sums(right_ledger()))
    assert "step 2 row 5: '19' for '12+7=' earns 1, logged is 0.75" in judge(law, wrong).reason


def test_the_worst_verdict_lists_its_rows() -> None:
    verdict = judge(ADVANTAGES, change(2, 5, advantage=3.0)(right_ledger()))
    assert verdict.details == {"rows": [{"step": 2, "index": 5}]}


@pytest.mark.parametrize(
    ("spread", "wrong", "found"),
    [(0.0, 0.03, False), (0.0, 1.0, True), (0.01, 1.0, True), (0.01, 0.2, False), (0.2, 1.0, False)],
)
def test_rows_of_unknown_precision_show_their_own(spread: float, wrong: float, found: bool) -> None:
    """One token off by 1.0 is a fault where nine in ten agree to 0.01, and rounding where they differ by 0.2."""
    source = random.Random(0)
    rows = [
        replace(
            row,
            prev_logprobs=tuple(value - spread * source.random() for value in row.generation_logprobs or ()),
        )
        for row in right_ledger()
    ]
    _, *others = rows[5].prev_logprobs or ()
    rows[5] = replace(rows[5], prev_logprobs=((rows[5].generation_logprobs or ())[0] - wrong, *others))
    result = sampler_agrees(rows, replace(FACTS, precision=None))
    tokens = [fault for fault in result.faults if "token 0: sampled at" in fault.what]
    assert bool(tokens) == found
    assert "precision not known" in result.summary
