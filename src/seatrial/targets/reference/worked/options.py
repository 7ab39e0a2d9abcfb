"""Worked examples of configurations: files and overrides, refusals, values derived from others, what is described."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from refrl.checkpointing.checkpointer import check_metric_name, metric_tag
from refrl.cli.train import _read_config
from refrl.config import (
    AdvantageConfig,
    CheckpointingConfig,
    DataConfig,
    GRPORunConfig,
    SFTRunConfig,
    load_config,
)
from refrl.config.describe import effective_yaml
from refrl.config.registry import NoOptions, Registry, import_object, parse_options
from refrl.training.validation import check_validation_metric
from seatrial.relations import NotServed
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.configuration import configuration, tuning_configuration
from seatrial.targets.reference.worked.made import example, refused

FILE = """
policy: {model_name: m, train_global_batch_size: 4, train_micro_batch_size: 2, max_total_sequence_length: 64}
grpo: {num_prompts_per_step: 2, num_generations_per_prompt: 2, max_num_steps: 3}
data: {task: reverse, num_train: 8}
logger: {log_dir: log}
checkpointing: {checkpoint_dir: kept}
"""


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_files()
    yield from _of_refusals()
    yield from _of_derived()
    yield from _of_parts()


def _loaded(*overrides: str, text: str = FILE) -> GRPORunConfig:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(GRPORunConfig, path, overrides)


def _value(name: str, *overrides: str, text: str = FILE) -> Any:
    value: Any = _loaded(*overrides, text=text)
    for part in name.split("."):
        value = value[part] if isinstance(value, Mapping) else getattr(value, part)
    return value


def _of_files() -> Iterator[WorkedExample]:
    for override, right in (
        ("grpo.seed=7", 7),
        ("policy.optimizer.lr=1e-3", 0.001),
        ("policy.optimizer.lr=.5", 0.5),
        ("logger.log_dir=2026", "2026"),
        ("logger.log_dir=a=b", "a=b"),
        ("policy.generation.top_k=null", None),
        ("policy.tokenizer.name=null", None),
        ("policy.tokenizer.name=~", None),
        ("policy.tokenizer.name=", None),
        ("policy.tokenizer.name=007", "007"),
        ("checkpointing.metric_name=null", None),
        ("grpo.async_grpo.enabled=false", False),
        ("data.task_args={max_length: 3}", {"max_length": 3}),
        ("data.task_args.max_length=3", {"max_length": 3}),
        ("policy.generation.stop_token_ids=[1, 2]", (1, 2)),
    ):
        name = override.partition("=")[0].removesuffix(".max_length")
        yield example(override, right, _value, name, override)
    yield example("the last override counts", 2, _value, "grpo.seed", "grpo.seed=1", "grpo.seed=2")
    yield example("the file counts where nothing overrides", 8, _value, "data.num_train", "grpo.seed=1")
    yield example(
        "an override of one option keeps the others", 3, _value, "grpo.max_num_steps", "grpo.seed=1"
    )
    for words, bad in {
        "malformed": "grpo.seed",
        "nearest known key is 'grpo.seed'": "grpo.sed=1",
        "is a value, not a section": "data.num_train.x=1",
        "grpo.seed": "grpo.seed=true",
        "grpo.max_num_steps": "grpo.max_num_steps=0",
        "not valid YAML": "grpo.seed=[",
        "policy.optimizer.lr": "policy.optimizer.lr=.inf",
    }.items():
        yield refused(words, bad, _loaded, bad)
    yield refused("is there twice", "a key twice", _loaded, text=FILE + "grpo: {}\n")
    yield refused(
        "required key 'data'",
        "a section too few",
        _loaded,
        text=FILE.replace("data: {task: reverse, num_train: 8}", ""),
    )
    yield refused("no mapping", "a list", _loaded, text="- 1\n")
    yield example("the effective configuration is a configuration", True, _again)
    yield example("a printed configuration", True, lambda: _printed("grpo.seed=9") == _loaded("grpo.seed=9"))


def _again() -> bool:
    changed = _loaded("grpo.seed=5", "policy.tokenizer.chat_template=byte", "data.verifier=exact_match")
    return _loaded(text=effective_yaml(changed)) == changed


def refuses(options: Mapping[str, Any], *, tunes: bool = False) -> str:
    """Return which message refuses these options; empty where none does."""
    try:
        (tuning_configuration if tunes else configuration)(options)
    except NotServed as error:
        return str(error)
    return ""


def _of_refusals() -> Iterator[WorkedExample]:
    packing, dynamic = "policy.sequence_packing", "policy.dynamic_batching"
    own = {"policy.generation.colocated.enabled": False}
    refusals: list[tuple[str, dict[str, Any]]] = [
        ("exclude each other", {f"{packing}.enabled": True, f"{dynamic}.enabled": True}),
        *(
            (f"{form}.{key} has no effect", {f"{form}.{key}": 512})
            for form in (packing, dynamic)
            for key in ("train_mb_tokens", "logprob_mb_tokens")
        ),
        *(
            (
                f"{form}.{key}=2 is less",
                {f"{form}.enabled": True, "policy.sequence_length_buckets": [], f"{form}.{key}": 2},
            )
            for form in (packing, dynamic)
            for key in ("train_mb_tokens", "logprob_mb_tokens")
        ),
        (
            "sequence_length_buckets has no effect",
            {f"{packing}.enabled": True, "policy.sequence_length_buckets": [64]},
        ),
        ("data.environment_args has no effect", {"data.environment_args": {"max_turns": 3}}),
        ("cluster.ray_address has no effect", {"cluster.ray_address": "auto"}),
        ("data.verifiers", {"data.verifiers": {"exact_match": 1.0}, "data.verifier": "exact_match"}),
        ("data.on_overlap", {"data.on_overlap": "drop"}),
        ("data.system_prompt needs", {"data.system_prompt": "be brief"}),
        ("grpo.batch_multiplier has no effect", {"grpo.batch_multiplier": 2.0}),
        ("dynamic_sampling_max_gen_batches has no effect", {"grpo.dynamic_sampling_max_gen_batches": 2}),
        (
            "zero_variance_filter has no effect",
            {"grpo.zero_variance_filter": True, "grpo.use_dynamic_sampling": True},
        ),
        ("overlong_buffer_length", {"grpo.reward_shaping.enabled": True}),
        ("has no effect without grpo.reward_shaping", {"grpo.reward_shaping.overlong_buffer_length": 2}),
        (
            "a buffer of 90",
            {"grpo.reward_shaping.enabled": True, "grpo.reward_shaping.overlong_buffer_length": 90},
        ),
        ("grpo.async_grpo.num_replicas has no effect", {"grpo.async_grpo.num_replicas": 2}),
        ("cannot share them", {"grpo.async_grpo.enabled": True, "policy.generation.colocated.enabled": True}),
        ("feed one training process", {**own, "grpo.async_grpo.enabled": True, "cluster.num_processes": 2}),
        (
            "about the same groups",
            {
                **own,
                "grpo.async_grpo.enabled": True,
                "grpo.async_grpo.drop_zero_variance": True,
                "grpo.zero_variance_filter": True,
            },
        ),
        ("does not divide", {"grpo.num_prompts_per_step": 3, "policy.train_global_batch_size": 5}),
        ("not a multiple of cluster.num_processes", {"cluster.num_processes": 5}),
        ("needs a generator with its own weights", {"policy.generation.placement": "process"}),
        ("weight_transport=broadcast needs", {**own, "policy.generation.weight_transport": "broadcast"}),
        (
            "policy.generation.placement=ray and cluster.num_processes=2",
            {**own, "policy.generation.placement": "ray", "cluster.num_processes": 2},
        ),
        ("data_plane.journal", {"data_plane.journal": "x"}),
        ("data_plane.timeout_s", {"data_plane.timeout_s": 1.0}),
        ("is not a Jinja template", {"policy.tokenizer.chat_template": "bite"}),
        ("policy.draft.model_name", {"policy.draft.model_name": "x"}),
        ("no other prompts", {"grpo.use_dynamic_sampling": True, "data.num_train": 1}),
    ]
    for words, options in refusals:
        yield example(
            f"{words}: {sorted(options)}", True, lambda of=options, words=words: words in refuses(of)
        )
    tuned = {"sft.max_num_steps": 3, "sft.stop_at_accuracy": 0.5}
    yield example(
        "an accuracy without validations", True, lambda: "needs sft.val_period" in refuses(tuned, tunes=True)
    )
    for taken in (
        {"policy.tokenizer.chat_template": "{% for message in messages %}x{% endfor %}"},
        {**own, "policy.generation.placement": "ray", "cluster.num_processes": 2, "cluster.placement": "ray"},
        {
            f"{packing}.enabled": True,
            "policy.sequence_length_buckets": [],
            f"{packing}.logprob_mb_tokens": 512,
        },
        {"data.environment": "lookup", "data.environment_args": {"max_turns": 3}},
        {"grpo.reward_shaping.enabled": True, "grpo.reward_shaping.overlong_buffer_length": 2},
        {**own, "grpo.async_grpo.enabled": True, "cluster.num_processes": 1},
        {**own, "policy.generation.placement": "process"},
        {"data_plane.implementation": "ray", "cluster.ray_address": "auto", "data_plane.timeout_s": 1.0},
    ):
        yield example(f"taken: {sorted(taken)}", "", refuses, taken)
    yield example(
        "an accuracy with validations", "", lambda: refuses({**tuned, "sft.val_period": 1}, tunes=True)
    )


def _printed(*overrides: str) -> GRPORunConfig | None:
    """Return the configuration that `--print-config` prints."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed := StringIO()):
        path = Path(folder) / "config.yaml"
        path.write_text(FILE, encoding="utf-8")
        words = argparse.Namespace(config=str(path), overrides=list(overrides), print_config=True)
        if _read_config(words, GRPORunConfig) is not None:
            return None
    return _loaded(text=printed.getvalue())


