"""Worked examples of `accelerate launch`: what a word or a line of a file makes of the object that reads it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.accelerate.settings import plain
from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import Gone, find_name
from seatrial.targets.common.worked_rows import Row

FSDP = "accelerate.utils:FullyShardedDataParallelPlugin"
MEGATRON = "accelerate.utils:MegatronLMPlugin"
DEEPSPEED = "accelerate.utils:DeepSpeedPlugin"
DYNAMO = "accelerate.utils:TorchDynamoPlugin"
PARALLELISM = "accelerate.parallelism_config:ParallelismConfig"
PARSER = "accelerate.commands.launch:launch_command_parser"
READS = ("FSDP_", "ACCELERATE_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
ALONE = ["--fsdp_cpu_ram_efficient_loading", "false", "--fsdp_sync_module_states", "false"]
"""What needs no accelerator."""
V1, V2 = ["--use_fsdp", "--fsdp_version", "1", *ALONE], ["--use_fsdp", "--fsdp_version", "2"]
WRAPPED = ["--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"]
BY_SIZE = "size_based_auto_wrap_policy"
SIZED = ["--fsdp_auto_wrap_policy", "SIZE_BASED_WRAP"]
SWITCHES = (
    "sequence_parallelism", "recompute_activations", "use_distributed_optimizer", "no_load_optim", "no_save_optim",
    "eod_mask_loss", "optimizer_cpu_offload", "attention_softmax_in_fp32", "use_rotary_position_embeddings",
    "calculate_per_token_loss",
)  # fmt: skip
"""Options of Megatron-LM that are on or off."""
WORDS: Sequence[Any] = (
    (FSDP, V1, "fsdp_sharding_strategy", [("SHARD_GRAD_OP", "SHARD_GRAD_OP"), ("3", "NO_SHARD")]),
    (FSDP, V1, "fsdp_backward_prefetch", [("BACKWARD_POST", "BACKWARD_POST"), ("NO_PREFETCH", None)]),
    (FSDP, [*V1, *SIZED], "fsdp_min_num_params", [("123", 123)]),
    (FSDP, V1, "fsdp_use_orig_params", [("true", True), ("false", False)]),
    (FSDP, V1, "fsdp_forward_prefetch", [("true", True), ("false", False)]),
    (FSDP, V1, "fsdp_offload_params", [("true", True), ("false", False)]),
    (FSDP, V2, "fsdp_offload_params", [("true", True), ("false", False)]),
    (FSDP, V2, "fsdp_reshard_after_forward", [("true", True), ("false", False)]),
    (FSDP, V2, "fsdp_cpu_ram_efficient_loading", [("true", True), ("false", False)]),
    (FSDP, V1, "fsdp_state_dict_type", [("SHARDED_STATE_DICT", "SHARDED_STATE_DICT")]),
    (FSDP, V2, "fsdp_state_dict_type", [("FULL_STATE_DICT", "FULL_STATE_DICT")]),
    (FSDP, V2, "fsdp_activation_checkpointing", [("true", True), ("false", False)]),
    (FSDP, [*V1, *WRAPPED], "fsdp_transformer_layer_cls_to_wrap", [("A,B", ["A", "B"])]),
    (FSDP, V1, "fsdp_auto_wrap_policy", [("NO_WRAP", None)]),
    (FSDP, [*V1, "--fsdp_min_num_params", "5"], "fsdp_auto_wrap_policy", [("SIZE_BASED_WRAP", BY_SIZE)]),
    (FSDP, V1, "fsdp_version", [("1", 1), ("2", 2)]),
    *(
        (MEGATRON, ["--use_megatron_lm"], f"megatron_lm_{name}", values)
        for name, values in {
            **{key: [("3", 3)] for key in ("tp_degree", "pp_degree", "num_micro_batches")},
            "gradient_clipping": [("0.5", 0.5)],
            **{key: [("true", True), ("false", False)] for key in SWITCHES},
            "recompute_granularity": [("selective", "selective")], "recompute_method": [("block", "block")],
            "recompute_num_layers": [("4", 4)], "expert_model_parallel_size": [("2", 2)],
            "context_parallel_size": [("2", 2)], "attention_dropout": [("0.25", 0.25)],
            "hidden_dropout": [("0.5", 0.5)], "expert_tensor_parallel_size": [("2", 2)],
            "decoder_last_pipeline_num_layers": [("3", 3)],
        }.items()
    ),
    (DEEPSPEED, ["--use_deepspeed"], "zero_stage", [("3", 3), ("1", 1)]),
    (DEEPSPEED, ["--use_deepspeed"], "gradient_accumulation_steps", [("4", 4)]),
    (DEEPSPEED, ["--use_deepspeed"], "gradient_clipping", [("0.25", 0.25)]),
    (DEEPSPEED, ["--use_deepspeed"], "offload_optimizer_device", [("cpu", "cpu"), ("none", "none")]),
    (DEEPSPEED, ["--use_deepspeed", "--zero_stage", "3"], "offload_param_device", [("cpu", "cpu")]),
    (DEEPSPEED, ["--use_deepspeed", "--zero_stage", "3"], "zero3_init_flag", [("true", True), ("false", False)]),
    (DEEPSPEED, ["--use_deepspeed"], "zero3_save_16bit_model", [("true", True), ("false", False)]),
    (DYNAMO, [], "dynamo_backend", [("inductor", "INDUCTOR"), ("eager", "EAGER")]),
    (DYNAMO, [], "dynamo_mode", [("max-autotune", "max-autotune")]),
    *(
        (PARALLELISM, [*V2, "--use_parallelism_config"], f"parallelism_config_{name}", [("2", 2)])
        for name in ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size")
    ),
)  # fmt: skip
"""The class that reads it, words that go with it, the option, and its words with what the class has of each."""
FIELDS: Mapping[str, str] = {
    "fsdp_offload_params": "cpu_offload",
    "fsdp_transformer_layer_cls_to_wrap": "transformer_cls_names_to_wrap",
}
"""Of the class, where it is not the option without a beginning."""
BEGINNINGS = ("parallelism_config_", "megatron_lm_", "dynamo_", "fsdp_")


def _field(option: str) -> str:
    if option in FIELDS:
        return FIELDS[option]
    beginning = next((one for one in BEGINNINGS if option.startswith(one)), "")
    return option if option == "fsdp_version" else option.removeprefix(beginning)


@contextmanager
def _without_settings() -> Iterator[None]:
    before = dict(os.environ)
    for name in [one for one in before if one.startswith(READS)]:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _parsed(make_parser: Callable[..., Any], words: Sequence[str]) -> Any:
    """Return arguments; `NotServed` where the release does not have one of the words."""
    parser = make_parser()
    known = {name for action in parser._actions for name in action.option_strings}
    missing = [word for word in words if word.startswith("--") and word not in known]
    if missing:
        raise NotServed(f"the launcher of this release has no {', '.join(missing)}")
    return parser.parse_args([*words, "script.py"])


def _takes_value(make_parser: Callable[..., Any], word: str) -> bool:
    return any(word in action.option_strings and action.nargs != 0 for action in make_parser()._actions)


def _checked(make_parser: Callable[..., Any], words: Sequence[str], lines: Mapping[str, Any]) -> Any:
    """Return arguments after those of a configuration file are taken in."""
    import yaml

    check = find_name("accelerate", ["accelerate.commands.launch:_validate_launch_command"])
    with tempfile.TemporaryDirectory(prefix="seatrial-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(dict(lines)), encoding="utf-8")
        return check(_parsed(make_parser, ["--config_file", str(path), *words]))[0]


def _variables(args: Any) -> dict[str, str]:
    """Return what the launcher sets."""
    from accelerate.utils import launch

    args.main_process_port = 0
    for name, value in {"num_processes": 2, "num_machines": 1, "mixed_precision": "no", "debug": False,
                        "dynamo_backend": "no", "num_cpu_threads_per_process": 1}.items():  # fmt: skip
        if getattr(args, name, None) is None:
            setattr(args, name, value)
    if args.use_deepspeed:
        if not hasattr(args, "deepspeed_fields_from_accelerate_config"):
            args.deepspeed_fields_from_accelerate_config = ""
        return dict(launch.prepare_deepspeed_cmd_env(args)[1])
    return dict(launch.prepare_multi_gpu_env(args))


def _made(args: Any, place: str) -> Any:
    """Return the object that a process which is launched makes."""
    with _without_settings():
        os.environ.update(_variables(args))
        return find_name("accelerate", [place])()


def _arrives(place: str, needs: Sequence[str], option: str, values: Any, make_parser: Any) -> list[str]:
    """Return the words of which the object has something else than due."""
    wrong = []
    takes_value = _takes_value(make_parser, f"--{option}")
    for word, due in values if takes_value else [("", True)]:
        with _without_settings():
            args = _parsed(make_parser, [*needs, f"--{option}", *([word] if takes_value else [])])
        try:
            made = _made(args, place)
        except Gone as error:
            raise NotServed(str(error)) from error
        if not hasattr(made, _field(option)):
            raise NotServed(f"{place} of this release has no {_field(option)}")
        found = plain(getattr(made, _field(option)))
        if found != due:
            wrong.append(f"--{option} {word}: {found}, {due} is due")
    return wrong


TEXTS = KnownFailure(
    "the word `false` turns options of Megatron-LM on, as `bool` of a text",
    finding="Accelerate: truth of Megatron-LM's options",
)
TEXTS_OF = ("no_load_optim", "no_save_optim", "eod_mask_loss", "optimizer_cpu_offload")
LOCAL = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "machine_rank": 0, "main_training_function": "main",
         "num_processes": 2, "use_cpu": False, "mixed_precision": "no", "debug": False}  # fmt: skip
FILES: Sequence[tuple[str, str, str, str, Sequence[tuple[str, Any, str, Any]]]] = (
    ("FSDP", "fsdp_config", FSDP, "--fsdp_version 2", [
        ("fsdp_reshard_after_forward", False, "true", True), ("fsdp_offload_params", True, "false", False),
        ("fsdp_activation_checkpointing", True, "false", False),
        ("fsdp_state_dict_type", "FULL_STATE_DICT", "SHARDED_STATE_DICT", "SHARDED_STATE_DICT"),
    ]),
    ("MEGATRON_LM", "megatron_lm_config", MEGATRON, "", [
        ("megatron_lm_tp_degree", 2, "4", 4), ("megatron_lm_gradient_clipping", 0.5, "0.25", 0.25),
        ("megatron_lm_num_micro_batches", 6, "3", 3), ("megatron_lm_sequence_parallelism", True, "false", False),
    ]),
    ("DEEPSPEED", "deepspeed_config", DEEPSPEED, "", [
        ("zero_stage", 3, "1", 1), ("gradient_accumulation_steps", 5, "2", 2), ("gradient_clipping", 0.5, "2.0", 2.0),
        ("offload_optimizer_device", "cpu", "none", "none"), ("zero3_save_16bit_model", True, "false", False),
    ]),
)  # fmt: skip
"""Kind of a run, section, the class that reads it, other words; options with a line's value, a word, and its value."""


