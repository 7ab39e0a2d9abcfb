"""Worked examples of small records: what calls leave of their arguments, rows that are chosen, words of refusals."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refrl.algorithms.batching import TrainSample
from refrl.config import DataConfig, GRPORunConfig
from refrl.config.describe import effective_yaml
from refrl.config.loading import load_config, validate_config
from refrl.config.registry import parse_options
from refrl.data_plane import KVBatchMeta, LengthFilter, StalenessFilter, WholeGroups, ZeroVarianceFilter
from refrl.data_plane.columns import decode, encode, gather, pad
from refrl.data_plane.control import ControlState
from refrl.data_plane.factory import local_client
from refrl.data_plane.flow import apply_filters
from refrl.data_plane.partition import PartitionSpec, plain_tags
from refrl.masking import masked
from refrl.models.prompts import PromptEncoder
from refrl.models.tokenization import load_tokenizer, make_byte_tokenizer
from refrl.rewards.scoring import join_scores
from refrl.rollout.collect import _fates
from refrl.rollout.columns import from_columns, from_plain, to_columns, to_plain, to_tags
from refrl.rollout.sync import join_rollouts
from refrl.tasks import Example
from refrl.tasks.base import make_splits, make_task
from refrl.tasks.files.opening import open_rows
from refrl.tasks.files.rows import Columns
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked.made import example, refused, rollouts
from seatrial.targets.reference.worked.options import FILE

TAGS = [
    {"weight_version": 3, "group_id": 0, "reward": 1.0},
    {"weight_version": 3, "group_id": 0, "reward": 0.0},
]


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    for name, (call, given) in _calls().items():
        yield example(f"what {name} leaves of its arguments", [], _left, call, given)
    yield from _of_rows()
    yield from _of_words()


def _meta(**more: Any) -> KVBatchMeta:
    words = {"fields": ["x"], "sequence_lengths": [1, 2], "extra_info": {"a": [1]}, "tags": TAGS, **more}
    return KVBatchMeta(partition_id="p", sample_ids=["a", "b"], **words)


def _calls() -> Mapping[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return calls that change none of their arguments, and whose results share nothing with them that changes."""
    rows, meta = rollouts(), _meta()
    plain = to_plain(rows)
    options = {"task": "add", "num_train": 5, "task_args": {"digits": 2}}
    objects = np.array([{"a": [1]}, {"b": [2]}], dtype=object)
    spec: dict[str, Any] = {
        "fields": ("x",),
        "num_samples": 2,
        "consumer_tasks": ("t",),
        "enums": {"k": ("a", 1)},
    }
    columns = to_columns(rows)
    read = {name: decode(encode(value, name)) for name, value in columns.items()}
    return {
        "from_plain": (lambda of: (from_plain(of).texts, from_plain(of).examples), (plain,)),
        "from_columns": (from_columns, (read,)),
        "to_tags": (to_tags, (rows, [0, 0, 1, 1])),
        "Rollouts.rows": (lambda of, index: of.rows(index), (rows, [2, 0])),
        "join_rollouts": (join_rollouts, ([rows, rows],)),
        "join_scores": (join_scores, ([rows.scores, rows.scores],)),
        "KVBatchMeta": (lambda words: KVBatchMeta(**words), ({**vars(meta)},)),
        "KVBatchMeta.subset": (lambda of, index: of.subset(index), (meta, [1, 0])),
        "KVBatchMeta.slice": (lambda of: of.slice(0, 2), (meta,)),
        "KVBatchMeta.drop": (lambda of, index: of.drop(index), (meta, [0])),
        "KVBatchMeta.concat": (lambda of, other: of.concat(other), (meta, _meta())),
        "KVBatchMeta.with_fields": (lambda of, fields: of.with_fields(fields), (meta, ["y"])),
        "KVBatchMeta.stamp_tags": (lambda of, tags: of.stamp_tags(tags), (meta, {"k": [1, 2]})),
        **{
            f"{type(one).__name__} {meta.sequence_lengths}": (
                lambda of, one=one: one(of, current_weight_version=3),
                (meta,),
            )
            for one in (StalenessFilter(1), ZeroVarianceFilter(), LengthFilter(9), WholeGroups(LengthFilter(1)))
        },
        "apply_filters": (lambda of: apply_filters(of, [LengthFilter(1)])[1], (meta,)),
        "plain_tags": (plain_tags, (TAGS,)),
        "encode": (encode, (torch.ones(2, 2), "x")),
        "encode of one row": (encode, ([torch.ones(2)], "x")),
        "encode of objects": (encode, (objects, "x")),
        "gather": (lambda one: gather([(one, [0, 1], [0, 1])], 2), (encode(torch.ones(2), "x"),)),
        "gather of some": (lambda one: gather([(one, [1], [0])], 1), (encode(torch.ones(2, 3), "x"),)),
        "pad": (pad, ([torch.ones(2), torch.ones(1)], 0)),
        "masked": (masked, ({"token": "x", "deep": {"list": [{"api_key": "y"}]}},)),
        "validate_config": (lambda words: validate_config(DataConfig, words, source="s"), (options,)),
        "parse_options": (lambda words: parse_options(DataConfig, words, "k"), (options,)),
        "make_task": (make_task, ("add", {"digits": 2})),
        "PartitionSpec.from_json": (PartitionSpec.from_json, (json.loads(json.dumps(
            PartitionSpec(**spec).to_json())),)),
        "a put": (_put, ({"x": torch.ones(2)}, ["a", "b"], TAGS)),
        "a register": (
            lambda fields, enums: local_client(lease_s=1.0).register_partition("p", fields, 2, ["t"], None, enums),
            (["x"], {"k": ["a"]}),
        ),
    }  # fmt: skip


