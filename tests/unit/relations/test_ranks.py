"""The laws of rows laid over ranks: plain stacks obey, and each planted fault is seen by the law about it."""

import functools
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest
import torch
from tests.unit.relations.plain_ranks import PlainRanks
from torch import Tensor

from seatrial.relations import NotServed
from seatrial.relations.engine import run_relation
from seatrial.relations.facts import StackFacts
from seatrial.relations.ranked_cases import RankedExamples, lay
from seatrial.relations.records import LossInputs, LossSpec
from seatrial.relations.registry import select
from seatrial.targets.common.ranks import RankError, call_on_ranks
from seatrial.verdict import Outcome

pytestmark = pytest.mark.usefixtures("forked_processes")


@pytest.fixture(autouse=True)
def _from_the_root(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranks import this package of tests."""
    monkeypatch.syspath_prepend(str(pytestconfig.rootpath))
    yield


def broken(stack: object, names: Sequence[str], *, tidy: bool = False) -> list[str]:
    """Return the laws that a stack breaks."""
    verdicts = [
        run_relation(relation, stack, seeds=[0], tidy=tidy, shrink_seconds=0) for relation in select(names)
    ]
    assert all(verdict.outcome in (Outcome.PASS, Outcome.FAIL) for verdict in verdicts), verdicts
    return [law for verdict in verdicts for law in verdict.details.get("laws_broken", [])]


PROCESSES = ("R2.ranks", "R25.ranks")


def test_plain_ranks_obey() -> None:
    """In two processes that average."""
    assert broken(PlainRanks(), PROCESSES) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("own count", "gradient, ranks of unequal numbers of tokens"),
        ("multiplied twice", "gradient, ranks alike"),
        ("not divided by the micro-batches", "gradient, two micro-batches on each rank"),
        ("bias left out", "gradients of all ranks"),
        ("loss of one rank", "logged loss, ranks of unequal numbers of tokens"),
        ("tokens of one rank", "logged metrics, ranks of unequal numbers of tokens"),
    ],
)
def test_a_fault_of_ranks_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(PlainRanks(fault), PROCESSES)


def test_ranks_alike_hide_their_own_counts() -> None:
    """With equal lengths a mean of the ranks' means is the mean."""
    assert broken(PlainRanks("own count"), PROCESSES, tidy=True) == []


@dataclass
class MeanOverRanks:
    """A loss that every rank divides by the count of all and multiplies by their number, since they are averaged."""

    fault: str = ""
    ranks_reduce: Literal["mean", "sum"] = "mean"
    loss_spec: LossSpec = LossSpec()  # noqa: RUF009  frozen
    facts: StackFacts = StackFacts()  # noqa: RUF009  frozen

    def ranked_losses(self, ranks: Sequence[Sequence[LossInputs]]) -> Sequence[Sequence[Tensor]]:
        """Take the PPO clip of each part."""
        return [[self._loss(part, rank, len(ranks)) for part in rank] for rank in ranks]

    def _loss(self, part: LossInputs, rank: Sequence[LossInputs], num_ranks: int) -> Tensor:
        ratio = (part.logprobs_BT - part.old_logprobs_BT).exp()
        advantages = part.advantages_B[:, None]
        loss = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * part.mask_BT
        own = sum(one.mask_BT.sum() for one in rank)
        if self.fault == "own count":
            return loss.sum() / own
        if self.fault == "mean of the micro-batches":
            return loss.sum() / part.mask_BT.sum() * own / len(rank) / part.global_valid_tokens * num_ranks
        if self.fault == "by rows":
            return loss.sum() / part.mask_BT.sum() * len(part.mask_BT) / part.global_valid_seqs * num_ranks
        scale = 1 if self.fault == "not multiplied" else num_ranks
        return scale * loss.sum() / part.global_valid_tokens


def test_a_mean_over_ranks_obeys() -> None:
    """And a sum, where nothing is multiplied."""
    assert broken(MeanOverRanks(), ["R2.ranked_loss"]) == []
    assert broken(MeanOverRanks("not multiplied", "sum"), ["R2.ranked_loss"]) == []


@pytest.mark.parametrize(
    ("fault", "law"),
    [
        ("own count", "a rank without a training token"),
        ("own count", "ranks of unequal numbers of tokens"),
        ("not multiplied", "ranks of unequal numbers of tokens"),
        ("mean of the micro-batches", "two micro-batches on each rank"),
        ("by rows", "ranks of unequal numbers of rows"),
    ],
)
def test_a_fault_of_a_ranked_loss_is_seen(fault: str, law: str) -> None:
    """By the law about it."""
    assert law in broken(MeanOverRanks(fault), ["R2.ranked_loss"])


def test_tidy_rows_hide_a_mean_of_means() -> None:
    """Ranks of as many tokens."""
    assert broken(MeanOverRanks("own count"), ["R2.ranked_loss"], tidy=True) == []


def test_a_layout_holds_every_row_once() -> None:
    """Five rows on two ranks, in two micro-batches each."""
    assert lay(5, 2, 2) == [[[0], [1]], [[2], [3, 4]]]


def test_shorter_batches_keep_every_rank_busy() -> None:
    """Shrinking ends no rank."""
    law = select(["R2.ranks"])[0].laws[1]
    case = law.make(PlainRanks(), 0, False)
    assert isinstance(case, RankedExamples)
    assert {len(smaller.examples) for smaller in case.smaller()} == {4}
    assert replace(case, num_ranks=1).layout == [[[0, 1, 2, 3]]]


DOUBLE = "tests.unit.relations.plain_ranks:double"
Call = Callable[[str, Mapping[str, Any], int], list[Any]]


@pytest.fixture(params=[(), ("torch.distributed",)], ids=["new processes", "forked"])
def call(request: pytest.FixtureRequest) -> Call:
    """Return a function that calls another on ranks, which are new processes or forked from a server."""
    return functools.partial(call_on_ranks, preload=request.param)


def test_ranks_answer_each_with_its_own(call: Call) -> None:
    """What they print is no answer."""
    answers = call(DOUBLE, {"number": 4}, 2)
    assert [(float(answer["sum"]), answer["rank"]) for answer in answers] == [(8.0, 0), (8.0, 1)]


@pytest.mark.parametrize("how", ["exit", "raise"])
def test_a_rank_that_fails_ends_all_and_the_next_call_starts_anew(call: Call, how: str) -> None:
    """The rank that waits for it is not waited for."""
    with pytest.raises(RankError, match=r"rank 0: (it ended|Traceback[^$]*made for a test)"):
        call("tests.unit.relations.plain_ranks:refuse", {"how": how}, 2)
    assert len(call(DOUBLE, {"number": 1}, 2)) == 2


def test_what_a_rank_does_not_serve_is_not_served(call: Call) -> None:
    """No violation, and no reason to start processes anew."""
    before = call(DOUBLE, {"number": 1}, 2)
    with pytest.raises(NotServed, match="by design"):
        call("tests.unit.relations.plain_ranks:refuse", {"how": "not served"}, 2)
    after = call(DOUBLE, {"number": 1}, 2)
    assert [answer["process"] for answer in before] == [answer["process"] for answer in after]


def _call_and_exit() -> None:
    call_on_ranks(DOUBLE, {"number": 1}, 2, ("torch.distributed",))


def test_a_forked_process_that_called_ranks_exits() -> None:
    """As one that judges relations does: nothing of atexit is called in it, and its ranks end with it."""
    process = multiprocessing.get_context("fork").Process(target=_call_and_exit)
    process.start()
    process.join(120)
    hangs = process.is_alive()
    process.kill()
    process.join()
    assert (hangs, process.exitcode) == (False, 0)
