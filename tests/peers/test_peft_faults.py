"""Each new law of `peft` breaks where PEFT is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import judged

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(600)]
NAMES = """
import torch, peft
from peft.tuners.lora import layer, model
from peft.tuners.tuners_utils import BaseTuner
"""
OF_TARGET = """
from seatrial.targets.peft.target import PeftTarget
adapters = PeftTarget().adapters()
"""
UNSCALED_EMBEDDING = """
layer.Embedding._get_embed_scale = lambda self: None
"""
CONVOLUTION_ONCE_MORE = """
delta = layer._ConvNd.get_delta_weight
layer._ConvNd.get_delta_weight = lambda self, adapter: delta(self, adapter) * self.scaling[adapter]
"""
ANY_LAYER = """
from peft.tuners import tuners_utils
found = tuners_utils.check_target_module_exists
def of_any_layer(config, key):
    kept, config.layers_to_transform = config.layers_to_transform, None
    try:
        return found(config, key)
    finally:
        config.layers_to_transform = kept
tuners_utils.check_target_module_exists = of_any_layer
model.check_target_module_exists = of_any_layer
BaseTuner._check_target_module_exists = staticmethod(of_any_layer)
"""
LOADED_INTO_FIRST = """
from peft import peft_model
put = peft_model.set_peft_model_state_dict
def into_first(given, state, adapter_name="default", **options):
    return put(given, state, "first" if "first" in given.peft_config else adapter_name, **options)
peft_model.set_peft_model_state_dict = into_first
"""
HALF_STAYS = """
from peft.tuners import tuners_utils
tuners_utils.cast_adapter_dtype = lambda *given, **options: None
BaseTuner._cast_adapter_dtype = lambda *given, **options: None
"""
SCALE_STAYS = """
from contextlib import contextmanager
from peft import helpers
@contextmanager
def stays(given, multiplier):
    for one in given.modules():
        if isinstance(one, layer.LoraLayer):
            one.scaling = {key: value * multiplier for key, value in one.scaling.items()}
    yield
helpers.rescale_adapter_scale = stays
"""
NOT_UNLOADED = """
BaseTuner.unload = lambda self: self._unload_and_optionally_merge(merge=True)
"""
PROMPT_LABELS = """
from peft import peft_model
forward = peft_model.PeftModelForCausalLM.forward
def moved(self, *given, labels=None, **options):
    labels = None if labels is None else torch.roll(labels, 1, dims=1)
    return forward(self, *given, labels=labels, **options)
peft_model.PeftModelForCausalLM.forward = moved
"""
MERGES_ALL = """
merge = layer.Linear.merge
layer.Linear.merge = lambda self, safe_merge=False, adapter_names=None: merge(self, safe_merge, None)
"""
ALL_SIGNS = """
from peft.utils import merge_utils
merge_utils.calculate_majority_sign_mask = lambda tensor, method="total": torch.sign(tensor.sum(0)) * 0 + 1
"""
PATTERN_IGNORED = """
from peft.tuners.delora import model as delora
delora.get_pattern_key = lambda names, key: key
"""
ACTIVATION_IGNORED = """
from peft import PeanutConfig
made = PeanutConfig.__post_init__
def with_relu(self):
    made(self)
    self.act_fn = "relu"
PeanutConfig.__post_init__ = with_relu
"""
BASE_AS_IT_WAS = """
layer.LoraLayer.lora_ga_init = lambda self, adapter_name, *given, **options: [
    torch.nn.init.normal_(kept[adapter_name].weight) for kept in (self.lora_A, self.lora_B)
]
"""
NO_PROMPT_BEFORE_EMBEDDINGS = """
from peft import peft_model
forward = peft_model.PeftModelForCausalLM.forward
def plain(self, input_ids=None, attention_mask=None, inputs_embeds=None, **options):
    if inputs_embeds is not None:
        return self.get_base_model()(inputs_embeds=inputs_embeds, attention_mask=attention_mask)
    return forward(self, input_ids, attention_mask, **options)
peft_model.PeftModelForCausalLM.forward = plain
"""
CONVERTS_ALL = """
from peft.tuners.hira import layer as hira
hira.Linear.supports_lora_conversion = lambda self, adapter_name="default": True
"""
SCALE_NOT_INJECTED = """
import peft.mapping as mapping
inject = peft.inject_adapter_in_model
def halved(config, *given, **options):
    config.lora_alpha = config.lora_alpha / 2
    return inject(config, *given, **options)
peft.inject_adapter_in_model = halved
"""
DROPS_THE_BASE = """
forward = layer.Linear.forward
def dropped(self, x, *given, **options):
    kept = self.lora_dropout["first"] if "first" in self.lora_dropout else torch.nn.Identity()
    return forward(self, kept(x), *given, **options)
