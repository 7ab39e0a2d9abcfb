"""Contract of whole runs of models with special architectures.

Part of `seatrial.relations.contracts`, which lists every component. `policy.model_name` may be one of the adapter's
attribute `architectures`: `image` and `audio` (an image or a sound in every prompt, which the rows then carry),
`experts` (a mixture of experts in every layer; `policy.router_aux_loss_coef` adds their balance loss), `drafts` (a
draft head, trained with `policy.draft.enabled`). Such a run has its own task if it needs one.
`policy.generation.quantization` may be one of the attribute `quantizations` (`int8`: symmetric, a scale a row, without
embedding and head), with `policy.generation.colocated.enabled` false.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from seatrial.relations.contracts.run import ShortRun

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class Architectures(ShortRun, Protocol):
    """Short runs of several architectures, and the plain model of each."""

    @property
    def architectures(self) -> Sequence[str]:
        """Those of the module's names that the adapter can run."""
        ...

    @property
    def quantizations(self) -> Sequence[str]:
        """Those of the module's names that its sampler can have."""
        ...

    def trained_by_class(self, name: str) -> Collection[str]:
        """Return the tensors of an architecture that its class in Transformers trains when it makes such a model.

        Those that it freezes, such as sines for places in a sound, are left out; so is a draft head.
        """
        ...

    def next_token_logits(
        self, weights: Mapping[str, Tensor], ids: Sequence[int], *, media: Tensor | None = None
    ) -> Tensor:
        """See `contracts.run.ShortRun`; the weights say of which model.

        `media` is given where a row has one; the token that takes its place in a prompt then has the logit -inf.
        """
        ...

    def answer_in(self, prompt: str, media: Tensor) -> str:
        """Return the right answer to a prompt of `image` or `audio`, read from the image or the sound."""
        ...

    def routing(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Sequence[tuple[Tensor, Tensor]]:
        """Return (probabilities [S, E] of all experts, ids [S, k] of the chosen ones) of every layer for a sequence.

        Of the plain model of `experts`; differentiable.
        """
        ...

    def draft_logits(
        self, weights: Mapping[str, Tensor], draft_weights: Mapping[str, Tensor], ids: Sequence[int]
    ) -> Tensor:
        """Return raw logits [S - 2, V] of a draft head with `draft_weights`: row s is about `ids[s + 2]`.

        Of the plain model of `drafts`; differentiable with respect to `draft_weights`.
        """
        ...
