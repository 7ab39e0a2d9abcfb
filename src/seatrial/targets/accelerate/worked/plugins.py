"""Worked examples of plugins: what engines are given, and values that are left to DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.worked_rows import Row

LENGTHS = KnownFailure(
    "a sequence length that is given is dropped for BERT, GPT-2 where no length of encoder or decoder is given",
    finding="Accelerate: sequence lengths of Megatron-LM",
)


SIZES = {"num_hidden_layers": 3, "hidden_size": 8, "num_attention_heads": 2, "max_position_embeddings": 32,
         "vocab_size": 50, "return_dict": True, "num_labels": 4}  # fmt: skip


GPT = {"n_layer": 3, "n_embd": 8, "n_head": 2, "n_positions": 32, "vocab_size": 50, "return_dict": True}


T5 = {"num_layers": 3, "d_model": 8, "num_heads": 2, "n_positions": 32, "vocab_size": 50, "return_dict": True}


DUE = {
    "num_layers": 3,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "orig_vocab_size": 50,
}


MODELS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "megatron-bert": (SIZES, "bert"),
    "gpt2": (GPT, "gpt"),
    "llama": (SIZES, "gpt"),
    "t5": (T5, "t5"),
}


def _sizes(plugin: Any) -> list[str]:
    """Return what Megatron-LM is given of a model's sizes that is not the model's."""
    wrong = []
    for kind, (sizes, name) in MODELS.items():
        made = plugin()
        config = SimpleNamespace(model_type=kind, **sizes)
        made.set_network_size_args(SimpleNamespace(config=config))
        received = made.megatron_lm_default_args
        lengths = ("encoder_seq_length", "decoder_seq_length") if kind == "t5" else ("seq_length",)
        due = {**DUE, "model_type_name": name, **dict.fromkeys(lengths, 32)}
        wrong += [
            f"{kind} {key}: {received.get(key)}, {value} is due"
            for key, value in due.items()
            if received.get(key) != value
        ]
    return wrong


def _lengths(plugin: Any) -> list[str]:
    """Return lengths of sequences that are not those that are given, or of a batch, or of the model's positions."""
    import torch

    batch = {"input_ids": torch.zeros(2, 9)}
    wrong = []
    for kind in ("megatron-bert", "gpt2", "llama"):
        own = "encoder_seq_length" if kind == "megatron-bert" else "decoder_seq_length"
        for given, row, due in (
            ({}, batch, 9),
            ({own: 11}, batch, 11),
            ({"seq_length": 7}, batch, 7),
            ({}, None, 32),
        ):
            made = plugin(**given)
            config = SimpleNamespace(model_type=kind, **MODELS[kind][0])
            made.set_network_size_args(SimpleNamespace(config=config), row)
            found = made.megatron_lm_default_args["seq_length"]
            if found != due:
                wrong.append(f"{kind} with {given}, batch {row is not None}: {found}, {due} is due")
    return wrong


def _steps(plugin: Any) -> list[Any]:
    """Return sizes of batches and the optimizer's options as Megatron-LM gets them."""
    import torch

    weights = [torch.nn.Parameter(torch.zeros(1))]
    made = plugin(num_micro_batches=3)
    made.set_training_args(2, 4)
    made.set_optimizer_type(torch.optim.AdamW(weights, lr=0.5, betas=(0.1, 0.2), eps=0.3, weight_decay=0.4))
    other = plugin()
    other.set_optimizer_type(torch.optim.SGD(weights, lr=0.5, momentum=0.25, weight_decay=0.125))
    received, of_sgd = made.megatron_lm_default_args, other.megatron_lm_default_args
    sizes = ("data_parallel_size", "micro_batch_size", "global_batch_size")
    adam = ("optimizer", "lr", "adam_beta1", "adam_beta2", "adam_eps", "weight_decay")
    sgd = ("optimizer", "lr", "sgd_momentum", "weight_decay")
    return [
        [received[name] for name in sizes],
        [received[name] for name in adam],
        [of_sgd[name] for name in sgd],
    ]