def _put(values: Mapping[str, Tensor], samples: list[str], tags: Any) -> Any:
    """Return what is put, claimed and read twice, with what the first claim and read gave changed in between."""
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["x"], 2, ["s", "t"])
    put = client.put_samples(samples, "p", values, tags)
    first = client.claim_meta("p", "s", ["x"], 2)
    read = client.get_data(first)
    right = copy.deepcopy(read), copy.deepcopy(first.tags)
    read["x"].zero_()  # type: ignore[union-attr]
    for one in first.tags or ():
        one.clear()
    second = client.claim_meta("p", "t", ["x"], 2)
    again = client.get_data(second)
    assert torch.equal(again["x"], right[0]["x"]) and second.tags == right[1], "a reader changes the store"  # type: ignore[arg-type]
    return put, replace(second, lease_id=None), again


def _places(value: Any) -> Iterator[int]:
    """Yield where the parts of a value lie that a caller can change."""
    if isinstance(value, Tensor):
        yield value.untyped_storage().data_ptr()
    elif isinstance(value, np.ndarray):
        yield id(value) if value.dtype == object else value.__array_interface__["data"][0]
    elif isinstance(value, list | dict | set):
        yield id(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    if is_dataclass(value) and not isinstance(value, type):
        parts = vars(value).values()
    for part in parts:
        yield from _places(part)


def _left(call: Callable[..., Any], given: tuple[Any, ...]) -> list[str]:
    """Return what a call does with its arguments that it must not."""
    own = copy.deepcopy(given)
    before = repr(own)
    found = call(*own)
    shared = {*_places(own)} & {*_places(found)} - {0}
    again = call(*own)
    wrong = {
        "changes them": repr(own) != before,
        "shares them": bool(shared),
        "differs": repr(again) != repr(found),
    }
    return [
        name
        for name, is_wrong in wrong.items()
        if is_wrong and (name != "differs" or "0x" not in repr(found))
    ]


def _of_rows() -> Iterator[WorkedExample]:
    yield example(
        "rows in any order", [(3, "w", -0.5, 2), (1, "y", 0.25, 3), (1, "y", 0.25, 3)], _chosen, [3, 1, 1]
    )
    yield example("a tag that is put again", [{"s": 2, "k": 1}, {"s": 2}], _tagged)
    for rewards, right in {
        (0.5, 1.0): "surplus",
        (0.5, 0.5): "zero variance",
        (0.0, 1e-9): "surplus",
    }.items():
        yield example(f"the fate of a group with rewards {rewards}", [right, "held"], _fate, rewards)
    for num_train, num_validation in ((2, 9), (60, 40), (1, 99), (99, 1)):
        yield example(
            f"{num_train} prompts to train on, {num_validation} held out",
            [],
            _mixed,
            num_train,
            num_validation,
        )
    encoder = PromptEncoder(make_byte_tokenizer(), chat_template="byte", system_prompt="be")
    yield example(
        "a prompt that is encoded again",
        True,
        lambda: encoder.prompts(["a"]) == encoder.prompts(["b", "a"])[1:],
    )
    yield example(
        "an answer as ids", ["tuple"], lambda: [type(one).__name__ for one in encoder.answers(["a"], ["b"])]
    )
    yield example("the order of names in a printed configuration", True, _printed)


def _chosen(index: list[int]) -> Any:
    found = rollouts().rows(index)
    columns = found.examples, found.texts, found.scores.rewards, found.completions
    return [
        ([5, 5, 3, 3].index(one.prompt_id) + (place in (1, 3)), text, reward, len(row.ids) - 2 * (place == 1))
        for place, one, text, reward, row in zip(index, *columns, strict=True)
    ]


def _tagged() -> Any:
    client = local_client(lease_s=600.0)
    client.register_partition("p", ["x"], 2, ["t"])
    client.put_samples(["a", "b"], "p", {"x": torch.ones(2)}, [{"s": 1, "k": 1}, {"s": 1}])
    client.put_samples(["a", "b"], "p", None, [{"s": 2}, {"s": 2}])
    return client.claim_meta("p", "t", ["x"], 2).tags


def _fate(rewards: tuple[float, ...]) -> list[str]:
    prompt = Example(5, "p", "a", "made")
    made = [
        TrainSample(prompt_ids=(1,), completion_ids=(2,), sampling_logprobs=(0.0,), reward=one, group_id=5)
        for one in rewards
    ]
    return [one.fate for one in _fates(0, [prompt, prompt], made, [False] * len(made))]


def _mixed(num_train: int, num_validation: int) -> list[int]:
    """Return the prompts of both splits; they must be as many as asked for."""
    config = {
        "task": "add",
        "task_args": {"digits": 1},
        "num_train": num_train,
        "num_validation": num_validation,
    }
    made = make_splits(DataConfig.model_validate(config))
    ids = [[one.prompt_id for one in split] for split in (made.train, made.validation)]
    assert [len({*own}) for own in ids] == [num_train, num_validation], ids
    return sorted({*ids[0]} & {*ids[1]})


def written(text: str, *overrides: str) -> GRPORunConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "c.yaml").write_text(text, encoding="utf-8")
        return load_config(GRPORunConfig, Path(folder) / "c.yaml", overrides)