layer.Linear.forward = dropped
"""
TRAINS_WHERE_IT_IS_NOT = """
from peft.tuners.tuners_utils import BaseTunerLayer
use = BaseTunerLayer.set_adapter
def kept(self, names, *given, **options):
    if any(name in getattr(self, "lora_A", {}) for name in ([names] if isinstance(names, str) else names)):
        use(self, names, *given, **options)
BaseTunerLayer.set_adapter = kept
"""
MERGES_AGAIN = """
layer.check_adapters_to_merge = lambda module, names=None: list(names or module.active_adapters)
"""
HALF_MERGED = """
delta = layer.Linear.get_delta_weight
layer.Linear.get_delta_weight = lambda self, adapter: delta(self, adapter) / 2
"""
HEAD_TOO = """
from peft.tuners import tuners_utils
found = tuners_utils._maybe_include_all_linear_layers
def with_the_head(config, given):
    all_linear = config.target_modules == "all-linear"
    config = found(config, given)
    if all_linear:
        head = given.get_output_embeddings()
        config.target_modules = {*config.target_modules, *(name for name, one in given.named_modules() if one is head)}
    return config
tuners_utils._maybe_include_all_linear_layers = with_the_head
"""
DRAWN_AGAIN = """
from transformers.integrations.peft import PeftAdapterMixin
load = PeftAdapterMixin.load_adapter
def drawn(self, *given, **options):
    found = load(self, *given, **options)
    for name, value in self.named_parameters():
        if "lora_A" in name:
            torch.nn.init.normal_(value)
    return found
PeftAdapterMixin.load_adapter = drawn
"""
RATE_OF_RANKS = """
from peft.tuners.loha.layer import LoHaLayer
update = LoHaLayer.update_layer
def of_ranks(self, adapter_name, *given, **options):
    update(self, adapter_name, *given, **options)
    self.module_dropout[adapter_name] = self.rank_dropout[adapter_name]
LoHaLayer.update_layer = of_ranks
"""
NOT_SCALED = """
from torch import nn
drop = nn.Dropout.forward
nn.Dropout.forward = lambda self, x: drop(self, x) * (1 - self.p if self.training else 1)
"""
FIRST_TIME = """
from peft.tuners.lora import variants
def offsets(config, active, ids, adapter_names=None):
    found = []
    for number, row in enumerate(ids.tolist()):
        own = config.get(adapter_names[number] if adapter_names else active)
        due = list(getattr(own, "alora_invocation_tokens", None) or [])
        places = [place for place in range(len(row)) if due and row[place : place + len(due)] == due]
        found.append(len(row) - places[0] if places else None)
    return found
variants.calculate_alora_offsets = offsets
"""
NO_TYPES = """
forward = peft.PeftModelForSequenceClassification.forward
def without_types(self, *given, token_type_ids=None, **options):
    return forward(self, *given, **options)
peft.PeftModelForSequenceClassification.forward = without_types
"""
ONE_KEY = """
from peft.tuners.loha import model as loha
class Alphas(dict):
    def get(self, key, default=None):
        return super().get(key, default) if key in Alphas.ranks else default
create = loha.LoHaModel._create_and_replace
def of_ranks(self, config, *given, **options):
    Alphas.ranks = set(config.rank_pattern)
    config.alpha_pattern = Alphas(config.alpha_pattern)
    return create(self, config, *given, **options)
loha.LoHaModel._create_and_replace = of_ranks
"""
WITHOUT_SHARES = """
from peft.tuners.poly.router import PolyRouter
PolyRouter.forward = lambda self, task_ids, input_ids: self.module_logits[task_ids].view(
    -1, self.n_splits, self.n_skills
).sigmoid()
"""
SIGNED = """
from peft.tuners.lora.arrow import ArrowLoraLinearLayer
torch_abs = torch.abs
route = ArrowLoraLinearLayer.forward
def signed(self, *given, **options):
    torch.abs = lambda x: x
    try:
        return route(self, *given, **options)
    finally:
        torch.abs = torch_abs
ArrowLoraLinearLayer.forward = signed
"""
UNBOUNDED = """
from peft.tuners.cpt.model import CPTEmbedding
CPTEmbedding.get_projection = lambda self: self.delta_embedding.weight.detach().clone()
"""
FIRST_TASK = """
from peft.tuners.multitask_prompt_tuning.model import MultitaskPromptEmbedding
prompt = MultitaskPromptEmbedding.forward
MultitaskPromptEmbedding.forward = lambda self, indices, task_ids: prompt(self, indices, task_ids * 0)
"""
UNTURNED = """
from peft.tuners.adaption_prompt import utils
utils.llama_rotate_half = lambda x: x
"""
NEWEST = """
load = peft.PeftModel.from_pretrained.__func__
def newest(kind, *given, revision=None, **options):
    return load(kind, *given, **options)
