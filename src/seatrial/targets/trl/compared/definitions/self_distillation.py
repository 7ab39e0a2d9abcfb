"""Steps of distillation from the policy itself, which sees more in its prompt: SDFT and SDPO."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seatrial.targets.trl.compared.definitions.setting import (
    Setting,
    average,
    divergence,
    logits_of,
    logprobs_of,
    mean,
)
from seatrial.targets.trl.compared.definitions.values import advantages


class Sample(NamedTuple):
    """A completion with what the student and the teacher see before it."""

    row: Mapping[str, Any]
    prompt: Sequence[int]
    seen: Sequence[int]
    """By the teacher."""
    ids: Sequence[int]


def demonstrations(setting: Setting) -> Tensor:
    """Return the loss of SDFT: the teacher's prompt has the privileged context of the row."""
    samples = []
    for row in setting.rows:
        parts = {"privileged_context": row["privileged_context"]}
        filled = _asked(row["prompt"], setting.option("teacher_prompt_template"), parts)
        prompt, seen = (_kept(setting, setting.prompt_ids(one)) for one in (row["prompt"], filled))
        drawn_from = seen if setting.option("generate_from_teacher") else prompt
        samples += [
            Sample(row, prompt, seen, setting.sampled(drawn_from, number))
            for number in range(setting.option("num_generations"))
        ]
    if setting.samples:
        setting.log_lengths([one.ids for one in samples])
    return _distilled(setting, samples, [1.0] * len(samples), "sdft")


def _asked(prompt: Any, template: str, parts: Mapping[str, str]) -> Any:
    """Return a prompt whose text, or last message of a conversation, fills a template with other parts."""
    if isinstance(prompt, str):
        return template.format(prompt=prompt, **parts)
    *before, last = prompt
    return [*before, {**last, "content": template.format(prompt=last["content"], **parts)}]


def _kept(setting: Setting, ids: list[int]) -> list[int]:
    limit = setting.option("max_prompt_length")
    return ids[-limit:] if limit else ids


def successes(setting: Setting) -> Tensor:
    """Return the loss of SDPO: the teacher's prompt has a successful sample of the group, or feedback, or both."""
    option, size = setting.option, setting.option("num_generations")
    drawn, rewards, given = [], [], []
    for row in setting.rows:
        prompt = _kept(setting, setting.prompt_ids(row["prompt"]))
        for number in range(size):
            ids = setting.sampled(prompt, number)
            drawn.append((row, prompt, ids))
            given.append(setting.rewards_of(row, ids))
            rewards.append(setting.reward(row, ids))
    threshold = option("success_reward_threshold")
    samples, on, solved, fed, offered, groups = [], [], 0, 0, 0, 0
    for place, (row, prompt, ids) in enumerate(drawn):
        group = range(place - place % size, place - place % size + size)
        wins = [one for one in group if rewards[one] >= threshold]
        groups += bool(wins) and place % size == 0
        others = [one for one in wins if one != place or not option("dont_reprompt_on_self_success")]
        others = others if option("use_successful_as_teacher") else []
        feedback = row.get("privileged_context") or ""
        offered += bool(feedback.strip())
        takes = bool(
            option("include_environment_feedback")
            and feedback.strip()
            and not (others and option("environment_feedback_only_without_solution"))
        )
        solved, fed = solved + bool(others), fed + takes
        asked = row["prompt"]
        if others or takes:
            shown = setting.text(drawn[others[0]][2]) if others else ""
            if option("remove_thinking_from_demonstration"):
                shown = re.sub(r"<think>.*?</think>", "", shown, flags=re.DOTALL).strip()
            parts = {
                "solution": option("solution_template").format(successful_previous_attempt=shown)
                if others
                else "",
                "feedback": option("feedback_template").format(feedback_raw=feedback) if takes else "",
            }
            asked = _asked(asked, option("reprompt_template"), parts)
        samples.append(Sample(row, prompt, setting.prompt_ids(asked)[-option("max_reprompt_len") :], ids))
        on.append(float(bool(others) or takes))
    if setting.samples:
        setting.log_lengths([one.ids for one in samples])
        _log_rewards(setting, rewards, given, size)
        counts = {
            "success_group_fraction": groups * size,
            "success_sample_fraction": solved,
            "feedback_available_fraction": offered,
            "feedback_used_fraction": fed,
            "reprompt_sample_fraction": sum(on),
        }
        setting.scalars |= {
            f"self_distillation/{name}": value / len(samples) for name, value in counts.items()
        }
    weight = option("distillation_weight", 1.0)
    loss = torch.zeros((), dtype=torch.float64)
    if weight < 1:
        loss = loss + (1 - weight) * _policy_loss(setting, samples, advantages(setting, rewards, size))
    if weight > 0:
        loss = loss + weight * _distilled(setting, samples, on, "sdpo")
    return loss


