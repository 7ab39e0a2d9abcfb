"""Worked examples of single calls: what functions take by default, their edges, messages and system calls."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from refrl.algorithms import batching, chunked, metrics, ops
from refrl.algorithms.batching import make_batch
from refrl.algorithms.losses.base import specification
from refrl.checkpointing import attempts, checkpointer
from refrl.config import CheckpointingConfig, LossConfig
from refrl.data_plane import KVBatchMeta
from refrl.data_plane.column_io import kv_first_write, read_columns, shard_meta_for_dp
from refrl.data_plane.factory import local_client
from refrl.generation import lean_support, lean_weights, process, torch_engine
from refrl.generation.lean_norms import CentredNorm
from refrl.models import tiny
from refrl.models.byte_tokenizer import VOCAB_SIZE, byte_alphabet
from refrl.models.tokenization import make_byte_tokenizer
from refrl.policy import hf, optimizer, updates
from refrl.rewards import sandbox_audit, sandbox_child
from refrl.rewards.verifiers import byte_closeness
from refrl.tasks.base import make_task
from refrl.training.performance import utilization_metrics
from refrl.training.session import Observers, make_observer
from refrl.training.step_records import Filtered, train_rows
from refrl.weight_sync.base import Part, WeightSyncError
from refrl.weight_sync.receiver import Receiver
from refrl.weight_sync.transferred import bucketed
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked.made import PAD, batch, example, refused, rollouts, rows, sample
from seatrial.targets.reference.worked.values import of_values

DEFAULTS: Sequence[tuple[Callable[..., Any], Mapping[str, Any]]] = (
    (ops.compute_logprobs, {"temperature": 1.0, "mask_BT": None, "kept_ids": None}),
    (chunked.compute_logprobs_chunked, {"temperature": 1.0, "keep_bytes": 3 * 2**30, "vocab_chunk": None}),
    (batching.make_batch, {"padding_side": "right", "sequence_buckets": (), "max_sequence_length": None}),
    (batching.Batch.rows, {"trim": False}),
    (metrics.merge_metrics, {"num_updates": 1}),
    (checkpointer.Checkpointer.save, {"finished": False}),
    (updates.UpdatingPolicy.accumulate, {"micro_batches": None, "scores": False, "with_rows": False}),
)
"""What functions take where nothing is said."""
TASKS: Mapping[str, Mapping[str, Any]] = {
    "code_print": {"limit": 10, "num_operators": 1},
    "count_letters": {"length": 6, "alphabet_size": 3},
}
"""What tasks take where nothing is said."""
CALLS: Mapping[str, Sequence[tuple[str, int | None, int | None]]] = {
    "fork": [("fork", 57, None), ("vfork", 58, None)],
    "clone": [("clone", 56, 220)],
    "clone3": [("clone3", 435, 435)],
    "signal": [
        *(("kill", 62, 129), ("tkill", 200, 130), ("tgkill", 234, 131), ("rt_sigqueueinfo", 129, 138)),
        *(("rt_tgsigqueueinfo", 297, 240), ("pidfd_send_signal", 424, 424), ("ptrace", 101, 117)),
        *(("process_vm_readv", 310, 270), ("process_vm_writev", 311, 271)),
    ],
    "network": [("socket", 41, 198), ("socketpair", 53, 199), ("io_uring_setup", 425, 425)],
    "limits": [("setrlimit", 160, 164)],
    "prlimit": [("prlimit64", 302, 261)],
    "shared": [
        *(("shmget", 29, 194), ("shmat", 30, 196), ("shmctl", 31, 195), ("shmdt", None, 197)),
        *(("semget", 64, 190), ("semop", 65, 193), ("semctl", 66, 191), ("semtimedop", 220, 192)),
        *(("msgget", 68, 186), ("msgsnd", 69, 189), ("msgrcv", 70, 188), ("msgctl", 71, 187)),
        *(("mq_open", 240, 180), ("memfd_create", 319, 279), ("memfd_secret", 447, 447)),
        *(("add_key", 248, 217), ("request_key", 249, 218), ("keyctl", 250, 219)),
    ],
    "kernel": [
        *(("mount", 165, 40), ("umount2", 166, 39), ("pivot_root", 155, 41), ("chroot", 161, 51)),
        *(("unshare", 272, 97), ("setns", 308, 268), ("open_tree", 428, 428), ("move_mount", 429, 429)),
        *(("fsopen", 430, 430), ("fsconfig", 431, 431), ("fsmount", 432, 432), ("fspick", 433, 433)),
        *(("mount_setattr", 442, 442), ("name_to_handle_at", 303, 264), ("open_by_handle_at", 304, 265)),
        *(("pidfd_open", 434, 434), ("pidfd_getfd", 438, 438), ("process_madvise", 440, 440)),
        *(("io_uring_enter", 426, 426), ("io_uring_register", 427, 427), ("perf_event_open", 298, 241)),
        *(
            ("bpf", 321, 280),
            ("userfaultfd", 323, 282),
            ("init_module", 175, 105),
            ("finit_module", 313, 273),
        ),
        *(
            ("kexec_load", 246, 104),
            ("kexec_file_load", 320, 294),
            ("swapon", 167, 224),
            ("reboot", 169, 142),
        ),
    ],
}
"""System calls that a rewarded program is refused, with their numbers on x86_64 and aarch64 (the kernel's tables)."""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_defaults()
    yield from _of_sandboxes()
    yield from _of_batches()
    yield from _of_stores()
    yield from _of_models()
    yield from _of_syncs()
    yield from _of_runs()
    yield from of_values()


def _of_defaults() -> Iterator[WorkedExample]:
    for function, right in DEFAULTS:
        taken = {name: one.default for name, one in inspect.signature(function).parameters.items()}
        name = f"what {function.__qualname__} takes by default"
        yield example(name, right, lambda taken=taken, right=right: {key: taken.get(key) for key in right})
    for task, right in TASKS.items():
        yield example(f"what {task} takes by default", right, _arguments, task)


def _arguments(task: str) -> dict[str, Any]:
    made: Any = make_task(task, {})
    return {field.name: getattr(made, field.name) for field in fields(made)}


def _of_sandboxes() -> Iterator[WorkedExample]:
    for place, machine in enumerate(("x86_64", "aarch64"), start=1):
        for kind, calls in CALLS.items():
            right = sorted(one[place] for one in calls if one[place] is not None)  # type: ignore[type-var]
            yield example(f"{kind} on {machine}", right, _refused_calls, machine, kind)
    for event, arguments in (
        ("os.fork", ()),
        ("socket.connect", (None, ("127.0.0.1", 1))),
        ("subprocess.Popen", ("true", [], None, None)),
        ("import", ("ctypes", None)),
        ("open", ("/etc/passwd", "r", os.O_RDONLY)),
        ("os.remove", ("/etc/passwd", -1)),
    ):
        yield refused(
            "permits no", f"the audit hook and {event}", sandbox_audit._guard("/own", ()), event, arguments
        )
    for event, arguments in (
        ("import", ("json", None)),
        ("open", ("/own/a", "w", os.O_WRONLY)),
        ("open", ("/read/a", "r", os.O_RDONLY)),
        ("os.remove", ("/own/a", -1)),
    ):
        name = f"the audit hook permits {event} of {arguments[0]}"
        yield example(name, None, sandbox_audit._guard("/own", ("/read",)), event, arguments)
    for status, words in ((0, "exit status 0"), (3, "exit status 3"), (-9, "signal 9"), (-1, "signal 1")):
        ended: Any = SimpleNamespace(returncode=status)
        yield example(f"an engine that ended with {status}", True, _ends_with, ended, words)


def _refused_calls(machine: str, kind: str) -> list[int]:
    return sorted(sandbox_child.ARCHITECTURES[machine][1][kind])


def _ends_with(ended: Any, words: str) -> bool:
    return process._how_it_ended(ended).endswith(words)


def _of_batches() -> Iterator[WorkedExample]:
    given = [sample([1], [2], advantage=1.0), sample([1], [2], advantage=-2.0)]
    yield example(
        "advantages of all rows", [1.0, -2.0], lambda: make_batch(given, pad_token_id=PAD).advantages_B
    )
    whole = [sample([1], [2], reward=1.0), sample([1], [2], reward=0.0)]
    yield example("whole rewards", torch.float32, lambda: make_batch(whole, pad_token_id=PAD).rewards_B.dtype)
    yield example("rows without a filter", None, lambda: make_batch(rows(), pad_token_id=PAD).kept_ids)
    yield refused("at least one part", "no metrics", metrics.merge_metrics, [])
    for place, right in (("loss", 0.5), ("reward", 0.0)):
        config = LossConfig.model_validate({"kl_in": place, "reference_policy_kl_penalty": 0.5})
        yield example(f"a KL in the {place}", right, lambda config=config: _claims(config)["kl_penalty"])
    gspo = {"kind": "gspo", "reduction": "token"}
    yield refused("a loss per sequence", "gspo by token", LossConfig.model_validate, gspo)
    yield example("bytes next to spaces", 1.0, byte_closeness, " ab\n", "ab")
    # The alphabet of GPT-2: bytes that are printed stand for themselves, the others follow from 256 on.
    bytes_of = {
        0: 256,
        32: 288,
        33: 33,
        126: 126,
        127: 289,
        160: 322,
        161: 161,
        172: 172,
        173: 323,
        174: 174,
        255: 255,
    }
    yield example(
        "characters of bytes",
        list(bytes_of.values()),
        lambda: [ord(byte_alphabet()[byte]) for byte in bytes_of],
    )
    spaced = "a , b . do n't  c !"
    tokenizer = make_byte_tokenizer()
    yield example(
        "spaces are kept",
        spaced,
        lambda: tokenizer.decode(tokenizer.encode(spaced), skip_special_tokens=True),
    )


def _claims(config: LossConfig) -> Mapping[str, object]:
    found = specification(config)
    assert found is not None
    return found


def _of_stores() -> Iterator[WorkedExample]:
    four = KVBatchMeta(partition_id="p", sample_ids=list("abcd"))
    none = KVBatchMeta(partition_id="p", sample_ids=[])
    for name, given in {
        "no rows": (none, 1, 1),
        "no ranks": (four, 0, None),
        "batches of none": (four, 1, 0),
        "batches of three": (four, 1, 3),
        "three ranks": (four, 3, 4),
    }.items():
        yield refused("cannot be shared", f"shares: {name}", shard_meta_for_dp, *given)
    yield refused(
        "'y' is not produced yet for samples b", "samples without a field are named", _half_produced
    )
    yield example("plain fields are not widened", ([2, 2], [2, 4]), _widths)


def _half_produced() -> Any:
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["x", "y"], 2, ["train"])
    client.put_samples(["a", "b"], "p", {"x": torch.zeros(2)})
    client.put_samples(["a"], "p", {"y": torch.zeros(1)})
    return client.get_samples(["a", "b"], "p", ["y"])


