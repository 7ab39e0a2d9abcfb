"""Worked examples of scoring in each of its forms, learning rates, and models that no layout or adapter is for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from refrl.algorithms.chunked import DEVICE_CHUNKS
from refrl.config import LoraConfig
from refrl.config.policy import SchedulerConfig
from refrl.policy import lora, optimizer, scoring
from refrl.policy.dtensor import expert_parallel, tensor_parallel
from refrl.policy.dtensor.scoring import OwnPositions, SharedForward
from refrl.policy.fused import FusedForward, why_not_fused
from seatrial.relations.contracts.worked import Refused, WorkedExample
from seatrial.targets.reference.configuration import policy_configuration
from seatrial.targets.reference.worked.made import batch, example, refused
from seatrial.targets.reference.worked.made_ranks import Mesh, by_rank


def of_scoring_forms() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_scoring()
    yield from _of_rates()
    yield from _of_refusals()


def _of_scoring() -> Iterator[WorkedExample]:
    plain: Any = ("_padded", {})
    packed: Any = ("_packed", {})
    chunked = ("_chunked", {"states": "_padded_states", "chunk": 4})
    joined = ("_chunked", {"states": "_packed_states", "chunk": 4})
    packs, chunk = {"sequence_packing.enabled": True}, {"logprob_chunk_size": 4}
    device = ("_chunked", {"states": "_padded_states", "chunk": DEVICE_CHUNKS[1]})
    for name, options, kind, refuses, right, asked in (
        ("padded", {}, "cpu", "no", plain, None),
        ("packed", packs, "cpu", "no", packed, [True, False, False]),
        ("in chunks", chunk, "cpu", "no", chunked, [False, True, False]),
        ("packed, in chunks", {**packs, **chunk}, "cpu", "no", joined, [True, True, False]),
        ("on a device", {}, "cuda", "no", device, [False, True, False]),
        ("of another class on a device", {}, "cuda, other", "no", plain, None),
        ("fused", {}, "cpu", None, ("fused _padded", {}), [False, False, True]),
        ("fused, packed", packs, "cpu", None, ("fused _packed", {}), [True, False, True]),
        ("without fused kernels", {"fused_kernels": False}, "cpu", None, plain, None),
        ("compiled", {"compile_layers": True}, "cpu", None, plain, None),
        ("computed again", {"activation_checkpointing": True}, "cpu", None, plain, None),
    ):  # fmt: skip
        why = next((f"policy.{one}={str(value).lower()}" for one, value in options.items()
                    if one in ("fused_kernels", "compile_layers", "activation_checkpointing")), refuses)  # fmt: skip
        steps = [*["head"] * ("chunk" in right[1]), *["window"] * ("packed" in name)]
        due = [right, f"the model's own: {why}" if why else "fused", asked, steps]
        yield example(f"scoring that is {name}", due, _scored, options, kind, refuses)
    for place in ("cpu", "meta", "xpu"):
        of: Any = SimpleNamespace(device=SimpleNamespace(type=place))
        yield example(f"fused kernels on {place}", f"the model is on {place}", why_not_fused, of)
    for cap, biased, words in (
        (None, False, None), (0, False, None), (3.0, True, "caps its logits softly after the head"),
        (None, True, "has a head with a bias"),
    ):  # fmt: skip
        if words is None:
            yield example(f"a head with a cap of {cap}", None, _checked, cap or None, biased)
        else:
            yield refused(f"SimpleNamespace {words}", f"a head: {words}", _checked, cap, biased)
    for packs_rows in (False, True):
        yield example(f"shared scores by definition, packed: {packs_rows}", True, _by_definition, packs_rows)
        yield example(f"what scores come of, packed: {packs_rows}", [], _sources, packs_rows)


def _by_definition(packs: bool) -> bool:
    """Return whether each token's score is that of the logits at the token before it, which depend on id and place."""

    def logits(ids: Tensor, places: Tensor) -> Tensor:
        return torch.sin((ids * 0.3 + places * 0.7).unsqueeze(-1) * torch.arange(1.0, 11.0))

    def model(*, input_ids: Tensor, position_ids: Tensor, **options: Any) -> Any:
        return SimpleNamespace(logits=logits(input_ids, position_ids) * weight)

    rows = batch()

    def call(group: Any, rank: int) -> Any:
        meshes: Any = SimpleNamespace(context=Mesh(group), tensor=Mesh(group))
        forward = SharedForward(OwnPositions(meshes, False), packs, temperature=0.5, dtype=torch.float32)
        return forward(cast(Any, model), rows)

    weight = torch.ones((), requires_grad=True)
    ((found, entropy),) = by_rank(1, call)
    if not all(
        bool(torch.autograd.grad(one.sum(), weight, retain_graph=True)[0]) for one in (found, entropy)
    ):
        return False
    for row, prompt in enumerate(rows.prompt_lens_B.tolist()):
        ids = rows.input_ids_BS[row]
        scores = (logits(ids, torch.arange(len(ids))) / 0.5).log_softmax(-1)
        for token in range(int(rows.completion_lens_B[row])):
            due = float(scores[prompt + token - 1, ids[prompt + token]]) * float(rows.mask_BT[row, token])
            if abs(float(found[row, token].detach()) - due) > 1e-5:
                return False
    return True


