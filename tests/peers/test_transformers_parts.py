"""Laws of Transformers' small functions, of calls, files and heads of models break where Transformers is patched."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.peers.patched import judged
from tests.peers.test_transformers_adapters import NAMES, OF_TARGET

pytestmark = [pytest.mark.peer, pytest.mark.slow, pytest.mark.timeout(900)]
WORD_IS_TRUE = """
from transformers.configuration_utils import PreTrainedConfig
def read(self, text):
    for name, word in (pair.split("=") for pair in text.split(",")):
        setattr(self, name, type(getattr(self, name))(word))
PreTrainedConfig.update_from_string = read
"""
NOT_RESTORED = "transformers.Trainer._load_callback_state = lambda self: None"
LARGER_IS_BETTER = """
decide = transformers.Trainer._determine_best_metric
def larger(self, metrics, trial):
    self.args.greater_is_better = True
    return decide(self, metrics, trial)
transformers.Trainer._determine_best_metric = larger
"""
NEVER_NONE = """
from transformers.utils import chat_template_utils
parse = chat_template_utils._parse_type_hint
chat_template_utils._parse_type_hint = lambda hint: {
    name: value for name, value in parse(hint).items() if name != "nullable"
}
"""
OTHER_CUT = """
from transformers.tokenization_utils_base import PreTrainedTokenizerBase, TruncationStrategy
choose = PreTrainedTokenizerBase._get_padding_truncation_strategies
def longest(self, *args, **options):
    padding, cut, length, more = choose(self, *args, **options)
    longest_first = TruncationStrategy.LONGEST_FIRST
    return padding, longest_first if cut == TruncationStrategy.ONLY_SECOND else cut, length, more
PreTrainedTokenizerBase._get_padding_truncation_strategies = longest
"""
ONE_STEP_LATER = """
from transformers.generation import logits_process
penalise = logits_process.ExponentialDecayLengthPenalty.__call__
logits_process.ExponentialDecayLengthPenalty.__call__ = lambda self, ids, scores: penalise(self, ids[:, 1:], scores)
"""
WIDER = """
from transformers import masking_utils
overlay = masking_utils.sliding_window_overlay
masking_utils.sliding_window_overlay = lambda window: overlay(window + 1)
"""
STARTS_ALONE = """
from transformers.models.electra import modeling_electra
forward = modeling_electra.ElectraForQuestionAnswering.forward
def starts(self, *args, **options):
    found = forward(self, *args, **options)
    if options.get("start_positions") is not None:
        width = found.start_logits.shape[1]
        found["loss"] = torch.nn.functional.cross_entropy(
            found.start_logits, options["start_positions"].clamp(max=width), ignore_index=width
        )
    return found
modeling_electra.ElectraForQuestionAnswering.forward = starts
"""
TYPE_OF_FILES = """
load = transformers.PreTrainedModel.from_pretrained.__func__
transformers.PreTrainedModel.from_pretrained = classmethod(
    lambda cls, *args, dtype=None, **options: load(cls, *args, **options)
)
"""
ONE_SCALE = """
from transformers.models.deepseek_v3 import modeling_deepseek_v3
modeling_deepseek_v3.yarn_apply_mscale = lambda parameters, scaling: scaling
"""
ANOTHER_SCALE = """
from transformers.models.qwen3 import modeling_qwen3
make = modeling_qwen3.Qwen3Attention.__init__
def scaled(self, *args, **options):
    make(self, *args, **options)
    self.scaling *= 1.2
modeling_qwen3.Qwen3Attention.__init__ = scaled
"""
GROUPS_BY_ZERO = """
from transformers.models.deepseek_v3 import modeling_deepseek_v3
Router = modeling_deepseek_v3.DeepseekV3TopkRouter
route = torch.Tensor.masked_fill
def forward(self, states, plain=Router.forward):
    torch.Tensor.masked_fill = lambda scores, mask, value: route(scores, mask, 0.0)
    try:
        return plain(self, states)
    finally:
        torch.Tensor.masked_fill = route
Router.forward = forward
"""
PROBABILITIES = """
from transformers.models.mixtral import modeling_mixtral
route = modeling_mixtral.MixtralTopKRouter.forward
def forward(self, states):
    logits, *others = route(self, states)
    return (logits.softmax(-1), *others)
modeling_mixtral.MixtralTopKRouter.forward = forward
"""
ONE_MORE = """
from transformers import masking_utils
slides = masking_utils.sliding_window_overlay
masking_utils.sliding_window_overlay = lambda window: slides(window + 1)
"""
MULTIPLIED = """
from transformers.models.cohere import modeling_cohere
make = modeling_cohere.CohereForCausalLM.__init__
def made(self, config):
    make(self, config)
    self.logit_scale = self.logit_scale**2
