"""Faults planted in TRL, as it is installed, are seen by the laws of small functions, of drawing and of seeds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import judged

NAMES = """
import functools, torch, trl
import trl.data_utils, trl.experimental.utils, trl.trainer.utils
from seatrial.targets.trl.target import TRLTarget

def replace(owner, name, wrap):
    own = getattr(owner, name)
    setattr(owner, name, functools.wraps(own)(wrap(own)))

def after_init(owner, then):
    replace(owner, "__init__", lambda init: lambda self, *a, **k: (init(self, *a, **k), then(self))[0])
"""
ADAPTERS = "adapters = TRLTarget().adapters()"
FAULTS = [
    (
        "utilities", "R31.numbers", "log-probabilities, bfloat16",
        "replace(trl.trainer.utils, 'selective_log_softmax', lambda f: lambda logits, index: "
        "logits.gather(-1, index[..., None])[..., 0] - logits.logsumexp(-1))",
    ),
    (
        "utilities", "R31.numbers", "entropy, float32",
        "replace(trl.trainer.utils, 'entropy_from_logits', lambda f: lambda logits: "
        "f(logits.reshape(-1, logits.shape[-1])[:128]).mean().expand(logits.shape[:-1]))",
    ),
    (
        "utilities", "R31.numbers", "deviation without NaN",
        "replace(trl.trainer.utils, 'nanstd', lambda f: lambda tensor, dim=None, keepdim=False: "
        "tensor.nan_to_num().std(dim))",
    ),
    (
        "utilities", "R31.rows", "padding to a multiple",
        "replace(trl.trainer.utils, 'pad', lambda f: lambda *a, pad_to_multiple_of=None, **k: f(*a, **k))",
    ),
    (
        "utilities", "R31.rows", "shuffle",
        "replace(trl.trainer.utils, 'shuffle_sequence_dict', lambda f: lambda d: {**f(d), 'texts': d['texts']})",
    ),
    (
        "utilities", "R31.orders", "shuffled",
        "replace(trl.trainer.utils.RepeatSampler, '__init__', lambda f: "
        "lambda self, *a, seed=None, **k: f(self, *a, seed=3, **k))",
    ),
    (
        "utilities", "R31.records", "cut columns",
        "replace(trl.experimental.utils, 'truncate_dataset', lambda f: lambda data, n: "
        "f(data.select_columns(['input_ids']), n).add_column('attention_mask', data['attention_mask'])"
        ".add_column('source', data['source']))",
    ),
    (
        "utilities", "R31.rewards", "punishment of length",
        "import trl.rewards\nreplace(trl.rewards, 'get_soft_overlong_punishment', lambda f: lambda n, c: f(n + 1, c))",
    ),
    (
        "utilities", "R31.chats", "tools of a template",
        "replace(trl.data_utils, 'apply_chat_template', lambda f: lambda r, t, tools=None, **k: f(r, t, **k))",
    ),
    (
        "utilities", "R31.sources", "averaged weights",
        "import trl.trainer.callbacks\nreplace(trl.trainer.callbacks.BEMACallback, '_ema_beta', lambda f: "
        "lambda self, step: f(self, step - self.update_after))",
    ),
    (
        "utilities", "R31.collated", "answers with labels",
        "from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference as collator\n"
        "replace(collator, 'torch_call', lambda f: lambda self, rows: f(self, "
        "[{**row, 'KL_completion_ids': row['completion_ids']} for row in rows]))",
    ),
    (
        "utilities", "R31.async_rollouts", "rollouts with tools",
        "import trl.experimental.async_grpo.async_rollout_worker as worker\n"
        "after_init(worker._AsyncRolloutLoop, lambda self: setattr(self, 'max_tool_calling_iterations', "
        "self.max_tool_calling_iterations or None))",
    ),
    (
        "utilities", "R31.async_rollouts", "packed rollouts",
        "import trl.experimental.async_grpo.packing as packing\n"
        "replace(packing.TreeRow, 'pack', lambda f: lambda self: {**(found := f(self)), "
        "'position_ids': found['position_ids'] * 0})",
    ),
    (
        "utilities", "R31.async_rollouts", "a step",
        "import trl.experimental.async_grpo.async_grpo_trainer as module\n"
        "replace(module.AsyncGRPOTrainer, 'compute_loss', lambda f: lambda self, model, inputs: "
        "f(self, model, {**inputs, 'advantages': inputs['advantages'].abs()}))",
    ),
    (
        "utilities", "R31.async_rollouts", "a queue that is empty at times",
        "import trl.experimental.async_grpo.async_grpo_trainer as module\n"
        "after_init(module.RolloutQueueDataset, lambda self: setattr(self, 'max_staleness', 9))",
    ),
    (
        "worked", "R34.worked", "formulas",
        "import trl.experimental.gkd as gkd\nown = gkd.GKDTrainer.generalized_jsd_loss\n"
        "gkd.GKDTrainer.generalized_jsd_loss = staticmethod(lambda *a, beta=0.5, **k: own(*a, beta=1 - beta, **k))",
    ),
    (
        "worked", "R34.worked", "rollouts",
        "import trl.experimental.gold.gold_trainer as gold\n"
        "replace(gold, 'build_teacher_inputs_from_texts', lambda f: lambda t, p, c: f(t, p, [one[:-1] for one in c]))",
    ),
    (
        "utilities", "R31.chats", "texts of a template",
        "replace(trl.data_utils, 'apply_chat_template', lambda f: lambda r, t, *a, **k: f(r, t, *a, **k) if "
        "r.get('prompt', [{}])[-1].get('role') != 'assistant' else "
        "{'prompt': f(r, t, *a, **k)['prompt'] + '(assistant:'})",
    ),
    (
        "worked", "R34.worked", "models",
        "replace(trl.trainer.utils, 'hash_module', lambda f: lambda module: 'same')",
    ),
    (
        "worked", "R34.worked", "batches",
        "replace(trl.data_utils, 'pack_dataset', lambda f: lambda data, n, how='', map_kwargs=None: f(data, n, how))",
    ),
    (
        "shown-dpo", "R34.worked", "texts",
        "import trl.trainer.dpo_trainer as own\nreplace(own, '_tokenize', lambda f: "
        "lambda tokenizer, text, tools=None, **k: f(tokenizer, text, **k))",
    ),
    (
        "prepared-kto", "R34.worked", "validations",
        "import trl.trainer.kto_trainer as own\nreplace(own.KTOTrainer, 'compute_ref_log_probs', lambda f: "
        "lambda self, model, rows: tuple(one.roll(1) if one is not None else one for one in f(self, model, rows)))",
    ),
    (
        "utilities", "R31.templates", "choice of a template",
        "import trl.chat_template_utils as own\n"
        "own.qwen3_vl_training_chat_template = own.qwen2_5_vl_training_chat_template",
    ),
    (
        "utilities", "R31.tiled", "head in tiles",
        "import trl.kernels.chunked_logprob as own\nreplace(own, '_backward_tile', lambda f: "
        "lambda *a, softcap=1.0, **k: f(*a, softcap=2 * softcap, **k))",
    ),
    (
        "grpo-drawing", "R26.drawn", "with all options",
        "after_init(trl.GRPOTrainer, lambda self: setattr(self.generation_config, 'top_k', 0))",
    ),
    (
        "gkd-drawing", "R26.drawn", "at the defaults, a model with settings of its own",
        "from trl.experimental.gkd import GKDTrainer\nafter_init(GKDTrainer, lambda self: setattr("
        "self.generation_config, 'temperature', self.model.generation_config.temperature))",
    ),
    (
        "online-dpo-drawing", "R26.drawn", "completions of a prompt",
        "from trl.experimental.online_dpo import OnlineDPOTrainer\n"
        "import transformers\ngenerate = transformers.GenerationMixin.generate\n"
        "def one(self, *a, **k):\n    found = generate(self, *a, **k)\n    half = len(found.sequences) // 2\n"
        "    found.sequences[:] = torch.where(torch.arange(len(found.sequences))[:, None] < half, found.sequences, "
        "found.sequences.roll(half, 0))\n    return found\n"
        "transformers.GenerationMixin.generate = one",
    ),
    (
        "whole-reward-head", "R26.whole", "first weights",
        "import trl.trainer.reward_trainer\ntrl.trainer.reward_trainer.set_seed = lambda seed: None",
    ),
    (
        "whole-sft-lora", "R26.whole", "new tensors of another seed",
        "import trl.trainer.sft_trainer\nseeded = trl.trainer.sft_trainer.set_seed\n"
        "trl.trainer.sft_trainer.set_seed = lambda seed: seeded(7)",
    ),
    (
        "compared-distillation", "R33.compared", "effective options",
        "after_init(trl.DistillationTrainer, lambda self: setattr(self, 'beta', 0.5))",
    ),
    (
        "compared-asyncdistillation", "R33.compared", "defined steps",
        "import trl.experimental.async_distillation.async_rollout_worker as worker\n"
        "replace(worker, '_parse_teacher_logprobs_at_position', lambda f: lambda one: "
        "tuple(part[::-1] for part in f(one)))",
    ),
    (
        "compared-serverdistillation", "R33.compared", "defined steps",
        "import trl.experimental.server_distillation.server_distillation_trainer as server\n"
        "replace(server, 'build_teacher_request_inputs', lambda f: lambda *a, **k: (lambda ids, before, after: "
        "([one[1:] for one in ids], [one - 1 for one in before], after))(*f(*a, **k)))",
    ),
    (
        "compared-sdft", "R33.compared", "other models stay",
        "from trl.experimental.sdft import SDFTTrainer\n"
        "replace(SDFTTrainer, 'training_step', lambda f: lambda self, *a, **k: ("
        "f(self, *a, **k), next(self.teacher_model.parameters()).data.add_(0.1))[0])",
    ),
    (
        "compared-gkd-given", "R33.compared", "micro-batches, unequal lengths",
        "from trl.experimental.gkd import GKDTrainer\nown = GKDTrainer.generalized_jsd_loss\n"
        "GKDTrainer.generalized_jsd_loss = staticmethod(lambda *a, num_items_in_batch=None, **k: own(*a, **k))",
    ),
    (
        "compared-tpo", "R33.compared", "the caller's arguments",
        "from trl.experimental.tpo import TPOTrainer\nreplace(TPOTrainer, '__init__', lambda f: "
        "lambda self, *a, **k: (f(self, *a, **k), vars(k['args']).setdefault('label_names', []), "
        "k['args'].debug.append('x'))[0])",
    ),
    (
        "whole-grpo-bnpo", "R23.whole", "logged loss of completions",
        "replace(trl.GRPOTrainer, 'prediction_step', lambda f: lambda self, *a, **k: "
        "(f(self, *a, **k)[0] / 2, None, None))",
    ),
    (
        "compared-dpo", "R33.compared", "forms of an evaluation",
        "replace(trl.DPOTrainer, 'evaluate', lambda f: lambda self, given=None, eval_dataset=None, **k: "
        "f(self, dict(zip(given, [*given.values()][::-1])) if isinstance(given, dict) else given or eval_dataset, "
        "**k))",
    ),
    (
        "rows-sft-called", "R15.whole", "ids",
        "import types, json, trl.trainer.sft_trainer as own\n"
        "own.json = types.SimpleNamespace(loads=lambda text: None, dumps=json.dumps)",
    ),
    (
        "rows-sft-assistant-several", "R15.whole", "targets of what trains",
        "import trl.trainer.sft_trainer as own\nreplace(own, '_tokenize', lambda f: lambda *a, **k: {name: "
        "[0] * (len(one) // 2) + one[len(one) // 2:] if name == 'assistant_masks' else one for name, one in "
        "f(*a, **k).items()})",
    ),
    (
        "experts-sft-multiple", "R12.whole", "gradient, two micro-batches a step",
        "import transformers.models.mixtral.modeling_mixtral as own\nreplace(own, 'load_balancing_loss_func', "
        "lambda f: lambda logits, n=None, k=2, attention_mask=None: f(logits, n, k))",
    ),
    (
        "head-dpo-saved", "R12.whole", "gradient, one micro-batch a step",
        "import contextlib, trl.trainer.dpo_trainer as own\nown.use_adapter = lambda *a, **k: contextlib.nullcontext()",
    ),
    (
        "tuned-kto-given-precomputed", "R12.whole", "gradient, one micro-batch a step",
        "import trl.trainer.kto_trainer as own\n"
        "own.use_adapter = lambda model, adapter_name: model.disable_adapter()",
    ),
    (
        "utilities", "R31.async_rollouts", "rollouts with environments",
        "import trl.experimental.async_grpo.async_rollout_worker as worker\n"
        "replace(worker._AsyncRolloutLoop, '_generate_one', lambda f: lambda self, prompt, *a, **k: f(self, "
        "[{**prompt[-1], 'content': prompt[-1]['content'].partition(' ')[0]}], *a, **k))",
    ),
    (
        "compared-sft", "R33.compared", "the saved settings",
        "replace(trl.SFTTrainer, '__init__', lambda f: lambda self, *a, **k: "
        "(f(self, *a, **k), setattr(self.model.generation_config, 'top_k', 50))[0])",
    ),
    (
        "rows-grpo-awaited", "R24.whole", "prompts are those of the split",
        "replace(trl.GRPOTrainer, '_tokenize_prompts', lambda f: lambda self, prompts: "
        "(lambda ids, *rest: ([one[:3] for one in ids], *rest))(*f(self, prompts)))",
    ),
]  # fmt: skip
"""An adapter, a relation, the law that breaks, and the fault."""
BY_DAY = (0, 13, 16)


@pytest.mark.peer
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("adapter", "relation", "law", "fault"),
    [
        pytest.param(*case, marks=[pytest.mark.nightly] * (place not in BY_DAY))
        for place, case in enumerate(FAULTS)
    ],
)
def test_a_planted_fault_breaks_its_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, law: str, fault: str
) -> None:
    """One of each kind of adapter by day, the others at night."""
    outcome, broken = judged(peer_python("trl"), [NAMES, fault, ADAPTERS], adapter, relation)
    assert outcome == "Fail"
    assert law in broken