def _kept(**options: Any) -> CheckpointingConfig:
    return CheckpointingConfig(checkpoint_dir="kept", **options)


def _of_derived() -> Iterator[WorkedExample]:
    for estimator, right in (
        ("grpo", "group"),
        ("dr_grpo", "none"),
        ("rloo", "none"),
        ("reinforce_plus_plus_baseline", "batch"),
    ):
        yield example(
            f"the scale of {estimator}",
            right,
            lambda of=estimator: AdvantageConfig(estimator=of).resolved_scale,
        )
    yield example(
        "a scale that is given",
        "batch",
        lambda: AdvantageConfig(estimator="rloo", scale="batch").resolved_scale,
    )
    yield refused("", "a scale that dr_grpo has not", AdvantageConfig, estimator="dr_grpo", scale="group")
    yield example(
        "seconds until a save",
        float(((1 * 24 + 2) * 60 + 3) * 60 + 4),
        lambda: _kept(checkpoint_must_save_by="1:02:03:04").seconds_until_save,
    )
    yield example("no deadline", None, lambda: _kept().seconds_until_save)
    yield example(
        "runs that save",
        [False, True, False, True],
        lambda: [
            _kept(**one).saves
            for one in (
                {},
                {"save_period": 1},
                {"save_period": 1, "enabled": False},
                {"checkpoint_must_save_by": "0:00:00:01"},
            )
        ],
    )
    for name, tag in (
        (None, None),
        ("val:accuracy", "validation/accuracy"),
        ("train:verifier/x/reward", "train/verifier/x/reward"),
    ):
        yield example(
            f"the tag of {name}",
            tag,
            lambda of=name: metric_tag(_kept(save_period=1, keep_top_k=1, metric_name=of)),
        )
    ranked = _kept(save_period=1, keep_top_k=1, metric_name="train:loss")
    yield example("a metric that is logged", None, check_metric_name, ranked, "train", ["loss"])
    yield example("a metric of the other kind", None, check_metric_name, ranked, "val", ["accuracy"])
    yield refused("train:loss", "a metric that is not logged", check_metric_name, ranked, "train", ["los"])
    yield refused(
        "none after a step",
        "a metric of no validation",
        _checked,
        {"checkpointing.metric_name": "val:accuracy"},
    )
    with_parts = {
        "data.verifiers": {"exact_match": 1.0},
        "checkpointing.metric_name": "val:verifier/exact_match/reward",
    }
    yield example(
        "a metric of a validation at the end", None, _checked, {**with_parts, "grpo.val_at_end": True}
    )
    yield refused(
        "val:los",
        "a metric of no validation's",
        _checked,
        {"grpo.val_period": 1, "checkpointing.metric_name": "val:los"},
    )
    yield example("a loss of fine-tuning", None, _tuned, "val:val_loss")
    options = {"policy.megatron_cfg.enabled": True}
    yield example(
        "backends",
        ("hf", "megatron"),
        lambda: (configuration({}).policy.backend, configuration(options).policy.backend),
    )


