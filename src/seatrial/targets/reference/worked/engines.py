"""Worked examples of what builds parts: engines and their devices, weight syncs, sampling, verifiers."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.config import ClusterConfig
from refrl.generation import lean_check, torch_engine
from refrl.generation.base import SamplingParams
from refrl.generation.quantized import Int8Linear
from refrl.generation.torch_engine import TorchGenerator
from refrl.generation.vllm.engine import ENVIRONMENT, _start
from refrl.rewards.weighted import WeightedVerifier
from refrl.timing import Timer
from refrl.training import build, build_generation
from refrl.weight_sync.colocated import make_weight_sync
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, policy_configuration
from seatrial.targets.reference.limits.models import model_of
from seatrial.targets.reference.worked.building import Noted
from seatrial.targets.reference.worked.decoded import of_decoding
from seatrial.targets.reference.worked.engine_edges import of_engine_edges
from seatrial.targets.reference.worked.made import example, refused
from seatrial.targets.reference.worked.served_by_vllm import of_vllm


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_engines()
    yield from _of_vllm()
    yield from of_vllm()
    yield from of_decoding()
    yield from of_engine_edges()
    yield from _of_bounds()
    yield from _of_devices()
    yield from _of_parts()


def _of_engines() -> Iterator[WorkedExample]:
    def placed(**options: Any) -> Any:
        noted: list[Any] = []
        config = policy_configuration({"generation.colocated.enabled": False, **_dotted(options)})

        def process(config: Any, *, pad_token_id: int, device: Any, connect: Any) -> str:
            with (
                patch.object(build_generation, "SocketLink", lambda python: noted.append(("socket", python))),
                patch.object(
                    build_generation,
                    "BroadcastLink",
                    lambda python, *, engine_device: noted.append(("broadcast", python, str(engine_device))),
                ),
            ):
                connect()
            noted.append(("process", pad_token_id, str(device)))
            return "process"

        engines = {
            name: lambda config, pad, device, name=name: (name, pad, str(device))
            for name in build_generation.ENGINES
        }
        tokenizer: Any = SimpleNamespace(pad_token_id=6)
        with (
            patch.object(build_generation, "ProcessGenerator", process),
            patch.object(build_generation, "ENGINES", engines),
        ):
            made = build_generation.build_generator(config, tokenizer, device=torch.device("cpu"))
        return made, noted

    yield example("an engine in this process", (("torch", 6, "cpu"), []), placed)
    yield example("a Megatron engine", (("megatron", 6, "cpu"), []), placed, generation__backend="megatron")
    apart = {"generation__placement": "process"}
    process = ("process", 6, "cpu")
    yield example("an engine in a process", ("process", [("socket", None), process]), placed, **apart)
    yield example(
        "weights that are broadcast",
        ("process", [("broadcast", None, "cpu"), process]),
        placed,
        generation__weight_transport="broadcast",
        **apart,
    )
    python = {"generation__vllm_cfg__python": "other"}
    yield example(
        "the interpreter of vLLM",
        ("process", [("socket", "other"), process]),
        placed,
        generation__backend="vllm",
        **apart,
        **python,
    )

    def engine(**options: Any) -> Any:
        config = policy_configuration(_dotted(options))
        with patch.object(build_generation, "TorchGenerator", Noted):
            made: Any = build_generation.build_engine(config, pad_token_id=6, device=torch.device("cpu"))
        model, pad = made.words
        weights = list(model.parameters())
        return {
            "pad": pad,
            "options": made.options,
            "dtype": str(weights[0].dtype),
            "trains": any(weight.requires_grad for weight in weights),
            "training": model.training,
            "int8": any(isinstance(one, Int8Linear) for one in model.modules()),
        }

    options = {"block_tokens": None, "load_batch_bytes": 64 * 2**20}
    plain = {
        "pad": 6,
        "options": options,
        "dtype": "torch.float32",
        "trains": False,
        "training": False,
        "int8": False,
    }
    own_weights = {"generation__colocated__enabled": False}
    yield example("an engine of torch", plain, engine)
    yield example("an engine in bfloat16", {**plain, "dtype": "torch.bfloat16"}, engine, precision="bfloat16")
    yield example(
        "an engine with options",
        {**plain, "options": {"block_tokens": 5, "load_batch_bytes": 77}},
        engine,
        generation__block_tokens=5,
        generation__delta_compression__delta_load_batch_size_bytes=77,
    )
    yield example(
        "an engine in int8", {**plain, "int8": True}, engine, generation__quantization="int8", **own_weights
    )

    def described(serves: bool, result: Any, block_tokens: int) -> str:
        def compare(modules: Any) -> Any:
            if isinstance(result, Exception):
                raise result
            return result

        made: Any = SimpleNamespace(
            _model=torch.nn.Linear(1, 1), _block_tokens=block_tokens, _compare=compare
        )
        with patch("refrl.generation.torch_engine.supports_lean", lambda model: serves):
            text: str = TorchGenerator.engine.fget(made)  # type: ignore[attr-defined]
        return text.partition(", ")[2]

    own = "Linear's own forward in place of the fast decoders: "
    for serves, result, block_tokens, right in (
        (True, None, 0, ""),
        (True, None, 5, "static decoding in blocks of 5 tokens"),
        (True, "far", 0, f"{own}far"),
        (True, "far", 5, f"{own}far"),
        (True, FloatingPointError("NaN"), 5, f"{own}NaN"),
        (False, None, 0, ""),
        (False, None, 5, "no static decoding: it does not serve Linear as it is here"),
    ):
        name = f"how an engine decodes: {serves}, {result}, {block_tokens}"
        yield example(name, right, described, serves, result, block_tokens)

    def compared(found: str | None, *, samples: bool) -> Any:
        """Return what an engine says or samples with, after two calls, and how often it compared its decoder."""
        noted: list[str] = []

        def difference(model: Any) -> str | None:
            noted.append("compared")
            return found

        def made(name: str) -> Any:
            def take(*words: Any) -> None:
                noted.append(name)
                raise InterruptedError

            return take

        with (
            patch.object(torch_engine, "difference", difference),
            patch.object(torch_engine, "LeanDecoder", made("fast")),
            patch.object(torch_engine, "CachedDecoder", made("own")),
        ):
            engine = TorchGenerator(model_of("llama"), 0, block_tokens=0)
            for _ in range(2):
                if samples:
                    with suppress(InterruptedError):
                        engine.generate([[1]], SamplingParams(max_new_tokens=1), torch.Generator())
                else:
                    noted.append(engine.engine.partition(", ")[2].rpartition(": ")[2])
        return noted

    for found, decoder in ((None, "fast"), ("far", "own")):
        name = f"an engine whose decoder differs: {found}"
        yield example(f"{name}, sampling", ["compared", decoder, decoder], compared, found, samples=True)
        yield example(
            f"{name}, described", ["compared", found or "", found or ""], compared, found, samples=False
        )


def _of_bounds() -> Iterator[WorkedExample]:
    """Yield whether a decoder is used whose logits are off by a share of their spread, by the type of the model."""

    def used(dtype: torch.dtype, share: float, *, checked: bool = True, first: float = 1.0) -> bool:
        own = torch.tensor([first, -1.0] * 500).reshape(4, 1, -1)  # their spread is 1, within a thousandth
        model: Any = SimpleNamespace(dtype=dtype, config=SimpleNamespace(vocab_size=250), device="cpu")
        with (
            patch.object(lean_check, "traits_of", lambda model: SimpleNamespace(is_checked=checked)),
            patch.object(lean_check, "_own_logits", lambda model, row: own[:, 0]),
            patch.object(
                lean_check,
                "_lean_logits",
                lambda model, rows: own.repeat(1, 2, 1) + share * torch.tensor([1.0, -1.0] * 125),
            ),
        ):
            said = lean_check.difference(model)
        assert said is None or "of their spread" in said
        return said is None

    for dtype, bound in (
        (torch.float64, 1e-3),
        (torch.float32, 1e-3),
        (torch.float16, 2e-2),
        (torch.bfloat16, 8e-2),
    ):
        for times, right in ((0.0, True), (0.9, True), (1.1, False), (20.0, False), (math.nan, False)):
            yield example(
                f"logits {times} times as far off as {dtype} may", right, used, dtype, times * bound
            )
        yield refused("not finite", f"a model of {dtype} with NaN", used, dtype, 0.0, first=math.nan)
    yield example("a decoder that needs no check", True, used, torch.float32, 9.0, checked=False)


def _dotted(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in options.items()}


def _of_vllm() -> Iterator[WorkedExample]:
    plain = {
        "model": str(Path("made").resolve()), "dtype": "float32", "max_model_len": 5, "enforce_eager": True,
        "skip_tokenizer_init": True, "logprobs_mode": "processed_logprobs", "max_logprobs": -1,
        "disable_log_stats": True,
    }  # fmt: skip
    for device, changes, right in (
        ("cpu", {}, {}),
        ("cpu", {"precision": "bfloat16"}, {"dtype": "bfloat16"}),
        ("cpu", {"generation__vllm_cfg__enforce_eager": False}, {"enforce_eager": False}),
        ("cpu", {"generation__vllm_cfg__gpu_memory_utilization": 0.5}, {}),
        ("cuda", {}, {"gpu_memory_utilization": 0.3}),
        (
            "cuda",
            {"precision": "bfloat16", "generation__vllm_cfg__gpu_memory_utilization": 0.5},
            {"dtype": "bfloat16", "gpu_memory_utilization": 0.5},
        ),
    ):
        name = f"how vLLM is started on {device} with {changes}"
        yield example(name, {**plain, **right}, _vllm, device, **changes)
    for error in (RuntimeError, ValueError, OSError):
        yield refused("vLLM cannot load made: a b", f"{error.__name__} of vLLM", _vllm, "cpu", error("a\n b"))


def _vllm(device: str, error: Exception | None = None, **options: Any) -> Any:
    """Return the words that vLLM is started with; the environment holds its own, and one that was there."""

    def started(**words: Any) -> Any:
        if error is not None:
            raise error
        kept = {name: os.environ.get(name) for name in ENVIRONMENT}
        assert kept == {**ENVIRONMENT, "VLLM_LOGGING_LEVEL": "INFO"}, kept
        return words

    config = policy_configuration({**_dotted(options), "model_name": "made"})
    others = {name: value for name, value in os.environ.items() if name not in ENVIRONMENT}
    with (
        patch.dict(sys.modules, {"vllm": SimpleNamespace(LLM=started)}),
        patch.dict(os.environ, {**others, "VLLM_LOGGING_LEVEL": "INFO"}, clear=True),
    ):
        return _start(config, torch.device(device), 5)


def _of_devices() -> Iterator[WorkedExample]:
    def device(number: int, gpus: int | None, *, of: str = "cuda:0", count: int = 4) -> str:
        config = policy_configuration(
            {"generation.placement": "process", "generation.colocated.enabled": False}
        )
        resources = SimpleNamespace(gpus_per_node=gpus)
        generation: Any = SimpleNamespace(
            colocated=SimpleNamespace(resources=resources), placement=config.generation.placement
        )
        with patch("torch.cuda.device_count", lambda: count):
            return str(build_generation.engine_device(generation, torch.device(of), number))

    yield example("the policy's device", "cuda:1", device, 5, None, of="cuda:1")
    for number, right in ((0, "cuda:2"), (1, "cuda:3"), (2, "cuda:2")):
        yield example(f"engine {number} on two of four devices", right, device, number, 2)
    yield example("an engine on the last device", "cuda:3", device, 4, 1, of="cuda:2")
    yield refused("this host has 4", "a policy on the engines' device", device, 0, 2, of="cuda:2")
    yield refused("gpus_per_node=4", "no device for the policy", device, 0, 4)
    yield refused("this host has 1", "more devices than there are", device, 0, 2, count=1)
    yield refused("this host has 0", "engines' devices without CUDA", device, 0, 1, of="cpu", count=0)

    def built(**options: Any) -> Any:
        noted: list[Any] = []
        with (
            patch("torch.set_num_threads", lambda number: noted.append(("threads", number))),
            patch("torch.manual_seed", lambda seed: noted.append(("seed", seed))),
        ):
            found = build.build_device(ClusterConfig(device="cpu", **options), 12)
        return str(found), noted

    yield example("the device of a run", ("cpu", [("threads", 3), ("seed", 12)]), built, num_threads=3)
    yield example("threads that are left", ("cpu", [("seed", 12)]), built)


def _of_parts() -> Iterator[WorkedExample]:
    def sync(*, shares: bool = True, **options: Any) -> str:
        config = policy_configuration(_dotted(options)).generation
        noted: list[Any] = []
        with ExitStack() as stack:
            for name in ("SharedWeights", "CopiedWeights", "TransferredWeights"):

                def made(source: Any, target: Any, name: str = name, **more: Any) -> str:
                    noted.append((source, target, sorted(more), more.get("bucket_bytes")))
                    return name

                stack.enter_context(patch(f"refrl.weight_sync.colocated.{name}", made))
            source: Any = SimpleNamespace(shares_weights=shares)
            target: Any = "target"
            found = str(make_weight_sync(config, source, target, Timer()))
        (one,) = noted
        return f"{found} {one[1]} {one[3] or ''}".strip()

    apart = {"generation__colocated__enabled": False}
    yield example("weights that are shared", "SharedWeights target", sync)
    yield example("weights that cannot be shared", "CopiedWeights target", sync, shares=False)
    yield example("weights that are not shared", "CopiedWeights target", sync, **apart)
    sent = {**apart, "generation__weight_bucket_size_bytes": 99}
    yield example(
        "weights that travel", "TransferredWeights target 99", sync, generation__placement="process", **sent
    )
    yield example(
        "weights of which changes travel",
        "TransferredWeights target 99",
        sync,
        generation__delta_compression__enabled=True,
        **sent,
    )

    def sampling(stop: Sequence[int] | None, **options: Any) -> Any:
        config = configuration(
            {"policy.generation.stop_token_ids": stop, **_dotted(options)}
        ).policy.generation
        generator: Any = SimpleNamespace(stop_ids=lambda: frozenset({9, 4}))
        encoder: Any = SimpleNamespace(end_token_id=lambda: 7)
        made = build.build_sampling(config, generator, encoder)
        return made.max_new_tokens, made.temperature, made.top_p, made.top_k, list(made.stop_token_ids or ())

    yield example("end ids of model and tokenizer", (7, 0.7, 1.0, None, [4, 7, 9]), sampling, None)
    yield example(
        "sampling as configured",
        (5, 0.25, 0.5, 8, [2]),
        sampling,
        [2],
        policy__generation__max_new_tokens=5,
        policy__generation__temperature=0.25,
        policy__generation__top_p=0.5,
        policy__generation__top_k=8,
    )

    def judged(**options: Any) -> Any:
        data = configuration(_dotted(options)).data
        verifier = build.build_rewards(data)
        names = [*verifier.parts] if isinstance(verifier, WeightedVerifier) else None
        return build.verifier_name(data), names, isinstance(verifier, WeightedVerifier)

    yield example("one verifier", ("byte_closeness", None, False), judged)
    yield example("the verifier of the task", True, lambda: judged(data__verifier=None)[0] is not None)
    yield example(
        "several verifiers",
        (None, True),
        lambda: judged(data__verifiers={"exact_match": 1.0, "byte_closeness": 2.0})[::2],
    )

    def groups() -> Any:
        config = configuration({"grpo.advantage.estimator": "dr_grpo", "grpo.advantage.scale": "none"})
        advantages = build.build_advantages(config.grpo.advantage)
        return advantages(torch.tensor([1.0, 0.0, 4.0, 2.0]), torch.tensor([5, 5, 3, 3]))

    yield example("advantages as configured", [0.5, -0.5, 1.0, -1.0], groups)
