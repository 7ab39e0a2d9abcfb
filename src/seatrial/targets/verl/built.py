"""verl's engines as they are built from options: a model's folder, patches of its forward pass and FSDP, on the CPU."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from seatrial.relations.records import Row, StepResult
from seatrial.targets.common.known import KnownFailure, KnowsFailures, before, between
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.common.tiny import made_model, tiny_tokenizer
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.verl.engines import SHORT_MASK, SUMMED, VerlEngine, implementation_of_engine
from seatrial.targets.verl.places import no_memory_log, one_process

REGISTRY = "verl.workers.engine.base"
"""Chooses a class by the kind of device; none is registered for a CPU."""


class _NoDevice:
    """A device whose memory and streams are asked for, and which there is none of."""

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    @staticmethod
    def is_available() -> bool:
        return False

    @staticmethod
    def mem_get_info(*_: Any) -> tuple[int, int]:
        return 0, 1

    @staticmethod
    def get_device_name(*_: Any) -> str:
        return "CPU"

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: 0


def _forwards() -> dict[Any, Any]:
    """Return the forward functions of the classes of models that are imported."""
    return {
        cls: vars(cls)["forward"]
        for name, module in list(sys.modules.items())
        if name.startswith("transformers.models.") and ".modeling_" in name
        for cls in list(vars(module).values())
        if isinstance(cls, type) and "forward" in vars(cls) and cls.__module__ == name
    }


@contextlib.contextmanager
def on_cpu(patches: Mapping[Any, Any] | None = None) -> Iterator[None]:
    """Let the modules of verl that are imported compute on the CPU, in the only process of a group.

    Args:
        patches: of the forward functions of models, by their classes; a build makes them for the whole process.
    """
    one_process()
    no_memory_log()
    given = {
        "get_device_name": lambda: "cpu",
        "get_device_id": lambda: "cpu",
        "get_torch_device": lambda: _NoDevice(),
        "device_name": "cpu",
    }
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("verl.") and isinstance(module, ModuleType):
                own = {key: value for key, value in given.items() if key in vars(module)}
                stack.enter_context(mock.patch.dict(vars(module), own))
        for cls, forward in (patches or {}).items():
            stack.enter_context(mock.patch.object(cls, "forward", forward))
        # Before 0.7 the engine always casts to bfloat16.
        stack.enter_context(mock.patch.object(torch, "autocast", lambda *_, **__: contextlib.nullcontext()))
        stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


def options_of(cls: Any, given: Mapping[str, Any]) -> Any:
    """Return options of a class of the release.

    Raises:
        Gone: it has none of a name.
    """
    names = {one.name for one in dataclasses.fields(cls)}
    if missing := sorted(set(given) - names):
        raise Gone(f"{cls.__name__} of verl {release('verl')} has no {', '.join(missing)}")
    return cls(**given)


@lru_cache(maxsize=8)
def folder_of(model: Any, tokenizer: Any) -> str:
    """Return a new folder of a model and its tokenizer."""
    folder = new_folder()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def engine_of(
    folder: str,
    *,
    kind: str = "language_model",
    model: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
    optim: Mapping[str, Any] | None = None,
) -> tuple[Any, Mapping[Any, Any]]:
    """Return an initialized engine of a model's folder, in float32 unless the options say otherwise, and its patches.

    Args:
        folder: of a model and its tokenizer.
        kind: `language_model` or `value_model`.
        model: further options of `HFModelConfig`.
        engine: of `FSDPEngineConfig`.
        optim: of `FSDPOptimizerConfig`.
    """
    implementation_of_engine()
    configs = find_name("verl", ["verl.workers:config"])
    checkpoint = find_name("verl", ["verl.trainer.config:CheckpointConfig"])
    registry = find_name("verl", [f"{REGISTRY}:EngineRegistry"])
    float32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    given = {
        "strategy": "fsdp2",
        "use_torch_compile": False,
        "mixed_precision": float32,
        "model_dtype": "fp32",
        **(engine or {}),
    }
    of_model = {
        "path": folder,
        "enable_gradient_checkpointing": False,
        "override_config": {"attn_implementation": "sdpa"},
        **(model or {}),
    }
    before = _forwards()
    of_gpus = mock.patch.dict(vars(sys.modules[REGISTRY]), get_device_name=lambda: "cuda")
    with on_cpu():
        with of_gpus:
            found = registry.get_engine_cls(kind, given["strategy"])
        built = found(
            model_config=options_of(configs.HFModelConfig, of_model),
            engine_config=options_of(configs.FSDPEngineConfig, given),
            optimizer_config=options_of(configs.FSDPOptimizerConfig, {"lr": 1e-3, **(optim or {})}),
            checkpoint_config=checkpoint(),
        )
        built.initialize()
    patches = {
        cls: forward for cls, forward in _forwards().items() if before.get(cls, forward) is not forward
    }
    for cls in patches:
        cls.forward = before[cls]
    return built, patches


def whole(value: Tensor) -> Tensor:
    """Return a tensor that its shards make."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


