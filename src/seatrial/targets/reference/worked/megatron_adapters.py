"""Worked examples of a policy on Megatron-core: the order in which it is made, and its adapters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from refrl.config import ConfigError, LoraConfig
from refrl.distributed import World
from refrl.policy.backends import PolicyRequest
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import example, refused


def of_megatron_adapters() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_made()
    yield from _of_adapters()


def _of_made() -> Iterator[WorkedExample]:
    for with_reference, adapts in product((False, True), (False, True)):
        own = with_reference and not adapts
        right = {
            "order": ["prepared", "checked", "divides", "joined", "loaded model", *["loaded copy"] * own,
                      *["adapters"] * adapts, "weights of model", "optimizer", "model in bfloat16",
                      *["copy in bfloat16", "copy frozen", "weights of copy"] * own, "trained"],
            "reference": "weights of copy" if own else "weights of model" if with_reference else None,
            "optimizer": (5, torch.float32), "scorer": (9, 0.75, True, torch.bfloat16), "sums": True,
            "parts": ("tokenizer", "trained model"),
        }  # fmt: skip
        name = f"a policy, with a reference: {with_reference}, adapted: {adapts}"
        yield example(name, right, _made, with_reference, adapts)
    for device, experts, tensor, right_words in (
        ("cpu", 2, 1, None), ("cpu", 1, 2, None), ("cuda", 2, 2, None), ("cpu", 2, 2, "which gloo does not"),
    ):  # fmt: skip
        name = f"experts of {experts} x {tensor} processes on {device}"
        if right_words is None:
            yield example(name, "made", _spread_experts, device, experts, tensor)
        else:
            yield refused(right_words, name, _spread_experts, device, experts, tensor)


def _request(config: Any, *, with_reference: bool = False, device: str = "cpu") -> PolicyRequest:
    tokenizer: Any = "tokenizer"
    return PolicyRequest(
        config=config, tokenizer=tokenizer, device=torch.device(device), num_updates=5,
        with_reference=with_reference, world=World(), temperature=0.75,
    )  # fmt: skip


def _spread_experts(device: str, experts: int, tensor: int) -> Any:
    from refrl.policy.megatron import making

    sizes = SimpleNamespace(expert_model_parallel_size=experts, expert_tensor_size=tensor)
    config = SimpleNamespace(megatron_cfg=sizes)
    with (
        patch.object(making, "_make", lambda request: "made"),
        patch.object(making, "check_available", lambda *words: None),
    ):
        return making.make_policy(_request(config, device=device))


def _made(with_reference: bool, adapts: bool) -> dict[str, Any]:
    """Return in which order the parts of a policy are made, and of what."""
    from refrl.policy.megatron import making

    config = policy_configuration(
        {
            "megatron_cfg.enabled": True, "precision": "bfloat16", "sequence_packing.enabled": True,
            "lora_cfg.enabled": adapts,
        }
    )  # fmt: skip
    found: dict[str, Any] = {"order": []}
    order: list[str] = found["order"]

    class Module(nn.Linear):
        def __init__(self, label: str) -> None:
            super().__init__(1, 1)
            self.label, self.config = label, SimpleNamespace()

        def to(self, *, dtype: torch.dtype) -> Any:  # type: ignore[override]
            order.append(f"{self.label} in {str(dtype).removeprefix('torch.')}")
            return super().to(dtype)

        def requires_grad_(self, trains: bool = True) -> Any:
            order.append(f"{self.label} {'trains' if trains else 'frozen'}")
            return super().requires_grad_(trains)

    labels = iter(("model", "copy"))
    architecture: Any = SimpleNamespace(vocab_size=9)

    def load(directory: Path, of: Any, parallel: str, own: Any, device: Any) -> Any:
        assert (directory, parallel) == (Path(config.model_name), "parallel") and of is architecture
        module = Module(next(labels))
        order.append(f"loaded {module.label}")

        def trained() -> str:
            order.append("trained")
            return f"trained {module.label}"

        return SimpleNamespace(module=module, trained=trained)

    def weights(local: Any, dtype: Any, adapters: Any = None) -> Any:
        assert dtype == torch.bfloat16 and adapters == (
            "adapters" if adapts and local.module.label == "model" else None
        )
        order.append(f"weights of {local.module.label}")
        return SimpleNamespace(trained=local, label=order[-1])

    def optimizer(local: Any, own: Any, number: int) -> str:
        order.append("optimizer")
        found["optimizer"] = number, next(local.module.parameters()).dtype
        return "optimizer"

    def scorer(parallel: Any, *, vocab_size: int, temperature: float, packs: bool, dtype: Any) -> str:
        found["scorer"] = vocab_size, temperature, packs, dtype
        return "scorer"

    def policy(own: Any, trained: Any, tokenizer: Any, of: Any, **options: Any) -> None:
        found["parts"] = tokenizer, trained
        found["reference"] = options["reference"] and options["reference"].label
        found["sums"] = own.trained.module.config.finalize_model_grads_func == "sums"
        assert (options["scorer"], options["optimizer"]) == ("scorer", "optimizer")

    def adapters(local: Any, of: Any) -> str:
        order.append("adapters")
        return "adapters"

    def note(word: str, value: Any = None) -> Any:
        def noted(*words: Any) -> Any:
            order.append(word)
            return value

        return noted

    where = "refrl.policy.megatron"
    given: Mapping[str, Any] = {
        "cpu.prepare": note("prepared"), "architecture.read_architecture": lambda directory: architecture,
        "architecture.check_divides": note("divides"), "adapters.add_adapters": adapters,
        "model.load_model": load,
        "forward.Scorer": scorer, "forward.sum_gradients": "sums", "optimizer.MegatronOptimizer": optimizer,
        "parallel.join_parallel": note("joined", "parallel"), "policy.MegatronPolicy": policy,
        "weights.Weights": weights,
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in given.items():
            stack.enter_context(patch(f"{where}.{name}", value))
        stack.enter_context(patch.object(making, "check_model_directory", note("checked")))
        making._make(_request(config, with_reference=with_reference))
    return found


def _of_adapters() -> Iterator[WorkedExample]:
    for split, shares in product((0, 1), (False, True)):
        call = ("gathered" if shares else "copied") if split == 0 else ("scattered" if shares else "reduced")
        right = [[call], [3, 4, 2], shares, [True, False] if split == 0 else [False, True], [False, False]]
        name = f"an adapter of a layer cut along {split}, in parts of sequences: {shares}"
        yield example(name, right, _adapter, split, shares)
    for form, adapted in (("whole", (0,)), ("joined", (0, 1)), ("joined", (1,)), ("grouped", (0, 2))):
        yield example(
            f"adapters {adapted} of a layer that is {form}",
            [True, True, True],
            _layer_adapters,
            form,
            adapted,
        )
    for grad in (False, True):
        yield example(f"states of a frozen embedding, with gradients: {grad}", grad, _started, grad)
    yield example("adapters that are turned off, also where a block fails", [[False], [True], [True]], _off)
    right_merged = [("a.weight", [[9.0]]), ("b.weight", [[1.0]]), ("c", [[1.0]])]
    yield example("weights with adapters merged", right_merged, _merged)
    for names, expert, right_chosen in (
        (["q.weight"], None, {"x.linear_qkv.weight": [0]}),
        (["q.weight", "v.weight"], None, {"x.linear_qkv.weight": [0, 2]}),
        (["q.weight"], 1, "no adapter"),
        (["other.weight"], None, "no adapter"),
    ):
        yield example(
            f"layers {names} that get adapters, of the expert {expert}", right_chosen, _chosen, names, expert
        )


def _adapter(split: int, shares: bool) -> list[Any]:
    """Return what is exchanged between the halves, sizes, which half is marked, and which have biases."""
    from refrl.policy.megatron import adapters

    calls: list[str] = []

    def made(word: str) -> Any:
        def exchange(low: Tensor, *, group: str) -> Tensor:
            assert group == "tensor" and low.shape[-1] == 2
            calls.append(word)
            return low + 1.0

        return exchange

    names = {
        "copy_to_tensor_model_parallel_region": "copied", "gather_from_sequence_parallel_region": "gathered",
        "reduce_from_tensor_model_parallel_region": "reduced",
        "reduce_scatter_to_sequence_parallel_region": "scattered",
    }  # fmt: skip
    parallel: Any = SimpleNamespace(tensor="tensor", config=SimpleNamespace(sequence_parallel=shares))
    link: Any = SimpleNamespace(split=split)
    with ExitStack() as stack:
        for name, word in names.items():
            stack.enter_context(patch.object(adapters, name, made(word)))
        adapter: Any = adapters.Adapter(3, 4, 2, link, parallel, {"dtype": torch.float64})
        states = torch.ones(2, 1, 3, dtype=torch.float64)
        due = adapter.lora_B(adapter.lora_A(states) + 1.0)
        assert torch.equal(adapter(states), due) and due.dtype == torch.float64
    marked = [getattr(half.weight, "sequence_parallel", None) for half in (adapter.lora_A, adapter.lora_B)]
    sizes = [adapter.lora_A.in_features, adapter.lora_B.out_features, adapter.lora_A.out_features]
    biases = [half.bias is not None for half in (adapter.lora_A, adapter.lora_B)]
    return [calls, sizes, shares in marked and shares, [one is not None for one in marked], biases]


def _layer_adapters(form: str, adapted: tuple[int, ...]) -> list[bool]:
    """Return whether a layer's output is that of merged weights, or the plain one, and the rest is kept."""
    from refrl.policy.megatron import adapters
    from refrl.policy.megatron.conversion import Link

    shapes = {"whole": ((4, 3),), "joined": ((4, 3), (4, 3)), "grouped": ((8, 3), (4, 3), (4, 3))}[form]
    names = tuple(f"layer.{name}.weight" for name in "abc"[: len(shapes)])
    link = Link("x.weight", names, shapes, form=cast(Any, form), split=0, head_dim=2)
    parallel: Any = SimpleNamespace(
        tensor=SimpleNamespace(size=lambda: 1), config=SimpleNamespace(sequence_parallel=False)
    )
    stream = torch.Generator().manual_seed(3)
    tensors = [torch.randn(shape, generator=stream) for shape in shapes]
    weight = link.merge(tensors)
    with patch.object(adapters, "copy_to_tensor_model_parallel_region", lambda low, *, group: low):
        layer = adapters.LayerAdapters(
            weight, link, adapted, LoraConfig(enabled=True, dim=2, alpha=6), parallel
        )
        for own in layer.parameters():
            own.data.copy_(torch.randn(own.shape, generator=stream))
        for number in adapted:
            own_adapter: Any = layer.get_submodule("abc"[number])
            tensors[number] = tensors[number] + 3.0 * own_adapter.lora_B.weight @ own_adapter.lora_A.weight
        states = torch.randn(5, 2, 3, generator=stream)
        plain = states @ weight.T
        found, bias = layer.add_to(cast(Any, None), (states,), (plain, "bias"))
        layer.adapts = False
        off = layer.add_to(cast(Any, None), (states,), (plain, "bias"))
    same = torch.allclose(found, states @ link.merge(tensors).T, atol=1e-5)
    return [same, bias == "bias", off == (plain, "bias")]