def _arguments_of_plugin(plugin: Any) -> list[str]:
    """Return options that Megatron-LM does not get as they are given."""
    given = {"tp_degree": 2, "pp_degree": 3, "num_micro_batches": 4, "gradient_clipping": 0.25,
             "sequence_parallelism": True, "use_distributed_optimizer": True, "recompute_granularity": "selective",
             "recompute_method": "block", "recompute_num_layers": 2, "eval_iters": 7, "eval_interval": 9,
             "no_wd_decay_cond": "x", "lr_mult": 2.0, "attention_dropout": 0.5, "hidden_dropout": 0.125,
             "context_parallel_size": 4, "expert_model_parallel_size": 5}  # fmt: skip
    names = {"tp_degree": "tensor_model_parallel_size", "pp_degree": "pipeline_model_parallel_size",
             "gradient_clipping": "clip_grad", "sequence_parallelism": "sequence_parallel"}  # fmt: skip
    known = {name: value for name, value in given.items() if name in plugin.__dataclass_fields__}
    received = plugin(**known, other_megatron_args={"more": 1}, consumed_samples=[8]).megatron_lm_default_args
    due = {names.get(name, name): value for name, value in known.items()}
    due |= {"more": 1, "consumed_samples": [8, 0, 0]}
    return [
        f"{name}: {received.get(name)}, {value} is due"
        for name, value in due.items()
        if received.get(name) != value
    ]


def _filled(plugin: Any) -> list[Any]:
    """Return what is filled into a configuration of DeepSpeed, and what a value that does not match raises."""

    def config() -> dict[str, Any]:
        return {
            "zero_optimization": {"stage": "auto", "offload_optimizer": {"device": "auto"}},
            "gradient_clipping": "auto", "train_batch_size": "auto", "optimizer": {"params": {"lr": "auto", "eps": 1}},
        }  # fmt: skip

    made = plugin(hf_ds_config=config(), zero_stage=3, gradient_clipping=0.5, offload_optimizer_device="cpu")
    made.deepspeed_config_process(must_match=False, **{"train_batch_size": 6, "optimizer.params.lr": 0.25})
    filled = made.deepspeed_config
    try:
        made.deepspeed_config_process(train_batch_size=7)
        refused = False
    except ValueError:
        refused = True
    made.set_mixed_precision("bf16")
    return [
        filled["zero_optimization"]["stage"], filled["zero_optimization"]["offload_optimizer"]["device"],
        filled["gradient_clipping"], filled["train_batch_size"], filled["optimizer"]["params"],
        filled["gradient_accumulation_steps"], refused, filled["bf16"]["enabled"], filled["fp16"]["enabled"],
        made.is_auto("train_batch_size"), made.get_value("zero_optimization.stage"), made.get_value("none.at", 5),
    ]  # fmt: skip


MEGATRON = "accelerate.utils:MegatronLMPlugin"
DEEPSPEED = "accelerate.utils:DeepSpeedPlugin"
PLUGIN_ROWS: Sequence[Row] = (
    Row("options", MEGATRON, "sizes of models", _sizes, []),
    Row("options", MEGATRON, "lengths of sequences", _lengths, [], known=LENGTHS),
    Row(
        "options",
        MEGATRON,
        "batches and optimizers",
        _steps,
        [[4, 2, 24], ["adam", 0.5, 0.1, 0.2, 0.3, 0.4], ["sgd", 0.5, 0.25, 0.125]],
    ),
    Row("options", MEGATRON, "options", _arguments_of_plugin, []),
    Row(
        "options",
        DEEPSPEED,
        "values left to it",
        _filled,
        [3, "cpu", 0.5, 6, {"lr": 0.25, "eps": 1}, 1, True, True, False, False, 3, 5],
    ),
)
