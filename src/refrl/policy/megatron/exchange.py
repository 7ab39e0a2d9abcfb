"""Tensors laid out as this rank's parameters, as whole tensors under Hugging Face names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from refrl.policy.megatron.conversion import Link, as_in_checkpoint
from refrl.policy.megatron.model import LocalModel, fill
from refrl.policy.megatron.parallel import Parallel


def gather(
    own: Callable[[str], Tensor | None],
    local: LocalModel,
    dtype: torch.dtype,
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor whole, named as in a Hugging Face checkpoint; every rank takes all of them.

    Args:
        own: gives a tensor of this rank by the name of its parameter over the whole model; None where another rank
            has it.
        local: this rank's share.
        dtype: of the tensors.
    """
    parallel = local.parallel
    device = next(iter(local.parameters.values())).device
    for link in local.every:
        here = own(link.parameter)
        parts = [None] * len(link.tensors) if here is None else link.divide(here.detach())
        for number, name in enumerate(link.tensors):
            part = parts[number]
            whole = None if part is None else _join(part, link, number, parallel)
            if whole is None:
                whole = torch.empty(link.shapes[number], dtype=dtype, device=device)
            yield name, _spread(whole, here is not None, link, parallel)


def _join(part: Tensor, link: Link, number: int, parallel: Parallel) -> Tensor:
    group = parallel.tensor_of(link)
    if link.split is None or group.size() == 1:
        return link.whole([part.detach()], number)
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part.detach().contiguous(), group=group)
    return link.whole(parts, number)


def _spread(whole: Tensor, is_here: bool, link: Link, parallel: Parallel) -> Tensor:
    """Give a tensor to the ranks that have other experts, then to those that have other layers."""
    groups = [parallel.pipeline] if link.expert is None else [parallel.expert, parallel.pipeline]
    for group in groups:
        if group.size() == 1:
            continue
        # The rank that has it is not known from the name alone.
        has = torch.tensor([float(is_here)])
        all_have = [torch.empty_like(has) for _ in range(group.size())]
        dist.all_gather(all_have, has, group=group)
        owners = [rank for rank, flag in enumerate(all_have) if flag]
        if not owners:
            continue
        whole = whole.contiguous()
        dist.broadcast(whole, src=dist.get_global_rank(group, owners[0]), group=group)
        is_here = True
    return whole


@torch.no_grad()
def take(tensors: Mapping[str, Tensor], targets: Mapping[str, Tensor], local: LocalModel) -> None:
    """Put whole Hugging Face tensors into this rank's parameters, or into what is laid out as they are.

    Args:
        tensors: by name, as in memory.
        targets: by the name of the parameter over the whole model; written.
        local: this rank's share.

    Raises:
        refrl.policy.megatron.conversion.ConversionError: a tensor has another shape than the architecture says.
    """
    stored = dict(as_in_checkpoint(tensors, local.architecture))
    for name, target in targets.items():
        link = local.links[name]
        fill(target, link, [stored[tensor] for tensor in link.tensors], local.parallel)
