"""The routers of a mixture of experts: how evenly they load the experts, and the loss that evens it out.

Shapes: B rows, S positions, E experts, K experts of a token, L layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, PolicyConfig
from refrl.policy.auxiliary import NONE, WHOLE, Auxiliary, Positions, Share

LOAD = "moe/tokens_per_expert/"
"""What the number of an expert is put behind; the value is summed over the layers, for one update."""


def make_router_loss(config: PolicyConfig, model: PreTrainedModel, positions: Positions = WHOLE) -> Auxiliary:
    """Return what watches the routers of a model, and balances them where the configuration says so.

    Rows that are laid end to end (`policy.sequence_packing`) are not watched.

    Raises:
        ConfigError: the loss is asked for, and the model has no routers that are known here.
    """
    routers = [module for module in model.modules() if _is_router(module)]
    if routers and not config.sequence_packing.enabled:
        return RouterLoss(routers, config.router_aux_loss_coef, positions)
    if config.router_aux_loss_coef:
        raise ConfigError(
            f"policy.router_aux_loss_coef={config.router_aux_loss_coef:g}: {type(model).__name__} has no routers of "
            "experts; leave it out"
        )
    return NONE


def _is_router(module: nn.Module) -> bool:
    """Whether its forward returns (logits, weights, chosen experts), as the routers of transformers do."""
    names = ("num_experts", "top_k")
    return type(module).__name__.endswith("TopKRouter") and all(hasattr(module, name) for name in names)


class RouterLoss(Auxiliary):
    """The sequence-wise balance loss of DeepSeek-V3 (arXiv 2412.19437, eq. 17-20), averaged over layers and rows.

    Of a row it is the sum over experts of (E / K) times the share of its tokens that went to the expert, times the
    expert's mean probability: 1 where both are even. It is a mean over the rows of the whole update that are trained
    on, prompts included and padding not, so that it does not depend on how the update is cut.
    """

    def __init__(self, routers: list[nn.Module], coefficient: float, positions: Positions = WHOLE) -> None:
        """Watch these routers, one a layer.

        Args:
            routers: they have the attributes `num_experts` and `top_k`, and return (logits, weights, chosen experts).
            coefficient: of the loss; 0 only measures.
            positions: of the rows that the routers decide on in this process.
        """
        self._routers = routers
        self._coefficient = coefficient
        self._positions = positions
        self._seen: list[tuple[Tensor, Tensor]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See what each router decides."""
        self._seen = []
        hooks = [router.register_forward_hook(self._see) for router in self._routers]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def share(self, micro: Batch, update: Batch) -> Share:
        """Return the share of a micro-batch (see `refrl.policy.auxiliary.Auxiliary`)."""
        trained_B = micro.mask_BT.sum(1) > 0
        mask_BS = (micro.attention_mask_BS * trained_B[:, None]).float()
        own_BS = self._positions.own(mask_BS)
        losses, loads = [], []
        for logits, chosen in self._seen:
            loss_B, load_E = balance(
                logits.unflatten(0, own_BS.shape), chosen.unflatten(0, own_BS.shape), own_BS, self._positions
            )
            losses.append(loss_B.sum() / update.num_valid_seqs)
            loads.append(load_E)
        loss = torch.stack(losses).mean()
        load_E = torch.stack(loads).sum(0)
        metrics = {f"{LOAD}{number}": count for number, count in enumerate(load_E)}
        weighted = self._coefficient * loss if self._coefficient else torch.zeros_like(loss)
        return weighted, {"moe/router_aux_loss": loss.detach(), **metrics}

    def finished(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add how many times the mean load the most loaded expert has."""
        loads = [value for name, value in metrics.items() if name.startswith(LOAD)]
        return {**metrics, "moe/load_max_over_mean": max(loads) * len(loads) / sum(loads)}

    def _see(self, router: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor, Tensor]) -> None:
        logits, _, chosen = outputs
        self._seen.append((logits, chosen))


def balance(
    logits_BSE: Tensor, chosen_BSK: Tensor, mask_BS: Tensor, positions: Positions = WHOLE
) -> tuple[Tensor, Tensor]:
    """Return loss_B of one layer, 0 where a row has no token, and load_E, the tokens that each expert got.

    Both are of whole rows, also where this process has some of their positions alone.
    """
    num_experts, num_chosen = logits_BSE.shape[-1], chosen_BSK.shape[-1]
    # Masked before the softmax: a NaN at a padding position would survive a multiplication by 0.
    logits_BSE = logits_BSE.float().masked_fill(mask_BS[:, :, None] == 0, 0.0)
    probs_BSE = logits_BSE.softmax(-1) * mask_BS[:, :, None]
    sent_BSE = nn.functional.one_hot(chosen_BSK, num_experts).sum(2) * mask_BS[:, :, None]
    sums = positions.total(torch.cat([probs_BSE.sum(1), sent_BSE.sum(1), mask_BS.sum(1, keepdim=True)], 1))
    probs_BE, load_BE, tokens_B1 = sums.split([num_experts, num_experts, 1], 1)
    load_BE, tokens_B1 = load_BE.detach(), tokens_B1.detach().clamp_min(1)
    share_BE = load_BE * num_experts / (num_chosen * tokens_B1)
    return (share_BE * probs_BE / tokens_B1).sum(-1), load_BE.sum(0)
