"""The adapters of `transformers` hold on the installed release, and each law breaks where Transformers is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import by_day, judged, run_seatrial

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(900)]
NAMES = """
import torch, transformers
from transformers import optimization
from transformers.data import data_collator
"""
OF_TARGET = """
from seatrial.targets.transformers.target import TransformersTarget
adapters = TransformersTarget().adapters()
"""
UNEQUAL = "loss and gradient, examples of unequal numbers of items"
WARM_UP = """
linear = optimization._get_linear_schedule_with_warmup_lr_lambda
optimization._get_linear_schedule_with_warmup_lr_lambda = (
    lambda step, *, num_warmup_steps, num_training_steps: linear(
        step, num_warmup_steps=0, num_training_steps=num_training_steps
    )
)
"""
RESTART = """
load = transformers.Trainer._load_optimizer_and_scheduler
def without_schedule(self, checkpoint):
    state = self.lr_scheduler.state_dict()
    load(self, checkpoint)
    if checkpoint:
        self.lr_scheduler.load_state_dict(state)
transformers.Trainer._load_optimizer_and_scheduler = without_schedule
"""
MOMENTS = """
load = transformers.Trainer._load_optimizer_and_scheduler
def without_moments(self, checkpoint):
    load(self, checkpoint)
    self.optimizer.state.clear()
transformers.Trainer._load_optimizer_and_scheduler = without_moments
"""
LABELS_ON_THE_RIGHT = """
collate = data_collator.DataCollatorForSeq2Seq.__call__
def on_the_right(self, features, return_tensors=None):
    batch = collate(self, features, return_tensors)
    width = batch["labels"].shape[1]
    rows = [[*one["labels"], *[-100] * (width - len(one["labels"]))] for one in features]
    return {**batch, "labels": torch.tensor(rows)}
data_collator.DataCollatorForSeq2Seq.__call__ = on_the_right
"""
ONE_ROW = """
flatten = data_collator.DataCollatorWithFlattening.__call__
def one_row(self, features, return_tensors=None, separator_id=None):
    batch = flatten(self, features, return_tensors, separator_id)
    return {**batch, "position_ids": torch.arange(batch["input_ids"].shape[1])[None]}
data_collator.DataCollatorWithFlattening.__call__ = one_row
"""
WHOLE_LABELS = """
collate = data_collator.DataCollatorForLanguageModeling.__call__
def padding_too(self, features, return_tensors=None):
    batch = collate(self, features, return_tensors)
    return {**batch, "labels": batch["input_ids"].clone()}
data_collator.DataCollatorForLanguageModeling.__call__ = padding_too
"""
ENDS = """
flatten = data_collator.DataCollatorWithFlattening.__call__
def one_short(self, features, return_tensors=None, separator_id=None):
    batch = flatten(self, features, return_tensors, separator_id)
    for name in ("cu_seq_lens_q", "cu_seq_lens_k"):
        batch[name][1:-1] -= 1
    batch["max_length_q"] = int(batch["cu_seq_lens_q"].diff().max())
    return batch
data_collator.DataCollatorWithFlattening.__call__ = one_short
"""
ROWS_SHIFTED = """
flatten = data_collator.DataCollatorWithFlattening.__call__
def one_off(self, features, return_tensors=None, separator_id=None):
    batch = flatten(self, features, return_tensors, separator_id)
    return {**batch, "seq_idx": torch.roll(batch["seq_idx"], 1, dims=1)}
data_collator.DataCollatorWithFlattening.__call__ = one_off
"""
LABELS_MOVED = """
collate = data_collator.DataCollatorForTokenClassification.torch_call
def moved(self, features):
    batch = collate(self, features)
    return {**batch, "labels": torch.roll(batch["labels"], 1, dims=1)}
