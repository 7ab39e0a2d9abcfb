"""Worked examples of the beam scorers and constraints of releases before 5: hypotheses, groups, phrases, choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.scores import ids_of

SEARCH, CONSTRAINTS = "transformers.generation.beam_search", "transformers.generation.beam_constraints"
PAD, END = 0, 9


def _class(name: str) -> Any:
    return find_name("transformers", [f"{CONSTRAINTS}:{name}"])


def _rounded(values: Any) -> list[Any]:
    found: list[Any] = torch.as_tensor(values).double().mul(1000).round().div(1000).tolist()
    return found


def _kept(made: Any) -> list[Any]:
    """Return scores that hypotheses keep, by their lengths, and the worst of them, after each is added."""
    found = []
    for penalty, lengths in ((1.0, (2, 4, 5, 1)), (0.0, (2, 4, 5, 1)), (-1.0, (None, None, None, None))):
        hypotheses = made(num_beams=2, length_penalty=penalty, early_stopping=False)
        for total, length in zip((-4.0, -4.0, -20.0, -0.5), lengths, strict=True):
            more = {} if length is None else {"generated_len": length}
            hypotheses.add(torch.zeros(3, dtype=torch.long), total, **more)
            found.append([*sorted(_rounded([one[0] for one in hypotheses.beams])), round(hypotheses.worst_score, 3),
                          len(hypotheses)])  # fmt: skip
    return found


def _done(made: Any) -> list[list[bool]]:
    """Return whether a search ends: with too few hypotheses, and with enough, by the best that is left."""
    found = []
    for stopping, penalty in (
        (True, 1.0),
        (False, 1.0),
        (False, -1.0),
        ("never", 1.0),
        ("never", -1.0),
        ("never", 0.0),
    ):
        hypotheses = made(num_beams=2, length_penalty=penalty, early_stopping=stopping, max_length=12)
        ids = torch.zeros(6, dtype=torch.long)
        hypotheses.add(ids, -6.0, generated_len=4)
        few = hypotheses.is_done(-100.0, 6, 2)
        hypotheses.add(ids, -8.0, generated_len=4)
        found.append(
            [few, *(hypotheses.is_done(best, 6, 2) for best in (-1.0, -7.9, -8.1, -19.0, -21.0, -40.0))]
        )
    return found


def _no_length(made: Any) -> None:
    made(num_beams=2, length_penalty=1.0, early_stopping="never")


def _process(scorer: Any, ids: Tensor, scores: Any, tokens: Any, beams: Any, **more: Any) -> list[Any]:
    """Return scores, ids and beams of the next step, and whether the search is done."""
    found = scorer.process(
        ids,
        torch.tensor(scores),
        torch.tensor(tokens),
        torch.tensor(beams),
        pad_token_id=PAD,
        eos_token_id=END,
        **more,
    )
    return [
        _rounded(found["next_beam_scores"]), found["next_beam_tokens"].tolist(), found["next_beam_indices"].tolist(),
        scorer.is_done,
    ]  # fmt: skip


SCORES = [[-1.0, -2.0, -3.0, -4.0], [-1.5, -2.5, -3.5, -4.5]]
TOKENS = [[END, 4, 5, 6], [4, END, END, 7]]
BEAMS = [[1, 0, 1, 0], [0, 1, 0, 1]]


def _searched(made: Any) -> list[Any]:
    """Return the steps of two rows of two beams, of which the second ends, and the answers."""
    scorer = made(batch_size=2, num_beams=2, device="cpu", num_beam_hyps_to_keep=2, max_length=8)
    ids = ids_of([1, 2], [1, 3], [5, 6], [5, 7])
    beams: Any = ((0,), (1,), (2,), (3,))
    found = [_process(scorer, ids, SCORES, TOKENS, BEAMS, beam_indices=beams, decoder_prompt_len=1)]
    ids = ids_of([1, 2, 4], [1, 3, 5], [5, 6, 4], [5, 7, 7])
    beams = ((0, 0), (1, 1), (2, 2), (3, 3))
    found.append(
        _process(
            scorer,
            ids,
            SCORES,
            [[5, 4, 5, 6], [END, 8, 8, 7]],
            BEAMS,
            beam_indices=beams,
            decoder_prompt_len=1,
        )
    )
    ids = ids_of([1, 2, 4, 5], [1, 2, 4, 4], [5, 6, 4, 0], [5, 7, 7, 0])
    last = scorer.finalize(
        ids,
        torch.tensor([-2.0, -9.0, -6.0, -7.0]),
        None,
        None,
        max_length=8,
        pad_token_id=PAD,
        eos_token_id=[END],
        beam_indices=((0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 3)),
        decoder_prompt_len=1,
    )
    return [
        *found,
        last["sequences"].tolist(),
        _rounded(last["sequence_scores"]),
        last["beam_indices"].tolist(),
    ]


def _at_limit(made: Any) -> list[Any]:
    """Return the answers of rows that end at the limit, and of ones without an end, by the penalty of their lengths."""
    found = []
    for limit, penalty in ((3, 1.0), (4, 1.0), (4, -2.0), (None, 0.0)):
        scorer = made(batch_size=1, num_beams=2, device="cpu", length_penalty=penalty)
        _process(scorer, ids_of([1, 2], [1, 3]), SCORES[:1], TOKENS[:1], BEAMS[:1])
        last = scorer.finalize(
            ids_of([1, 2, 4], [1, 3, 5]),
            torch.tensor([-0.3, -1.2]),
            None,
            None,
            max_length=limit,
            pad_token_id=PAD,
            eos_token_id=END,
        )
        found.append([last["sequences"].tolist(), _rounded(last["sequence_scores"]), last["beam_indices"]])
    return found


def _groups(made: Any) -> list[Any]:
    """Return the steps of two groups of two beams of a row, of which the second group ends, and the answers."""
    scorer = made(batch_size=1, num_beams=4, device="cpu", num_beam_groups=2, num_beam_hyps_to_keep=3,
                  do_early_stopping=True)  # fmt: skip
    ids, found = ids_of([1, 2], [1, 3]), []
    found.append(_process(scorer, ids, SCORES[:1], TOKENS[:1], BEAMS[:1], group_index=1))
    found.append(_process(scorer, ids, SCORES[1:], [[END, 3, 4, 5]], BEAMS[1:], group_index=1))
    found.append(_process(scorer, ids, SCORES[1:], [[4, END, 4, 5]], BEAMS[1:], group_index=1))
    found.append(_process(scorer, ids, SCORES[1:], [[4, 3, END, 5]], BEAMS[1:], group_index=0))
    last = scorer.finalize(
        ids_of([1, 2, 4], [1, 2, 3], [1, 2, 0], [1, 3, 0]), torch.tensor([-3.0, -6.0, -6.0, -7.0]), None, None,
        max_length=5, pad_token_id=PAD, eos_token_id=END,
    )  # fmt: skip
    return [*found, scorer.group_size, last["sequences"].tolist(), _rounded(last["sequence_scores"])]


def _refusals(made: Any) -> list[bool]:
    """Return which numbers of beams and groups, and sizes of batches, are refused."""
    found = []
    for beams, groups, rows in ((1, 1, 2), (3, 2, 3), (2, 3, 2), (4, 2, 4), (2, 1, 4), (2, 1, 2)):
        try:
            scorer = made(batch_size=1, num_beams=beams, device="cpu", num_beam_groups=groups)
            _process(scorer, torch.ones(rows, 2, dtype=torch.long), SCORES[:1], [[1, 2, 3, 4]], BEAMS[:1])
            found.append(False)
        except ValueError:
            found.append(True)
    return found


def _story(constraint: Any, tokens: Sequence[int]) -> list[Any]:
    """Return what a constraint needs and says after each id."""
    found = [[constraint.advance(), constraint.remaining(), constraint.completed]]
    for token in tokens:
        wanted = constraint.does_advance(token)
        found.append([wanted, *constraint.update(token), constraint.advance(), constraint.remaining()])
    return found


def _phrase(made: Any) -> list[Any]:
    whole, half = made([5, 6, 5]), made([5, 6, 5])
    found = [_story(whole, [5, 6, 5])]
    half.update(5)
    plain, same = half.copy(), half.copy(stateful=True)
    return [*found, plain.advance(), same.advance(), same.remaining(), half.update(7)[2], half.completed]


def _choices(made: Any) -> list[Any]:
    found = [_story(made([[5, 6, 7], [5, 8], [9]]), tokens) for tokens in ([5, 8], [5, 3, 9], [5, 6, 7], [4])]
    half = made([[5, 6, 7], [5, 8]])
    half.update(5)
    plain, same = half.copy(), half.copy(stateful=True)
    return [*found, plain.advance(), same.advance()]


def _tree(made: Any) -> list[Any]:
    tree = made([[5, 6, 7], [5, 8], [9]])
    return [
        [tree.next_tokens(one) for one in ([], [5], [5, 6], [9])],
        [tree.reached_leaf(one) for one in ([], [5, 8], [9])],
        tree.count_leaves(tree.trie), tree.max_height, made([[5, 6], [5]], no_subsets=False).next_tokens([5]),
    ]  # fmt: skip


FLAWED: Mapping[str, Sequence[Any]] = {
    "PhrasalConstraint": ([], 5, [-1], ["a"], (5, 6)),
    "DisjunctiveConstraint": ([], 5, [5], [[-1]], [["a"]], [[5], [5, 6]]),
}


def _flawed(made: Any) -> list[str]:
    """Return the constraints that are taken though no ids can meet them."""
    wrong = []
    for name, table in FLAWED.items():
        for given in table:
            try:
                _class(name)(given)
                wrong.append(f"{name}({given})")
            except ValueError:
                continue
    return wrong


def _together(made: Any) -> list[Any]:
    """Return what a list of constraints needs after each id, and how far it is."""
    phrase, choice = _class("PhrasalConstraint"), _class("DisjunctiveConstraint")
    found = []
    for tokens in ([5, 6, 7], [7, 5, 4, 5, 6], [5, 4, 8, 1, 5, 6, 2], []):
        state = made([phrase([5, 6]), choice([[7], [8, 1]])])
        steps = [[state.advance(), state.get_bank(), state.completed]]
        for token in tokens:
            steps.append([*state.add(token), state.advance(), state.get_bank(), state.completed])
        found.append(steps)
    state.reset([5, 6, 8])
    same, plain = state.copy(), state.copy(stateful=False)
    again = [same.advance(), same.get_bank(), plain.advance(), plain.get_bank()]
    same.add(1)
    return [*found, again, same.completed, same.get_bank(), state.completed, state.advance()]


def _constrained(made: Any) -> list[Any]:
    """Return the steps of a search of a phrase, whose beams are sorted by how much of it they have, and the answers."""
    phrase = _class("PhrasalConstraint")
    scorer = made(
        batch_size=1, num_beams=3, constraints=[phrase([5, 6])], device="cpu", num_beam_hyps_to_keep=2
    )
    vocabulary = -torch.arange(30.0).reshape(3, 10) / 10 - 5
    scores, beams = [[-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]], [[0, 1, 2, 0, 1, 2]]
    found = [
        _process(scorer, ids_of([1, 2], [1, 5], [1, 3]), scores, [[4, 7, 8, 1, 2, 3]], beams,
                 scores_for_all_vocab=vocabulary),
        _process(scorer, ids_of([1, 5, 6], [1, 2, 5], [1, 2, 4]), scores, [[END, END, 7, 4, 5, 8]], beams,
                 scores_for_all_vocab=vocabulary),
        _process(scorer, ids_of([1, 5, 6], [1, 2, 5], [1, 2, 4]), scores, [[3, 6, 7, 4, 5, 8]], beams,
                 scores_for_all_vocab=vocabulary),
    ]  # fmt: skip
    last = scorer.finalize(
        ids_of([1, 5, 6, 3], [1, 2, 5, 6], [1, 2, 4, 5]), torch.tensor([-8.0, -4.0, -1.0]), None, None, max_length=8,
        pad_token_id=PAD, eos_token_id=END,
    )  # fmt: skip
    few = made(batch_size=1, num_beams=2, constraints=[phrase([5, 6])], device="cpu", num_beam_hyps_to_keep=2)
    other = few.finalize(
        ids_of([1, 5, 6, 3], [1, 2, 5, 7]), torch.tensor([-8.0, -4.0]), None, None, max_length=8, pad_token_id=PAD,
        eos_token_id=END,
    )  # fmt: skip
    return [
        *found, scorer.check_completes_constraints([1, 5, 6]), scorer.check_completes_constraints([5, 1, 6]),
        last["sequences"].tolist(), _rounded(last["sequence_scores"]), other["sequences"].tolist(),
        _rounded(other["sequence_scores"]),
    ]  # fmt: skip


def _row(place: str, name: str, what: str, call: Callable[[Any], Any], right: Any) -> Row:
    return Row("samplers", f"{place}:{name}", what, call, right, since="4.45")


# Sources: the documentation of each class; Vijayakumar et al. 2016 for groups, Hu et al. 2019 for constraints.
OLDER_BEAM_ROWS: Sequence[Row] = (
    _row(SEARCH, "BeamHypotheses", "scores by lengths", _kept,
         [[-2.0, -2.0, 1], [-2.0, -1.0, -2.0, 2], [-2.0, -1.0, -2.0, 2], [-1.0, -0.5, -1.0, 2], [-4.0, -4.0, 1],
          [-4.0, -4.0, -4.0, 2], [-4.0, -4.0, -4.0, 2], [-4.0, -0.5, -4.0, 2], [-12.0, -12.0, 1], [-12.0, -12.0,
          -12.0, 2], [-12.0, -12.0, -12.0, 2], [-12.0, -1.5, -12.0, 2]]),
    _row(SEARCH, "BeamHypotheses", "searches that end", _done,
         [[False, True, True, True, True, True, True], [False, False, False, True, True, True, True], [False, False,
          False, True, True, True, True], [False, False, False, False, False, True, True], [False, False, False, True,
          True, True, True], [False, False, False, True, True, True, True]]),
    _row(SEARCH, "BeamHypotheses", "a search that never stops, without a limit", _no_length, Refused("max_length")),
    _row(SEARCH, "BeamSearchScorer", "steps and answers", _searched,
         [[[-2.0, -3.0, -1.5, -4.5], [4, 5, 4, 7], [0, 1, 2, 3], False], [[-1.0, -2.0, -2.5, -3.5], [5, 4, 8, 8], [1,
          0, 3, 2], False], [[1, 3, 9, 0, 0], [1, 2, 4, 5, 9], [5, 6, 4, 9, 0], [5, 7, 9, 0, 0]], [-0.5, -0.667, -0.5,
          -1.25], [[1, 1, -1, -1, -1], [0, 0, 0, -1, -1], [2, 2, 2, -1, -1], [3, 3, -1, -1, -1]]]),
    _row(SEARCH, "BeamSearchScorer", "answers at the limit", _at_limit,
         [[[[1, 2, 4]], [-0.1], None], [[[1, 2, 4, 9]], [-0.1], None], [[[1, 2, 4, 9]], [-2.7], None], [[[1, 2, 4,
          9]], [-0.3], None]]),
    _row(SEARCH, "BeamSearchScorer", "groups", _groups,
         [[[-2.0, -3.0], [4, 5], [0, 1], False], [[-2.5, -3.5], [3, 4], [1, 0], False], [[0.0, 0.0], [0, 0], [0, 0],
          False], [[-1.5, -2.5], [4, 3], [0, 1], False], 2, [[1, 3, 9, 0], [1, 2, 9, 0], [1, 2, 4, 9]], [-0.333, -0.5,
          -1.0]]),
    _row(SEARCH, "BeamSearchScorer", "numbers that are refused", _refusals, [True] * 5 + [False]),
    _row(CONSTRAINTS, "PhrasalConstraint", "ids of a phrase", _phrase,
         [[[5, 3, False], [True, True, False, False, 6, 2], [True, True, False, False, 5, 1], [True, True, True,
          False, None, 0]], 5, 6, 2, True, False]),
    _row(CONSTRAINTS, "DisjunctiveConstraint", "ids of one of several phrases", _choices,
         [[[[5, 9], 3, False], [True, True, False, False, [6, 8], 2], [True, True, True, False, None, 0]], [[[5, 9],
          3, False], [True, True, False, False, [6, 8], 2], [False, False, False, True, [5, 9], 3], [True, True, True,
          False, None, 0]], [[[5, 9], 3, False], [True, True, False, False, [6, 8], 2], [True, True, False, False,
          [7], 1], [True, True, True, False, None, 0]], [[[5, 9], 3, False], [False, False, False, True, [5, 9], 3]],
          [5], [6, 8]]),
    _row(CONSTRAINTS, "DisjunctiveTrie", "ids that follow", _tree,
         [[[5, 9], [6, 8], [7], []], [False, True, True], 3, 3, [6]]),
    _row(CONSTRAINTS, "Constraint", "constraints that are refused", _flawed, []),
    _row(CONSTRAINTS, "ConstraintListState", "several constraints", _together,
         [[[[5, 7, 8], 0, False], [False, True, [6], 1, False], [True, True, [7, 8], 2, False], [True, True, None, 4,
          True]], [[[5, 7, 8], 0, False], [True, True, [5], 2, False], [False, True, [6], 3, False], [False, False,
          [5], 2, False], [False, True, [6], 3, False], [True, True, None, 4, True]], [[[5, 7, 8], 0, False], [False,
          True, [6], 1, False], [False, False, [7, 8, 5], 0, False], [False, True, [1], 1, False], [True, True, [5],
          2, False], [False, True, [6], 3, False], [True, True, None, 4, True], [True, False, None, 4, True]], [[[5,
          7, 8], 0, False]], [[1], 3, [5, 7, 8], 0], True, 4, False, None]),
    _row(SEARCH, "ConstrainedBeamSearchScorer", "steps and answers of constraints", _constrained,
         [[[-6.6, -5.5, -1.0], [6, 5, 4], [1, 0, 0], False], [[-4.0, -7.5, -3.0], [4, 5, 7], [0, 2, 2], False],
          [[-1.0, -7.5, -3.0], [3, 5, 7], [0, 2, 2], False], True, False, [[1, 5, 6, 9, 0], [1, 2, 5, 6, 9]], [-0.25,
          -1.0], [[1, 2, 5, 7, 9], [1, 5, 6, 3, 9]], [-1.0, -2.0]]),
)  # fmt: skip