SIZES: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "bos_token_id": None,
}


@lru_cache(maxsize=8)
def model_of(family: str, more: tuple[tuple[str, Any], ...]) -> Any:
    """Return a tiny model of a family of Transformers, with further options of its configuration.

    Raises:
        Gone: the installed Transformers has no such family.
    """
    import transformers

    tokenizer = tiny_tokenizer()
    own = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    try:
        config = transformers.AutoConfig.for_model(
            family, **{**SIZES, **own, "vocab_size": len(tokenizer), **dict(more)}
        )
    except ValueError as error:
        raise Gone(f"transformers {transformers.__version__} has no {family}") from error
    return made_model(transformers.AutoModelForCausalLM.from_config, config, 0).eval()


SCALED = KnownFailure(
    "a fused head leaves out the scale and the cap of a model's logits",
    finding="verl: a fused head and models that scale their logits",
).of("R5.policy/the model's own log-probabilities")


FUSED_PADDED = KnownFailure(
    "a fused head gives padded rows without their first or last tokens, by a length that none gives",
    finding="verl: small functions of older releases",
    releases=before("verl", "0.9"),
).of("R5.policy/the model's own log-probabilities")


FUSED_PADDED_LOSS = KnownFailure(
    "the loss of padded rows with a fused head raises, as their log-probabilities are of another length",
    finding="verl: small functions of older releases",
    releases=between("verl", "0.8", "0.9"),
).of("R1.step", "R3.step", "R10.step", "R18.facts", "R27.step")


class VerlBuiltEngine(KnowsFailures, VerlEngine):
    """An engine that is built from its options; see `VerlEngine`."""

    family: ClassVar[str] = "qwen2"
    config: ClassVar[Mapping[str, Any]] = {}
    model_options: ClassVar[Mapping[str, Any]] = {}
    engine_options: ClassVar[Mapping[str, Any]] = {}
    thorough = True

    @cached_property
    def _built(self) -> tuple[Any, Mapping[Any, Any]]:
        return engine_of(
            folder_of(self.objective_model(), self.tokenizer),
            model={"use_remove_padding": self.options["use_remove_padding"], **self.model_options},
            engine=self.engine_options,
        )

    def objective_model(self) -> Any:
        return model_of(self.family, tuple(self.config.items()))

    def _step(
        self, data: dict[str, Any], loss: Any, micro_batches: Sequence[Sequence[int]], **more: Any
    ) -> StepResult:
        batch = self._batch(data, micro_batches, temperature=1.0, **more)
        engine, patches = self._built
        with on_cpu(patches), engine.train_mode():
            engine.optimizer_zero_grad()
            found = engine.forward_backward_batch(batch, loss)
            gradients = {
                name: whole(value.grad).clone()
                for name, value in engine.module.named_parameters()
                if value.grad is not None
            }
            engine.optimizer_zero_grad()
        logged = found["metrics"]
        metrics = {
            name: logged[name].aggregate() for name in SUMMED if hasattr(logged.get(name), "aggregate")
        }
        return StepResult(loss=float(sum(found["loss"])), gradients=gradients, metrics=metrics)

    def score(self, rows: Sequence[Row], temperature: float) -> list[tuple[float, ...]]:
        data = self._data([(row.prompt_ids, row.completion_ids) for row in rows])
        data["loss_mask"] = self.scored_mask(rows)
        batch = self._batch(data, [[index] for index in range(len(rows))], temperature=temperature)
        engine, patches = self._built
        with on_cpu(patches), engine.eval_mode():
            found = engine.forward_backward_batch(batch, None, forward_only=True)["model_output"]
        return [
            tuple(own[len(row.prompt_ids) - 1 : -1].tolist())
            for row, own in zip(rows, found["log_probs"].unbind(), strict=True)
        ]