def _widths() -> Any:
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["input_ids", "plain", "input_lengths"], 2, ["train"])
    made = {
        "input_ids": torch.ones(2, 2).long(),
        "plain": torch.ones(2, 2),
        "input_lengths": torch.tensor([2, 1]),
    }
    meta = kv_first_write(made, ["a", "b"], client, "p", extra_info={"global_forward_pad_seqlen": 4})
    read = read_columns(client, meta, ["plain", "input_ids"])
    return [*read["plain"].shape], [*read["input_ids"].shape]


def _of_models() -> Iterator[WorkedExample]:
    vocabularies = {"qwen3": VOCAB_SIZE, "llava": tiny.MEDIA_TOKEN_ID + 1}
    for family, right in vocabularies.items():
        yield example(f"entries of {family}'s vocabulary", right, _entries, family)
    weight, bias = torch.ones(3), torch.zeros(3)
    for given, num in ((bias, 2), (None, 1)):
        norm = CentredNorm(weight, given, 1e-5)
        yield example(f"a norm reads {num} tensors", num, lambda norm=norm: len(list(norm.tensors())))
    whole = nn.Parameter(torch.ones(2).long(), requires_grad=False)
    kinds: dict[str, tuple[list[Any], bool]] = {
        "parameters": ([nn.Parameter(weight), None], True),
        "whole numbers": ([whole], False),
        "a plain tensor": ([weight], False),
        "two types": ([nn.Parameter(weight), nn.Parameter(weight.double())], False),
        "nothing": ([None], False),
    }
    for name, (weights, is_uniform) in kinds.items():
        yield example(f"weights of one type: {name}", is_uniform, lean_support._is_uniform, weights)
    for has_bias in (True, False):
        yield example(f"one map that is joined, bias {has_bias}", has_bias, _joined, has_bias)
    yield example("a map with its gate is read where it is", (True, True), _read_in_place)
    policies = {(False, False): None, (True, False): "kept", (False, True): None, (True, True): "base"}
    for (has_reference, has_adapters), due in policies.items():
        if has_adapters and not has_reference:
            continue
        name = f"weights of a reference {has_reference}, adapters {has_adapters}"
        yield example(name, due, _reference, has_reference, has_adapters)
    yield example("gradients of two meshes", (5.0, [0.6, 0.8]), _clipped)