modeling_cohere.CohereForCausalLM.__init__ = made
"""
ROWS_STAY = """
from transformers import cache_utils
cache_utils.Cache.reorder_cache = lambda self, beam_idx: None
"""
PADDING_COUNTS = """
from transformers.models.mixtral import modeling_mixtral
balance = modeling_mixtral.load_balancing_loss_func
modeling_mixtral.load_balancing_loss_func = lambda logits, experts, chosen, mask: balance(logits, experts, chosen)
"""
TURNED = """
from transformers.models.vit.modeling_vit import ViTEmbeddings
interpolate = ViTEmbeddings.interpolate_pos_encoding
ViTEmbeddings.interpolate_pos_encoding = lambda self, *args: interpolate(self, *args).flip(1)
"""
OPTION_LOST = """
from transformers import GenerationConfig
read = GenerationConfig.from_dict.__func__
def without(cls, config_dict, **options):
    return read(cls, {name: value for name, value in config_dict.items() if name != "top_k"}, **options)
GenerationConfig.from_dict = classmethod(without)
"""
OLD_TOKENS = "transformers.trainer.align_special_tokens = lambda model, tokenizer: None"
WRAPPER_LABELS = "transformers.trainer.unwrap_peft_model = lambda model: model"
NEXT_RATE = """
log = transformers.Trainer._maybe_log_save_evaluate
def of_next_step(self, *given, learning_rate=None, **options):
    return log(self, *given, learning_rate=self._get_learning_rate(), **options)
transformers.Trainer._maybe_log_save_evaluate = of_next_step
"""
NOT_SCALED = """
from transformers.models.gpt2.modeling_gpt2 import GPT2PreTrainedModel
GPT2PreTrainedModel._init_weights = transformers.PreTrainedModel._init_weights
"""
FAULTS = [
    ("worked-starts", "R34.worked", NOT_SCALED, "models"),
    ("worked", "R34.worked", OLD_TOKENS, "checkpoints"),
    ("worked", "R34.worked", WRAPPER_LABELS, "validations"),
    ("worked", "R34.worked", NEXT_RATE, "steps"),
    ("recorded-qwen3", "R5.recorded", ANOTHER_SCALE, "logits"),
    ("utilities", "R31.encodings", OTHER_CUT, "texts and pairs"),
    ("utilities", "R31.schemas", NEVER_NONE, "types"),
    ("utilities", "R31.scores", ONE_STEP_LATER, "ExponentialDecayLengthPenalty"),
    ("utilities", "R31.visible", WIDER, "keys that a query sees"),
    ("utilities", "R31.training_parts", WORD_IS_TRUE, "options in a text"),
    ("utilities-of-trainers", "R31.training_parts", NOT_RESTORED, "early stops and the best checkpoint"),
    ("utilities-of-trainers", "R31.training_parts", LARGER_IS_BETTER, "early stops and the best checkpoint"),
    ("heads-electra", "R5.heads", STARTS_ALONE, "loss"),
    ("base-vit", "R5.base", TURNED, "positions of the same size"),
    ("configurations-of-training", "R18.configurations", OPTION_LOST, "saved and loaded"),
    ("family-llama", "R5.files", TYPE_OF_FILES, "in bfloat16"),
    ("family-llama", "R5.cached", ROWS_STAY, "reordered"),
    ("family-mixtral", "R5.calls", PADDING_COUNTS, "loss of routers"),
    ("family-deepseek_v3", "R5.calls", ONE_SCALE, "scale of attention by larger queries"),
    ("family-deepseek_v3", "R5.calls", GROUPS_BY_ZERO, "experts by definition"),
    ("family-mixtral", "R5.calls", PROBABILITIES, "logits of routers"),
    ("family-gemma3_text", "R5.calls", ONE_MORE, "places in a window"),
    ("family-cohere", "R5.calls", MULTIPLIED, "head by definition"),
]


@pytest.mark.nightly
@pytest.mark.parametrize(("adapter", "relation", "fault", "law"), FAULTS)
def test_a_patched_release_breaks_the_law(
    peer_python: Callable[[str], Path], adapter: str, relation: str, fault: str, law: str
) -> None:
    """Each fault is of one place of Transformers."""
    outcome, broken = judged(peer_python("trl"), [NAMES, fault, OF_TARGET], adapter, relation)
    assert outcome == "Fail"
    assert law in broken