def _of_file(kind: str, section: str, place: str, more: str, options: Any, make_parser: Any) -> list[str]:
    """Return options of which a line, or a word that goes before it, does not arrive; each line alone and with all."""
    wrong = []
    lines = {name: value for name, value, *_ in options}
    if kind == "FSDP":
        lines["fsdp_version"] = 2
    file = {**LOCAL, "distributed_type": kind, section: lines}
    for name, value, word, of_word in options:
        for words, due in (([], value), ([f"--{name}", word], of_word)):
            with _without_settings():
                given = ["--use_fsdp", *more.split()] if kind == "FSDP" and words else []
                if words and kind != "FSDP":
                    given = ["--use_megatron_lm" if kind == "MEGATRON_LM" else "--use_deepspeed"]
                args = _checked(make_parser, [*given, *words], file)
            found = plain(getattr(_made(args, place), _field(name)))
            if found != due:
                wrong.append(f"{name}: {value} in the file, words {words}: {found}, {due} is due")
    return wrong


def _plain_options(make_parser: Any) -> list[str]:
    """Return options of a run of a file that are not the file's, or a word's where there is one."""
    file = {**LOCAL, "distributed_type": "MULTI_GPU", "num_processes": 6, "num_machines": 2, "machine_rank": 1,
            "main_process_ip": "here", "main_process_port": 77, "mixed_precision": "bf16", "same_network": True,
            "gpu_ids": "0,1", "debug": True}  # fmt: skip
    due: dict[str, Any] = {"num_processes": 6, "num_machines": 2, "machine_rank": 1, "main_process_ip": "here",
                           "main_process_port": 77, "mixed_precision": "bf16", "gpu_ids": "0,1", "debug": True,
                           "multi_gpu": True}  # fmt: skip
    words = {"num_processes": 4, "machine_rank": 0, "main_process_port": 88, "mixed_precision": "fp16"}
    with _without_settings():
        alone = _checked(make_parser, [], file)
        given = [str(one) for name, value in words.items() for one in (f"--{name}", value)]
        both = _checked(make_parser, given, file)
    return [
        f"{name} of {what}: {getattr(args, name)}, {value} is due"
        for what, args, right in (("the file", alone, due), ("file and words", both, {**due, **words}))
        for name, value in right.items()
        if getattr(args, name) != value
    ]


