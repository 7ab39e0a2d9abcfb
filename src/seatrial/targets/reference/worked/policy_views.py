"""Worked examples of policies: what they are made of, what their properties read, and their passes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.config import LoraConfig
from refrl.distributed import ALONE, World
from refrl.policy import auxiliary, backends, lora
from refrl.policy.draft import DraftTraining
from refrl.policy.dtensor import policy as spread_policy
from refrl.policy.hf import HFPolicy
from refrl.policy.updates import Accumulated, UpdatingPolicy
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example
from seatrial.targets.reference.worked.made_ranks import Group, by_rank
from seatrial.targets.reference.worked.scoring_forms import of_scoring_forms


def of_policy_views() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_backends()
    yield from _of_passes()
    yield from of_scoring_forms()


def _of_backends() -> Iterator[WorkedExample]:
    backend = {"name": "dtensor", "model": "torch.nn.modules.linear.Linear", "mesh": {"data": 2},
               "weights": {"Tensor": 3}, "kernels": "the model's own"}  # fmt: skip
    parts = ["scoring", "auxiliary", 6, "data", "reference", "world", "tokenizer", None]
    yield example("a spread policy", [backend, False, 4, ["named", "own"], parts], _spread_policy)
    yield example(
        "a model that is spread", [(False, "meta", "dtensor", "meshes", torch.bfloat16), True], _spread
    )
    for kind, where in (("dtensor", "dtensor.policy"), ("megatron", "megatron.making")):
        right = [f"refrl.policy.{where}", f"policy of {kind}"]
        yield example(f"the maker of a policy of {kind}", right, _maker, kind)
    yield example("an auxiliary that is none", [(), {}, None, {"a": 1.0}, [0.0, {}]], _none)
    yield example("steps of a draft head", [0.0, 0.5, 0.25, 2], _draft)
    yield example("adapters of two models", [1.0, 1.0, 4.0, 1.0], _two_models)
    yield example("gradients that are given back", [["cleared"], None, None], _given_back)


def _spread_policy() -> list[Any]:
    model = nn.Linear(1, 1)
    meshes = SimpleNamespace(data="data", sizes=lambda: {"data": 2})
    spread: Any = SimpleNamespace(
        model=model, meshes=meshes, named_weights=lambda: "named", own_weights=lambda: "own"
    )
    given: dict[str, Any] = {name: name for name in ("scoring", "reference", "world", "auxiliary")}
    optimizer: Any = SimpleNamespace(weights=[torch.ones(1)] * 3, num_updates_done=4)
    tokenizer: Any = "tokenizer"
    own: Any = spread_policy.DTensorPolicy(
        spread, tokenizer, optimizer=optimizer, global_batch_size=6, **given
    )
    assert own.model is model and own._spread is spread and own._optimizer is optimizer
    parts = [own._scoring, own._auxiliary, own._global_batch_size, own._data, own._reference, own._world]
    weights = [own.named_weights(), own._own_weights()]
    return [
        asdict(own.backend),
        own.shares_weights,
        own.version,
        weights,
        [*parts, own._tokenizer, own._frozen],
    ]


def _spread() -> list[Any]:
    """Return the mode and the place of a model when it is spread, with what it is, and whether all of it is kept."""
    model: Any = nn.Linear(1, 1).train()
    noted: list[Any] = []

    def spread(of: Any, config: str, meshes: str, dtype: Any) -> list[str]:
        noted.append((of.training, of.weight.device.type, config, meshes, dtype))
        return ["expert"]

    config: Any = SimpleNamespace(dtensor_cfg="dtensor")
    meshes: Any = "meshes"
    adapters: Any = "adapters"
    with patch.object(spread_policy, "spread", spread):
        made: Any = spread_policy._spread(
            model, config, meshes, torch.device("meta"), torch.bfloat16, adapters
        )
    kept = made.model, made.meshes, made.experts, made.dtype, made.adapters
    return [*noted, kept == (model, "meshes", ["expert"], torch.bfloat16, "adapters")]


def _maker(kind: str) -> list[Any]:
    noted: list[Any] = []
    request: Any = SimpleNamespace(config=SimpleNamespace(backend=kind))

    def load(name: str) -> Any:
        noted.append(name)
        return SimpleNamespace(make_policy=lambda of: f"policy of {of.config.backend}")

    with patch.object(backends, "import_module", load):
        return (
            [*noted, backends.make_policy(request)]
            if noted
            else [backends.make_policy(request), *noted][::-1]
        )


def _none() -> list[Any]:
    own: Any = auxiliary.Auxiliary()
    own.step()
    rows = batch()
    with own.watching():
        loss, metrics = own.share(rows, rows)
    return [own.weights, own.state_tensors(), own.resume(3), own.finished({"a": 1.0}), [float(loss), metrics]]


def _draft() -> list[Any]:
    """Return the norm that is logged before a step, after one and after two, and how many there were."""
    norms = iter((0.5, 0.25))
    steps: list[float] = []

    def step() -> tuple[float, float]:
        steps.append(next(norms))
        return steps[-1], 9.0

    own: Any = DraftTraining(
        *cast(Any, (None, None, SimpleNamespace(step=step))), temperature=1.0, read=Tensor.detach
    )
    found = [own.finished({})["draft/grad_norm"]]
    for _ in range(2):
        own.step()
        found.append(own.finished({"draft/loss": 1.0})["draft/grad_norm"])
    return [*found, len(steps)]


def _two_models() -> list[float]:
    """Return the merged weight of two models of the same names, before and after the first one's adapter changes."""
    made = []
    for _ in range(2):
        model: Any = nn.ModuleDict({"a": nn.Linear(1, 1, bias=False)})
        model.requires_grad_(False)
        nn.init.ones_(model["a"].weight)
        config = LoraConfig(enabled=True, dim=1, alpha=3)
        layer = lora.LoraLinear(model["a"], dim=1, alpha=3, stream=torch.Generator())
        model["a"] = layer
        made.append((lora.Adapters(model, {"a": layer}, config), layer))

    def merged() -> list[float]:
        return [float(dict(adapters.named_weights())["a.weight"]) for adapters, _ in made]

    found = merged()
    nn.init.ones_(made[0][1].lora_A.weight)
    nn.init.ones_(made[0][1].lora_B.weight)
    for adapters, _ in made:
        adapters.refresh()
    return [*found, *merged()]