def _scored(options: Mapping[str, Any], kind: str, refuses: str | None) -> list[Any]:
    """Return the forward that is chosen, what is said of kernels, the options of the probe, and what is checked."""

    class Known(SimpleNamespace):
        pass

    device, _, other = kind.partition(", ")
    model: Any = (SimpleNamespace if other else Known)(device=SimpleNamespace(type=device))
    asked: list[Any] = []
    steps: list[str] = []

    def probe(given: Mapping[str, bool], of: Any, forward: Any, plain: Any, precision: Any) -> None:
        assert of is model and plain.func is scoring._padded and precision == torch.float32
        assert list(given) == [
            "policy.sequence_packing.enabled",
            "policy.logprob_chunk_size",
            "policy.fused_kernels",
        ]
        asked.append(list(given.values()))

    patches = {
        "FUSED_MODELS": (Known,), "why_not_fused": lambda of: refuses, "_probe": probe,
        "check_head": lambda of: steps.append("head"), "check_window": lambda *words: steps.append("window"),
        "_train_forward": lambda config, of, forward: ("trained", forward),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in patches.items():
            stack.enter_context(patch.object(scoring, name, value))
        made = scoring.make_scoring(policy_configuration(options), model, 0.75)
    forward: Any = made.forward
    fused = isinstance(forward, FusedForward)
    assert cast(Any, made.train_forward) == ("trained", forward)
    inner = forward.forward if fused else forward
    assert inner.keywords.pop("temperature") == 0.75
    own = {key: getattr(value, "__name__", value) for key, value in inner.keywords.items()}
    return [("fused " * fused + inner.func.__name__, own), made.kernels, asked[0] if asked else None, steps]


def _checked(cap: float | None, biased: bool) -> None:
    facts = SimpleNamespace(**({} if cap is None and not biased else {"final_logit_softcapping": cap}))
    head = SimpleNamespace(bias=torch.ones(1)) if biased else SimpleNamespace(bias=None)
    model: Any = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: facts), get_output_embeddings=lambda: head
    )
    scoring.check_head(model)


def _sources(packs: bool) -> list[str]:
    """Return what differs of the arguments of log-probabilities, of all logits or of chunks of states."""
    rows = batch()
    head = SimpleNamespace(weight="weight")
    model: Any = SimpleNamespace(get_output_embeddings=lambda: head)
    seen: list[Any] = []

    def note(*words: Any, **options: Any) -> str:
        seen.append((words, options))
        return "scores"

    shared = {"temperature": 0.75, "mask_BT": rows.mask_BT, "kept_ids": rows.kept_ids}
    if packs:
        due: Any = (("logits", "packed", rows.completion_ids_BT), shared)

        def packed_model(**inputs: Any) -> Any:
            return SimpleNamespace(logits="logits" if inputs == {"x": 1} else None)

        with (
            patch.object(scoring, "compute_logprobs_packed", note),
            patch.object(scoring, "_pack", lambda *words: ("packed", {"x": 1})),
        ):
            found: Any = scoring._packed(cast(Any, packed_model), rows, 0.75)
    else:
        due = (("states", "weight", rows.completion_ids_BT, rows.prompt_lens_B), {**shared, "row_chunk": 4})

        def states(of: Any, given: Any) -> Any:
            return "states" if of is model and given is rows else None

        with patch.object(scoring, "compute_logprobs_chunked", note):
            found = scoring._chunked(model, rows, 0.75, states=states, chunk=4)
    (words, options), (due_words, due_options) = seen[0], due
    assert len(words) == len(due_words) and options.keys() == due_options.keys() and found == "scores"
    pairs = [*zip(map(str, range(4)), words, due_words, strict=False)]
    pairs += [(name, options[name], value) for name, value in due_options.items()]
    return [
        name for name, one, other in pairs if one is not other and (isinstance(one, Tensor) or one != other)
    ]