data_collator.DataCollatorForTokenClassification.torch_call = moved
"""
LABELS_OF_PADDING = """
collate = data_collator.DataCollatorForSeq2Seq.__call__
def padding_trains(self, features, return_tensors=None):
    batch = collate(self, features, return_tensors)
    return {**batch, "labels": batch["labels"].clamp(min=0)}
data_collator.DataCollatorForSeq2Seq.__call__ = padding_trains
"""
LABELS_OF_OTHERS = """
collate = data_collator.DataCollatorWithPadding.__call__
def of_others(self, features):
    batch = collate(self, features)
    return {**batch, "labels": torch.roll(batch["labels"], 1, dims=0)}
data_collator.DataCollatorWithPadding.__call__ = of_others
"""
NOT_PACKED = """
from transformers import masking_utils
masking_utils.find_packed_sequence_indices = lambda position_ids: None
"""
PADDING_COUNTED = """
forward = transformers.GPT2Model.forward
transformers.GPT2Model.forward = lambda self, *args, position_ids=None, **options: forward(self, *args, **options)
"""
OF_ANOTHER_SIZE = """
step = transformers.Trainer.training_step
def of_configured_size(self, model, inputs, num_items_in_batch=None):
    whole = self.args.gradient_accumulation_steps / self.current_gradient_accumulation_steps
    return step(self, model, inputs, num_items_in_batch * whole)
transformers.Trainer.training_step = of_configured_size
"""
WHOLE_UPDATES = """
count = transformers.Trainer.set_initial_training_values
def whole_ones(self, args, dataloader):
    found = list(count(self, args, dataloader))
    if args.max_steps < 0:
        found[-1] -= 1
    return tuple(found)
transformers.Trainer.set_initial_training_values = whole_ones
"""
TWICE = """
from transformers.models.bart import modeling_bart
shift = modeling_bart.shift_tokens_right
modeling_bart.shift_tokens_right = lambda ids, *more: shift(shift(ids, *more), *more)
"""
BALANCE_TWICE = """
from transformers.models.mixtral import modeling_mixtral
balance = modeling_mixtral.load_balancing_loss_func
modeling_mixtral.load_balancing_loss_func = lambda *args: 2 * balance(*args)
"""
LABELS_DOUBLED = """
from transformers.loss import loss_utils
whole = loss_utils.LOSS_MAPPING["ForSequenceClassification"]
loss_utils.LOSS_MAPPING["ForSequenceClassification"] = lambda labels, **more: whole(labels=2 * labels, **more)
"""
FORGETS = """
from transformers import cache_utils
update = cache_utils.DynamicLayer.update
def forgets(self, keys, values, *args, **kwargs):
    if keys.shape[-2] > 1 and self.is_initialized:
        self.keys, self.values = torch.zeros_like(self.keys), torch.zeros_like(self.values)
    return update(self, keys, values, *args, **kwargs)
cache_utils.DynamicLayer.update = forgets
"""
PLACE_LATER = """
from transformers.models.llama import modeling_llama
turn = modeling_llama.LlamaRotaryEmbedding.forward
modeling_llama.LlamaRotaryEmbedding.forward = lambda self, x, position_ids: turn(
    self, x, position_ids + int(position_ids.shape[-1] == 1)
)
"""
UNPENALISED = """
from transformers.generation import logits_process
logits_process.RepetitionPenaltyLogitsProcessor.__call__ = lambda self, input_ids, scores: scores
"""
CUT_FIRST = """
from transformers.generation import logits_process
cut = logits_process.TopPLogitsWarper.__call__
logits_process.TopPLogitsWarper.__call__ = lambda self, input_ids, scores: cut(self, input_ids, scores / 2)
"""
TURNED = """
step = transformers.Trainer.prediction_step
def turned(self, *args, **options):
    loss, logits, labels = step(self, *args, **options)
    return loss, logits if logits is None else logits.flip(0), labels
