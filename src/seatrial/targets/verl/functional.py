"""verl's functions of tensors: log-probabilities and entropies of logits by each form, and statistics under a mask."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.contracts.named_metrics import MetricPart, MetricSpec
from seatrial.relations.facts import StackFacts
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before
from seatrial.targets.common.target import find_name
from seatrial.targets.verl.algorithms import MULTIPLIED

FUNCTIONAL = "verl.utils.torch_functional"
FUSED = "verl.utils.experimental.torch_functional"
CHUNK = 8
PADDING = "R22.named/means and sums, anything in the padding"


def _at_ids(values_BSN: Tensor, num_ids: int, prompt_lens_B: Tensor) -> Tensor:
    """Return what is at the places before the ids."""
    places_BT = prompt_lens_B[:, None] - 1 + torch.arange(num_ids)
    places_BT = places_BT.clamp(max=values_BSN.shape[1] - 1)
    return values_BSN.gather(1, places_BT[..., None].expand(-1, -1, values_BSN.shape[-1]))


class VerlFusedLinear:
    """`FusedLinearForPPO` in chunks of tokens; see `contracts.FusedLogprobs`."""

    def __init__(self) -> None:
        """Find the module."""
        self.fused = find_name("verl", [f"{FUSED}:FusedLinearForPPO"])(chunk_size=CHUNK)

    def fused_logprobs(
        self,
        hidden_BSD: Tensor,
        head_VD: Tensor,
        completion_ids_BT: Tensor,
        prompt_lens_B: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        hidden_BTD = self._laid_out(_at_ids(hidden_BSD, completion_ids_BT.shape[1], prompt_lens_B))
        found: tuple[Tensor, Tensor] = self.fused(hidden_BTD, head_VD, completion_ids_BT, temperature)
        return found

    def _laid_out(self, hidden_BTD: Tensor) -> Tensor:
        """Return the same values as they lie in memory when they are passed."""
        return hidden_BTD


class VerlFusedLinearOfPart(KnowsFailures, VerlFusedLinear):
    """The same of hidden states that are a part of a wider tensor, so that their rows are not next to each other."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (
        KnownFailure(
            "hidden states that have to be copied to be flattened get no gradient",
            finding="verl: small functions of older releases",
            releases=before("verl", "0.9"),
        ).of("R12.fused/value and gradient"),
    )

    def _laid_out(self, hidden_BTD: Tensor) -> Tensor:
        return torch.cat([hidden_BTD, hidden_BTD.detach()[:, :1]], dim=1)[:, :-1]


