"""A real `GRPOTrainer` of TRL around a model of one layer, made in milliseconds: what a user of TRL has already."""

import tempfile
from collections.abc import Callable

from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer


def tiny_trainer(reward: Callable[..., list[float]]) -> GRPOTrainer:
    """Return a trainer with DAPO's token normalisation, clip 0.2 and a KL of 0.04."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "a": 2}, unk_token="a")),
        pad_token="<pad>",
        eos_token="<eos>",
    )
    folder = tempfile.mkdtemp()
    shape = Qwen3Config(
        vocab_size=3,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=1,
        head_dim=32,
        num_key_value_heads=1,
    )
    Qwen3ForCausalLM(shape).save_pretrained(folder)
    arguments = GRPOConfig(
        output_dir=folder,
        loss_type="dapo",
        beta=0.04,
        use_bias_correction_kl=False,
        use_cpu=True,
        bf16=False,
        report_to=[],
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=1,
    )
    trainer = GRPOTrainer(
        folder,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": ["a", "a"]}),
        processing_class=tokenizer,
    )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    return trainer
