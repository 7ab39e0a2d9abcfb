"""Worked examples of PEFT's functions: sums of adapters, ids that are shifted, copies of layers, ranks of layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.worked_rows import Row

OTHERS = "peft.utils.other:"
MERGES = "peft.utils.merge_utils:"
TUNERS = "peft.tuners.tuners_utils:"
ONE, OTHER = [[4.0, -1.0], [0.5, -3.0]], [[-2.0, -6.0], [1.0, 5.0]]
"""Two weights. The signs of their sums are + - + +, by number 0 - + 0, where 0 counts as +."""
SHARES = (0.5, 2.0)


def _pair() -> list[torch.Tensor]:
    return [torch.tensor(ONE), torch.tensor(OTHER)]


def _sum(function: Callable[..., Any], *density: Any, **options: Any) -> Any:
    return function(_pair(), torch.tensor(SHARES), *density, **options)


def _share_kept(function: Callable[..., Any]) -> list[Any]:
    """Return the part that random pruning keeps of 4000 ones, rounded, and what is left of each by rescaling."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plain = function(torch.ones(4000), 0.25, "random")
        scaled = function(torch.ones(4000), 0.25, "random", rescale=True)
    return [round(float(plain.mean()), 1), plain.unique().tolist(), scaled.unique().tolist()]


def _shape(function: Callable[..., Any]) -> list[int]:
    return list(function(torch.zeros(2, 3, 4), torch.ones(2)).shape)