def _of_rates() -> Iterator[WorkedExample]:
    for name, warmup, total, least, right in (
        ("constant", 0, 4, 0.0, [1.0, 1.0, 1.0, 1.0, 1.0]),
        ("constant", 4, 4, 0.0, [0.25, 0.5, 0.75, 1.0, 1.0]),
        ("linear", 2, 6, 0.0, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]),
        ("linear", 0, 4, 0.2, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ("cosine", 1, 5, 0.0, [1.0, 1.0, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0.0, 0.0]),
        ("cosine", 0, 2, 0.5, [1.0, 0.75, 0.5]),
        ("linear", 3, 3, 0.25, [1 / 3, 2 / 3, 1.0, 1.0, 0.25]),
    ):
        words = f"{name} rates of {total} updates, {warmup} of them warm up, down to {least}"
        yield example(words, right, _factors, name, warmup, total, least, len(right))
    for limit, right_clipped in (
        (20.0, [13.0, [3.0, 4.0, 12.0, None]]),
        (6.5, [13.0, [1.5, 2.0, 6.0, None]]),
    ):
        yield example(f"gradients on several meshes, clipped to {limit}", right_clipped, _clipped, limit)


def _factors(name: str, warmup: int, total: int, least: float, number: int) -> list[float]:
    config = SchedulerConfig.model_validate({"name": name, "warmup_steps": warmup, "min_lr_ratio": least})
    return [optimizer.learning_rate_factor(update, config, total) for update in range(number)]


class _OnMesh(type):
    def __instancecheck__(cls, one: Any) -> bool:
        return hasattr(one, "device_mesh")


def _clipped(limit: float) -> list[Any]:
    """Return the norm over two meshes and what is whole, and the gradients; the second weight on a mesh has none."""
    weights = []
    for value, mesh in ((3.0, "one"), (4.0, "other"), (12.0, None), (None, "one")):
        weight = nn.Parameter(torch.zeros(1))
        weight.grad = None if value is None else torch.tensor([value])
        for one in (weight, weight.grad):
            if mesh is not None and one is not None:
                one.device_mesh = mesh  # type: ignore[attr-defined]
        weights.append(weight)
    spread: Any = _OnMesh("Spread", (), {})
    with patch.object(optimizer, "DTensor", spread):
        norm = float(optimizer.clip_spread_gradients(weights, limit))
    return [norm, [None if one.grad is None else round(float(one.grad), 5) for one in weights]]


