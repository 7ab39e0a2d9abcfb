"""TRL's GRPO loss and advantages under the relation battery: a small adapter for a stack that we did not write.

    seatrial relations trl_adapter:TRLAdapter

run in this folder, in an environment with TRL. The adapter hands made log-probabilities to the loss of a real
`GRPOTrainer`, and made rewards to its rollout method, and says what they claim to be; Seatrial does the rest.
"""

import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from seatrial.relations.records import AdvantageSpec, LossInputs, LossSpec


class TRLAdapter:
    """GRPO with DAPO's token normalisation, clip 0.2 and a KL of 0.04."""

    loss_spec = LossSpec(kl_penalty=0.04)
    advantage_spec = AdvantageSpec(epsilon=1e-4)

    def __init__(self) -> None:
        """Make a trainer around a model of one layer; only its loss and its advantages are used."""
        words = {"<pad>": 0, "<eos>": 1, "a": 2}
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")),
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
            output_dir=folder, loss_type="dapo", beta=0.04, use_bias_correction_kl=False, use_cpu=True, bf16=False,
            report_to=[], num_generations=2, per_device_train_batch_size=2, max_completion_length=1,
        )  # fmt: skip
        self.trainer = GRPOTrainer(
            folder, reward_funcs=lambda completions, **_: self.rewards, args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["a", "a"]}), processing_class=tokenizer,
        )  # fmt: skip
        self.trainer.current_gradient_accumulation_steps = 1
        self.trainer.model.train()

    def policy_loss(self, inputs: LossInputs) -> torch.Tensor:
        """See `seatrial.relations.contracts.PolicyLoss`."""
        ids_BT = torch.zeros(inputs.mask_BT.shape, dtype=torch.long)
        self.trainer._get_per_token_logps_and_entropies = lambda *_, **__: (
            inputs.logprobs_BT,
            inputs.entropy_BT,
            None,
        )
        batch = {
            "prompt_ids": ids_BT[:, :1],
            "prompt_mask": torch.ones_like(ids_BT[:, :1]),
            "completion_ids": ids_BT,
            "completion_mask": inputs.mask_BT,
            "advantages": inputs.advantages_B,
            "old_per_token_logps": inputs.old_logprobs_BT,
            "ref_per_token_logps": inputs.ref_logprobs_BT,
            "num_items_in_batch": torch.tensor(inputs.global_valid_tokens),
        }
        return self.trainer._compute_loss(self.trainer.model, batch)

    def advantages(self, rewards_B: torch.Tensor, prompt_ids_B: torch.Tensor) -> torch.Tensor:
        """See `seatrial.relations.contracts.Advantages`; TRL groups by position, so each group is handed over alone."""
        advantages_B = torch.zeros(len(rewards_B))
        for prompt in prompt_ids_B.unique():
            rows = (prompt_ids_B == prompt).nonzero().flatten()
            self.rewards, self.trainer.num_generations = rewards_B[rows].tolist(), len(rows)
            scored = self.trainer._generate_and_score_completions([{"prompt": "a"}] * len(rows))
            advantages_B[rows] = scored["advantages"]
        return advantages_B
