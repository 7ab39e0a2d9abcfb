"""Layers of experts of a family's tiny model, by their definition and the tensors that the release writes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  the usual name

from seatrial.relations.contracts.model_calls import CallForm
from seatrial.relations.not_served import NotServed
from seatrial.relations.raised import error_line
from seatrial.targets.transformers.family_files import written_tensors
from seatrial.targets.transformers.routing_table import ROUTINGS, Routing
from seatrial.targets.transformers.small_models import text_config

Rows = Sequence[Sequence[int]]
Pairs = list[tuple[Tensor, Tensor]]
NUM_EXPERTS, NUM_GROUPS, NUM_CHOSEN = 8, 2, 2
OPTIONS: Mapping[str, Any] = {
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), NUM_EXPERTS),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), NUM_CHOSEN),
    **dict.fromkeys(("routed_scaling_factor", "route_scale", "router_scaling_factor"), 2.5),
    "n_group": NUM_GROUPS,
    "topk_group": 1,
    "num_dense_layers": 1,
    "topk_method": "group_limited_greedy",
    "router_jitter_noise": 0.3,
    "swiglu_limit": 0.5,
}
"""Of a configuration that has an option of the name: groups of which one is chosen, a scale and a limit that show."""
BIASES = ("e_score_correction_bias", "expert_bias")
ROUTER_BIASES = ("gate.bias", "router.bias")
SHIFT = -1.0
"""Of biases of experts: most scores are negative with them, so that a masked score of 0 would be chosen."""
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "relu2": lambda values: F.relu(values).square(),
}
GATES = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"))
"""Names of the three matrices of an expert in files."""
FUSED = (
    ("experts.gate_up_proj", "experts.down_proj"),
    ("experts.fc1.weight", "experts.fc2.weight"),
    ("input_linear.weight", "output_linear.weight"),
)
"""Names of the matrices of all experts, [E, 2F, D] with that of the gate first and [E, D, F], or both transposed."""
SHARED = ("shared_expert", "shared_experts", "shared_mlp")


@dataclass(frozen=True)
class Block:
    """A layer of experts: what it was given and gave, and its tensors in the files."""

    given_ND: Tensor
    found_ND: Tensor
    tensors: Mapping[str, Tensor]
    config: Any

    @cached_property
    def router_ED(self) -> Tensor:
        """The matrix of the router, the only one of its shape outside of experts."""
        shape = (self.num_experts, self.given_ND.shape[1])
        found = [
            value
            for name, value in self.tensors.items()
            if not name.startswith(("experts.", *SHARED)) and value.shape == shape
        ]
        if len(found) != 1:
            raise NotServed(f"{len(found)} tensors have the shape of a router")
        return found[0]

    @cached_property
    def logits_NE(self) -> Tensor:
        """Logits of the router."""
        bias = next((value for name, value in self.tensors.items() if name.endswith(ROUTER_BIASES)), None)
        logits_NE: Tensor = self.given_ND @ self.router_ED.T
        return logits_NE if bias is None else logits_NE + bias

    @property
    def num_experts(self) -> int:
        """The number of experts in the files."""
        fused = next((self.tensors[first] for first, _ in FUSED if first in self.tensors), None)
        if fused is not None:
            return len(fused)
        found = (re.match(r"experts\.(\d+)\.", name) for name in self.tensors)
        return 1 + max(int(one[1]) for one in found if one)

    def expert(self, number: int, given_ND: Tensor, routing: Routing) -> Tensor:
        """Return [N, D] outputs of an expert for what it is given."""
        names = next((names for names in FUSED if names[0] in self.tensors), None)
        if names is None:
            return self.feed_forward(f"experts.{number}", given_ND)
        both, down = (self.tensors[name][number] for name in names)
        if down.shape[0] != given_ND.shape[1]:
            both, down = both.T, down.T
        if both.shape[1] != given_ND.shape[1] or down.shape[0] != both.shape[1]:
            raise NotServed("matrices of experts of another layout")
        both_bias, down_bias = (
            self.tensors[f"{name}_bias"][number] if f"{name}_bias" in self.tensors else 0.0 for name in names
        )
        inner_NF = given_ND @ both.T + both_bias
        if routing.has_clamped_pairs:
            # Numbers of the model's release, which were no options before Transformers 5.
            limit = getattr(self.config, "swiglu_limit", 7.0)
            alpha = getattr(self.config, "swiglu_alpha", 1.702)
            gate, up = inner_NF[:, ::2].clamp(max=limit), inner_NF[:, 1::2].clamp(-limit, limit)
            return (gate * torch.sigmoid(alpha * gate) * (up + 1)) @ down.T + down_bias
        gate, up = inner_NF.chunk(2, -1)
        return (self.act(gate) * up) @ down.T + down_bias

    def act(self, values: Tensor) -> Tensor:
        """Return values after the activation of experts."""
        names = (getattr(self.config, one, None) for one in ("mlp_hidden_act", "hidden_act"))
        name = next(filter(None, names), "silu")
        if name not in ACTIVATIONS:
            raise NotServed(f"the activation {name}")
        return ACTIVATIONS[name](values)

    def feed_forward(self, prefix: str, given_ND: Tensor) -> Tensor:
        """Return [N, D] outputs of a feed-forward network, gated or not, by the beginning of its tensors' names."""
        if f"{prefix}.up_proj.weight" in self.tensors and f"{prefix}.gate_proj.weight" not in self.tensors:
            up, down = (self.tensors[f"{prefix}.{name}_proj.weight"] for name in ("up", "down"))
            return self.act(given_ND @ up.T) @ down.T
        names = next((names for names in GATES if f"{prefix}.{names[0]}.weight" in self.tensors), None)
        if names is None:
            raise NotServed("no gated network by known names")
        gate, up, down = (self.tensors[f"{prefix}.{name}.weight"] for name in names)
        return (self.act(given_ND @ gate.T) * (given_ND @ up.T)) @ down.T

    def shared(self) -> Tensor:
        """Return [N, D] outputs of the experts that every token shares, 0 if there are none."""
        for prefix in SHARED:
            if any(name.startswith(f"{prefix}.") for name in self.tensors):
                found = self.feed_forward(prefix, self.given_ND)
                gate = self.tensors.get(f"{prefix}_gate.weight")
                return found if gate is None else found * torch.sigmoid(self.given_ND @ gate.T)
        return torch.zeros_like(self.given_ND)

    def weights(self, routing: Routing) -> Tensor:
        """Return [N, E] weights of the experts, 0 for those that a token does not go to."""
        if routing.score == "sparse mixer":
            return self.mixed_weights()
        scores_NE = self.logits_NE
        if routing.score != "softmax of the chosen":
            scores_NE = scores_NE.sigmoid() if routing.score == "sigmoid" else scores_NE.softmax(-1)
        choice_NE = scores_NE
        if routing.has_bias:
            biases = [value for name, value in self.tensors.items() if name.endswith(BIASES)]
            choice_NE = scores_NE + (biases[0].reshape(1, -1) if biases else 0.0)
        num_groups = getattr(self.config, "n_group", None) or 1
        if routing.best_of_group and num_groups > 1:
            groups_NGE = choice_NE.reshape(len(choice_NE), num_groups, -1)
            totals_NG = groups_NGE.topk(routing.best_of_group, -1).values.sum(-1)
            kept_NG = torch.zeros_like(totals_NG, dtype=torch.bool)
            kept_NG.scatter_(1, totals_NG.topk(self.config.topk_group, -1).indices, True)
            choice_NE = choice_NE.masked_fill(
                ~kept_NG.repeat_interleave(groups_NGE.shape[2], 1), float("-inf")
            )
        chosen_NK = choice_NE.topk(NUM_CHOSEN, -1).indices
        weights_NK = scores_NE.gather(1, chosen_NK)
        if routing.score == "softmax of the chosen":
            weights_NK = weights_NK.softmax(-1)
        elif routing.is_normed(self.config):
            weights_NK = weights_NK / weights_NK.sum(-1, keepdim=True)
        if routing.scale:
            weights_NK = weights_NK * getattr(self.config, routing.scale)
        return torch.zeros_like(scores_NE).scatter(1, chosen_NK, weights_NK)

    def mixed_weights(self) -> Tensor:
        """Return [N, E] weights of the two best experts, each by a softmax of those near it (SparseMixer, Liu 2023)."""
        left_NE, weights_NE = self.logits_NE, torch.zeros_like(self.logits_NE)
        for _ in range(NUM_CHOSEN):
            best_N1, chosen_N1 = left_NE.max(-1, keepdim=True)
            far_NE = (best_N1 - self.logits_NE) / self.logits_NE.abs().maximum(best_N1)
            near_NE = left_NE.masked_fill(far_NE > 2 * self.config.router_jitter_noise, float("-inf"))
            weights_NE.scatter_(1, chosen_N1, near_NE.softmax(-1).gather(1, chosen_N1))
            left_NE = left_NE.scatter(1, chosen_N1, float("-inf"))
        return weights_NE