def _given_back() -> list[Any]:
    noted: list[str] = []
    weights = [nn.Parameter(torch.ones(1)) for _ in "ab"]
    for weight in weights:
        weight.grad = torch.ones(1)
    _policy(
        _optimizer=SimpleNamespace(clear_gradients=lambda: noted.append("cleared")),
        _auxiliary=SimpleNamespace(weights=weights),
    ).free_gradients()
    return [noted, *(weight.grad for weight in weights)]


def _policy(**parts: Any) -> Any:
    made = object.__new__(HFPolicy)
    vars(made).update(parts)
    return made


def _of_passes() -> Iterator[WorkedExample]:
    for size in (1, 2):
        for scores in (False, True):
            old = [[0.5, 0.5, 0.0], [1.5, 1.5, 1.5], [2.5, 0.0, 0.0]] if scores else None
            right = [
                [{"loss": 0.0}, {"loss": 1.0}, {"loss": 2.0}],
                old,
                [[0], [1], [2]],
                "summed at the end",
                True,
            ]
            name = f"an update of {size} processes, a row a pass, that scores: {scores}"
            yield example(name, [right] * size, by_rank, size, partial(_accumulated, scores=scores))
            right_pass = [[5.0, 3.0], scores, "seen", "summed", [6.0], {"a": 1.0, "b": 2.0}, False]
            if size == 1:
                yield example(f"a pass that scores: {scores}", right_pass, _learned, scores)
    merged = [{"loss": 3.0}, ("rows", "loss", [[0]])]
    yield example("metrics of gradients", merged, _merged)


def _accumulated(group: Group, rank: int, scores: bool) -> list[Any]:
    """Return metrics, the scores of all rows, and the rows of each pass; a pass gives a row its number and a half."""
    steps: list[str] = []

    def learn(micro: Any, update: Any, loss: Any, *, scores: bool) -> Any:
        number = {1: 0, 4: 1, 2: 2}[int(micro.input_ids_BS[0, 0])]
        steps.append("pass")
        width = int(micro.completion_lens_B.max())
        return torch.full((1, width), number + 0.5), {"loss": torch.tensor(float(number))}

    cut = SimpleNamespace(
        micro_batches=lambda own: [([row], own.rows([row], trim=True)) for row in range(own.num_rows)]
    )
    own = _policy(
        model=SimpleNamespace(device=torch.device("cpu")), _scoring=SimpleNamespace(train_cut=cut), _learn=learn,
        _data=ALONE if group.size() == 1 else World(rank, group.size(), cast(Any, group)),
        _sum_gradients=lambda: steps.append("summed at the end"),
    )  # fmt: skip
    rows = batch()
    done = own.accumulate(rows, None, scores=scores, with_rows=True)
    old = rows.old_logprobs_BT
    plain = all(type(value) is float for part in done.parts for value in part.values())
    found = None if old is None else old[:, :3].tolist()
    return [done.parts, found, [list(part) for part in done.micro_batches], steps[-1], plain]


def _learned(scores: bool) -> list[Any]:
    """Return the counts that a loss gets, whether it sees the scores of the pass, and what the pass gives."""
    noted: list[Any] = []
    weight = torch.tensor(2.0, requires_grad=True)
    seen: list[str] = []

    @contextmanager
    def watching() -> Iterator[None]:
        seen.append("open")
        yield
        seen.append("closed")

    def forward(model: str, micro: Any) -> Any:
        assert model == "model" and seen == ["open"]
        return weight * torch.ones_like(micro.mask_BT), torch.zeros_like(micro.mask_BT)

    def loss(logprobs: Any, entropy: Any, micro: Any, **counts: Any) -> Any:
        old = micro.old_logprobs_BT
        noted.append([float(counts["global_valid_tokens"]), float(counts["global_valid_seqs"])])
        noted.append(old is not None and torch.equal(old, logprobs) and not old.requires_grad)
        return (logprobs * micro.mask_BT).sum(), {"a": 1.0}

    rows = batch()
    own = _policy(
        model="model", _scoring=SimpleNamespace(train_forward=forward),
        _auxiliary=SimpleNamespace(watching=watching, share=lambda micro, update: (weight * 4.0, {"b": 2.0})),
        _optimizer=SimpleNamespace(add_gradients=lambda: noted.append("summed")),
    )  # fmt: skip
    logprobs, metrics = own._learn(rows.rows([0]), rows, loss, scores=scores)
    noted.insert(2, "seen" if seen == ["open", "closed"] else seen)
    return [*noted, [float(cast(Any, weight.grad))], metrics, logprobs.requires_grad]


def _merged() -> list[Any]:
    noted: list[Any] = []

    def accumulate(*words: Any) -> Accumulated:
        noted.append(words)
        return Accumulated([{"loss": 1.0}, {"loss": 2.0}], [])

    own: Any = SimpleNamespace(accumulate=accumulate)
    words: Any = ("rows", "loss", [[0]])
    return [UpdatingPolicy.gradients(own, *words), *noted]
