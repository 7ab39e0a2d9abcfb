"""TRL's GRPO loss and advantages under the relation battery: a small adapter for a stack that we did not write.

    seatrial relations trl_adapter:TRLAdapter

run in this folder, in an environment with TRL. The adapter hands made log-probabilities to the loss of a real
`GRPOTrainer`, and made rewards to its rollout method, and says what they claim to be; Seatrial does the rest.
"""

import torch
from trl_tiny_trainer import tiny_trainer

from seatrial.relations.records import AdvantageSpec, LossInputs, LossSpec


class TRLAdapter:
    """GRPO with DAPO's token normalisation, clip 0.2 and a KL of 0.04."""

    loss_spec = LossSpec(kl_penalty=0.04)
    advantage_spec = AdvantageSpec(epsilon=1e-4)

    def __init__(self) -> None:
        """Make a trainer; only its loss and its advantages are used."""
        self.trainer = tiny_trainer(lambda completions, **_: self.rewards)

    def policy_loss(self, inputs: LossInputs) -> torch.Tensor:
        """See `seatrial.relations.contracts.PolicyLoss`."""
        ids_BT = torch.zeros(inputs.mask_BT.shape, dtype=torch.long)
        given = (inputs.logprobs_BT, inputs.entropy_BT, None)
        self.trainer._get_per_token_logps_and_entropies = lambda *_, **__: given
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
        """See `seatrial.relations.contracts.Advantages`; TRL groups by position, so each group is passed alone."""
        advantages_B = torch.zeros(len(rewards_B))
        for prompt in prompt_ids_B.unique():
            rows = (prompt_ids_B == prompt).nonzero().flatten()
            self.rewards, self.trainer.num_generations = rewards_B[rows].tolist(), len(rows)
            scored = self.trainer._generate_and_score_completions([{"prompt": "a"}] * len(rows))
            advantages_B[rows] = scored["advantages"]
        return advantages_B