def _options(family: Any, **more: Any) -> dict[str, Any]:
    config = text_config(family.model())
    known = {name: value for name, value in OPTIONS.items() if hasattr(config, name)}
    return {**known, **more}


def _with_experts(family: Any, **more: Any) -> Any:
    """Return a model of eight experts whose biases make most scores negative."""
    try:
        model = family.made("eager", **_options(family, **more))
    except Exception as error:  # refused when it is made, before anything is computed
        raise NotServed(error_line(error)) from error
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith(BIASES):
                value.copy_(SHIFT + torch.randn(value.shape, generator=generator) / 8)
    return model


def _layer(name: str) -> int | None:
    found = re.search(r"layers\.(\d+)\.", name + ".")
    return int(found.group(1)) if found else None


def _blocks(family: Any, model: Any, row: Sequence[int]) -> list[Block]:
    """Return the layers of experts after a call, their tensors by the names that the release writes.

    Raises:
        NotServed: the files do not have a tensor for each expert, or several layers of experts in one of the model.
    """
    tensors = written_tensors(model)
    firsts = ("experts.0.", *(first for first, _ in FUSED))
    prefixes = {name.split(f".{one}")[0] for name in tensors for one in firsts if f".{one}" in name}
    by_layer = {_layer(prefix): prefix for prefix in prefixes}
    modules = {
        _layer(name): module
        for name, module in model.named_modules()
        if hasattr(module, "experts") or hasattr(module, "input_linear")
    }
    if not prefixes or len(by_layer) < len(prefixes) or not {*by_layer} <= {*modules}:
        raise NotServed("the files have no tensor for each expert")
    seen: dict[int | None, tuple[Tensor, Tensor]] = {}

    def watching(layer: int | None) -> Callable[..., None]:
        def watch(module: Any, given: tuple[Any, ...], words: Mapping[str, Any], found: Any) -> None:
            main = given[0] if given else next(iter(words.values()))
            output = found[0] if isinstance(found, tuple) else found
            width = main.shape[-1]
            seen[layer] = (main.reshape(-1, width).double(), output.reshape(-1, width).double())

        return watch

    hooks = [modules[layer].register_forward_hook(watching(layer), with_kwargs=True) for layer in by_layer]
    try:
        model(input_ids=torch.tensor([list(row)]), **family._uncached())
    finally:
        for hook in hooks:
            hook.remove()
    return [
        Block(
            *seen[layer],
            {
                name.removeprefix(f"{prefix}."): value.double()
                for name, value in tensors.items()
                if name.startswith(f"{prefix}.")
            },
            text_config(model),
        )
        for layer, prefix in sorted(by_layer.items(), key=str)
    ]


