"""What a policy computes on made rows, by Transformers' model of its directory in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ROWS: Sequence[tuple[Sequence[int], Sequence[int], Sequence[int], float]] = (
    ((5, 9, 30), (41, 7, 3, 12), (1, 1, 1, 1), 1.0),
    ((8,), (20, 21, 22, 23, 24, 25), (1, 0, 0, 1, 1, 1), -0.5),
    ((60, 61, 62, 63, 64), (90,), (1,), 0.75),
    ((17, 2), (33, 34, 35), (1, 1, 1), -1.25),
    ((4, 4, 4, 4), (11, 200), (1, 1), 0.5),
)
"""Ids of prompt and completion, mask of the completion, advantage."""


def share_of_loss(
    logprobs: Tensor, entropy: Tensor, mask: Tensor, advantages: Tensor, tokens: Tensor, rows: Tensor
) -> Tensor:
    """Return the share of rows: a term of tokens and their advantages, one of entropies, one of rows."""
    of_tokens = (-(logprobs * advantages[:, None] + 0.05 * entropy) * mask).sum() / tokens
    return of_tokens - 0.1 * (logprobs * mask).sum() / rows


EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass
class PlainModel:
    """Transformers' model of a directory in float64, with weights that are given with each call."""

    folder: Path
    temperature: float
    scale: float
    """Of adapters."""
    balance: float
    """Coefficient of the routers' loss."""
    routed: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @cached_property
    def module(self) -> nn.Module:
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            self.folder, dtype=torch.float32, experts_implementation="eager"
        )
        for module in model.modules():
            if type(module).__name__.endswith("TopKRouter"):
                module.register_forward_hook(
                    lambda of, given, found: self.routed.append((found[0], found[2]))
                )
        return model.eval().double()

    @cached_property
    def weights(self) -> dict[str, Tensor]:
        """Weights of the files, by name."""
        return {name: weight.detach() for name, weight in self.module.named_parameters()}

    def merged(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all weights, with those that are trained or with the adapters' products."""
        found = dict(self.weights)
        for name, weight in trained.items():
            layer, is_low, _ = name.rpartition(".lora_A.")
            if is_low:
                found[f"{layer}.weight"] = found[f"{layer}.weight"] + self.scale * (
                    trained[f"{layer}.lora_B.weight"] @ weight
                )
            elif ".lora_B." not in name:
                found[name] = weight
        return found

    def scores(self, weights: Mapping[str, Tensor], row: int) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of a row's completion, 0 at tokens that a tool wrote."""
        prompt, completion, mask, _ = ROWS[row]
        self.routed.clear()
        ids_1S = torch.tensor([[*prompt, *completion]])
        output = functional_call(self.module, dict(weights), (ids_1S,), {"use_cache": False})
        logprobs_TV = (output.logits[0, len(prompt) - 1 : -1].double() / self.temperature).log_softmax(-1)
        chosen_T = logprobs_TV[torch.arange(len(completion)), torch.tensor(completion)]
        mask_T = torch.tensor(mask, dtype=torch.float64)
        return chosen_T * mask_T, -(logprobs_TV.exp() * logprobs_TV).sum(-1) * mask_T

    def states(self, weights: Mapping[str, Tensor], row: int) -> Tensor:
        """Return the last hidden states of a row."""
        prompt, completion, _, _ = ROWS[row]
        base: Any = getattr(self.module, "model")  # noqa: B009  a module of Transformers has no type
        inner = {name.removeprefix("model."): weight for name, weight in weights.items() if name != HEAD}
        given = {"input_ids": torch.tensor([[*prompt, *completion]]), "use_cache": False}
        output = functional_call(base, inner, (), given)
        states_SD: Tensor = output.last_hidden_state[0]
        return states_SD

    def all_scores(self, trained: Mapping[str, Tensor]) -> Tensor:
        """Return the log-probabilities of all rows, padded with 0."""
        with torch.no_grad():
            weights = self.merged({name: weight.double() for name, weight in trained.items()})
            rows = [self.scores(weights, row)[0] for row in range(len(ROWS))]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    def gradients(
        self, trained: Mapping[str, Tensor], rows: Sequence[int]
    ) -> tuple[float, dict[str, Tensor]]:
        """Return loss and gradients of an update of rows."""
        leaves = {name: weight.double().requires_grad_() for name, weight in trained.items()}
        weights = self.merged(leaves)
        tokens = torch.tensor(float(sum(sum(ROWS[row][2]) for row in rows)))
        own, balances = [], []
        for row in rows:
            logprobs_T, entropy_T = self.scores(weights, row)
            mask_1T = torch.tensor([ROWS[row][2]], dtype=torch.float64)
            advantage = torch.tensor([ROWS[row][3]], dtype=torch.float64)
            counts = tokens, torch.tensor(float(len(rows)))
            own.append(share_of_loss(logprobs_T[None], entropy_T[None], mask_1T, advantage, *counts))
            balances += [_balance(*one) / len(self.routed) / len(rows) for one in self.routed]
        loss = torch.stack(own).sum()
        whole = loss + self.balance * sum(balances, torch.zeros(()))
        found = torch.autograd.grad(whole, list(leaves.values()), allow_unused=True)
        return float(loss.detach()), {
            name: torch.zeros_like(leaf) if gradient is None else gradient
            for (name, leaf), gradient in zip(leaves.items(), found, strict=True)
        }


def draft_update(
    plain: PlainModel, trained: Mapping[str, Tensor], head: Mapping[str, Tensor], rows: Sequence[int]
) -> tuple[float, float, dict[str, Tensor]]:
    """Return loss and chance of acceptance of a draft head on an update of rows, and its gradients.

    From a state of the policy and the embedding of the next token it predicts the token after that one.
    """
    leaves = {name: weight.double().requires_grad_() for name, weight in head.items()}
    losses, accepted = [], []
    weights = plain.merged({name: weight.double() for name, weight in trained.items()})
    embeddings_VD, output_VD = weights[EMBEDDING], weights[HEAD]
    for row in rows:
        prompt, completion, mask, _ = ROWS[row]
        ids = [*prompt, *completion]
        with torch.no_grad():
            states_SD = plain.states(weights, row)
        for place in range(len(ids) - 2):
            if place + 2 < len(prompt) or not mask[place + 2 - len(prompt)]:
                continue
            joined_D = states_SD[place] @ leaves["hidden_proj.weight"].T
            joined_D = joined_D + embeddings_VD[ids[place + 1]] @ leaves["embed_proj.weight"].T
            inner_I = nn.functional.silu(
                _scaled(joined_D, leaves["norm.weight"]) @ leaves["up_proj.weight"].T
            )
            joined_D = joined_D + inner_I @ leaves["down_proj.weight"].T
            drafted_D = _scaled(joined_D, leaves["final_norm.weight"])
            logprobs_V = (drafted_D @ output_VD.T / plain.temperature).log_softmax(-1)
            policy_V = (states_SD[place + 1] @ output_VD.T / plain.temperature).softmax(-1)
            losses.append(-logprobs_V[ids[place + 2]])
            accepted.append(torch.minimum(policy_V, logprobs_V.exp()).sum())
    loss = torch.stack(losses).mean()
    found = torch.autograd.grad(loss, list(leaves.values()))
    chance = float(torch.stack(accepted).mean().detach())
    return float(loss.detach()), chance, dict(zip(leaves, found, strict=True))


def _scaled(states_D: Tensor, weight_D: Tensor) -> Tensor:
    """Return states over the root of their mean square, times a weight."""
    return states_D / (states_D.square().mean() + 1e-6).sqrt() * weight_D


def _balance(logits_SE: Tensor, chosen_SK: Tensor) -> Tensor:
    """Return a row's balance loss in one layer (DeepSeek-V3, arXiv 2412.19437, eq. 17-20)."""
    (num_tokens, num_chosen), num_experts = chosen_SK.shape, logits_SE.shape[-1]
    counts_E = torch.bincount(chosen_SK.flatten(), minlength=num_experts)
    mean_E = logits_SE.double().softmax(-1).mean(0)
    return (counts_E * num_experts / (num_chosen * num_tokens) * mean_E).sum()