class VerlLogitsInChunks:
    """`logprobs_from_logits` and `entropy_from_logits_with_chunking`, as its actor calls them on rows end to end."""

    def __init__(self) -> None:
        """Find the functions."""
        self.logprobs = find_name("verl", [f"{FUNCTIONAL}:logprobs_from_logits"])
        self.entropy = find_name("verl", [f"{FUNCTIONAL}:entropy_from_logits_with_chunking"])

    def fused_logprobs(
        self,
        hidden_BSD: Tensor,
        head_VD: Tensor,
        completion_ids_BT: Tensor,
        prompt_lens_B: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        hidden_BTD = _at_ids(hidden_BSD, completion_ids_BT.shape[1], prompt_lens_B)
        logits_NV = (hidden_BTD @ head_VD.T).flatten(0, 1) / temperature
        logprobs_N = self.logprobs(
            logits=logits_NV, labels=completion_ids_BT.flatten(), inplace_backward=False
        )
        entropy_N = self.entropy(logits_NV, chunk_size=CHUNK)
        shape = completion_ids_BT.shape
        return logprobs_N.view(shape), entropy_N.view(shape)


class VerlLogits(VerlLogitsInChunks):
    """`logprobs_from_logits` and `entropy_from_logits`."""

    def __init__(self) -> None:
        """Find the functions."""
        super().__init__()
        whole = find_name("verl", [f"{FUNCTIONAL}:entropy_from_logits"])
        self.entropy = lambda logits_NV, chunk_size: whole(logits_NV)


class VerlLogprobsByRow:
    """`logprobs_from_logits_v2`; see `contracts.TokenLogprobs`."""

    function: ClassVar[str] = "logprobs_from_logits_v2"

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", [f"{FUNCTIONAL}:{self.function}"])

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        logits_BTV = _at_ids(logits_BSV, completion_ids_BT.shape[1], prompt_lens_B) / temperature
        found: Tensor = self.compute(logits_BTV, completion_ids_BT)
        return found


class VerlLogprobsOfResponse:
    """`log_probs_from_logits_response`, of logits of whole rows; see `contracts.TokenLogprobs`."""

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", [f"{FUNCTIONAL}:log_probs_from_logits_response"])

    def token_logprobs(
        self, logits_BSV: Tensor, completion_ids_BT: Tensor, prompt_lens_B: Tensor, temperature: float
    ) -> Tensor:
        """Cut each row to its prompt and its completion, whose ids are at its end."""
        T = completion_ids_BT.shape[1]
        logits_BTV = _at_ids(logits_BSV, T, prompt_lens_B) / temperature
        rows_BSV = torch.cat([logits_BTV, logits_BTV[:, -1:]], dim=1)
        ids_BS = torch.cat([torch.zeros_like(completion_ids_BT[:, :1]), completion_ids_BT], dim=1)
        found: Tensor = self.compute(ids_BS, rows_BSV, T)
        return found


class VerlMaskedStatistics(KnowsFailures):
    """`masked_mean` and `masked_sum` of a batch, and of rows."""

    facts = StackFacts(epsilon=1e-8)
    metric_specs: Mapping[str, MetricSpec] = {
        "masked_mean": MetricSpec(quantity="logprob"),
        "masked_sum": MetricSpec(quantity="logprob", how="sum"),
        "masked_mean of rows": MetricSpec(quantity="logprob", over="row_means", rows="all"),
    }
    known_failures: ClassVar[Sequence[KnownFailure]] = (
        replace(MULTIPLIED, releases=before("verl", "0.5")).of(PADDING),
    )

    def __init__(self) -> None:
        """Find the functions."""
        self.mean = find_name("verl", [f"{FUNCTIONAL}:masked_mean"])
        self.sum = find_name("verl", [f"{FUNCTIONAL}:masked_sum"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        """Put the parts of all ranks into one batch."""
        parts = [part.inputs for rank in ranks for part in rank]
        T = max(part.mask_BT.shape[1] for part in parts)
        values_BT, mask_BT = (
            torch.cat([torch.nn.functional.pad(one, (0, T - one.shape[1])) for one in columns]).detach()
            for columns in ([part.logprobs_BT for part in parts], [part.mask_BT for part in parts])
        )
        return {
            "masked_mean": float(self.mean(values_BT, mask_BT)),
            "masked_sum": float(self.sum(values_BT, mask_BT)),
            "masked_mean of rows": float(self.mean(values_BT, mask_BT, axis=-1).mean()),
        }


class VerlStatisticsOfRanks:
    """`distributed_masked_mean` and `distributed_mean_max_min_std`, each rank in a thread that exchanges sums."""

    facts = StackFacts(masked_rows=False, epsilon=1e-8)
    metric_specs: Mapping[str, MetricSpec] = {
        "masked mean": MetricSpec(quantity="logprob"),
        "mean": MetricSpec(quantity="logprob"),
        "max": MetricSpec(quantity="logprob", how="max"),
        "min": MetricSpec(quantity="logprob", how="min"),
        "std": MetricSpec(quantity="logprob", how="std"),
    }

    def __init__(self) -> None:
        """Find the functions."""
        module = find_name("verl", ["verl.utils:torch_functional"])
        module.get_device_name = lambda: "cpu"
        self.masked_mean = find_name("verl", [f"{FUNCTIONAL}:distributed_masked_mean"])
        self.statistics = find_name("verl", [f"{FUNCTIONAL}:distributed_mean_max_min_std"])

    def named_metrics(self, ranks: Sequence[Sequence[MetricPart]]) -> dict[str, float]:
        """Give each rank the values of all its micro-batches; padding is left out beforehand, as the functions need."""

        def of_rank(parts: Sequence[MetricPart]) -> dict[str, float]:
            masks = [part.inputs.mask_BT.flatten() for part in parts]
            values = [part.inputs.logprobs_BT.detach().flatten().nan_to_num() for part in parts]
            values_N, mask_N = torch.cat(values), torch.cat(masks)
            masked = self.masked_mean(values_N.clone(), mask_N.clone())
            mean, largest, smallest, deviation = self.statistics(values_N[mask_N.bool()])
            return {
                "masked mean": float(masked),
                "mean": float(mean),
                "max": float(largest),
                "min": float(smallest),
                "std": float(deviation),
            }

        found: dict[str, float] = in_threads(ranks, of_rank)[0]
        return found


def in_threads(ranks: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
    """Return what each rank's work returns, in threads whose `all_reduce` exchanges tensors."""
    barrier = threading.Barrier(len(ranks))
    local = threading.local()
    given: dict[int, Tensor] = {}
    how = {
        torch.distributed.ReduceOp.SUM: lambda all_: all_.sum(0),
        torch.distributed.ReduceOp.MAX: lambda all_: all_.max(0).values,
        torch.distributed.ReduceOp.MIN: lambda all_: all_.min(0).values,
    }

    def all_reduce(tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM, **_: Any) -> None:
        given[local.rank] = tensor.clone()
        barrier.wait()
        whole = how[op](torch.stack([given[rank] for rank in range(len(ranks))]))
        barrier.wait()
        tensor.copy_(whole)

    def of_rank(rank: int) -> Any:
        local.rank = rank
        return work(ranks[rank])

    with (
        mock.patch.object(torch.distributed, "all_reduce", all_reduce),
        ThreadPoolExecutor(len(ranks)) as pool,
    ):
        return list(pool.map(of_rank, range(len(ranks))))


ADAPTERS: dict[str, type[Any]] = {
    "fused-linear": VerlFusedLinear,
    "fused-linear-of-part": VerlFusedLinearOfPart,
    "logits": VerlLogits,
    "logits-in-chunks": VerlLogitsInChunks,
    "token-logprobs-by-row": VerlLogprobsByRow,
    "token-logprobs-naive": type(
        "VerlLogprobsNaive",
        (VerlLogprobsByRow,),
        {"__doc__": "`logprobs_from_logits_naive`.", "function": "logprobs_from_logits_naive"},
    ),
    "token-logprobs-of-response": VerlLogprobsOfResponse,
    "masked-statistics": VerlMaskedStatistics,
    "statistics-of-ranks": VerlStatisticsOfRanks,
}