def _experts(family: Any, rows: Rows) -> Pairs:
    routing = ROUTINGS.get(family.family)
    if routing is None:
        raise NotServed("no definition of its experts is known")
    long = [token for row in rows for token in row]
    pairs = []
    for normed in (True, False) if routing.normed == "by option" else (None,):
        more = {} if normed is None else {routing.option: normed}
        for block in _blocks(family, _with_experts(family, **more), long):
            weights_NE = block.weights(routing)
            due_ND = block.shared()
            for expert in range(block.num_experts):
                weight_N1 = weights_NE[:, expert, None]
                if routing.weighs_inputs:
                    due_ND = due_ND + block.expert(expert, weight_N1 * block.given_ND, routing)
                else:
                    due_ND = due_ND + weight_N1 * block.expert(expert, block.given_ND, routing)
            pairs.append((block.found_ND, due_ND))
    return pairs


def _router_logits(family: Any, rows: Rows) -> Pairs:
    if not hasattr(text_config(family.model()), "output_router_logits"):
        raise NotServed("no logits of routers")
    model = _with_experts(family)
    asked = {"output_router_logits": True, **family._uncached()}
    pairs = []
    for row in rows:
        try:
            given = getattr(model(input_ids=torch.tensor([list(row)]), **asked), "router_logits", None)
        except (
            TypeError,
            AttributeError,
        ) as error:  # JetMoe of 4.57 reads a number of experts that it does not have
            raise NotServed(error_line(error)) from error
        if not given:
            raise NotServed("no logits of routers are given")
        blocks = _blocks(family, model, row)
        if len(given) != len(blocks):
            return [(torch.zeros(1, len(given)), torch.ones(1, len(blocks)))]
        pairs += [
            (one.reshape(-1, one.shape[-1]), block.logits_NE)
            for one, block in zip(given, blocks, strict=True)
        ]
    return pairs


WAYS = ("grouped_mm", "batched_mm")
"""Of computing experts, besides one after the other."""


def _ways_of_experts(family: Any, rows: Rows) -> Pairs:
    """Return logits and gradients of each way of computing experts, with those of one expert after the other."""
    choosable = getattr(type(family.model()), "_can_set_experts_implementation", None)
    if choosable is None or not choosable():
        raise NotServed("experts are computed in one way")
    long = [token for row in rows for token in row]

    def computed(way: str) -> list[Tensor]:
        model = _with_experts(family, experts_implementation=way)
        with torch.enable_grad():
            logits_SV = model(input_ids=torch.tensor([long]), **family._uncached()).logits[0]
            (logits_SV * torch.linspace(-1, 1, logits_SV.numel()).view_as(logits_SV)).sum().backward()
        gradients = [value.grad for value in model.parameters() if value.grad is not None]
        return [logits_SV.detach(), *(value.flatten()[None] for value in gradients)]

    due = computed("eager")
    return [pair for way in WAYS for pair in zip(computed(way), due, strict=True)]


ROUTER_FORMS: Mapping[CallForm, Callable[[Any, Rows], Pairs]] = {
    "experts by definition": _experts,
    "logits of routers": _router_logits,
    "ways of computing experts": _ways_of_experts,
}