PACKED: Mapping[str, Any] = {"use_remove_padding": True}
ROWS: Mapping[str, Any] = {"use_remove_padding": False}
FUSED: Mapping[str, Any] = {
    "use_fused_kernels": True,
    "fused_kernel_options": {"impl_backend": "torch"},
}
TIED: Mapping[str, Any] = {"tie_word_embeddings": True}
"""FSDP2 of verl 0.9.1 keeps a head of its own in shards, which a fused head then multiplies with."""
FUSED_PACKED, FUSED_ROWS = {**PACKED, "use_fused_kernels": True}, {**ROWS, "use_fused_kernels": True}


@dataclasses.dataclass(frozen=True)
class Build:
    """An engine: a sentence on it, and its options."""

    what: str
    batch: Mapping[str, Any] = dataclasses.field(default_factory=lambda: PACKED)
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    engine: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    family: str = "qwen2"
    config: Mapping[str, Any] = dataclasses.field(default_factory=dict)


SCALING = ("gemma2", "granite", "cohere")


def _fused(family: str, **config: Any) -> Build:
    what = f"{family} with a fused head" + "".join(f", {name}" for name in config)
    return Build(what, FUSED_PACKED, FUSED, family=family, config={**TIED, **config})


BUILDS: Mapping[str, Build] = {
    "fsdp2": Build("FSDP2, rows without padding"),
    "padded": Build("rows padded, gradient checkpointing", ROWS, {"enable_gradient_checkpointing": True}),
    "checkpointed": Build(
        "checkpoints of layers and of entropies",
        model={"enable_gradient_checkpointing": True},
        engine={"entropy_checkpointing": True},
    ),
    "chunked": Build(
        "entropies in chunks",
        engine={"entropy_from_logits_with_chunking": True},
    ),
    "bucketed": Build(
        "padded to a multiple of a length", engine={"pad_to_length": True, "pad_to_length_bucket": 16}
    ),
    "fused": _fused("qwen2"),
    "fused-padded": Build("a fused head, rows padded", FUSED_ROWS, FUSED, config=TIED),
    "fused-llama": _fused("llama"),
    "fused-qwen3": _fused("qwen3"),
    "fused-gemma2": _fused("gemma2", final_logit_softcapping=2.0, query_pre_attn_scalar=8),
    "fused-granite": _fused("granite", logits_scaling=4.0),
    "fused-cohere": _fused("cohere", logit_scale=0.25),
}
"""By name."""

ADAPTERS: dict[str, type[Any]] = {
    f"engine-built-{name}": type(
        f"VerlBuilt_{name}",
        (VerlBuiltEngine,),
        {
            "__doc__": f"An engine that is built from its options: {build.what}.",
            "options": build.batch,
            "model_options": build.model,
            "engine_options": build.engine,
            "family": build.family,
            "config": build.config,
            "known_failures": (
                *((SCALED,) if build.family in SCALING else ()),
                *(() if build.batch["use_remove_padding"] else (SHORT_MASK,)),
                *((FUSED_PADDED, FUSED_PADDED_LOSS) if build.batch is FUSED_ROWS else ()),
            ),
        },
    )
    for name, build in BUILDS.items()
}