def _started(grad: bool) -> bool:
    from refrl.policy.megatron.adapters import let_gradients_start

    with torch.set_grad_enabled(grad):
        return let_gradients_start(cast(Any, None), None, torch.ones(1)).requires_grad


def _off() -> list[Any]:
    from refrl.policy.megatron.adapters import MegatronAdapters

    layer: Any = SimpleNamespace(adapts=True)
    adapters = MegatronAdapters(cast(Any, None), [layer], LoraConfig(enabled=True))
    found = []
    with adapters.off():
        found.append([layer.adapts])
    found.append([layer.adapts])
    try:
        with adapters.off():
            raise ValueError
    except ValueError:
        found.append([layer.adapts])
    return found


def _merged() -> Any:
    from refrl.policy.megatron.adapters import MegatronAdapters

    adapters = MegatronAdapters(cast(Any, None), [], LoraConfig(enabled=True, dim=2, alpha=4))
    given = {
        "a.lora_A.weight": torch.full((2, 1), 2.0),
        "a.lora_B.weight": torch.ones(1, 2),
        "b.lora_A.weight": torch.ones(1, 1),
    }
    base = [(name, torch.ones(1, 1)) for name in ("a.weight", "b.weight", "c")]
    return [(name, weight.tolist()) for name, weight in adapters.merged(iter(base), given)]


def _chosen(names: list[str], expert: int | None) -> Any:
    from refrl.policy.megatron import adapters
    from refrl.policy.megatron.conversion import Link

    shapes = ((1, 1),) * 3
    every = [
        Link("x.linear_qkv.weight", ("q.weight", "k.weight", "v.weight"), shapes, expert=expert),
        Link("x.other.weight", ("other.weight",), ((1, 1),)),
    ]
    architecture: Any = SimpleNamespace(config=None)
    with (
        patch.object(adapters, "skeleton", lambda config: None),
        patch.object(
            adapters, "chosen_layers", lambda *words: {one.removesuffix(".weight"): None for one in names}
        ),
        patch.object(adapters, "links", lambda of: every),
    ):
        try:
            return adapters._chosen(architecture, LoraConfig(enabled=True))
        except ConfigError as error:
            return "no adapter" if "has no adapter on policy.megatron_cfg" in str(error) else str(error)