def _entries(family: Any) -> int:
    return dict(tiny._shapes(tiny.TinyModelSpec(family=family)))["model.embed_tokens.weight"][0]


def _joined(has_bias: bool) -> bool:
    return lean_weights._project(nn.Linear(2, 2, bias=has_bias), join=True).biases[0] is not None


def _read_in_place() -> Any:
    mlp = SimpleNamespace(gate_up_proj=nn.Linear(2, 4))
    read, gated = lean_weights._read_up(mlp, join=True)
    return read.weights[0] is mlp.gate_up_proj.weight, gated


def _reference(has_reference: bool, has_adapters: bool) -> Any:
    policy: Any = SimpleNamespace(
        _reference="kept" if has_reference else None,
        _adapters=SimpleNamespace(base_weights=lambda: "base") if has_adapters else None,
    )
    with patch.object(hf, "named_weights", lambda model: model):
        return hf.HFPolicy.reference_weights(policy)


def _clipped() -> Any:
    weights = [torch.zeros(1), torch.zeros(1)]
    for weight, slope in zip(weights, (3.0, 4.0), strict=True):
        weight.grad = torch.tensor([slope])
    with patch.object(optimizer, "_by_mesh", lambda tensors: [[one] for one in tensors]):
        norm = optimizer.clip_spread_gradients(weights, 1.0)
    return float(norm), [float(weight.grad) for weight in weights if weight.grad is not None]


