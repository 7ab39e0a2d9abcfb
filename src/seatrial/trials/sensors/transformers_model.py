"""A model of transformers with its gradient, row by row without padding: of architectures that `decoder` does not have.

Torch and transformers are imported on first use.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seatrial.evidence.ledger.schema import LedgerRow
from seatrial.evidence.weights import StoredTensor
from seatrial.trials.run_evidence import RunEvidence
from seatrial.trials.sensors.scoring import load_model, media_of, placeholder_of

Array = npt.NDArray[np.float64]
TABLES = "rotary_emb."
"""In the names of tables that a model computes from its configuration."""


class TransformersModel:
    """A model of a run, in float32."""

    def __init__(self, evidence: RunEvidence, folder: Path | None = None) -> None:
        """Load it.

        Args:
            evidence: of the run.
            folder: of the model; None: the initial one.

        Raises:
            BlockedError: transformers or the model's files are missing.
        """
        self._model, self._facts = load_model(folder or evidence.job.initial_model)
        self._frozen = tuple(evidence.job.frozen)
        self._outputs: Any = None
        self._balances: list[float] = []
        self._loads: Any = 0

    def logits(self, row: LedgerRow) -> Array:
        """Return logits_SV of a row; `backward` takes the gradient of the row that was last computed."""
        import torch

        ids_1S = torch.tensor([row.token_ids])
        has_routers = "num_experts_per_tok" in self._facts
        self._outputs = self._model(
            input_ids=ids_1S,
            attention_mask=torch.ones_like(ids_1S),
            use_cache=False,
            **media_of(self._facts, int(row.prompt_id)),
            **({"output_router_logits": True} if has_routers else {}),
        )
        logits_SV: Array = self._outputs.logits[0].detach().double().numpy()
        token = placeholder_of(self._facts)
        if token is not None:
            logits_SV[:, token] = -math.inf  # the token of a feature is never sampled
        return logits_SV

    def backward(self, gradient_SV: Array, balance: float = 0.0) -> None:
        """Add the gradient of the row that was last computed, with so many times its routers' balance loss."""
        import torch

        logits_SV = self._outputs.logits[0]
        total = (logits_SV * torch.from_numpy(gradient_SV).to(logits_SV.dtype)).sum()
        layers = getattr(self._outputs, "router_logits", None) or ()
        if layers:
            mean = sum(map(self._balance, layers)) / len(layers)
            self._balances.append(float(mean.detach()))
            total = total + balance * mean
        total.backward()

    def norms(self) -> dict[str, float]:
        """Return the norm of the gradient of each weight that trains."""
        return {name: float(value.grad.norm()) for name, value in self._trained().items()}

    def trained(self) -> dict[str, tuple[Array, Array]]:
        """Return each weight that trains with the sum of its gradients."""
        return {
            name: (value.detach().double().numpy(), value.grad.double().numpy())
            for name, value in self._trained().items()
        }

    def move(self, weights: Mapping[str, Array]) -> None:
        """Set weights, and begin with gradients of zero."""
        import torch

        named = dict(self._model.named_parameters())
        with torch.no_grad():
            for name, value in weights.items():
                named[name].copy_(torch.from_numpy(value))
        self._model.zero_grad()

    def _trained(self) -> Mapping[str, Any]:
        return {
            name: value
            for name, value in self._model.named_parameters()
            if value.grad is not None and not (self._frozen and name.endswith(self._frozen))
        }

    def routed(self) -> dict[str, float]:
        """Return the tokens of each expert and the routers' balance loss, by their logged names; empty without any."""
        if not self._balances:
            return {}
        loads = {f"moe/tokens_per_expert/{number}": float(load) for number, load in enumerate(self._loads)}
        return {**loads, "moe/router_aux_loss": math.fsum(self._balances) / len(self._balances)}

    def _balance(self, logits_SE: Any) -> Any:
        """Return a layer's balance loss of the row (DeepSeek-V3, arXiv 2412.19437, eq. 17-20), and count its tokens."""
        import torch

        chosen = int(self._facts["num_experts_per_tok"])
        positions, experts = logits_SE.shape
        counts_E = torch.bincount(logits_SE.topk(chosen, -1).indices.flatten(), minlength=experts)
        self._loads = self._loads + counts_E
        share_E = counts_E * experts / (chosen * positions)
        return (share_E * logits_SE.softmax(-1).mean(0)).sum()


def write_model(tensors: Mapping[str, StoredTensor], source: Path, folder: Path) -> None:
    """Write a model that transformers loads: these weights, with the configuration of another folder.

    Tables of rotary embeddings follow from the configuration, and are left out.
    """
    import torch
    from safetensors.torch import save_file

    for file in source.glob("*.json"):
        if "index" not in file.name:
            shutil.copyfile(file, folder / file.name)
    values = {
        name: torch.from_numpy(np.array(tensor.read()))
        for name, tensor in tensors.items()
        if TABLES not in name
    }
    save_file(values, folder / "model.safetensors", metadata={"format": "pt"})