def _log_rewards(
    setting: Setting, rewards: Sequence[float], given: Sequence[Sequence[float | None]], size: int
) -> None:
    whole = torch.tensor(rewards, dtype=torch.float64)
    deviations = whole.view(-1, size).std(1)
    if setting.option("scale_rewards") == "none":
        deviations = torch.ones_like(deviations)
    of_functions = {
        f"self_distillation/rewards/{one.__name__}": mean(
            value for values in given if (value := values[place]) is not None
        )
        for place, one in enumerate(setting.rewards)
    }
    setting.scalars |= {
        "self_distillation/reward_mean": float(whole.mean()),
        "self_distillation/reward_std": float(whole.std()),
        "self_distillation/reward_min": float(whole.min()),
        "self_distillation/reward_max": float(whole.max()),
        "self_distillation/group_reward_std_mean": float(deviations.mean()),
        "self_distillation/flat_group_fraction": float((deviations <= 1e-8).double().mean()),
        **of_functions,
    }


def _policy_loss(setting: Setting, samples: Sequence[Sample], gains: Sequence[float]) -> Tensor:
    """Return PPO's clipped loss; the policy that sampled is that of the step, or of the one before it."""
    option = setting.option
    low, temperature = option("epsilon"), option("temperature")
    high = option("epsilon_high", low)
    sampler = setting.sampler
    sums, lengths = [], [len(one.ids) * setting.counts(one.ids) for one in samples]
    for one, gain in zip(samples, gains, strict=True):
        ratio = logprobs_of(setting.policy, one.prompt, one.ids, temperature)
        ratio = ratio - logprobs_of(sampler, one.prompt, one.ids, temperature).detach()
        if option("importance_sampling_level") == "sequence":
            ratio = ratio.mean().expand(len(one.ids))
        ratio = ratio.exp()
        loss = -torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + high) * gain).sum()
        sums.append(loss * setting.counts(one.ids))
    kind = option("loss_type")
    if kind == "grpo":
        loss = average(one / max(length, 1) for one, length in zip(sums, lengths, strict=True))
    else:
        whole = len(samples) * option("max_completion_length") if kind == "dr_grpo" else sum(lengths)
        loss = torch.stack(sums).sum() / whole
    setting.scalars["self_distillation/policy_loss"] = float(loss)
    return loss


def _distilled(setting: Setting, samples: Sequence[Sample], on: Sequence[float], name: str) -> Tensor:
    """Return the mean over rows of divergences' means over tokens; rows and tokens that are off count as zero."""
    option = setting.option
    skipped, limit = option("num_loss_tokens_to_skip", 0), option("distillation_is_clip")
    rows, sums, count = [], 0.0, 0
    for one, is_on in zip(samples, on, strict=True):
        each = _divergences(setting, one)
        if limit is not None and option("num_iterations", 1) > 1:
            now, then = (
                logprobs_of(model, one.prompt, one.ids, option("temperature")).detach()
                for model in (setting.policy, setting.sampler)
            )
            each = each * (now - then).exp().clamp(max=limit)
        each = each[skipped:] if is_on and setting.counts(one.ids) else each[:0]
        rows.append(each.sum() / max(len(each), 1))
        sums, count = sums + float(each.sum().detach()), count + len(each)
    setting.scalars |= dict.fromkeys(
        ("self_distillation/distillation_loss", f"{name}/distillation_loss"), sums / max(count, 1)
    )
    return average(rows)


def _divergences(setting: Setting, one: Sample) -> Tensor:
    """Return the divergence [T] at each token of a completion."""
    option: Any = setting.option
    temperature: float = option("temperature")
    student = (logits_of(setting.policy, one.prompt, one.ids) / temperature).log_softmax(-1)
    teacher = (logits_of(_teacher(setting), one.seen, one.ids).detach() / temperature).log_softmax(-1)
    if option("distillation_mode") == "sampled_token":
        student, teacher = (
            values.gather(-1, torch.tensor(one.ids)[:, None])[:, 0] for values in (student, teacher)
        )
        return student * (student - teacher).detach()
    if option("distillation_mode") == "topk_logits":
        places = student.topk(option("distillation_topk"), -1).indices
        student, teacher = (_on_support(setting, values, places) for values in (student, teacher))
    return divergence(student, teacher, option("distillation_alpha"))


def _on_support(setting: Setting, values: Tensor, places: Tensor) -> Tensor:
    kept = values.gather(-1, places)
    if setting.option("distillation_add_tail"):
        rest = 1 - kept.exp().sum(-1, keepdim=True)
        return torch.cat([kept, rest.clamp(min=1e-7).log()], -1)
    return kept.log_softmax(-1)


def _teacher(setting: Setting) -> Any:
    """Return the teacher: the first policy, the present one, or a moving average with the update rate."""
    kind = setting.option("teacher_model_kind")
    if kind == "live":
        return setting.policy
    if kind == "base":
        return setting.first
    return setting.averaged(setting.option("teacher_update_rate"), setting.option("teacher_sync_steps"))
