"""The target `verl`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seatrial.targets.common.checkout_trials import CheckoutTrials


class VerlTarget(CheckoutTrials):
    """verl's core algorithms, rewards and batches as they are installed.

    Its trials are the stages of a checkout (`stages.yaml`).
    """

    name = "verl"
    package = "seatrial.targets.verl"
    variable = "VERL_REPO"
    modules = ("verl",)
    packages = ("verl", "torch")

    def adapters(self) -> Mapping[str, type[Any]]:
        """Return the adapters by name."""
        from seatrial.targets.verl import (
            actors,
            agent_prompts,
            agents,
            algorithms,
            asynchronous,
            batches,
            built,
            configurations,
            continued,
            controllers,
            conversations,
            corrections,
            critics,
            data_sets,
            distillation,
            distilled,
            engines,
            estimators,
            functional,
            losses,
            media,
            merged,
            mini_batches,
            model_updates,
            older_options,
            own_losses,
            padded,
            prompts,
            ranks,
            requests,
            reward_calls,
            reward_loop,
            rewards,
            rollouter,
            rollouts,
            row_order,
            sampler_metrics,
            sandbox,
            scalars,
            schedules,
            scored_episodes,
            scores,
            separate_loops,
            sequence_parallel,
            small,
            step_metrics,
            step_parts,
            supervised,
            tables,
            tensordict_batches,
            tensordicts,
            trainer_loop,
            trainer_tools,
            trainer_v1,
            turns,
            weighted_losses,
            whole_supervised,
            work,
            worker_groups,
            worker_metrics,
            worker_parts,
            worker_updates,
            workers,
        )
        from seatrial.targets.verl.micro_batches import VerlMicroBatches
        from seatrial.targets.verl.worked import adapter as worked

        return {
            **algorithms.ADAPTERS,
            **actors.ADAPTERS,
            **agent_prompts.ADAPTERS,
            **agents.ADAPTERS,
            **asynchronous.ADAPTERS,
            **batches.ADAPTERS,
            **built.ADAPTERS,
            **configurations.ADAPTERS,
            **critics.ADAPTERS,
            **data_sets.ADAPTERS,
            **distillation.ADAPTERS,
            **distilled.ADAPTERS,
            **engines.ADAPTERS,
            **estimators.ADAPTERS,
            **continued.ADAPTERS,
            **controllers.ADAPTERS,
            **conversations.ADAPTERS,
            **corrections.ADAPTERS,
            **functional.ADAPTERS,
            **losses.ADAPTERS,
            **media.ADAPTERS,
            **merged.ADAPTERS,
            **mini_batches.ADAPTERS,
            **model_updates.ADAPTERS,
            **older_options.ADAPTERS,
            **own_losses.ADAPTERS,
            **padded.ADAPTERS,
            **prompts.ADAPTERS,
            **ranks.ADAPTERS,
            **requests.ADAPTERS,
            **reward_calls.ADAPTERS,
            **reward_loop.ADAPTERS,
            **rewards.ADAPTERS,
            **rollouter.ADAPTERS,
            **rollouts.ADAPTERS,
            **row_order.ADAPTERS,
            **sampler_metrics.ADAPTERS,
            **sandbox.ADAPTERS,
            **scalars.ADAPTERS,
            **schedules.ADAPTERS,
            **scored_episodes.ADAPTERS,
            **scores.ADAPTERS,
            **separate_loops.ADAPTERS,
            **sequence_parallel.ADAPTERS,
            **small.ADAPTERS,
            **step_metrics.ADAPTERS,
            **step_parts.ADAPTERS,
            **supervised.ADAPTERS,
            **tables.ADAPTERS,
            **tensordict_batches.ADAPTERS,
            **tensordicts.ADAPTERS,
            **trainer_loop.ADAPTERS,
            **trainer_tools.ADAPTERS,
            **trainer_v1.ADAPTERS,
            **turns.ADAPTERS,
            **weighted_losses.ADAPTERS,
            **whole_supervised.ADAPTERS,
            **work.ADAPTERS,
            **worked.ADAPTERS,
            **worker_groups.ADAPTERS,
            **worker_metrics.ADAPTERS,
            **worker_parts.ADAPTERS,
            **worker_updates.ADAPTERS,
            **workers.ADAPTERS,
            "micro-batches": VerlMicroBatches,
        }

    def uncovered(self) -> Mapping[str, str]:
        """Return what the registries of the release name beyond the adapters."""
        from seatrial.targets.verl import (
            corrections,
            distillation,
            estimators,
            losses,
            registries,
            reward_calls,
            rewards,
            scores,
            worker_groups,
        )
        from seatrial.targets.verl.algorithms import KL_KINDS

        return registries.uncovered(
            {
                "loss": frozenset(loss.name for loss in losses.LOSSES.values()),
                "estimator": frozenset(own.name for own in estimators.ESTIMATORS.values()),
                "mode": frozenset(losses.MODES),
                "kl": frozenset(KL_KINDS),
                "distillation": distillation.COVERED,
                "rejection": frozenset(corrections.rejection_names()),
                "reward manager": frozenset({*rewards.MANAGERS, *reward_calls.NAMES}),
                "score": frozenset(scores.COVERED),
                "dispatch": worker_groups.COVERED,
            }
        )