def _printed() -> bool:
    given = written(FILE, "data.task=count_letters", "data.task_args={length: 4, alphabet_size: 2}")
    text = effective_yaml(given)
    return text.index('"length"') < text.index('"alphabet_size"')


def _of_words() -> Iterator[WorkedExample]:
    for override, words in {
        "grpo.sed=1": "unknown key 'grpo.sed'; the nearest known key is 'grpo.seed'",
        "policy.sed=1": "unknown key 'policy.sed'; the nearest known key is",
        "grpo.lr=1": "unknown key 'grpo.lr'; the nearest known key is 'policy.optimizer.lr'",
        "polcy={a: 1}": "unknown key 'polcy'; the nearest known key is 'policy'",
        "policy.optimiser={lr: 1}": "unknown key 'policy.optimiser'; the nearest known key is 'policy.optimizer'",
        "data.task_args={a: [1]}": "data.task_args.a: input should be a number, a text or a boolean, got [1]",
        "grpo.max_num_steps=a": "grpo.max_num_steps: input should be a valid integer, got 'a'",
        "data.num_train.x.y=1": "override 'data.num_train.x.y=1': data.num_train is a value, not a section",
        "grpo..seed=1": "override 'grpo..seed=1' is malformed; write it as section.key=value",
        "=1": "override '=1' is malformed; write it as section.key=value",
    }.items():
        yield refused(words, f"the words about {override}", written, FILE, override)
    for text in ("max_num_steps: 3, max_num_steps: 4", "1: 2, 1: 3", "a: {b_c: 1, b_c: 1}"):
        yield refused("is there twice", f"a key twice: {text}", written, FILE + f"x: {{{text}}}\n")
    for section in ("", " {}", " null", " ~", " {name: own}"):
        name = f"an override below a section:{section}"
        right = (0.5, "own" if "own" in section else "refrl-data-plane")
        yield example(name, right, _below, f"{FILE}data_plane:{section or ' {}'}\n")
    yield refused("1 different prompts", "a file of one prompt", _split_of, [{"prompt": "p", "answer": "1"}])
    yield refused("0 tags of 2 samples", "no tags of two samples", _put, {"x": torch.ones(2)}, ["a", "b"], [])
    for text, words in {
        "": "cannot be read",
        "{}": "no 'model' and no 'added_tokens'",
        '{"model": 1}': "(no 'added_tokens')",
        "[1]": "no 'model' and no 'added_tokens'",
    }.items():
        yield refused(words, f"a tokenizer of {text!r}", _tokenizer, text)
    for state, words in {
        '{"_data_files": [], "_indices_files": [1]}': "flatten_indices()",
        '{"_data_files": [], "_indices_data_files": [1]}': "flatten_indices()",
        '{"_data_files": []}': "holds no rows",
        '{"_data_files": [{}]}': "state.json is not that of a saved dataset",
        "{}": "state.json is not that of a saved dataset",
        "": "state.json is not that of a saved dataset",
    }.items():
        yield refused(words, f"a saved dataset of {state!r}", _saved, state)
    yield example("a partition that is cleared counts from nothing", [1, 0], _counted)


def _below(text: str) -> Any:
    """Return what an override sets in a section, and what the section has besides."""
    found = written(text, "data_plane.implementation=ray", "data_plane.lease_s=0.5")
    return found.data_plane.lease_s, found.data_plane.name


def _split_of(rows: list[dict[str, str]]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return make_splits(DataConfig(train_path=str(path)))


def _tokenizer(text: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokenizer.json").write_text(text, encoding="utf-8")
        return load_tokenizer(Path(folder))


def _saved(state: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "state.json").write_text(state, encoding="utf-8")
        return open_rows(Path(folder), Columns("q", "a", None), "o")


def _counted() -> list[int]:
    now = [0.0]
    state = ControlState(lambda: now[0])
    found = []
    for seconds in (1.0, 9.0):
        state.register("p", PartitionSpec(fields=("x",), num_samples=1, consumer_tasks=("t",)))
        state.publish("p", ["a"], [], None)
        state.lease("p", "t", ["a"], f"l{seconds}", seconds)
        now[0] += 2.0
        found.append(state.status("p").num_returned)
        state.clear("p", None)
    return found