peft.PeftModel.from_pretrained = classmethod(newest)
"""
PARTS = "R31.adapter_parts"
ADDED_AS_THEY_ARE = """
add = peft.PeftModel.add_adapter
peft.PeftModel.add_adapter = lambda self, name, config, **options: add(
    self, name, config, **{**options, "autocast_adapter_dtype": False}
)
"""
NOT_CONVERTED = """
from peft import peft_model
load = peft_model.load_peft_weights
peft_model.load_peft_weights = lambda *given, key_mapping=None, **options: load(*given, **options)
"""
LAYERS_ALONE = """
from peft import peft_model
peft_model.AuxiliaryTrainingWrapper = ()
"""
FAULTS = [
    ("alora", "R31.activated", FIRST_TIME, "outputs"),
    ("worked", "R34.worked", ADDED_AS_THEY_ARE, "steps"),
    ("worked", "R34.worked", NOT_CONVERTED, "checkpoints"),
    ("worked", "R34.worked", LAYERS_ALONE, "states"),
    ("tasks", PARTS, NO_TYPES, "tasks"),
    ("option-patterns", PARTS, ONE_KEY, "patterns of unlike keys"),
    ("poly", PARTS, WITHOUT_SHARES, "routed by tasks"),
    ("arrow", PARTS, SIGNED, "routed by prototypes"),
    ("cpt", PARTS, UNBOUNDED, "tokens of a context"),
    ("multitask-prompts", PARTS, FIRST_TASK, "prompts of several tasks"),
    ("adaption-prompt", PARTS, UNTURNED, "prompts in attention"),
    ("versions-of-files", PARTS, NEWEST, "places of files"),
    ("prompt", "R29.routes", NO_PROMPT_BEFORE_EMBEDDINGS, "asked: embeddings given"),
    ("lora-on-llama", "R29.families", HALF_MERGED, "linear layers: merged"),
    ("lora-on-bert", "R29.families", HEAD_TOO, "linear layers: placed"),
    ("lora-on-llama", "R29.families", DRAWN_AGAIN, "linear layers: loaded by the model itself"),
    ("lora", "R29.routes", DRAWN_AGAIN, "moved: file with its base, loaded as one model"),
    ("hira", "R29.routes", CONVERTS_ALL, "moved: converted to low rank by energy"),
    ("lora", "R29.routes", SCALE_NOT_INJECTED, "moved: injected into a plain model"),
    ("lora", "R29.routes", DROPS_THE_BASE, "training with dropout starts as the base"),
    ("loha", "R29.routes", RATE_OF_RANKS, "training with all of it dropped"),
    ("vera", "R29.routes", NOT_SCALED, "training with dropout, on average"),
    ("lora", "R29.elsewhere", TRAINS_WHERE_IT_IS_NOT, "switched"),
    ("lora", "R29.elsewhere", MERGES_AGAIN, "merged twice"),
    ("lora-ga-arbr-stable", "R29.adapted", BASE_AS_IT_WAS, "starts as the base"),
    ("delora-lambda-pattern", "R29.options", PATTERN_IGNORED, "the option has an effect"),
    ("peanut-tanh", "R29.options", ACTIVATION_IGNORED, "the option has an effect"),
    ("lora-scaled-embedding", "R29.adapted", UNSCALED_EMBEDDING, "float64 oracle"),
    ("lora-conv2", "R29.merged", CONVOLUTION_ONCE_MORE, "outputs"),
    ("lora-layers-of-experts", "R29.merged", ANY_LAYER, "weights that the options name"),
    ("lora", "R29.saved", LOADED_INTO_FIRST, "loaded as another one"),
    ("lora", "R29.saved", HALF_STAYS, "float32 over bfloat16"),
    ("lora", "R29.adapted", SCALE_STAYS, "rescaled"),
    ("lora", "R29.merged", NOT_UNLOADED, "unloaded is the base"),
    ("lora", "R29.merged", MERGES_ALL, "one of two by name"),
    ("lora", "R29.combined", ALL_SIGNS, "by elected signs"),
    ("prompt", "R29.adapted", PROMPT_LABELS, "loss of labels"),
]


@pytest.mark.parametrize(
    ("adapter", "relation", "patch", "law"),
    [
        pytest.param(*case, marks=[pytest.mark.nightly] * (number > 0), id=f"{case[0]}: {case[3]}")
        for number, case in enumerate(FAULTS)
    ],
)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, patch: str, law: str
) -> None:
    """The law about the patched place is among those broken."""
    outcome, broken = judged(peer_python("trl"), [NAMES, patch, OF_TARGET], adapter, relation)
    assert outcome == "Fail" and law in broken, broken
