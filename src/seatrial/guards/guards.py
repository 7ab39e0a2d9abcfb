"""The seven guards.

Source: the monitors that the catalogue of silent failures asks for (docs/findings.md). Tensors carry their shape in
their name (docs/architecture.md); masks are 1 where a token trains.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from seatrial.guards.ledger import SampleLedger
from seatrial.guards.weights import Sampled, sample_of
from seatrial.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from torch import Tensor, nn

RATIO_TOLERANCE = 1e-3
"""Of the largest |log ratio| in float32; a policy in bfloat16 needs about 0.1 (its logits have 8 bits)."""
KEPT = 1000
"""Verdicts that are kept; of more only failures are, and the numbers."""


class GuardError(AssertionError):
    """A guard saw something wrong."""


class Guards:
    """Asks, counts, and raises at the first failure, or records."""

    def __init__(self, *, raises: bool = True) -> None:
        """Begin with no verdict."""
        self._raises = raises
        self.verdicts: list[Verdict] = []
        """What was found, in order; passes only up to `KEPT`."""
        self.num_asked = 0
        self.ledger = SampleLedger()

    @property
    def failures(self) -> list[Verdict]:
        """Every failure."""
        return [verdict for verdict in self.verdicts if verdict.outcome is Outcome.FAIL]

    def first_ratio(
        self,
        logprobs_BT: Tensor,
        old_logprobs_BT: Tensor,
        mask_BT: Tensor,
        tolerance: float = RATIO_TOLERANCE,
    ) -> None:
        """The ratio is 1 in the first mini-batch of an on-policy step: both are scored by the same weights."""
        keep = mask_BT.bool()
        gaps = (logprobs_BT.detach() - old_logprobs_BT.detach()).float()[keep].abs()
        number = int(gaps.numel())
        worst = float(gaps.max()) if number else 0.0
        self._ask(
            "first mini-batch ratio",
            worst <= tolerance,
            "|log ratio| in the first mini-batch: temperature, mask, precision, dropout, or other rows",
            value=worst,
            bound=f"<= {tolerance:g}",
            number=number,
        )

    def same_ids(self, sampled: Sequence[Sequence[int]], ids_BS: Tensor, mask_BS: Tensor) -> None:
        """The ids that train are those that were sampled, row by row: nothing decoded or cut them."""
        rows = ids_BS.tolist()
        masks = mask_BS.bool().tolist()
        wrong = None if len(sampled) == len(rows) else f"{len(sampled)} rows sampled, {len(rows)} trained"
        for place, (given, row, mask) in enumerate(zip(sampled, rows, masks, strict=False)):
            trained = [token for token, trains in zip(row, mask, strict=True) if trains]
            if trained != list(given):
                first = next(
                    (at for at, (a, b) in enumerate(zip(given, trained, strict=False)) if a != b),
                    min(len(given), len(trained)),
                )
                wrong = f"row {place}: {len(given)} ids sampled, {len(trained)} trained, differing at {first}"
                break
        self._ask("ids trained = ids sampled", wrong is None, wrong or "", number=sum(map(len, sampled)))

    def group_identity(
        self, prompts: Sequence[Any], groups: Sequence[Any], group_size: int | None = None
    ) -> None:
        """Rows of a group have one prompt, rows of a prompt one group, and groups their size."""
        by_group: dict[Any, list[Any]] = {}
        for prompt, group in zip(prompts, groups, strict=True):
            by_group.setdefault(group, []).append(prompt)
        mixed = [group for group, rows in by_group.items() if any(row != rows[0] for row in rows)]
        sizes = {group: len(rows) for group, rows in by_group.items() if group_size not in (None, len(rows))}
        wrong = f"group {mixed[0]} holds several prompts" if mixed else ""
        if not wrong and sizes:
            group, size = next(iter(sizes.items()))
            wrong = f"group {group} has {size} rows, not {group_size}"
        self._ask("group identity", not wrong, wrong, number=len(prompts))

    @contextmanager
    def census(self, model: nn.Module, *, may_rest: Iterable[str] = ()) -> Iterator[None]:
        """Around an optimizer step: every trainable tensor moves and no frozen one does.

        Of each tensor some elements are looked at, spread over it. Tensors named in `may_rest` may stay: an expert that
        no token was sent to, or any where the gradient is zero.
        """
        before = {
            name: (sample_of(weight), weight.requires_grad) for name, weight in model.named_parameters()
        }
        yield
        resting = set(may_rest)
        still, moved = [], []
        for name, weight in model.named_parameters():
            sample, trains = before[name]
            changed = not sample.equals(sample_of(weight))
            if trains and not changed and name not in resting:
                still.append(name)
            if changed and not trains:
                moved.append(name)
        wrong = f"frozen and moved: {moved[0]} ({len(moved)} in all)" if moved else ""
        if still:
            wrong = f"trainable and at rest: {still[0]} ({len(still)} of {len(before)})" + (
                "; " + wrong if wrong else ""
            )
        self._ask("moved and frozen", not wrong, wrong, number=len(before))

    def same_weights(self, trained: Mapping[str, Tensor], served: Mapping[str, Tensor]) -> None:
        """After a weight sync: the sampler has every tensor of the trainer, by name, with the same values."""
        missing = sorted(trained.keys() ^ served.keys())
        wrong = f"{missing[0]} is on one side alone ({len(missing)} such)" if missing else ""
        for name in sorted(trained.keys() & served.keys()):
            if not _same(sample_of(trained[name]), sample_of(served[name])):
                wrong = wrong or f"{name} differs between trainer and sampler"
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
        """Record the verdict; no samples are no Pass."""
        self.num_asked += 1
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


def _same(one: Sampled, other: Sampled) -> bool:
    return one.shape == other.shape and one.equals(other)