transformers.Trainer.prediction_step = turned
"""
WITHOUT_FACTOR = """
from transformers import modeling_rope_utils
compute = modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"]
modeling_rope_utils.ROPE_INIT_FUNCTIONS["yarn"] = lambda *args, **options: (compute(*args, **options)[0], 1.0)
"""
ALL_MASKS = """
draw = data_collator.DataCollatorForLanguageModeling.torch_mask_tokens
def all_masks(self, *args, **options):
    self.mask_replace_prob, self.random_replace_prob = 1.0, 0.0
    return draw(self, *args, **options)
data_collator.DataCollatorForLanguageModeling.torch_mask_tokens = all_masks
"""
ONE_SCALE = """
from transformers.models.gpt2 import modeling_gpt2
make = modeling_gpt2.GPT2Attention.__init__
def with_one_scale(self, config, *args, **options):
    make(self, config, *args, **options)
    self.scaling = self.head_dim**-0.5
modeling_gpt2.GPT2Attention.__init__ = with_one_scale
"""
NO_TEMPERATURE = """
from transformers.generation import logits_process
logits_process.TemperatureLogitsWarper.__call__ = lambda self, input_ids, scores: scores
"""
ONE_SIDE = """
collate = data_collator.DataCollatorForSeq2Seq.__call__
def on_the_right(self, features, return_tensors=None):
    kept, self.tokenizer.padding_side = self.tokenizer.padding_side, "right"
    try:
        return collate(self, features, return_tensors)
    finally:
        self.tokenizer.padding_side = kept
data_collator.DataCollatorForSeq2Seq.__call__ = on_the_right
"""
FIRST_IDS = """
data_collator.DataCollatorForLanguageModeling._whole_word_mask = staticmethod(lambda word_ids, mask: mask)
"""
FAULTS = [
    ("collators", "R15.collated", ONE_SIDE, "sequences on the left"),
    ("collator-masking-words", "R15.masked", FIRST_IDS, "whole words"),
    ("options-gpt2", "R5.options", ONE_SCALE, "options act, scaled dot-product attention"),
    ("generate-bart", "R26.generate", NO_TEMPERATURE, "a temperature near zero"),
    ("collator-masking", "R15.masked", ALL_MASKS, "shares"),
    ("row-classes", "R23.supervised", TURNED, "outputs"),
    ("rotary", "R12.rotary", WITHOUT_FACTOR, "yarn"),
    ("generation", "R26.decoding", UNPENALISED, "repetition_penalty"),
    ("generation", "R26.decoding", CUT_FIRST, "top_p"),
    ("family-llama", "R5.family", PLACE_LATER, "decoded from the cache"),
    ("family-llama", "R5.family", FORGETS, "in two passes"),
    ("causal-lm-epochs", "R12.epochs", OF_ANOTHER_SIZE, "loss and gradient, three micro-batches an update"),
    ("causal-lm-epochs", "R12.epochs", WHOLE_UPDATES, "rows, three micro-batches an update"),
    ("encoder-decoder-bart", "R12.supervised", TWICE, "loss and gradient"),
    ("experts-mixtral", "R12.supervised", BALANCE_TWICE, "loss and gradient"),
    ("decoder-row-numbers", "R12.supervised", LABELS_DOUBLED, "loss and gradient"),
    ("schedules", "R24.schedules", WARM_UP, "with a warm-up"),
    ("schedules", "R24.schedules", RESTART, "after a resume"),
    ("resumed-training", "R13.trainer", MOMENTS, "state, stopped once"),
    ("collator-seq2seq-left", "R12.objective", LABELS_ON_THE_RIGHT, "gradient, lengths unequal"),
    ("collator-flattening", "R12.objective", ONE_ROW, "gradient, lengths unequal"),
    ("collator-flattening-lengths", "R15.trained", ENDS, "ids"),
    ("collator-language-modeling", "R12.objective", WHOLE_LABELS, "gradient, lengths unequal"),
    ("collator-flattening-numbers", "R15.trained", ROWS_SHIFTED, "end token"),
    ("collator-token-classes", "R12.supervised", LABELS_MOVED, UNEQUAL),
    ("collator-translations", "R12.supervised", LABELS_OF_PADDING, UNEQUAL),
    ("collator-row-classes-left", "R12.supervised", LABELS_OF_OTHERS, "loss and gradient"),
    ("model-plain", "R4.packing", NOT_PACKED, "neighbours are not seen"),
    ("model-learned-positions", "R5.policy", PADDING_COUNTED, "alone and together"),
]
OWN_TOKENS = """
prepare = transformers.TrainingArguments.__post_init__
def each_its_own(self):
    prepare(self)
    self.average_tokens_across_devices = False
