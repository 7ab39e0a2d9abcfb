"""A draft head trained with the policy, on the policy's own hidden states: it predicts the token after next.

At position s it takes the policy's last hidden state and the embedding of token s + 1, and predicts token s + 2 through
the policy's output head: one step of multi-token prediction (DeepSeek-V3, arXiv 2412.19437, section 2.2) or of a Hydra
head (arXiv 2402.05109), without attention. Everything of the policy is detached, and the head has an optimizer of its
own: the policy trains as it would without it, bit for bit.

Shapes: B rows, S positions, N positions that are trained on, D width, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from refrl.algorithms.batching import Batch
from refrl.config import ConfigError, PolicyConfig
from refrl.policy.auxiliary import NONE, Auxiliary, Share
from refrl.policy.optimizer import ClippedAdamW

Read = Callable[[Tensor], Tensor]
"""Weight of a model, as it is held -> as the model computes with it, whole and without gradient."""
FOLDER, CONFIG, WEIGHTS = "draft", "config.json", "model.safetensors"


class DraftHead(nn.Module):
    """From a hidden state and the embedding of the next token to the hidden state after it; float32."""

    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        """Make the layers; their weights come from a file."""
        super().__init__()
        self.hidden_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.embed_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.RMSNorm(hidden_size, eps=1e-6)
        self.up_proj = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.final_norm = nn.RMSNorm(hidden_size, eps=1e-6)

    def forward(self, states_ND: Tensor, embeddings_ND: Tensor) -> Tensor:
        """Return states_ND that the output head makes logits of."""
        joined_ND = self.hidden_proj(states_ND) + self.embed_proj(embeddings_ND)
        joined_ND = joined_ND + self.down_proj(functional.silu(self.up_proj(self.norm(joined_ND))))
        output_ND: Tensor = self.final_norm(joined_ND)
        return output_ND


def make_draft(
    config: PolicyConfig,
    model: PreTrainedModel,
    *,
    num_updates: int,
    temperature: float,
    read: Read = Tensor.detach,
) -> Auxiliary:
    """Return what trains the draft head that the configuration names; nothing where it is switched off.

    Args:
        config: of the policy.
        model: on its device.
        num_updates: length of the schedule.
        temperature: of sampling.
        read: gives a weight of the model as it computes with it, whole.

    Raises:
        ConfigError: there is none in its directory, it is of another width than the model, or the model's output head
            is more than a matrix.
    """
    if not config.draft.enabled:
        return NONE
    folder = Path(config.draft.model_name or Path(config.model_name) / FOLDER)
    facts = model.config.get_text_config()
    if (
        getattr(facts, "final_logit_softcapping", None)
        or getattr(model.get_output_embeddings(), "bias", None) is not None
    ):
        raise ConfigError(
            f"policy.draft: the output head of {type(model).__name__} is more than a matrix; leave it out"
        )
    head = load_draft(folder).to(model.device)
    if head.hidden_proj.in_features != facts.hidden_size:
        raise ConfigError(
            f"policy.draft: the head in {folder} has width {head.hidden_proj.in_features}, the model "
            f"{facts.hidden_size}: give the head of this model"
        )
    optimizer = ClippedAdamW(head, config, num_updates, precision=torch.float32)
    return DraftTraining(head, model, optimizer, temperature=temperature, read=read)


def load_draft(folder: Path) -> DraftHead:
    """Read a draft head.

    Raises:
        ConfigError: it is not there, or not whole.
    """
    try:
        facts = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        head = DraftHead(facts["hidden_size"], facts["intermediate_size"])
        head.load_state_dict(load_file(folder / WEIGHTS))
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"policy.draft: there is no draft head in {folder} ({reason}); set policy.draft.model_name, or make a "
            "model with one: python -m refrl make-model --draft-head --output DIR"
        ) from error
    return head


class DraftTraining(Auxiliary):
    """Trains a draft head on the tokens that the policy is trained on, from the same forward pass."""

    def __init__(
        self,
        head: DraftHead,
        model: PreTrainedModel,
        optimizer: ClippedAdamW,
        *,
        temperature: float,
        read: Read,
    ) -> None:
        """Put the parts together.

        Args:
            head: trained in place.
            model: its hidden states, embedding and output head are read.
            optimizer: of the head.
            temperature: of sampling, under which drafts would be accepted.
            read: see `make_draft`.
        """
        self._head, self._model, self._optimizer = head, model, optimizer
        self._temperature, self._read = temperature, read
        self._states_BSD: Tensor | None = None
        self._grad_norm = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """See the last hidden states."""
        hook = self._model.base_model.register_forward_hook(self._see)
        try:
            yield
        finally:
            hook.remove()

    def share(self, micro: Batch, update: Batch) -> Share:
        """Return the cross-entropy of the sampled tokens, and the chance that a draft would be accepted.

        The chance is the sum over tokens of min(p, q), of the policy's and the draft's probability (speculative
        sampling, arXiv 2211.17192, theorem 3.5).
        """
        assert self._states_BSD is not None, "no forward was seen"
        states_BSD, self._states_BSD = self._states_BSD.detach(), None
        chosen_BS, ids_BS = drafted(micro), micro.input_ids_BS
        head_VD = self._read(self._weight(self._model.get_output_embeddings())).float()
        with torch.no_grad():
            embeddings_VD = self._read(self._weight(self._model.get_input_embeddings()))
            embeddings_ND = functional.embedding(ids_BS[:, 1:-1][chosen_BS], embeddings_VD)
            probs_NV = self._logits(states_BSD[:, 1:-1][chosen_BS], head_VD).softmax(-1)
        states_ND = self._head(states_BSD[:, :-2][chosen_BS].float(), embeddings_ND.float())
        logits_NV = self._logits(states_ND, head_VD)
        number = drafted(update).sum().clamp_min(1)
        loss = functional.cross_entropy(logits_NV, ids_BS[:, 2:][chosen_BS], reduction="sum") / number
        accepted = torch.minimum(probs_NV, logits_NV.detach().softmax(-1)).sum() / number
        return loss, {
            "draft/loss": loss.detach(),
            "draft/acceptance_rate": accepted,
            "draft/num_tokens": chosen_BS.sum(),
        }

    def step(self) -> None:
        """Update the head."""
        self._grad_norm, _ = self._optimizer.step()

    def finished(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Add the norm of the head's own gradient, before clipping, at the last update."""
        return {**metrics, "draft/grad_norm": self._grad_norm}

    @property
    def weights(self) -> Sequence[Tensor]:
        """The head's weights."""
        return self._optimizer.weights

    def state_tensors(self) -> Mapping[str, Tensor]:
        """Return the head's weights and moments."""
        state = {f"draft.{name}": weight.detach() for name, weight in self._head.named_parameters()}
        return state | {
            f"draft.optimizer.{name}": one for name, one in self._optimizer.state_tensors().items()
        }

    def resume(self, num_updates_done: int) -> None:
        """Continue the schedule where it was."""
        self._optimizer.num_updates_done = num_updates_done

    def write(self, folder: Path) -> None:
        """Write the head into `draft/` of an exported model."""
        output = folder / FOLDER
        output.mkdir()
        tensors = {name: weight.detach().cpu().contiguous() for name, weight in self._head.named_parameters()}
        facts = {
            "hidden_size": self._head.hidden_proj.in_features,
            "intermediate_size": self._head.up_proj.out_features,
        }
        (output / CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        save_file(tensors, output / WEIGHTS)

    def _logits(self, states_ND: Tensor, head_VD: Tensor) -> Tensor:
        return functional.linear(states_ND.float(), head_VD) / self._temperature

    @staticmethod
    def _weight(module: Any) -> Tensor:
        weight: Tensor = module.weight
        return weight

    def _see(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._states_BSD = output.last_hidden_state


def drafted(batch: Batch) -> Tensor:
    """Return which of the first S - 2 positions have a sampled token two places on, [B, S - 2]."""
    sampled_BS = batch.at_positions(batch.mask_BT).bool()
    return sampled_BS[:, 2:] & batch.attention_mask_BS[:, :-2].bool()