def _processes(make_parser: Any) -> list[Any]:
    """Return what torchrun is given for two machines, and the threads of a process."""
    from accelerate.utils import launch

    words = "--multi_gpu --num_processes 6 --num_machines 2 --machine_rank 1 --main_process_ip here " \
            "--main_process_port 2977 --mixed_precision bf16 --num_cpu_threads_per_process 3"  # fmt: skip
    found = []
    for more in ([], ["--same_network"]):
        with _without_settings():
            args = _parsed(make_parser, [*words.split(), *more])
            args.dynamo_backend, args.debug = "no", False
            variables = launch.prepare_multi_gpu_env(args)
        place = getattr(args, "master_addr", None) or args.rdzv_endpoint
        kept = [variables[name] for name in ("ACCELERATE_MIXED_PRECISION", "OMP_NUM_THREADS")]
        found.append([args.nproc_per_node, args.nnodes, args.node_rank, *kept, place])
    return found


def _simple(make_parser: Any) -> list[Any]:
    from accelerate.utils import launch

    words = "--cpu --num_processes 1 --num_machines 1 --mixed_precision bf16 --dynamo_mode max-autotune"
    args = make_parser().parse_args(
        [*words.split(), *["--num_cpu_threads_per_process", "2", "-m", "module", "--lr", "3"]]
    )
    args.dynamo_backend, args.debug, args.use_cpu = "eager", True, True
    with _without_settings():
        command, variables = launch.prepare_simple_launcher_cmd_env(args)
    names = ("USE_CPU", "MIXED_PRECISION", "DYNAMO_BACKEND", "DYNAMO_MODE", "DEBUG_MODE")
    return [command[1:], [variables[f"ACCELERATE_{name}"] for name in names], variables["OMP_NUM_THREADS"]]


LAUNCH_ROWS: Sequence[Row] = (
    *(
        Row(
            "commands",
            PARSER,
            f"--{option} {' '.join(needs)}".strip(),
            partial(_arrives, place, needs, option, values),
            [],
            known=TEXTS if option.removeprefix("megatron_lm_") in TEXTS_OF else None,
        )
        for place, needs, option, values in WORDS
    ),
    *(
        Row(
            "commands",
            PARSER,
            f"a file of {kind}",
            partial(_of_file, kind, section, place, more, options),
            [],
            since="1.7",
        )
        for kind, section, place, more, options in FILES
    ),
    Row("commands", PARSER, "a file of several machines", _plain_options, [], since="1.7"),
    Row(
        "commands",
        PARSER,
        "two machines",
        _processes,
        [["3", "2", 1, "bf16", "3", "here:2977"], ["3", "2", 1, "bf16", "3", "here"]],
    ),
    Row(
        "commands",
        PARSER,
        "one process",
        _simple,
        [["-m", "module", "--lr", "3"], ["True", "bf16", "EAGER", "max-autotune", "true"], "2"],
    ),
)
