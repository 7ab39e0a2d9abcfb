"""Worked examples of Megatron-core: machines without CUDA, models that it converts, groups and inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import torch
from torch import nn

from refrl.config import MegatronConfig
from refrl.distributed import World
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import batch, example, refused
from seatrial.targets.reference.worked.made_packages import package
from seatrial.targets.reference.worked.made_ranks import ALONE

CPU = torch.device("cpu")


def of_megatron_machines() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_machines()
    yield from _of_groups()
    yield from _of_inputs()


def _of_machines() -> Iterator[WorkedExample]:
    yield example("what is replaced on every machine", ["kept", None, False, None], _everywhere)
    right = ["fork", "checkpoint", "positions", "host", ["ours", "another", "none", "torch"]]
    yield example("what is replaced without CUDA", right, _without_cuda)
    yield example("tensors and streams of a machine without CUDA", [], _made_there)
    for rope, words in (
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_type=yarn"), ({"rope_scaling": {"rope_type": "yarn"}},
        "rope_type=yarn"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ({"attention_bias": True}, "attention_bias=true"), ({"mlp_bias": True}, "mlp_bias=true"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"use_sliding_window": True, "sliding_window": 4}, "a sliding window of 4 tokens"),
        ({"rope_parameters": {"rope_type": "llama3"}, "rope_scaling": {"rope_type": "yarn"}}, None),
        ({"rope_scaling": {"rope_type": "linear"}}, None),
        ({}, None), ({"rope_parameters": {"partial_rotary_factor": 1.0}}, None), ({"use_sliding_window": True,
        "sliding_window": None}, None),
        ({"use_sliding_window": False, "sliding_window": 4}, None),
    ):  # fmt: skip
        if words is None:
            yield example(f"a model with {rope}, converted", None, _convertible, rope)
        else:
            yield refused(
                f"does not convert a model with {words}", f"a model with {rope}", _convertible, rope
            )
    yield example(
        "frequencies of a model",
        {"model.rotary_emb.inv_freq": "meta", "model.rotary_emb.late": "meta"},
        _buffers,
    )
    right_read = ["asked there", "checked", "architecture"]
    yield example("an architecture that is read", right_read, _read)


def _everywhere() -> list[Any]:
    """Return a name that was there, one that was not, and what two replaced functions give."""
    from refrl.policy.megatron import cpu

    where = "megatron.core"
    found: list[Any] = []
    for is_there in (True, False):
        language: Any = package("x", LanguageModule=type("LanguageModule", (), {}))
        utils: Any = package("x", **({"te_general_gemm": "kept"} if is_there else {}))
        router: Any = package("x", TopKRouter=type("TopKRouter", (), {}))
        made = {
            f"{where}.models.common.language_module.language_module": language,
            f"{where}.transformer.moe": package("moe", moe_utils=utils), f"{where}.transformer.moe.moe_utils": utils,
            f"{where}.transformer.moe.router": router,
        }  # fmt: skip
        with patch.dict("sys.modules", made):
            cpu._on_every_machine()
        found.append(utils.te_general_gemm)
    return [
        *found,
        language.LanguageModule()._is_in_embd_group(),
        router.TopKRouter()._apply_expert_bias(1, a=2),
    ]


def _without_cuda() -> list[Any]:
    """Return which functions are replaced, and the `torch` of Megatron-core's modules and of another's."""
    from refrl.policy.megatron import cpu

    where = "megatron.core"
    parallel: Any = package("x", checkpoint=None)
    drawn: Any = package("x", CudaRNGStatesTracker=type("Tracker", (), {}))
    rotary: Any = package("x", get_pos_emb_on_this_cp_rank=None)
    sent: Any = package("x", maybe_move_tensor_to_cpu=None)
    parallel.random = drawn
    own, other, without, outside = (package(name) for name in "abcd")
    vars(own)["torch"], vars(other)["torch"], vars(outside)["torch"] = torch, "another", torch
    made = {
        where: package("core", tensor_parallel=parallel), f"{where}.tensor_parallel": parallel,
        f"{where}.tensor_parallel.random": drawn,
        f"{where}.models.common.embeddings": package("x", rotary_pos_embedding=rotary),
        f"{where}.transformer.moe": package("x", token_dispatcher=sent),
    }  # fmt: skip
    listed = {f"{where}.a": own, f"{where}.b": other, f"{where}.c": without, "outside.megatron.core": outside}
    with patch.dict("sys.modules", made), patch.object(cpu, "sys", SimpleNamespace(modules=listed)):
        cpu._without_cuda()
    known = {id(cpu._no_fork): "fork", id(cpu._checkpoint): "checkpoint", id(cpu._own_positions): "positions",
             id(cpu._on_host): "host", id(cpu._TORCH): "ours", id(torch): "torch"}  # fmt: skip
    found = [
        vars(drawn.CudaRNGStatesTracker)["fork"],
        parallel.checkpoint,
        rotary.get_pos_emb_on_this_cp_rank,
        sent.maybe_move_tensor_to_cpu,
    ]
    modules = [vars(one).get("torch", "none") for one in (own, other, without, outside)]
    return [*(known.get(id(one)) for one in found), [known.get(id(one), one) for one in modules]]


def _made_there() -> list[str]:
    """Return the names of Megatron-core's `torch` that do not answer for the CPU, or are others than torch's."""
    from refrl.policy.megatron import cpu

    made: Any = cpu._TORCH
    like = torch.ones(2)
    words: Mapping[str, tuple[Any, ...]] = {
        "arange": (2,), "empty": (2,), "full": ((2,), 1.0), "ones": (2,), "rand": (2,), "randn": (2,),
        "tensor": ([1.0, 2.0],),
        "zeros": (2,), "empty_like": (like,), "zeros_like": (like,),
    }  # fmt: skip
    wrong = [
        name for name, given in words.items()
        if (one := getattr(made, name)(*given, device="cuda", dtype=torch.float64)).device != CPU or one.shape != (2,
        ) or one.dtype != torch.float64
    ]  # fmt: skip
    cuda = made.cuda
    with cuda.stream("any"):
        holds = {
            "current_device": cuda.current_device() == CPU, "synchronize": cuda.synchronize("any") is None,
            "current_stream": isinstance(cuda.current_stream("any"), cpu._Stream),
            "Stream": cuda.Stream is cuda.Event is cpu._Stream,
            "default_stream": isinstance(cuda.default_stream(), cpu._Stream), "others": made.float32 is torch.float32,
            "functions": made.cat is torch.cat, "cuda": cuda.is_available is torch.cuda.is_available,
        }  # fmt: skip
    return [*wrong, *(name for name, one in holds.items() if not one)]


def _convertible(changes: Mapping[str, Any]) -> None:
    from refrl.policy.megatron.architecture import _check

    _check(cast(Any, SimpleNamespace(**{"hidden_act": "silu", **changes})))


def _buffers() -> dict[str, str]:
    from refrl.policy.megatron import architecture

    class Rotary(nn.Module):
        def __init__(self, config: str) -> None:
            super().__init__()
            assert config == "config"
            self.register_buffer("inv_freq", torch.ones(1))
            self.register_buffer("late", torch.ones(1), persistent=False)

    model = SimpleNamespace(base_model=SimpleNamespace(rotary_emb=Rotary("config")))
    with patch.object(architecture, "skeleton", lambda config: model):
        own: Any = SimpleNamespace(config="config")
        plain = architecture.rotary_buffers(own)
        assert all(one.device == CPU for one in plain.values())
        return {
            name: str(one.device)
            for name, one in architecture.rotary_buffers(own, torch.device("meta")).items()
        }


def _read() -> list[str]:
    from transformers import AutoConfig

    from refrl.policy.megatron import architecture

    noted: list[str] = []

    def read(directory: str, *, local_files_only: bool) -> str:
        noted.append(f"asked {directory}")
        return "config" if local_files_only else "of the hub"

    def check(config: str, directory: Path) -> None:
        noted.append("checked" if (config, directory) == ("config", Path("there")) else "")

    with (
        patch.object(AutoConfig, "from_pretrained", read), patch.object(architecture, "check_layers", check),
        patch.object(architecture, "architecture_of", lambda config: "architecture" if config == "config" else ""),
    ):  # fmt: skip
        found: Any = architecture.read_architecture(Path("there"))
    return [*noted, found]


def _of_groups() -> Iterator[WorkedExample]:
    for cuda, backend in ((False, "gloo"), (True, "cpu:gloo,cuda:nccl")):
        right = [(backend, 0, 1), *["seed 0"] * cuda]
        yield example(f"groups of a process without any, with a device: {cuda}", right, _started, cuda)
    yield example("groups that policies had", [["destroyed", ("left", {"group"})], []], _left, False)
    yield refused(
        "another policy of this process has Megatron-core groups", "groups that a policy has", _left, True
    )
    for size in (1, 2):
        yield example(f"whether one of {size} processes is alone", size == 1, _alone, size)


def _started(cuda: bool) -> list[Any]:
    from refrl.policy.megatron import parallel

    noted: list[Any] = []

    def start(backend: str, *, store: Any, rank: int, world_size: int) -> None:
        noted.append((backend, rank, world_size))

    state = SimpleNamespace(
        model_parallel_is_initialized=lambda: False, initialize_model_parallel=lambda **sizes: None
    )
    given: Mapping[str, Any] = {
        "parallel_state": state, "groups_of_processes": set, "_GROUPS": set(), "_LIVING": set(),
        "model_parallel_cuda_manual_seed": lambda seed: noted.append(f"seed {seed}"),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in given.items():
            stack.enter_context(patch.object(parallel, name, value))
        for where, name, value in (
            (torch.distributed, "is_initialized", lambda: False), (torch.distributed, "init_process_group", start),
            (torch.cuda, "is_available", lambda: cuda),
        ):  # fmt: skip
            stack.enter_context(patch.object(where, name, value))
        parallel.join_parallel(MegatronConfig(), World())
    return noted


def _left(living: bool) -> list[Any]:
    from refrl.policy.megatron import parallel

    noted: list[Any] = []
    groups = {"group"}
    given: Mapping[str, Any] = {
        "gc": SimpleNamespace(collect=lambda: 0), "_LIVING": {1} if living else set(), "_GROUPS": groups,
        "leave_groups": lambda of: noted.append(("left", set(of))),
        "parallel_state": SimpleNamespace(destroy_model_parallel=lambda: noted.append("destroyed")),
    }  # fmt: skip
    with ExitStack() as stack:
        for name, value in given.items():
            stack.enter_context(patch.object(parallel, name, value))
        parallel._leave_groups()
    return [noted, sorted(groups)]


def _alone(size: int) -> bool:
    from refrl.policy.megatron.parallel import Parallel

    with patch.object(torch.distributed, "get_world_size", lambda: size):
        return Parallel(MegatronConfig()).alone


def _of_inputs() -> Iterator[WorkedExample]:
    for packs in (False, True):
        for multiple in (1, 4):
            yield example(f"rows of a multiple of {multiple}, packed: {packs}", [], _inputs, packs, multiple)


def _inputs(packs: bool, multiple: int) -> list[str]:
    """Return what differs of a micro-batch's tokens, of what they see, and of its scores under random logits."""
    from refrl.policy.megatron.forward import Scorer

    parallel: Any = SimpleNamespace(context=ALONE, sequence_multiple=multiple)
    made = Scorer(parallel, vocab_size=10, temperature=0.5, packs=packs, dtype=torch.float32)
    rows = batch()
    inputs = made.inputs(rows)
    lengths = rows.attention_mask_BS.sum(1).tolist()
    each = [row[:length] for row, length in zip(rows.input_ids_BS.tolist(), lengths, strict=True)]
    width = -(-(sum(lengths) if packs else max(lengths)) // multiple) * multiple
    ids = inputs.input_ids_BS.tolist()
    # Each row's tokens, and where they lie: one after another in the order of the pack, or each in a line of its own.
    found = (
        [next(at for at in range(width) if ids[0][at : at + len(one)] == one) for one in each]
        if packs
        else [0, 0, 0]
    )
    logits = torch.randn(len(ids), width, 12, generator=torch.Generator().manual_seed(0))
    logprobs, _ = inputs.score(logits)
    due = (logits[..., :10] / 0.5).log_softmax(-1)
    wrong = [] if inputs.input_ids_BS.shape[1] == width else ["width"]
    for row, (start, prompt, length) in enumerate(
        zip(found, rows.prompt_lens_B.tolist(), lengths, strict=True)
    ):
        line = 0 if packs else row
        wrong += [f"tokens of {row}"] * (ids[line][start : start + length] != each[row])
        for token in range(length - prompt):
            if not float(rows.mask_BT[row, token]):
                continue
            place = start + prompt + token
            value = float(due[line, place - 1, ids[line][place]])
            wrong += [f"score {token} of {row}"] * (abs(float(logprobs[row, token]) - value) > 1e-5)
        if packs:
            mask: Any = inputs.attention_mask
            seen = mask[0, 0, start : start + length] == 0
            block = torch.ones(length, length, dtype=torch.bool).tril()
            wrong += [f"mask of {row}"] * (
                not torch.equal(seen[:, start : start + length], block) or int(seen.sum()) != int(block.sum())
            )
    return wrong
