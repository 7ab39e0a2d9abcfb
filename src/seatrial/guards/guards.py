"""The guards: what they look at (samples of weights, the ledger of samples), and what they assert.

Source: the monitors that the catalogue of silent failures calls for (docs/evidence/findings.md). Tensors carry their
shape in their name (docs/architecture.md); masks are 1 where a token trains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import TYPE_CHECKING, Any

from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


ELEMENTS = 256
"""Elements sampled from a tensor; all of them from a smaller one."""


@dataclass(frozen=True)
class WeightSample:
    """A sample of weights. N elements."""

    sizes: Mapping[str, int]
    """Elements of each tensor, by name, in the order of `elements_N`."""
    dtypes: Mapping[str, torch.dtype]
    elements_N: Tensor
    """A copy, in float32: every narrower type fits."""

    def differing(self, other: WeightSample) -> list[str]:
        """Return the names of tensors whose values differ; NaN equals NaN.

        Two types are compared in the coarser of them. Both samples are of tensors with the same names and shapes.
        """
        import torch

        if not self.sizes:
            return []
        here_N = self.elements_N
        there_N = other.elements_N.to(here_N.device)
        if self.dtypes != other.dtypes:
            here_N, there_N = self._rounded(here_N, other), self._rounded(there_N, other)
        differs_N = (here_N != there_N) & ~((here_N != here_N) & (there_N != there_N))
        ends = torch.tensor(list(accumulate(self.sizes.values(), initial=0)), device=here_N.device)
        # How many differ up to the end of each tensor, in one transfer: on a GPU each waits for the queue.
        up_to = torch.cat([ends.new_zeros(1), differs_N.cumsum(0)])[ends].tolist()
        return [
            name for name, (before, after) in zip(self.sizes, pairwise(up_to), strict=True) if before < after
        ]

    def _rounded(self, elements_N: Tensor, other: WeightSample) -> Tensor:
        """Return elements in the coarser of the two types of each tensor, as float32."""
        import torch

        types = zip(self.dtypes.values(), other.dtypes.values(), strict=True)
        coarser = [min(pair, key=lambda dtype: dtype.itemsize) for pair in types]
        if len(set(coarser)) == 1:
            return elements_N.to(coarser[0]).float()
        parts = torch.split(elements_N, list(self.sizes.values()))
        return torch.cat([part.to(dtype).float() for part, dtype in zip(parts, coarser, strict=True)])


def sample_weights(weights: Mapping[str, Tensor]) -> WeightSample:
    """Return elements of tensors, evenly spread over each, always the same ones for one size."""
    import torch

    parts = {name: _spread(weight.detach()) for name, weight in weights.items()}
    dtypes = {name: weight.dtype for name, weight in weights.items()}
    if len(set(dtypes.values())) == 1:
        elements_N = torch.cat(list(parts.values())).float()
    else:
        elements_N = torch.cat([part.float() for part in parts.values()]) if parts else torch.empty(0)
    return WeightSample(
        sizes={name: part.numel() for name, part in parts.items()}, dtypes=dtypes, elements_N=elements_N
    )


def _spread(weight: Tensor) -> Tensor:
    """Return a view of some elements."""
    flat = weight.reshape(-1)
    # An odd stride shares no factor with the powers of two that widths are: every row and column is sampled in time.
    return flat[:: flat.numel() // ELEMENTS | 1] if flat.numel() > ELEMENTS else flat


class SampleLedger:
    """Counts of samples between drawing and training; ids identify the samples within the loop."""

    def __init__(self) -> None:
        """Begin with nothing drawn."""
        self._open: Counter[Hashable] = Counter()
        self._wrong: list[str] = []
        self.num_drawn = 0
        self.num_trained = 0
        self.dropped: Counter[str] = Counter()
        """Samples left out, by reason."""

    def drawn(self, ids: Iterable[Hashable]) -> None:
        """Note samples that the sampler gave."""
        for one in ids:
            self.num_drawn += 1
            if self._open[one]:
                self._wrong.append(f"{one} is drawn again before it was trained")
            self._open[one] += 1

    def trained(self, ids: Iterable[Hashable]) -> None:
        """Note samples that an update trained on."""
        for one in ids:
            self.num_trained += 1
            self._close(one, "trained")

    def left_out(self, ids: Iterable[Hashable], reason: str) -> None:
        """Note samples that are not trained on, and why."""
        for one in ids:
            self.dropped[reason] += 1
            self._close(one, f"left out ({reason})")

    def _close(self, one: Hashable, how: str) -> None:
        if not self._open[one]:
            self._wrong.append(f"{one} is {how} and was not drawn, or is so a second time")
            del self._open[one]
            return
        self._open[one] -= 1
        if not self._open[one]:
            del self._open[one]

    def settle(self, *, in_flight: int = 0) -> list[str]:
        """Return what is wrong; `in_flight` samples may be open, as in an asynchronous run."""
        number = sum(self._open.values())
        lost = (
            [f"{number} samples were drawn and never trained nor left out, such as {next(iter(self._open))}"]
            if number > in_flight
            else []
        )
        return [*self._wrong, *lost]


RATIO_TOLERANCE = 1e-3
"""Bound on the largest |log ratio| in float32; a policy in bfloat16 needs about 0.1 (its logits have 8 bits)."""
KEPT = 1000
"""Verdicts that are kept; beyond these only failures and counts are."""


class GuardError(AssertionError):
    """A guard found a failure."""


class Guards:
    """Checks, counts, and raises at the first failure, or records it."""

    def __init__(self, *, raises: bool = True) -> None:
        """Begin with no verdict."""
        self._raises = raises
        self.verdicts: list[Verdict] = []
        """Verdicts in order; passes only up to `KEPT`."""
        self.asked: Counter[str] = Counter()
        """How often each guard was called, by the name of its verdicts."""
        self.ledger = SampleLedger()

    @property
    def failures(self) -> list[Verdict]:
        """Every failure."""
        return [verdict for verdict in self.verdicts if verdict.outcome is Outcome.FAIL]

    def summary(self) -> dict[str, Any]:
        """Return how often each guard was called, its first failure, and why it was blocked first, as JSON values."""
        first: dict[tuple[str, Outcome], Verdict] = {}
        for verdict in self.verdicts:
            first.setdefault((verdict.name, verdict.outcome), verdict)
        return {
            name: {
                "asked": number,
                **{
                    word: first[name, outcome].to_json() if (name, outcome) in first else None
                    for word, outcome in (("failed", Outcome.FAIL), ("blocked", Outcome.BLOCKED))
                },
            }
            for name, number in self.asked.items()
        }

    def first_ratio(
        self,
        logprobs_BT: Tensor,
        old_logprobs_BT: Tensor,
        mask_BT: Tensor,
        tolerance: float = RATIO_TOLERANCE,
    ) -> None:
        """The ratio is 1 in the first mini-batch of an on-policy step: both are scored by the same weights."""
        import torch

        looked_at = [0.0, 0.0]
        if mask_BT.numel():
            gaps_BT = (logprobs_BT.detach() - old_logprobs_BT.detach()).float()
            worst = torch.where(mask_BT.bool(), gaps_BT, 0.0).abs().max()
            # One transfer for both: on a GPU each waits for the queue.
            looked_at = torch.stack([worst, mask_BT.sum().float()]).tolist()
        self._ask(
            "first mini-batch ratio",
            looked_at[0] <= tolerance,
            "|log ratio| in the first mini-batch: temperature, mask, precision, dropout, or other rows",
            value=looked_at[0],
            bound=f"<= {tolerance:g}",
            number=int(looked_at[1]),
        )

    def same_ids(self, sampled: Sequence[Sequence[int]], ids_BS: Tensor, mask_BS: Tensor) -> None:
        """The ids that train are those that were sampled, row by row: nothing decoded or cut them."""
        import torch

        trained_BS = mask_BS.bool()
        lens = trained_BS.sum(1).tolist()
        wrong = None if len(sampled) == len(lens) else f"{len(sampled)} rows sampled, {len(lens)} trained"
        given = torch.tensor(list(chain.from_iterable(sampled)), dtype=ids_BS.dtype)
        same = [len(row) for row in sampled] == lens and torch.equal(ids_BS[trained_BS].cpu(), given)
        if not same:
            wrong = wrong or _first_difference(sampled, ids_BS.tolist(), trained_BS.tolist())
        self._ask("ids trained = ids sampled", wrong is None, wrong or "", number=sum(map(len, sampled)))

    def same_prompts(self, encoded: Sequence[Sequence[int]], given: Sequence[Sequence[int]]) -> None:
        """The sampler was given the prompts as the tokenizer encodes them, prompt by prompt."""
        wrong = None if len(encoded) == len(given) else f"{len(encoded)} prompts, {len(given)} given"
        for place, (right, ids) in enumerate(zip(encoded, given, strict=False)):
            if tuple(right) != tuple(ids):
                wrong = wrong or f"prompt {place} has {len(right)} ids, and the sampler got {len(ids)} others"
        self._ask("prompts as encoded", wrong is None, wrong or "", number=len(encoded))

    def group_identity(
        self, prompts: Sequence[Any], groups: Sequence[Any], group_size: int | None = None
    ) -> None:
        """Rows of a group have one prompt, and groups have their size, or a multiple where a prompt was drawn again."""
        by_group: dict[Any, list[Any]] = {}
        for prompt, group in zip(prompts, groups, strict=True):
            by_group.setdefault(group, []).append(prompt)
        mixed = [group for group, rows in by_group.items() if any(row != rows[0] for row in rows)]
        sizes = {group: len(rows) for group, rows in by_group.items() if len(rows) % (group_size or 1)}
        wrong = f"group {mixed[0]} holds several prompts" if mixed else ""
        if not wrong and sizes:
            group, size = next(iter(sizes.items()))
            wrong = f"group {group} has {size} rows, not {group_size}"
        self._ask("group identity", not wrong, wrong, number=len(prompts))

    @contextmanager
    def census(self, model: nn.Module, *, may_rest: Iterable[str] = ()) -> Iterator[None]:
        """Context around an optimizer step: every trainable tensor changes and no frozen one does.

        Some elements of each tensor are compared, spread over it. Tensors named in `may_rest` may stay unchanged: an
        expert that received no token, or any tensor with a zero gradient.
        """
        before = sample_weights(dict(model.named_parameters()))
        yield
        weights = dict(model.named_parameters())
        trains = [name for name, weight in weights.items() if weight.requires_grad]
        self.moved(before, sample_weights(weights), trains, may_rest=may_rest)

    def moved(
        self,
        before: WeightSample,
        after: WeightSample,
        trainable: Collection[str],
        *,
        may_rest: Iterable[str] = (),
    ) -> None:
        """Between two samples of the same weights every trainable tensor changed and no frozen one did."""
        moved, resting = set(before.differing(after)), set(may_rest)
        still = [name for name in trainable if name not in moved and name not in resting]
        trains = set(trainable)
        frozen = [name for name in after.sizes if name in moved and name not in trains]
        wrong = [f"trainable and unchanged: {still[0]} ({len(still)} of {len(after.sizes)})"] if still else []
        wrong += [f"frozen and changed: {frozen[0]} ({len(frozen)} in all)"] if frozen else []
        self._ask("moved and frozen", not wrong, "; ".join(wrong), number=len(after.sizes))

    def same_weights(self, trained: Mapping[str, Tensor], served: Mapping[str, Tensor]) -> None:
        """After a weight sync: the sampler has every tensor of the trainer, by name, with the same values."""
        missing = sorted(trained.keys() ^ served.keys())
        wrong = f"{missing[0]} is on one side alone ({len(missing)} such)" if missing else ""
        # Tensors that share storage are equal.
        apart = [
            name for name in trained if name in served and trained[name].data_ptr() != served[name].data_ptr()
        ]
        reshaped = [name for name in apart if trained[name].shape != served[name].shape]
        fit = [name for name in apart if name not in reshaped]
        here, there = (sample_weights({name: side[name] for name in fit}) for side in (trained, served))
        differing = [*reshaped, *here.differing(there)]
        if differing:
            wrong = wrong or f"{differing[0]} differs between trainer and sampler ({len(differing)} such)"
        self._ask("names and checksums after sync", not wrong, wrong, number=len(trained))

    def settled(self, *, in_flight: int = 0) -> None:
        """Every sample that `ledger` saw drawn was trained once, or left out with a reason."""
        wrong = self.ledger.settle(in_flight=in_flight)
        self._ask("sample ledger", not wrong, "; ".join(wrong[:3]), number=self.ledger.num_drawn)

    def lag(self, trainer_version: int, sample_versions: Sequence[int], window: int) -> None:
        """No sample is older than the window of weight versions allows, and none is from the future."""
        lags = [trainer_version - version for version in sample_versions]
        worst = max(lags, default=0)
        newest = min(lags, default=0)
        wrong = f"a sample is {worst} versions old" if worst > window else ""
        wrong = wrong or ("a sample is newer than the trainer" if newest < 0 else "")
        self._ask(
            "lag window", not wrong, wrong, value=float(worst), bound=f"0 to {window}", number=len(lags)
        )

    def hold(self, name: str, is_good: bool, wrong: str, *, number: int) -> None:
        """Record a custom check: `wrong` is the message of a failure, `number` the number of samples."""
        self._ask(name, is_good, wrong, number=number)

    def block(self, name: str, reason: str) -> None:
        """Record that the environment prevented a check, or a part of it."""
        self.asked[f"guard {name}"] += 1
        self.verdicts.append(Verdict(name=f"guard {name}", outcome=Outcome.BLOCKED, reason=reason))

    def _ask(
        self,
        name: str,
        is_good: bool,
        wrong: str,
        *,
        value: float | None = None,
        bound: str | None = None,
        number: int,
    ) -> None:
        """Record the verdict; without samples it is not Pass."""
        self.asked[f"guard {name}"] += 1
        outcome = Outcome.FAIL if not is_good else Outcome.PASS if number else Outcome.SKIPPED
        reason = wrong if not is_good else "in order" if number else "not triggered: nothing to look at"
        verdict = Verdict(
            name=f"guard {name}",
            outcome=outcome,
            reason=reason or name,
            value=value,
            bound=bound,
            num_samples=number,
        )
        if outcome is Outcome.FAIL or len(self.verdicts) < KEPT:
            self.verdicts.append(verdict)
        if outcome is Outcome.FAIL and self._raises:
            measured = "" if value is None else f" ({value:.4g}, bound {bound})"
            raise GuardError(f"{verdict.name}: {verdict.reason}{measured}")


def _first_difference(
    sampled: Sequence[Sequence[int]], rows: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]]
) -> str | None:
    """Return where rows that are trained are not those that were sampled, in words."""
    for place, (given, row, mask) in enumerate(zip(sampled, rows, masks, strict=False)):
        trained = [token for token, trains in zip(row, mask, strict=True) if trains]
        if trained != list(given):
            first = next(
                (at for at, (a, b) in enumerate(zip(given, trained, strict=False)) if a != b),
                min(len(given), len(trained)),
            )
            return f"row {place}: {len(given)} ids sampled, {len(trained)} trained, differing at {first}"
    return None