class Nested(nn.Module):
    """Layers of two blocks under the names that models have, and a head."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        blocks = [nn.ModuleDict({"q_proj": nn.Linear(4, 6), "mlp": nn.Linear(6, 4)}) for _ in range(3)]
        self.model = nn.ModuleDict({"layers": nn.ModuleList(blocks)})
        self.lm_head = nn.Linear(4, 8)


def refused_calls(function: Callable[..., Any], *calls: Sequence[Any]) -> list[bool]:
    """Return which calls raise a ValueError or a TypeError that is raised by a statement."""
    found = []
    for arguments in calls:
        try:
            function(*arguments)
        except (ValueError, TypeError):
            found.append(True)
        else:
            found.append(False)
    return found


def _cast(function: Callable[..., Any]) -> list[str]:
    model = Nested().to(torch.float16)
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    function(model, torch.bfloat16)
    return sorted({f"{name.split('.')[0]} {value.dtype}" for name, value in model.named_parameters()})


def _replicated(function: Callable[..., Any]) -> dict[str, Any]:
    """Return which layers a replicated model has, what they share, and the number in its configuration."""
    from seatrial.targets.peft.bases import base

    model = base("to be replicated", torch.float32)
    first, second = (layer.mlp.up_proj.weight for layer in model.model.layers)
    function(model, [(0, 2), (1, 2), (0, 1)])
    found = [layer.mlp.up_proj.weight for layer in model.model.layers]
    layers = model.model.layers
    return {
        "weights": [one is first or (2 if one is second else 0) for one in found],
        "numbers": [layer.self_attn.layer_idx for layer in layers],
        "configured": model.config.num_hidden_layers,
        "modules apart": len({id(layer.mlp) for layer in layers}),
        "list": isinstance(layers, nn.ModuleList),
    }


def _cloned(function: Callable[..., Any]) -> dict[str, bool]:
    given = Nested()
    names = [name for name, _ in given.named_parameters()]
    shared, apart = function(given, share_weights=True), function(given)
    return {
        "shared": all(shared.get_parameter(name) is given.get_parameter(name) for name in names),
        "apart": not any(apart.get_parameter(name) is given.get_parameter(name) for name in names),
        "equal": all(torch.equal(apart.get_parameter(name), given.get_parameter(name)) for name in names),
    }


def _shared_storage(function: Callable[..., Any]) -> list[bool]:
    whole = torch.arange(6.0)
    return [
        function(whole) == function(whole.view(2, 3)),
        function(whole) == function(whole[2:]),
        function(whole) == function(whole.clone()),
        function(whole[2:].clone()) == function(whole),
    ]


def _best(selector: Callable[..., Any]) -> dict[str, Any]:
    """Return layers and experts by the ratio of singular values: 2, 3 and 10; 4 and 6 on average of experts."""
    model = nn.Module()
    for name, largest in (("c", 10.0), ("a", 2.0), ("b", 3.0)):
        layer = nn.Linear(2, 2)
        layer.weight.data = torch.diag(torch.tensor([1.0, largest]))
        setattr(model, name, layer)
    wide = nn.Linear(20, 2)
    model.wide = wide
    model.experts = nn.Module()
    for name, ratios in (("up_proj", (9.0, 3.0)), ("down_proj", (2.0, 6.0)), ("other", (1.0, 1.0))):
        stacked = torch.stack([torch.diag(torch.tensor([1.0, ratio])) for ratio in ratios])
        setattr(model.experts, name, nn.Parameter(stacked))

    def made(**options: Any) -> Any:
        return selector(model, max_dim_size_to_analyze=10, show_progress=False, **options)

    return {
        "all": made().get_best_targets(),
        "two": made().get_best_targets(num_modules=2),
        "a part": made().get_best_targets(top_p=0.7),
        "one at least": made().get_best_targets(top_p=0.1),
        "up to": made().get_best_targets(threshold=3.5),
        "experts": made().get_best_target_parameters(),
        "one expert": made().get_best_target_parameters(num_modules=1),
        "experts up to": made().get_best_target_parameters(threshold=4.5),
        "experts by name": made(moe_param_suffixes=(".other",)).get_best_target_parameters(top_p=0.5),
    }


ROWS: Sequence[Row] = (
    Row("formulas", f"{MERGES}task_arithmetic", "two weights", _sum, [[-2.0, -12.5], [2.25, 8.5]]),
    Row(
        "formulas",
        f"{MERGES}magnitude_prune",
        "half of two weights",
        lambda function: _sum(function, 0.5),
        [[2.0, -12.0], [0.0, 8.5]],
    ),
    Row(
        "formulas",
        f"{MERGES}ties",
        "all of two weights",
        lambda function: _sum(function, 1.0),
        [[2.0, -6.25], [1.125, 10.0]],
    ),
    Row(
        "formulas",
        f"{MERGES}ties",
        "all of two weights, by number",
        lambda function: _sum(function, 1.0, majority_sign_method="frequency"),
        [[2.0, -6.25], [1.125, 10.0]],
    ),
    Row(
        "formulas",
        f"{MERGES}ties",
        "a large one against two, by sum and by number",
        lambda function: [
            function(
                [torch.tensor([one]) for one in (1.0, 2.0, -4.0)],
                torch.ones(3),
                1.0,
                majority_sign_method=method,
            ).item()
            for method in ("total", "frequency")
        ],
        [-4.0, 1.5],
    ),
    Row(
        "formulas",
        f"{MERGES}ties",
        "half of two weights",
        lambda function: _sum(function, 0.5),
        [[2.0, -12.0], [0.0, 10.0]],
    ),
    Row(
        "formulas",
        f"{MERGES}dare_ties",
        "all of two weights",
        lambda function: _sum(function, 1.0),
        [[2.0, -6.25], [1.125, 10.0]],
    ),
    Row(
        "formulas",
        f"{MERGES}dare_linear",
        "all of two weights",
        lambda function: _sum(function, 1.0),
        [[-2.0, -12.5], [2.25, 8.5]],
    ),
    Row(
        "formulas",
        f"{MERGES}calculate_majority_sign_mask",
        "three weights, two of which are small",
        lambda function: [
            function(torch.tensor([[1.0], [2.0], [-4.0]]), method=method).flatten().tolist()
            for method in ("total", "frequency")
        ],
        [[False, False, True], [True, True, False]],
    ),
    Row(
        "formulas",
        f"{MERGES}disjoint_merge",
        "two, one and none of two",
        lambda function: function(
            torch.tensor([[2.0, 3.0, 5.0], [4.0, 7.0, 1.0]]),
            torch.tensor([[True, True, False], [True, False, False]]),
        ),
        [3.0, 3.0, 0.0],
    ),
    Row(
        "formulas",
        f"{MERGES}prune",
        "by magnitude",
        lambda function: [
            function(torch.tensor(ONE), 0.5, "magnitude").tolist(),
            function(torch.tensor(ONE), 0.0, "magnitude").tolist(),
            function(torch.tensor(ONE), 1.0, "magnitude").tolist(),
        ],
        [[[4.0, 0.0], [0.0, -3.0]], [[0.0, 0.0], [0.0, 0.0]], ONE],
    ),
    Row("formulas", f"{MERGES}prune", "at random", _share_kept, [0.2, [0.0, 1.0], [0.0, 4.0]], since="0.19"),
    Row(
        "formulas",
        f"{MERGES}prune",
        "what is no density or method",
        lambda function: refused_calls(
            function,
            (torch.ones(2), -0.1, "magnitude"),
            (torch.ones(2), 0.5, "size"),
            (torch.ones(2), 0.0, "random"),
        ),
        [True, True, False],
    ),
    Row("formulas", f"{MERGES}reshape_weight_task_tensors", "two weights of matrices", _shape, [2, 1, 1]),
    Row(
        "batches",
        f"{OTHERS}shift_tokens_right",
        "two rows with a label that does not count",
        lambda function: function(torch.tensor([[5, -100, 7], [8, 9, 3]]), 1, 2),
        [[2, 5, 1], [2, 8, 9]],
    ),
    Row(
        "batches",
        f"{OTHERS}shift_tokens_right",
        "the given ids stay",
        lambda function: (lambda given: [function(given, 1, 2).tolist(), given.tolist()])(
            torch.tensor([[5, -100]])
        ),
        [[[2, 5]], [[5, -100]]],
    ),
    Row(
        "batches",
        f"{OTHERS}shift_tokens_right",
        "without padding",
        lambda function: function(torch.tensor([[5]]), None, 2),
        Refused("pad_token_id"),
    ),
    Row(
        "batches",
        f"{OTHERS}_get_batch_size",
        "of ids, or of embeddings",
        lambda function: [
            function(torch.zeros(3, 2), None),
            function(None, torch.zeros(4, 2, 5)),
            function(torch.zeros(3, 2), torch.zeros(4, 2, 5)),
            *refused_calls(function, (None, None)),
        ],
        [3, 4, 3, True],
    ),
    Row(
        "models",
        f"{OTHERS}cast_mixed_precision_params",
        "what trains and what does not",
        _cast,
        ["lm_head torch.float32", "model torch.bfloat16"],
    ),
    Row(
        "models",
        f"{OTHERS}id_tensor_storage",
        "views and copies",
        _shared_storage,
        [True, True, False, False],
    ),
    Row(
        "models",
        f"{OTHERS}transpose",
        "as it is and turned",
        lambda function: [
            function(torch.tensor([[1, 2]]), False).tolist(),
            function(torch.tensor([[1, 2]]), True).tolist(),
            isinstance(function(nn.Parameter(torch.ones(1, 2)), True), nn.Parameter),
        ],
        [[[1, 2]], [[1], [2]], True],
    ),
    Row(
        "models",
        f"{OTHERS}get_quantization_config",
        "of its method alone",
        lambda function: [
            function(
                SimpleNamespace(config=SimpleNamespace(quantization_config=7), quantization_method="gptq"),
                "gptq",
            ),
            function(
                SimpleNamespace(config=SimpleNamespace(quantization_config=7), quantization_method="awq"),
                "gptq",
            ),
            function(SimpleNamespace(config=SimpleNamespace(), quantization_method="gptq"), "gptq"),
            function(SimpleNamespace(config=SimpleNamespace(quantization_config=7)), "gptq"),
        ],
        [7, None, None, None],
    ),
    Row(
        "options",
        f"{OTHERS}str_to_bool",
        "words",
        lambda function: [
            *[
                function(word)
                for word in ("y", "YES", "t", "true", "on", "1", "n", "No", "f", "False", "off", "0")
            ],
            *refused_calls(function, ("2",)),
        ],
        [1] * 6 + [0] * 6 + [True],
    ),
    Row(
        "models",
        f"{TUNERS}replicate_layers",
        "two layers to four",
        _replicated,
        {
            "weights": [True, 2, 2, True],
            "numbers": [0, 1, 2, 3],
            "configured": 4,
            "modules apart": 4,
            "list": True,
        },
        since="0.13",
    ),
    Row(
        "models",
        f"{TUNERS}clone_module",
        "weights shared or copied",
        _cloned,
        dict.fromkeys(("shared", "apart", "equal"), True),
    ),
    Row(
        "models",
        "peft.helpers:KappaTuneSelector",
        "layers and experts by their condition",
        _best,
        {
            "all": ["a", "b", "c"],
            "two": ["a", "b"],
            "a part": ["a", "b"],
            "one at least": ["a"],
            "up to": ["a", "b"],
            "experts": ["experts.down_proj", "experts.up_proj"],
            "one expert": ["experts.down_proj"],
            "experts up to": ["experts.down_proj"],
            "experts by name": ["experts.other"],
        },
        since="0.20",
    ),
)
