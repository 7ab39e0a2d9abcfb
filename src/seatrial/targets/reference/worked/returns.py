"""Worked examples of what comes back: adapters and states from files, texts from ids, orders from seeds."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from refrl.checkpointing.attempts import begin_attempt
from refrl.checkpointing.layout import whole_checkpoints
from refrl.config import LoraConfig
from refrl.data_plane.columns import Column, encode
from refrl.data_plane.factory import local_client
from refrl.distributed import ALONE
from refrl.generation.static.decoder import StaticDecoder
from refrl.models import loading
from refrl.models.tokenization import decode_completions, encode_answers, encode_prompts, make_byte_tokenizer
from refrl.policy.adapter_files import CONFIG, read_adapters, save_adapters
from refrl.policy.lora import merge
from refrl.rollout import replay
from refrl.rollout.columns import FIELDS
from refrl.rollout.replay import ReplayBuffer
from refrl.tasks import Example
from refrl.tasks.base import PromptSource
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration
from seatrial.targets.reference.worked import saves
from seatrial.targets.reference.worked.checkpoints import checkpointer, in_folder
from seatrial.targets.reference.worked.made import example, for_all, made_tensor, refused, rollouts


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from for_all({"adapters that are merged": (_merged, 10), "texts as bytes": (_texts, 10)})
    yield from _of_adapters()
    for kind, name in (("llama", "AutoModelForCausalLM"), ("llava", "AutoModelForMultimodalLM")):
        for cap, attention in ((None, None), (50.0, "eager")):
            yield example(
                f"how a {kind} with the cap {cap} is loaded", (name, attention, True), _loaded, kind, cap
            )
    yield example("orders that seeds and epochs share", [], _orders)
    for saved, now in ((0, 3), (3, 0), (0, 1), (-1, 0)):
        words = f"was saved with other seed ({saved}, now {now})"
        yield refused(words, f"seed {now} after {saved}", in_folder(_restored), saved, now)
    yield example("seed 0 again", None, in_folder(_restored), 0, 0)
    parts = "was saved with other parts ([], now ['prompts'])"
    yield refused(parts, "a part after none", in_folder(_restored), 0, 0, {})
    for left in ("{}", "not JSON", "[]", '{"attempts": []}', '{"run_id": null}', '{"run_id": ""}'):
        yield refused(
            "another run than the checkpoint", f"a log that says {left}", in_folder(_continued), left
        )
    for num in (1, 2, 3):
        words = f"{2 * num} samples of the data plane were taken and never cleared"
        yield refused(words, f"{num} groups that a step took and did not clear", _unfinished, num)
    yield example("samples outlast their buffers", ([[0, 1], [2, 3]], [[-1.0, -2.0], [-3.0, -4.0]]), _sampled)
    for lengths in (None, (1, 1, 1)):
        for rows in ([0, 1, 2], [1, 2], [2, 0], [1]):
            values = [float(row) for row in rows]
            yield example(f"rows {rows} outlast a column of {lengths}", values, _taken, lengths, rows)
    for as_list in (False, True):
        yield example(f"a field outlasts its caller, as list: {as_list}", [0.0, 1.0, 2.0], _encoded, as_list)
    yield from saves.examples()


class _SeenError(Exception):
    """Raised in place of loading a model."""


def _sampled() -> Any:
    """Return what a decoder has sampled, once its buffers are written over."""
    logprobs_TR = torch.tensor([[-1.0, -2.0], [-3.0, -4.0], [0.0, 0.0]])
    buffers = SimpleNamespace(ids_TR=torch.arange(6).reshape(3, 2), logprobs_TR=logprobs_TR)
    decoder: Any = SimpleNamespace(_buffers=buffers, _num_sampled=2, _num_rows=2)
    found = StaticDecoder.sampled(decoder, 0)
    logprobs_TR.fill_(9.0)
    return found


def _taken(lengths: tuple[int, ...] | None, rows: list[int]) -> Any:
    """Return the values of rows of a column, once the column is written over."""
    values = torch.arange(3.0)
    found = Column("dense" if lengths is None else "jagged", values, lengths).take(rows).values
    values.fill_(9.0)
    return found


def _encoded(as_list: bool) -> Any:
    """Return the values of a field, once what was given is written over."""
    given = torch.arange(3.0)
    found = encode([given] if as_list else given, "x").values
    given.fill_(9.0)
    return found


def _loaded(kind: str, cap: float | None) -> Any:
    """Return the class that loads a model, its attention, and whether it is of float32 and of local files alone."""
    text = SimpleNamespace(attn_logit_softcapping=cap)
    config = SimpleNamespace(model_type=kind, get_text_config=lambda: text)

    def load(name: str) -> Any:
        def call(directory: str, **options: Any) -> None:
            own = (options.pop("local_files_only"), options.pop("output_loading_info"))
            found = (
                options.pop("attn_implementation"),
                own == (True, True) and options.pop("dtype") == torch.float32,
            )
            raise _SeenError(name, *found)

        return SimpleNamespace(from_pretrained=call)

    names = ("AutoModelForCausalLM", "AutoModelForMultimodalLM")
    with (
        patch.multiple(loading, check_model_directory=lambda of: None, check_layers=lambda config, of: None),
        patch("transformers.AutoConfig", SimpleNamespace(from_pretrained=lambda of, **options: config)),
        patch.multiple("transformers", **{name: load(name) for name in names}),
    ):
        try:
            loading.load_model(Path())
        except _SeenError as seen:
            return seen.args
    return None


def _orders() -> list[Any]:
    """Return the pairs of (seed, epoch) that draw the prompts in one order; 12 prompts have 479001600 orders."""
    prompts = [Example(number, str(number), "a", "made") for number in range(12)]
    seen: dict[tuple[int, ...], Any] = {}
    shared = []
    for seed in (-1, 0, 1, 2, 10, 11):
        source = PromptSource(prompts, seed=seed, shuffle=True)
        for epoch in range(4):
            order = tuple(one.prompt_id for one in source.draw(12))
            assert sorted(order) == [*range(12)]
            if seen.setdefault(order, (seed, epoch)) != (seed, epoch):
                shared.append((seen[order], (seed, epoch)))
    return shared


def _restored(folder: Path, saved: int, now: int, parts: Any = None) -> None:
    saver = checkpointer(folder, seed=saved, parts=parts)
    saver.save(2, None)
    checkpointer(folder, seed=now).restore(whole_checkpoints(folder)[0])


def _continued(folder: Path, left: str) -> None:
    """Begin a run where its checkpoint is, and a log that says this of its run."""
    saving = {"enabled": True, "checkpoint_dir": str(folder / "kept"), "save_period": 1, "async_save": False}
    config = configuration(
        {
            "logger.log_dir": str(folder / "log"),
            **{f"checkpointing.{name}": one for name, one in saving.items()},
        }
    )
    saver = checkpointer(folder / "kept")
    saver.save(2, None)
    (folder / "log").mkdir()
    (folder / "log" / "run_info.json").write_text(left, encoding="utf-8")
    begin_attempt(config, config.checkpointing, config.logger, ALONE)


def _unfinished(num_groups: int) -> None:
    client = local_client(lease_s=60.0)
    buffer = ReplayBuffer(client, groups_per_step=1, group_size=2, capacity=6, timeout_s=0.0)
    for _ in range(num_groups):
        buffer.add(rollouts().rows([0, 1]))
    client.claim_meta(replay.PARTITION, replay.TASK, FIELDS, 2 * num_groups, blocking=False)
    buffer.close()


def _merged(stream: random.Random) -> bool:
    """Return whether a merged weight is the sum in float64, rounded once."""
    out, dim, width = (stream.randint(1, 4) for _ in range(3))
    dtype = stream.choice((torch.float32, torch.bfloat16, torch.float16))
    base, low, high = (
        made_tensor(stream, shape, dtype) for shape in ((out, width), (dim, width), (out, dim))
    )
    scaling = stream.choice([0.5, 2.0, 1 / 8])
    due = (base.double() + scaling * (high.double() @ low.double())).float().to(dtype)
    found = merge(base, low, high, scaling)
    return found.dtype == dtype and torch.equal(found, due)


def _texts(stream: random.Random) -> bool:
    """Return whether texts are their bytes, and come back with every space and mark, special words included."""
    parts = [" .", " n't", "  ", " ,", "<eos>", "é", "𝄞", "\n", "a", " !"]
    texts = ["".join(stream.choices(parts, k=stream.randint(1, 6))) for _ in range(3)]
    tokenizer = make_byte_tokenizer()
    ids = encode_answers(tokenizer, texts)
    prompts = encode_prompts(tokenizer, texts)
    return bool(
        decode_completions(tokenizer, ids) == texts
        and [one[-len(own) :] for one, own in zip(prompts, ids, strict=True)] == ids
        and [list(one) for one in ids] == [list(text.encode()) for text in texts]
        and decode_completions(tokenizer, [(*one, tokenizer.eos_token_id) for one in ids]) == texts
    )


def _of_adapters() -> Iterator[WorkedExample]:
    names = ["a.lora_A.weight", "a.lora_B.weight"]
    for key, allowed in (
        *(("rank_pattern", None), ("rank_pattern", {}), ("alpha_pattern", None), ("alpha_pattern", {})),
        *(("modules_to_save", None), ("modules_to_save", []), ("layers_to_transform", []), ("bias", "none")),
    ):
        yield example(f"an adapter whose {key} is {allowed!r}", names, _read_back, {key: allowed})
    changes: Sequence[tuple[str, Any]] = (
        *(("bias", "all"), ("fan_in_fan_out", True), ("use_dora", True), ("use_rslora", True)),
        *(("modules_to_save", ["b"]), ("rank_pattern", {"a": 1}), ("alpha_pattern", {"a": 1})),
        *(("layers_to_transform", [0]), ("layers_to_transform", 0), ("lora_bias", True)),
        *(("r", 3), ("r", None), ("lora_alpha", 9), ("lora_alpha", None)),
        *(("peft_type", "IA3"), ("peft_type", None)),
    )
    for name, value in changes:
        what = f"an adapter whose {name} is {value!r}"
        yield refused(f"has {name}={value!r}", what, _read_back, {name: value})
    for name in ("r", "lora_alpha", "peft_type"):
        yield refused(f"has {name}=None", f"an adapter without {name}", _read_back, {}, name)


def _read_back(changed: Mapping[str, Any], without: str | None = None) -> list[str]:
    lora = LoraConfig(enabled=True, dim=2, alpha=4)
    weights = {"a.lora_A.weight": torch.ones(2, 3), "a.lora_B.weight": torch.ones(5, 2)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "adapter")
        save_adapters(weights, lora, "base", path)
        config = {**json.loads((path / CONFIG).read_text(encoding="utf-8")), **changed}
        config.pop(without or "", None)
        (path / CONFIG).write_text(json.dumps(config), encoding="utf-8")
        return sorted(read_adapters(path, lora, {name: tuple(one.shape) for name, one in weights.items()}))
