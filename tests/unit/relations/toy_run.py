"""A toy stack for the laws of whole runs: a categorical policy in plain torch, and a real loop around it.

It is no stack that anyone trains with: it exists so that laws are tried on a second implementation, and so that
faults can be planted in one (`faults` names them; each is what its name says).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from seatrial.relations import NotServed
from seatrial.relations.records.run import (
    RunOption,
    RunRecord,
    RunRow,
    StepRecord,
    UpdateRecord,
    ValidationRecord,
)
from seatrial.relations.runs import BASE

VOCABULARY, WIDTH = 61, 8
STOPS = tuple(range(0, VOCABULARY, 5))
DEFAULTS: Mapping[str, Any] = {
    "grpo.advantage.scale": "group",
    "grpo.val_period": 0,
    "grpo.val_at_start": False,
    "grpo.max_val_samples": 4,
    "grpo.overlong_filtering": False,
    "grpo.zero_variance_filter": False,
    "grpo.reward_shaping.enabled": False,
    "loss_fn.kl_in": "loss",
    "loss_fn.ratio_clip_c": None,
    "loss_fn.fixed_length": None,
    "loss_fn.entropy_coefficient": 0.0,
    "loss_fn.importance_sampling": "none",
    "policy.scheduler.min_lr_ratio": 0.0,
    "data.shuffle": True,
    "data.verifier": "graded",
    "cluster.num_processes": 1,
}


KNOWN = {
    "policy.generation.stop_token_ids",
    "policy.sequence_packing.enabled",
    "policy.dynamic_batching.enabled",
    "grpo.use_dynamic_sampling",
    "grpo.dynamic_sampling_max_gen_batches",
    "grpo.val_at_end",
    "grpo.val_greedy",
    *(
        f"grpo.reward_shaping.{name}"
        for name in ("overlong_buffer_length", "overlong_buffer_penalty", "max_response_length")
    ),
}


class ToyRun:
    """An adapter that offers the component `run` alone."""

    def __init__(self, *faults: str) -> None:
        self.faults = frozenset(faults)
        self.num_runs = 0

    def short_run(self, options: Mapping[str, Any], *, seed: int) -> RunRecord:
        """See `contracts.run.ShortRun`."""
        for name in (
            "policy.sequence_packing.enabled",
            "policy.dynamic_batching.enabled",
            "grpo.use_dynamic_sampling",
            "grpo.val_at_end",
            "grpo.val_greedy",
            "grpo.async_grpo.enabled",
            "policy.lora_cfg.enabled",
            "data.environment",
        ):
            if options.get(name):
                raise NotServed(f"the toy has no {name}")
        unknown = options.keys() - BASE.keys() - DEFAULTS.keys() - KNOWN
        if unknown:
            raise ValueError(f"the toy knows no {sorted(unknown)}")
        if options.get("cluster.num_processes", 1) > 1:
            raise NotServed("the toy is one process")
        self.num_runs += 1
        return _Loop(
            {**BASE, **DEFAULTS, "policy.generation.stop_token_ids": STOPS, **options}, seed, self
        ).run()

    def run_options(self) -> Mapping[str, RunOption]:
        """See `contracts.run.ShortRun`."""
        sampled = ("prompts_served", "ids", "old_logprobs")
        return {
            "policy.train_micro_batch_size": RunOption(
                values=(2, 4), reaches=("micro_batches",), spares=(*sampled, "row_indices")
            ),
            "policy.generation.temperature": RunOption(
                values=(0.8, 1.4), reaches=("ids", "sampling_logprobs"), spares=("prompts_served",)
            ),
            "policy.generation.top_k": RunOption(values=(None, 3), reaches=("ids", "kept_support")),
            "policy.optimizer.lr": RunOption(
                values=(0.01, 0.02),
                reaches=("learning_rate", "weights_after"),
                spares=(*sampled, "gradients"),
            ),
            "policy.max_grad_norm": RunOption(
                values=(1.0, 0.01), reaches=("weights_after",), spares=(*sampled, "gradients")
            ),
            "loss_fn.reduction": RunOption(
                values=("token", "sequence"), reaches=("gradients",), spares=(*sampled, "advantage")
            ),
            "grpo.advantage.estimator": RunOption(
                values=("grpo", "rloo"), reaches=("advantage", "gradients"), spares=(*sampled, "reward")
            ),
        }

    def next_token_logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        """See `contracts.run.ShortRun`."""
        embedded_SD = weights["embedding"][list(ids)]
        lengths_S1 = torch.arange(1, len(ids) + 1).unsqueeze(1)
        context_SD = embedded_SD.cumsum(0) / lengths_S1
        return torch.tanh(embedded_SD + context_SD @ weights["mix"]) @ weights["head"].T * weights["scale"]

    def rewards_of(self, rows: Sequence[RunRow]) -> list[float]:
        """See `contracts.run.ShortRun`."""
        return [judge(row.completion, str(row.answer)) for row in rows]


def judge(completion: str, answer: str) -> float:
    """Return how near the words, which are ids, are to the answer; in steps of a half for a coarse answer."""
    kind, goal = answer.split()
    ids = [int(word) for word in completion.split()]
    near = 1 - sum(abs(one - int(goal)) for one in ids) / len(ids) / VOCABULARY
    return near if kind == "graded" else float(near > 0.5)


def initial_weights() -> dict[str, Tensor]:
    """Return the same weights every time; `scale` is frozen."""
    stream = torch.Generator().manual_seed(1)
    return {
        "embedding": torch.randn(VOCABULARY, WIDTH, generator=stream),
        "mix": torch.randn(WIDTH, WIDTH, generator=stream) / 3,
        "head": torch.randn(VOCABULARY, WIDTH, generator=stream),
        "scale": torch.ones(()),
    }


class _Loop:
    def __init__(self, options: Mapping[str, Any], seed: int, stack: ToyRun) -> None:
        self.options, self.seed, self.stack = options, seed, stack
        self.faults = stack.faults
        self.weights = initial_weights()
        self.trained = [name for name in self.weights if name != "scale"]
        for name in self.trained:
            self.weights[name].requires_grad_()
        self.reference = {name: value.detach().clone() for name, value in self.weights.items()}
        self.sampler = self._copy()
        self.optimizer = torch.optim.AdamW(
            [self.weights[name] for name in self.trained],
            lr=options["policy.optimizer.lr"],
            betas=options["policy.optimizer.betas"],
            eps=options["policy.optimizer.eps"],
            weight_decay=options["policy.optimizer.weight_decay"],
        )
        self.done = 0
        self.drawn = 0

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.weights.items()}

    def run(self) -> RunRecord:
        before = torch.get_rng_state()
        initial, reference = self._copy(), {name: value.clone() for name, value in self.reference.items()}
        if "global stream" in self.faults:
            torch.rand(1)
        steps: list[StepRecord] = []
        validations: list[ValidationRecord] = []
        if self.options["grpo.val_at_start"]:
            validations.append(self._validate(0))
        for step in range(1, self.options["grpo.max_num_steps"] + 1):
            steps.append(self._step(step))
            period = self.options["grpo.val_period"]
            if period and step % period == 0:
                validations.append(self._validate(step))
        with_reference = self.options["loss_fn.reference_policy_kl_penalty"] > 0
        return RunRecord(
            options=self.options,
            initial_weights=initial,
            final_weights=self._copy(),
            reference_weights_start=reference if with_reference else None,
            reference_weights_end=self.reference if with_reference else None,
            trainable=frozenset(self.trained),
            steps=tuple(steps),
            validations=tuple(validations),
            train_prompts=tuple(range(self.options["data.num_train"])),
            global_streams_untouched=torch.equal(before, torch.get_rng_state()),
            vocab_size=VOCABULARY,
            stop_ids=tuple(self.options["policy.generation.stop_token_ids"]),
        )

    def _prompts(self, count: int) -> list[int]:
        """Draw prompts, epoch by epoch."""
        size = self.options["data.num_train"]
        served = []
        for _ in range(count):
            epoch, place = divmod(self.drawn, size)
            if "lost remainder" in self.faults and place + count > size and not served:
                self.drawn, epoch, place = (epoch + 1) * size, epoch + 1, 0
            order = list(range(size))
            if self.options["data.shuffle"]:
                stream = torch.Generator().manual_seed(1000 * self.seed + epoch)
                order = torch.randperm(size, generator=stream).tolist()
            served.append(order[place])
            self.drawn += 1
        return served

    def _step(self, step: int) -> StepRecord:
        served = self._prompts(self.options["grpo.num_prompts_per_step"])
        weights = self.sampler if "no sync" in self.faults else self.weights
        rows = []
        stream = 0 if "one stream for all steps" in self.faults else step
        copies = [prompt for prompt in served for _ in range(self.options["grpo.num_generations_per_prompt"])]
        for number, prompt in enumerate(copies):
            own = 0 if "one stream for all rows" in self.faults else number
            rows.append(self._row(prompt, 1000 * stream + own, step - 1, weights))
        rows = self._advantages(rows)
        updates, size = [], self.options["policy.train_global_batch_size"]
        losses = []
        for start in range(0, len(rows), size):
            index = list(range(start, min(start + size, len(rows))))
            update, loss = self._update(rows, index)
            updates.append(update)
            losses.append(loss)
        metrics = {
            "loss": math.fsum(losses) / len(losses),
            "lr": math.fsum(update.learning_rate for update in updates) / len(updates),
            "grad_norm": math.fsum(update.grad_norm for update in updates) / len(updates),
            "reward": math.fsum(row.reward for row in rows) / len(rows),
            "mean_gen_tokens_per_sample": sum(len(row.ids) for row in rows) / len(rows),
            "mean_prompt_length": sum(len(row.prompt_ids) for row in rows) / len(rows),
            "truncation_rate": sum(row.finish_reason == "length" for row in rows) / len(rows),
            "total_num_tokens": float(sum(len(row.prompt_ids) + len(row.ids) for row in rows)),
        }
        if "loss of the first update" in self.faults:
            metrics["loss"] = losses[0]
        if "metric of the last row" in self.faults:
            metrics["reward"] = rows[-1].reward
        return StepRecord(
            step=step,
            prompts_served=tuple(served),
            rows=tuple(rows),
            updates=tuple(updates),
            metrics=metrics,
            weights_after=self._copy(),
        )

    def _prompt_ids(self, prompt: int) -> tuple[int, ...]:
        return tuple((7 * prompt + 3 * place) % VOCABULARY for place in range(1 + prompt % 4))

    @torch.no_grad()
    def _row(self, prompt: int, stream_number: int, version: int, weights: Mapping[str, Tensor]) -> RunRow:
        options = self.options
        temperature, top_k, top_p = (
            options[f"policy.generation.{name}"] for name in ("temperature", "top_k", "top_p")
        )
        stream = torch.Generator().manual_seed(10**6 * self.seed + stream_number)
        ids: list[int] = []
        logprobs, supports = [], []
        stops = options["policy.generation.stop_token_ids"]
        while len(ids) < options["policy.generation.max_new_tokens"] and not (ids and ids[-1] in stops):
            logits_V = self._logits(weights, (*self._prompt_ids(prompt), *ids))[-1] / temperature
            if "temperature ignored" in self.faults:
                logits_V = logits_V * temperature
            kept = logits_V.argsort(descending=True)[: top_k or VOCABULARY]
            probs = logits_V[kept].softmax(0)
            inside = (probs.cumsum(0) - probs) < (1.0 if "top_p ignored" in self.faults else top_p)
            kept = kept[inside]
            chosen = int(kept[torch.multinomial(logits_V[kept].softmax(0), 1, generator=stream)])
            scored = (
                logits_V.log_softmax(0)
                if "raw logprobs" in self.faults
                else torch.full_like(logits_V, -math.inf)
            )
            if "raw logprobs" not in self.faults:
                scored[kept] = logits_V[kept].log_softmax(0)
            ids.append(chosen)
            logprobs.append(float(scored[chosen]))
            supports.append(tuple(kept.tolist()))
        filtered = top_k is not None or top_p < 1
        text = " ".join(map(str, ids))
        answer = f"{options['data.verifier']} {(11 * prompt) % VOCABULARY}"
        reward = judge(text, answer)
        return RunRow(
            prompt_id=prompt,
            prompt_ids=self._prompt_ids(prompt),
            ids=tuple(ids),
            mask=(1,) * len(ids),
            sampling_logprobs=tuple(logprobs),
            old_logprobs=(0.0,) * len(ids),
            ref_logprobs=None,
            kept_support=tuple(supports) if filtered else None,
            reward=self._shaped(reward, len(ids)),
            reward_before_shaping=reward,
            advantage=0.0,
            finish_reason="stop" if ids[-1] in stops else "length",
            completion=text,
            answer=answer,
            weight_version=version,
        )

    def _updates_a_step(self) -> int:
        rows = self.options["grpo.num_prompts_per_step"] * self.options["grpo.num_generations_per_prompt"]
        return int(rows // self.options["policy.train_global_batch_size"])

    def _shaped(self, reward: float, length: int) -> float:
        get = self.options.get
        if not self.options["grpo.reward_shaping.enabled"]:
            return reward
        longest, buffer = (
            get("grpo.reward_shaping.max_response_length"),
            get("grpo.reward_shaping.overlong_buffer_length"),
        )
        over = min(max(0, length - (longest - buffer)), buffer)
        return reward - get("grpo.reward_shaping.overlong_buffer_penalty") * over / buffer

    def _logits(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> Tensor:
        return self.stack.next_token_logits(weights, ids)

    def _logprobs(self, weights: Mapping[str, Tensor], row: RunRow) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of a row's ids and entropies, with gradient."""
        start = len(row.prompt_ids)
        logits_TV = self._logits(weights, (*row.prompt_ids, *row.ids))[start - 1 : -1]
        logits_TV = logits_TV / self.options["policy.generation.temperature"]
        if row.kept_support is not None and "filter not scored" not in self.faults:
            hidden_TV = torch.ones_like(logits_TV, dtype=torch.bool)
            for token, kept in enumerate(row.kept_support):
                hidden_TV[token, list(kept)] = False
            logits_TV = logits_TV.masked_fill(hidden_TV, -1e30)
        all_TV = logits_TV.log_softmax(-1)
        entropy_T = -(all_TV.exp() * all_TV).sum(-1)
        return all_TV.gather(1, torch.tensor(row.ids).unsqueeze(1)).squeeze(1), entropy_T

    @torch.no_grad()
    def _advantages(self, rows: list[RunRow]) -> list[RunRow]:
        options = self.options
        with_reference = options["loss_fn.reference_policy_kl_penalty"] > 0
        scored = []
        for row in rows:
            old = tuple(min(0.0, value) for value in self._logprobs(self.weights, row)[0].tolist())
            reference = self.reference if "reference is old" not in self.faults else self.weights
            ref = tuple(self._logprobs(reference, row)[0].tolist()) if with_reference else None
            scored.append(replace(row, old_logprobs=old, ref_logprobs=ref))
        if "rewards rolled" in self.faults:
            moved = [row.reward for row in scored[1:] + scored[:1]]
            scored = [
                replace(row, reward=reward, reward_before_shaping=reward)
                for row, reward in zip(scored, moved, strict=True)
            ]
        totals = [self._reward_less_kl(row) for row in scored]
        result = []
        for row, total in zip(scored, totals, strict=True):
            group = [
                other for other, mate in zip(totals, scored, strict=True) if mate.prompt_id == row.prompt_id
            ]
            if "one baseline" in self.faults:
                group = totals
            result.append(replace(row, advantage=self._advantage(total, group), mask=self._mask(row, scored)))
        return result

    def _reward_less_kl(self, row: RunRow) -> float:
        if self.options["loss_fn.kl_in"] != "reward" or row.ref_logprobs is None:
            return row.reward
        ratios = [ref - old for old, ref in zip(row.old_logprobs, row.ref_logprobs, strict=True)]
        k3 = sum(math.exp(value) - 1 - value for value in ratios)
        return row.reward - self.options["loss_fn.reference_policy_kl_penalty"] * k3

    def _advantage(self, reward: float, group: Sequence[float]) -> float:
        mean = sum(group) / len(group)
        if max(group) == min(group):
            return 0.0
        sign = -1.0 if "advantages negated" in self.faults else 1.0
        if self.options["grpo.advantage.estimator"] == "rloo":
            value = (reward - mean) * len(group) / (len(group) - 1)
        else:
            value = reward - mean
        if self.options["grpo.advantage.scale"] == "group":
            spread = math.sqrt(sum((one - mean) ** 2 for one in group) / (len(group) - 1))
            value /= spread + self.options["grpo.advantage.epsilon"]
        return sign * value

    def _mask(self, row: RunRow, rows: Sequence[RunRow]) -> tuple[int, ...]:
        on = not (self.options["grpo.overlong_filtering"] and row.finish_reason == "length")
        if self.options["grpo.zero_variance_filter"]:
            group = [other for other in rows if other.prompt_id == row.prompt_id]
            shaped = "filter on shaped rewards" in self.faults
            on &= len({one.reward if shaped else one.reward_before_shaping for one in group}) > 1
        return (int(on),) * len(row.ids)

    def _update(self, rows: Sequence[RunRow], index: list[int]) -> tuple[UpdateRecord, float]:
        options = self.options
        members = [rows[place] for place in index]
        tokens = sum(sum(row.mask) for row in members)
        sequences = sum(any(row.mask) for row in members)
        self.optimizer.zero_grad()
        width, total = options["policy.train_micro_batch_size"], 0.0
        parts = [index[start : start + width] for start in range(0, len(index), width)]
        for part in parts:
            if "local token counts" in self.faults:
                tokens = len(parts) * sum(sum(rows[place].mask) for place in part)
            loss = sum((self._loss(rows[place], tokens, sequences) for place in part), torch.zeros(()))
            if loss.requires_grad:
                torch.autograd.backward(loss)
            total += float(loss.detach())
        leaves = {name: self.weights[name] for name in self.trained}
        gradients = {
            name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone()
            for name, leaf in leaves.items()
        }
        limit = options["policy.max_grad_norm"]
        unlimited = limit is None or "no clip" in self.faults
        norm = float(torch.nn.utils.clip_grad_norm_(leaves.values(), math.inf if unlimited else limit))
        self.done += 1
        rate = self._rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        if "reference follows" in self.faults:
            self.reference = self._copy()
        record = UpdateRecord(
            row_indices=tuple(index),
            micro_batches=tuple(tuple(part) for part in parts),
            gradients=gradients,
            grad_norm=norm,
            learning_rate=rate,
            weights_after=self._copy(),
        )
        return record, total

    def _rate(self) -> float:
        options = self.options
        peak, warmup = options["policy.optimizer.lr"], options["policy.scheduler.warmup_steps"]
        total = options["grpo.max_num_steps"] * self._updates_a_step()
        done = self.done - int("rate off by one" not in self.faults)
        if done < warmup:
            return float(peak * (done + 1) / warmup)
        progress = (done - warmup) / max(1, total - warmup)
        name, floor = options["policy.scheduler.name"], options["policy.scheduler.min_lr_ratio"]
        if name == "constant":
            return float(peak)
        falling = 1 - progress if name == "linear" else (1 + math.cos(math.pi * progress)) / 2
        return float(peak * (floor + (1 - floor) * falling))

    def _loss(self, row: RunRow, tokens: float, sequences: float) -> Tensor:
        """Return the share of one row."""
        options = self.options
        if not any(row.mask):
            return torch.zeros(())
        logprobs_T, entropy_T = self._logprobs(self.weights, row)
        old_T = torch.tensor(row.old_logprobs)
        log_ratio_T = logprobs_T - old_T
        if options["loss_fn.kind"] == "gspo":
            log_ratio_T = log_ratio_T.mean().expand_as(log_ratio_T)
        ratio_T = log_ratio_T.exp()
        low, high = 1 - options["loss_fn.ratio_clip_min"], 1 + options["loss_fn.ratio_clip_max"]
        held_T = ratio_T.clamp(low, high)
        if options["loss_fn.kind"] == "cispo":
            gain_T = held_T.detach() * row.advantage * logprobs_T
        else:
            gain_T = torch.minimum(ratio_T * row.advantage, held_T * row.advantage)
            if options["loss_fn.ratio_clip_c"] and row.advantage < 0:
                gain_T = torch.maximum(
                    gain_T, torch.full_like(gain_T, options["loss_fn.ratio_clip_c"] * row.advantage)
                )
        if options["loss_fn.importance_sampling"] == "truncated":
            weight_T = (torch.tensor(row.old_logprobs) - torch.tensor(row.sampling_logprobs)).exp()
            gain_T = gain_T * weight_T.clamp(max=2.0)
        loss_T = -gain_T - options["loss_fn.entropy_coefficient"] * entropy_T
        penalty = options["loss_fn.reference_policy_kl_penalty"]
        if penalty and options["loss_fn.kl_in"] == "loss":
            assert row.ref_logprobs is not None
            log_T = torch.tensor(row.ref_logprobs) - logprobs_T
            if "kl inverted" in self.faults:
                log_T = -log_T
            penalty *= -1.0 if "kl rewarded" in self.faults else 1.0
            k2 = options["loss_fn.reference_policy_kl_type"] == "k2"
            loss_T = loss_T + penalty * (log_T.square() / 2 if k2 else log_T.exp() - 1 - log_T)
        divisor = {
            "token": tokens,
            "sequence": len(row.ids) * sequences,
            "fixed_length": (options["loss_fn.fixed_length"] or 1) * sequences,
        }[options["loss_fn.reduction"]]
        return loss_T.sum() / divisor

    def _validate(self, step: int) -> ValidationRecord:
        size = self.options["data.num_train"]
        if "validation draws prompts" in self.faults:
            self._prompts(1)
        rows = [
            self._row(size + number, 10**5 + 100 * step + number, step, self.weights)
            for number in range(self.options["grpo.max_val_samples"])
        ]
        kept = tuple((row.prompt_id, row.completion, row.reward_before_shaping) for row in rows)
        accuracy = sum(reward for _, _, reward in kept) / len(kept)
        stops = self.options["policy.generation.stop_token_ids"]
        counted = rows[:1] if "length of the first row" in self.faults else rows
        metrics = {
            "accuracy": accuracy,
            "avg_length": sum(len(row.ids) for row in counted) / len(counted),
            "truncation_rate": sum(row.ids[-1] not in stops for row in counted) / len(counted),
        }
        sampled = tuple((row.prompt_ids, row.ids) for row in rows)
        return ValidationRecord(step=step, rows=kept, metrics=metrics, sampled=sampled)
