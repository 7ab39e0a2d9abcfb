"""A run of refrl held to closed forms while it runs: the gradient of its loss, advantages, rewards, scalars, AdamW.

The forms are those of the relations (`seatrial.relations.oracles`, `run_oracles`, `laws.run_metrics`): plain loops in
float64 that share nothing with refrl. They are asked at the first steps and at one of many later ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from refrl.config import GRPORunConfig, SFTRunConfig
from refrl.rollout.sync import Rollouts
from refrl.training.observed import PassedBatch, TrainedStep, TunedStep
from refrl.training.recorder import recorded_rows
from refrl.training.session import Session
from seatrial.guards import Guards
from seatrial.relations import oracles
from seatrial.relations.laws.run.metrics import FORMULAS, OF_THE_LOSS
from seatrial.relations.oracles.runs import expected_advantages, loss_spec
from seatrial.relations.records.run import RunRow
from seatrial.targets.reference.configuration import effective
from seatrial.targets.reference.guards.counts import hold_counts, hold_tuned_counts
from seatrial.targets.reference.guards.custom import is_known, own_advantages, own_gradient
from seatrial.targets.reference.guards.masks import hold_masks

EARLY, EVERY = 3, 20
"""The first steps are looked at, of later ones one in so many."""
ROUNDING = 1e-3
"""Relative: float32 on one side, float64 on the other, over sums of some thousand tokens."""
OF_ROWS = {
    name: form
    for name, form in FORMULAS.items()
    if name in ("reward", "total_num_tokens", "truncation_rate", "natural_termination_rate")
    or name.startswith(("mean_", "max_", "advantages/"))
}
"""Scalars that are of the rows alone, however many updates are made of them."""
NO_SPREAD = 1e-5
"""Rewards of a group that differ by less are one reward, or two: float32 decides."""


def is_looked_at(step: int) -> bool:
    """Say whether a step is one of those that closed forms are asked of."""
    return step <= EARLY or step % EVERY == 0


class _Passed(NamedTuple):
    """A micro-batch in the training pass."""

    right_BT: Tensor
    """Gradient of the configured loss at its log-probabilities."""
    seen: list[Tensor]
    """The gradient that arrived there; empty where none did."""


class AsComputed:
    """Asks whether what a step computes is what its rows and its configuration give."""

    def __init__(self, config: GRPORunConfig | SFTRunConfig, guards: Guards) -> None:
        """Begin with nothing seen."""
        self._config, self._guards = config, guards
        self._passed: list[_Passed] = []
        self._share = self._loss = 0.0

    def passed(self, micro: PassedBatch) -> None:
        """Watch the gradient that comes back to the log-probabilities of a micro-batch."""
        config = self._config
        if micro.logprobs_BT.requires_grad and (
            isinstance(config, SFTRunConfig) or config.loss_fn.is_built_in or is_known(config)
        ):
            seen: list[Tensor] = []
            watch = micro.logprobs_BT.register_hook
            watch(lambda gradient: seen.append(gradient.detach()))  # type: ignore[no-untyped-call]
            right_BT, loss = self._gradient(micro)
            self._passed.append(_Passed(right_BT, seen))
            self._loss += loss
            self._share += float(micro.batch.mask_BT.sum() / micro.global_valid_tokens)

    def trained(self, session: Session, step: TrainedStep, num_updates: int) -> None:
        """Ask what can be asked of one step of GRPO."""
        assert isinstance(self._config, GRPORunConfig)
        loss = self._loss / max(1, num_updates)
        if self._passed and self._config.loss_fn.entropy_coefficient == 0:
            self._hold_loss(step.step, step.metrics["loss"], loss, len(self._passed))
        self.hold_gradients(step.step)
        if not is_looked_at(step.step):
            return
        rows = [RunRow(**row) for row in recorded_rows(step.rollouts, step.batch)]
        hold_masks(step, self._config, self._guards)
        hold_counts(session, step, self._config, self._guards)
        self._hold_rewards(step, self._config)
        self._hold_advantages(step, rows, self._config)
        plain = all(all(row.mask) for row in rows) and self._config.policy.precision == "float32"
        if plain:
            is_one = num_updates == 1 and not self._config.grpo.async_grpo.enabled
            self._hold_scalars(step, rows, effective(self._config), FORMULAS if is_one else OF_ROWS)

    def tuned(self, step: TunedStep) -> None:
        """Ask of a step of fine-tuning: every row is in the loss, divided by the tokens of all of them."""
        share, number = self._share, len(self._passed)
        if number:
            self._hold_loss(step.step, step.metrics["loss"], self._loss, number)
            hold_tuned_counts(step, self._guards)
        self.hold_gradients(step.step)
        if number:
            good = math.isclose(share, 1, rel_tol=ROUNDING)
            wrong = f"step {step.step}: micro-batches are {share:.5g} of the step by their tokens"
            self._guards.hold("shares of a step", good, wrong, number=number)

    def validated(self, step: int, rollouts: Rollouts, metrics: Mapping[str, float]) -> None:
        """The scalars of a validation are those of its rows."""
        rewards, completions = rollouts.scores.rewards, rollouts.completions
        number = len(rewards)
        rights = {
            "reward": math.fsum(rewards) / number,
            "accuracy": sum(one == 1 for one in rewards) / number,
            "avg_length": sum(one.num_sampled for one in completions) / number,
            "truncation_rate": sum(one.finish_reason == "length" for one in completions) / number,
            "num_verifier_errors": float(sum(rollouts.scores.failed)),
        }
        wrong = [
            f"{name} {metrics[name]:.6g} for {right:.6g}"
            for name, right in rights.items()
            if name in metrics and not math.isclose(metrics[name], right, rel_tol=1e-5, abs_tol=1e-5)
        ]
        self._guards.hold("validation scalars", not wrong, f"step {step}: {', '.join(wrong)}", number=number)

    def hold_gradients(self, step: int) -> None:
        """The gradient at every log-probability is that of the configured loss."""
        passed, self._passed = self._passed, []
        self._share = self._loss = 0.0
        wrong = ""
        for number, one in enumerate(passed):
            found_BT = one.seen[0].cpu().double() if one.seen else torch.zeros_like(one.right_BT)
            largest = float(one.right_BT.abs().max())
            off = float((found_BT - one.right_BT).abs().max())
            if not off <= ROUNDING * largest + 1e-9:
                wrong = wrong or (
                    f"step {step}, micro-batch {number}: off by {off:.3g} where the largest is {largest:.3g}"
                )
        if passed:
            self._guards.hold("gradient of the loss", not wrong, wrong, number=len(passed))

    def _hold_loss(self, step: int, logged: float, right: float, number: int) -> None:
        """The loss that is logged is that of the rows: the sum over micro-batches, the mean over updates."""
        good = abs(logged - right) <= ROUNDING * max(0.1, abs(right))
        self._guards.hold(
            "loss of the rows", good, f"step {step}: {logged:.6g}, its rows give {right:.6g}", number=number
        )

    def _gradient(self, micro: PassedBatch) -> tuple[Tensor, float]:
        """Return the gradient of the configured loss at the log-probabilities of a micro-batch, and its value."""
        batch = micro.batch
        if isinstance(self._config, SFTRunConfig):
            right_BT = (-batch.mask_BT / micro.global_valid_tokens).cpu().double()
            return right_BT, float((right_BT * micro.logprobs_BT.detach().cpu().double()).sum())
        if not self._config.loss_fn.is_built_in:
            return own_gradient(micro, self._config, effective(self._config))
        current_BT = micro.logprobs_BT.detach()

        def rows(values_BT: Tensor | None) -> list[list[float]]:
            given: list[list[float]] = (current_BT if values_BT is None else values_BT).tolist()
            return given

        assert batch.advantages_B is not None
        oracle = oracles.policy_loss(
            rows(None),
            rows(batch.old_logprobs_BT),
            rows(batch.ref_logprobs_BT),
            rows(batch.sampling_logprobs_BT),
            rows(torch.zeros_like(current_BT)),
            batch.advantages_B.tolist(),
            batch.mask_BT.tolist(),
            loss_spec(effective(self._config)),
            float(micro.global_valid_tokens),
            float(micro.global_valid_seqs),
        )
        return torch.tensor(oracle.gradient_BT, dtype=torch.float64), oracle.loss

    def _hold_rewards(self, step: TrainedStep, config: GRPORunConfig) -> None:
        """What is trained with is the verifier's reward and the configured penalty on length."""
        scores, shaping = step.rollouts.scores, config.grpo.reward_shaping
        lengths = [len(one.ids) for one in step.rollouts.completions]
        longest = shaping.max_response_length or config.policy.generation.max_new_tokens
        buffer = shaping.overlong_buffer_length
        wrong = ""
        for row, (length, verified) in enumerate(zip(lengths, scores.verified, strict=True)):
            penalty = 0.0
            if shaping.enabled and buffer is not None:
                over = (length - (longest - buffer)) / buffer
                penalty = -shaping.overlong_buffer_penalty * min(1.0, max(0.0, over))
            given = float(step.batch.rewards_B[row])
            if not math.isclose(given, verified + penalty, rel_tol=1e-5, abs_tol=1e-5):
                wrong = (
                    wrong
                    or f"row {row}: {given:.6g}, the verifier's {verified:.6g} and {penalty:.6g} for its length"
                )
        self._guards.hold(
            "rewards as configured", not wrong, f"step {step.step}, {wrong}", number=len(lengths)
        )

    def _hold_advantages(self, step: TrainedStep, rows: Sequence[RunRow], config: GRPORunConfig) -> None:
        """Advantages are those of the rewards by the configured estimator, a KL in the reward taken off."""
        in_reward = config.loss_fn.kl_in == "reward"
        if in_reward and not all(all(row.mask) for row in rows):
            return
        if config.grpo.advantage.is_built_in:
            rights = expected_advantages(rows, effective(config))
        elif not in_reward:
            rights = own_advantages(rows, config)
        else:
            return
        largest = max(map(abs, rights))
        of_group: dict[int, list[float]] = {}
        for row in rows:
            of_group.setdefault(row.prompt_id, []).append(row.reward)
        wrong = ""
        for number, (row, right) in enumerate(zip(rows, rights, strict=True)):
            rewards = of_group[row.prompt_id]
            if max(rewards) - min(rewards) < NO_SPREAD and not in_reward:
                right = 0.0
            if not abs(row.advantage - right) <= ROUNDING * largest + 1e-6:
                wrong = wrong or f"row {number}: {row.advantage:.6g}, its group gives {right:.6g}"
        self._guards.hold(
            "advantages as configured", not wrong, f"step {step.step}, {wrong}", number=len(rows)
        )

    def _hold_scalars(
        self,
        step: TrainedStep,
        rows: Sequence[RunRow],
        options: Mapping[str, object],
        formulas: Mapping[str, Callable[[Sequence[RunRow]], float]],
    ) -> None:
        """What is logged of a step is what its rows give."""
        other = {
            name
            for name, form in OF_THE_LOSS.items()
            if any(options.get(option, value) != value for option, value in form.items())
        }
        known = {name: form for name, form in formulas.items() if name in step.metrics and name not in other}
        wrong = [
            f"{name} {step.metrics[name]:.6g} for {right:.6g}"
            for name, right in ((name, form(rows)) for name, form in known.items())
            if not abs(step.metrics[name] - right) <= ROUNDING * max(1.0, abs(right))
        ]
        wrong += self._wrong_baselines(step, rows)
        self._guards.hold(
            "scalars of the rows", not wrong, f"step {step.step}: {', '.join(wrong[:3])}", number=len(known)
        )

    def _wrong_baselines(self, step: TrainedStep, rows: Sequence[RunRow]) -> list[str]:
        """Return which logged shares of groups by their mean reward are not those of the rows."""
        of_group: dict[int, list[float]] = {}
        for row in rows:
            of_group.setdefault(row.prompt_id, []).append(row.reward)
        means = [math.fsum(of_group[row.prompt_id]) / len(of_group[row.prompt_id]) for row in rows]
        zero, one = (sum(abs(mean - level) < 1e-7 for mean in means) / len(rows) for level in (0, 1))
        rights = {"pct_0": zero, "pct_1": one, "pct_mixed": 1 - zero - one}
        logged = {name: step.metrics.get(f"baseline_reward/{name}") for name in rights}
        return [
            f"baseline_reward/{name} {logged[name]:.6g} for {right:.6g}"
            for name, right in rights.items()
            if logged[name] is not None and not abs((logged[name] or 0.0) - right) <= 1e-5
        ]