def _ranked(options: Mapping[str, Any]) -> dict[str, Any]:
    return {"checkpointing.save_period": 1, "checkpointing.keep_top_k": 1, **options}


def _checked(options: Mapping[str, Any]) -> None:
    config = configuration(_ranked({"grpo.val_period": 0, **options}))
    check_validation_metric(config, config.grpo)


def _tuned(name: str) -> None:
    config: SFTRunConfig = tuning_configuration(
        _ranked({"sft.max_num_steps": 1, "sft.val_period": 1, "checkpointing.metric_name": name})
    )
    check_validation_metric(config, config.sft)


def _of_parts() -> Iterator[WorkedExample]:
    parts = Registry("part", "no_such_group", {"one": "math:pi", "two": 2})
    yield example("names of parts", ["one", "two"], parts.names)
    yield example(
        "parts by name",
        (3.141592653589793, 2, True, False),
        lambda: (
            parts.find("one", "k"),
            parts.find("two", "k"),
            parts.is_built_in("one"),
            parts.is_built_in("three"),
        ),
    )
    yield example("a part by its path", 2.718281828459045, parts.find, "math:e", "k")
    yield example(
        "an attribute of an attribute",
        "abc",
        import_object("string:Formatter.format", "k"),
        import_object("string:Formatter", "k")(),
        "a{}c",
        "b",
    )
    yield refused("k='on' is unknown", "a part that is not known", parts.find, "on", "k")
    yield refused("there is no module", "a path to nothing", parts.find, "no_such_module:x", "k")
    yield refused("has no 'x'", "a path to no attribute", parts.find, "math:x", "k")
    yield example("no options", {}, lambda: parse_options(NoOptions, {}, "k").model_dump())
    yield refused("k.a is unknown", "options of a part without any", parse_options, NoOptions, {"a": 1}, "k")
    yield example(
        "a source",
        ("reverse", None),
        lambda: (DataConfig(task="reverse").task, DataConfig(train_path="x").task),
    )
    for bad in ({}, {"task": "reverse", "train_path": "x"}, {"train_path": "x", "task_args": {"a": 1}}):
        yield refused("data.", f"a source of {sorted(bad)}", DataConfig, **bad)
