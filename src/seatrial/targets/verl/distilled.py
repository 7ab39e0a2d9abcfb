"""verl's distillation from a teacher's likeliest tokens: what it gives for each token, and what it logs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations.laws.utilities.distilled import ROWS
from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.engines import nested

LOSSES = "verl.trainer.distillation.losses"


class VerlDistilled:
    """`compute_forward_kl_topk` of the engines by FSDP, and that of the loss with its metrics."""

    def __init__(self) -> None:
        """Find both.

        Raises:
            Gone: the release gives no overlap of tokens.
        """
        self.of_tokens = find_name("verl", ["verl.trainer.distillation.fsdp.losses:compute_forward_kl_topk"])
        self.of_loss = find_name("verl", [f"{LOSSES}:compute_forward_kl_topk"])
        self.range = find_name("verl", [f"{LOSSES}:compute_distillation_loss_range"])
        names = self.of_tokens.__code__.co_varnames
        if "overlap_count" not in names:
            raise Gone(f"verl {release('verl')} gives no overlap of tokens")
        self.chunked = "use_chunked_topk" in names
        self.utilities: Mapping[str, Callable[..., Any]] = {
            "likeliest tokens": self.largest,
            "metrics of distillation": self.logged,
        }

    def largest(
        self, logits: Tensor, teacher: Tensor, ids: Tensor, least: float | None, chunk: int | None
    ) -> dict[str, Tensor]:
        """Return what each token has."""
        if chunk is not None and not self.chunked:
            raise NotServed(f"verl {release('verl')} computes all tokens at once")
        sizes = [prompt + answer for prompt, answer in ROWS]
        own = SimpleNamespace(
            use_chunked_topk=chunk is not None, chunked_topk_chunk_size=chunk, log_prob_min_clamp=least
        )
        found = self.of_tokens(
            logits[None],
            *(
                torch.nested.as_nested_tensor(list(torch.split(values, sizes)), layout=torch.jagged)
                for values in (teacher, ids)
            ),
            SimpleNamespace(distillation_loss=own),
            "thd",
        )
        return {name: values[0] for name, values in found.items()}

    def logged(
        self, columns: Mapping[str, Sequence[Tensor]], masks: Sequence[Sequence[int]], number: int
    ) -> dict[str, float]:
        """Return what is logged, by name without `distillation/`."""
        from tensordict import TensorDict

        lengths = tuple(zip(*ROWS, strict=True))
        rows = [nested([[1] * length for length in own], torch.long) for own in lengths]
        width, longest = max(lengths[0]), max(lengths[1])
        shown = [
            [0] * (width - prompt) + [1] * (prompt + answer) + [0] * (longest - answer)
            for prompt, answer in ROWS
        ]
        data = TensorDict(
            {
                "prompts": rows[0],
                "responses": rows[1],
                "attention_mask": torch.tensor(shown),
                "response_mask": nested([list(mask) for mask in masks], torch.long),
            },
            batch_size=[len(ROWS)],
        )
        outputs = {
            name: torch.nested.as_nested_tensor(list(values), layout=torch.jagged)
            for name, values in columns.items()
        }
        config = SimpleNamespace(distillation_loss=SimpleNamespace(topk=number))
        losses, metrics = self.of_loss(None, config, outputs, data)
        metrics = {**metrics, **self.range(losses, data["response_mask"])}
        return {
            name.removeprefix("distillation/"): float(
                value.aggregate() if hasattr(value, "aggregate") else value
            )
            for name, value in metrics.items()
        }


ADAPTERS: dict[str, type[Any]] = {"distilled": VerlDistilled}