def _of_syncs() -> Iterator[WorkedExample]:
    parts = [Part(name, torch.ones(1), 0) for name in "abc"]
    yield example(
        "elements fill a bucket", ["ab", "c"], lambda: ["".join(one.name for one in cut) for cut in bucketed(parts, 8)]
    )  # fmt: skip
    yield refused("not whole", "no prompts during a sync", _served)
    yield example("loads of no part", 0, _loaded)


def _served() -> Any:
    receiver = Receiver(lambda: iter(()), load_batch_bytes=8)
    receiver.begin(1, None)
    engine: Any = SimpleNamespace(_receiver=receiver)
    return torch_engine.TorchGenerator.generate_with_media(engine, [], [], None, None)  # type: ignore[arg-type]


def _loaded() -> int:
    receiver = Receiver(lambda: iter(()), load_batch_bytes=8)
    try:
        receiver.commit({})
    except WeightSyncError:
        receiver.begin(1, None)
    return receiver.commit({}).largest_load_bytes


def _of_runs() -> Iterator[WorkedExample]:
    config = configuration({})
    given: Any = SimpleNamespace()
    yield example("one observer is itself", True, lambda: make_observer(config, given) is given)
    yield example("no observer", True, lambda: isinstance(make_observer(config), Observers))
    for name, model in {"no model": None, "a model without weights": nn.Identity()}.items():
        yield example(f"shares of {name}", {}, utilization_metrics, {}, batch(), model, 1)
    scored = make_batch([sample([1], [2], advantage=1.0)], pad_token_id=PAD)
    session: Any = SimpleNamespace()
    unscored = Filtered(scored, [False], {})
    yield refused(
        "was trained on",
        "rows that were not scored",
        lambda: list(train_rows(session, config, 6, rollouts(), unscored)),
    )
    yield example("what a crash left is removed at the start", ["a"], _left)


def _left() -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "saved")
        for name in (".step_2.abc", "a"):
            (root / name).mkdir(parents=True)
        section = CheckpointingConfig.model_validate({"enabled": True, "checkpoint_dir": str(root)})
        attempts._look({}, section, Path(folder, "logs"))
        return sorted(path.name for path in root.iterdir())