transformers.TrainingArguments.__post_init__ = each_its_own
"""
FILLING_KEPT = """
import accelerate
accelerate.Accelerator.gather_for_metrics = lambda self, data, use_gather_object=False: self.gather(data)
"""
ZEROS = """
import accelerate
pad = accelerate.Accelerator.pad_across_processes
accelerate.Accelerator.pad_across_processes = lambda self, data, dim=0, pad_index=0, pad_first=False: pad(
    self, data, dim=dim, pad_index=0, pad_first=pad_first
)
"""
ON_RANKS = [
    ("causal-lm-ranks", "R2.ranks", OWN_TOKENS),
    ("flattening-ranks", "R2.ranks", ONE_ROW),
    ("predictions", "R30.gathered", FILLING_KEPT),
    ("predictions-in-parts", "R30.gathered", ZEROS),
]
"""Faults in the processes of a group, which a module of the test's own starts."""


SLOW = ("R5.options", "R26.generate")
"""tests/unit/relations/test_model_options.py and test_own_generate.py plant faults in small models by day."""


@pytest.mark.parametrize(("adapter", "relation", "fault", "law"), by_day(FAULTS, 1, but=SLOW))
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, fault: str, law: str
) -> None:
    """Each fault is of one place of Transformers."""
    outcome, broken = judged(peer_python("trl"), [NAMES, fault, OF_TARGET], adapter, relation)
    assert outcome == "Fail"
    assert law in broken


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("adapter", "relation", "fault"),
    ON_RANKS,
)
def test_a_release_patched_in_each_process_breaks_a_law(
    peer_python: Callable[[str], Path], tmp_path: Path, adapter: str, relation: str, fault: str
) -> None:
    """The processes of a group run a module that plants the fault and then waits for calls as the worker does."""
    (tmp_path / "faulty_rank.py").write_text(
        "import torch, transformers\nfrom transformers.data import data_collator\n"
        f"{fault}\nfrom seatrial.targets.common.rank_worker import main\nmain()\n",
        encoding="utf-8",
    )
    outcome, broken = judged(
        peer_python("trl"),
        [NAMES, OF_TARGET],
        adapter,
        relation,
        paths=[tmp_path],
        SEATRIAL_RANK_COMMAND="faulty_rank",
    )
    assert outcome == "Fail"
    assert broken


ON_THEIR_OWN = {
    "schedules": "R24.schedules",
    "resumed-training": "R13.trainer",
}


@pytest.mark.parametrize(
    "adapters", [tuple(ON_THEIR_OWN), pytest.param((), marks=pytest.mark.nightly)], ids=["two", "every one"]
)
def test_the_release_as_it_is_holds(
    peer_python: Callable[[str], Path], tmp_path: Path, adapters: tuple[str, ...]
) -> None:
    """Nothing fails but what is declared."""
    words = [word for adapter in adapters for word in ("--adapter", adapter)]
    ran = run_seatrial(
        peer_python("trl"), tmp_path, "relations", "--target", "transformers", "--seed", "0", *words
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    for adapter, relation in ON_THEIR_OWN.items():
        assert f"Pass          {adapter}: {relation}" in ran.stdout