def _of_refusals() -> Iterator[WorkedExample]:
    form = "the experts of SimpleNamespace are not in one tensor for all"
    for number, shapes, size, words in (
        (4, [(4, 2, 3), (4, 3, 2)], 2, None), (4, [(4, 2, 3)], 1, None), (None, [(4, 2, 3)], 2, form),
        (4, [(4, 6)], 2, form), (4, [(4, 2, 3), (2, 3, 2)], 2, form), (4, [(2, 3, 4)], 2, form),
        (6, [(6, 2, 3)], 4, "expert_parallel_size=4 does not divide the model's 6 experts"),
    ):  # fmt: skip
        name = f"{number} experts of tensors {shapes} over {size} processes"
        yield example(name, None if words is None else Refused(words), _experts, number, shapes, size)
    yield refused("SimpleNamespace has no experts; set it to 1", "a model without experts", _no_experts)
    for fails in (False, True):
        right = [[8.0, 2.0], ["other", "weight"], True, fails]
        yield example(f"experts that run with other weights, and fail: {fails}", right, _run, fails)
    for heads, head_dim, width, is_fit in (
        (4, None, 2, True),
        (4, 5, 5, True),
        (4, None, 8, False),
        (2, 5, 4, False),
    ):
        name = f"a norm of width {width} of {heads} heads of width {head_dim} in 8"
        if is_fit:
            yield example(name, 2, _head_norm, heads, head_dim, width)
        else:
            yield refused("x normalises over several heads", name, _head_norm, heads, head_dim, width)
    for config, words in (
        ({"base_model_tp_plan": None}, "Transformers has no plan for SimpleNamespace"),
        ({"num_attention_heads": 5}, "does not divide the model's num_attention_heads=5"),
        ({"num_key_value_heads": 3}, "does not divide the model's num_key_value_heads=3"),
        ({"intermediate_size": 7}, "does not divide the model's intermediate_size=7"),
        ({}, None), ({"num_key_value_heads": None}, None),
    ):  # fmt: skip
        if words is None:
            yield example(f"sizes that two processes divide: {config}", None, _sizes, config)
        else:
            yield refused(words, f"sizes for two processes: {config}", _sizes, config)
    own = "Made keeps c_attn as Conv1D layers, whose weights are transposed"
    for targets, words in (
        (None, own),
        (("c_attn",), own),
        (("q",), None),
        (("head",), "head shares its weight"),
    ):
        adapted = ["q"] if words is None else Refused(words)
        yield example(f"adapters of {targets} next to transposed layers", adapted, _adapted, targets)


def _experts(number: int | None, shapes: Sequence[tuple[int, ...]], size: int) -> None:
    weights = [torch.zeros(shape) for shape in shapes]
    module = SimpleNamespace(
        parameters=lambda: iter(weights), **({} if number is None else {"num_experts": number})
    )
    expert_parallel._check(cast(Any, SimpleNamespace()), module, size)


def _no_experts() -> Any:
    model: Any = SimpleNamespace(named_modules=lambda: iter([("experts_of", nn.Identity())]))
    return expert_parallel.share_experts(model, cast(Any, SimpleNamespace(size=lambda: 2)))


def _run(fails: bool) -> list[Any]:
    """Return what a module computes with another weight, its parameters after it, and whether it failed."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.other, self.weight = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(3.0))

        def forward(self, value: Tensor) -> Tensor:
            found.append(float(value * self.weight.detach()))
            if fails:
                raise ValueError
            return value * self.weight

    found: list[float] = []
    module: Any = Module()
    before, failed = module.weight, False
    module.forward = "replaced"
    try:
        expert_parallel._run(module, {"weight": torch.tensor(4.0)}, torch.tensor(2.0))
    except ValueError:
        failed = True
    same = module.weight is before and "weight" not in vars(module)
    return [
        [*found, float(module.other.detach())],
        [name for name, _ in module.named_parameters()],
        same,
        failed,
    ]


def _head_norm(heads: int, head_dim: int | None, width: int) -> int:
    facts = SimpleNamespace(hidden_size=8, num_attention_heads=heads)
    if head_dim is not None or width == 8:
        facts.head_dim = head_dim
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: facts))
    norm = nn.LayerNorm(width, bias=False)
    style: Any = tensor_parallel._head_norm(model, "x", norm)
    return int(style.sequence_sharding[0].dim)


def _sizes(changes: Mapping[str, Any]) -> None:
    facts = SimpleNamespace(**{
        "base_model_tp_plan": {"a": "b"}, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 6,
        **changes,
    })  # fmt: skip
    model: Any = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: facts))
    tensor_parallel._check_sizes(model, 2)


def _adapted(targets: tuple[str, ...] | None) -> list[str]:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_attn, self.q = cast(Any, Conv1D)(2, 2), nn.Linear(2, 2)
            self.embedding, self.head = nn.Embedding(2, 2), nn.Linear(2, 2)
            self.head.weight = self.embedding.weight

        def get_output_embeddings(self) -> nn.Module:
            return self.head

        def get_input_embeddings(self) -> nn.Module:
            return self.embedding

    config = LoraConfig(enabled=True, target_modules=targets)
    return list(lora.chosen_layers(cast(Any, Made()), config))
