"""Contract of the whole run: the stack's real loop for a few steps, from options to evidence.

Part of `seatrial.relations.contracts`, which lists every component. Options are dotted names after NeMo RL's
configuration; an adapter maps them to its own. The laws use:

- `grpo.num_prompts_per_step`, `.num_generations_per_prompt`, `.max_num_steps`, `.val_period`, `.val_at_start`,
  `.max_val_samples`, `.overlong_filtering`, `.zero_variance_filter`, `.use_dynamic_sampling`,
  `.dynamic_sampling_max_gen_batches`, `.reward_shaping.*` (`enabled`, `overlong_buffer_length`,
  `overlong_buffer_penalty`, `max_response_length`), `grpo.advantage.estimator`, `.scale`, `.epsilon`;
- `loss_fn.kind`, `.ratio_clip_min`, `.ratio_clip_max`, `.ratio_clip_c`, `.reduction`, `.fixed_length`,
  `.reference_policy_kl_penalty`, `.reference_policy_kl_type`, `.reference_policy_kl_gradient`,
  `.reference_policy_kl_importance_sampling`, `.kl_in`,
  `.entropy_coefficient`, `.importance_sampling`, `.importance_sampling_min`, `.importance_sampling_max`;
- `policy.train_global_batch_size`, `.train_micro_batch_size`, `.max_grad_norm`, `.sequence_packing.enabled`,
  `.dynamic_batching.enabled`, `.train_mb_tokens` of both, `policy.optimizer.lr`, `.weight_decay`, `.betas`, `.eps`,
  `policy.scheduler.name`, `.warmup_steps`, `.min_lr_ratio`,
  `policy.generation.max_new_tokens`, `.temperature`, `.top_p`, `.top_k`, `.stop_token_ids`;
- `data.num_train`, `data.shuffle`, `cluster.num_processes`;
- `data.environment`: `answering`, an environment that writes a few words after the first turn of an episode and ends it
  after the second, if the stack has episodes of several turns;
- `data.verifier`: `graded` (the default), `coarse`, which gives few different rewards, so that those of some groups
  are all equal and those of others are not, or `several`, a mean of two verifiers of which one fails on some
  completions, if the stack has such.

An adapter may be made for one configuration of several: its attribute `options` then maps names to values, which laws
leave as they are unless they are about them. Model, task and verifier are the adapter's: a tiny model of float32 whose
completions differ, and a verifier whose rewards of one prompt's completions differ more often than not. What an option
also needs (a budget of tokens for packing, a length for a reduction) the adapter sets where the law left it out.
`policy.model_name` may be one of the adapter's attribute `other_models`, if it has any: names of models whose attention
or positions are of another kind than those of its own.
An adapter names groups of options that must change no number of a step, such as sizes of passes that only score, in its
attribute `neutral_options`, if it has any: mappings of dotted names to values other than the default ones.
An adapter whose validations all draw the same random numbers sets `validations_repeat = True`, which is checked; one
that takes longer to sample 112 tokens than to train a step on them, so that with
`grpo.async_grpo.in_flight_weight_updates` weights arrive while rows are under way, says `changes_in_flight = True`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from seatrial.relations.records.run import RunOption, RunRecord, RunRow

if TYPE_CHECKING:
    from torch import Tensor


@runtime_checkable
class ShortRun(Protocol):
    """Short runs of the real loop, and the plain model and verifier that check them."""

    def short_run(self, options: Mapping[str, Any], *, seed: int) -> RunRecord:
        """Run the stack's loop with these options and return what it left.

        `seed` seeds everything that the run draws (the data's order and the sampler); the model's initial weights are
        the same for every call. Everything not named in `options` is the adapter's own and the same for every call.

        Raises:
            NotServed: the stack has no such option or value, by design.
        """
        ...

    def run_options(self) -> Mapping[str, RunOption]:
        """Return every option of the stack's configuration that changes a run, with where its effect is seen.

        Each is tested with the further options that it names, and otherwise the defaults of `short_run`.
        """
        ...

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        """Return [S, V] raw logits (temperature 1) of the plain model with these weights on one sequence of S ids.

        Row s is about the token after `ids[: s + 1]`. No padding, no packing, no cache, no dropout; differentiable with
        respect to every tensor of `weights` that requires a gradient.
        """
        ...

    def rewards_of(self, rows: Sequence[RunRow]) -> list[float]:
        """Return what the verifier says of each row's completion and answer by itself, before any shaping."""
        ...
