"""Calls of layers, heads, conversions and starts that Transformers' families share, whose results are on record."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.tiny import made_model
from seatrial.targets.transformers.family_drawn import draw_by_names_alone
from seatrial.targets.transformers.small_models import model_class as of_name
from seatrial.targets.transformers.worked.every_class import crc
from seatrial.targets.transformers.worked.losses import numbers
from seatrial.targets.transformers.worked.recorded_calls import Call, refusal, rows_of
from seatrial.targets.transformers.worked.weights import SIZES

LOADING = "transformers.core_model_loading"
IDS = torch.tensor([[5, 9, 7, 0, 0], [3, 4, 6, 8, 11], [0, 0, 12, 13, 14], [0, 0, 0, 0, 0]])
MASK = (IDS != 0).long()


def _drawn(kind: str, **options: Any) -> Any:
    """Return a tiny Qwen2 whose weights depend on their names alone."""
    model = (
        of_name(kind)
        ._from_config(of_name("Qwen2Config")(**SIZES, **options), attn_implementation="eager")
        .float()
    )
    draw_by_names_alone(model)
    return model.eval()


def _rows(model_class: Any) -> Any:
    """Return scores of rows with padding on either side, of embeddings, without a padding id, and losses."""
    model = _drawn("Qwen2ForSequenceClassification", num_labels=3)
    found: list[Any] = []
    with torch.no_grad():
        embeds = model.get_input_embeddings()(IDS)
        for given in ({"input_ids": IDS, "attention_mask": MASK}, {"input_ids": IDS}, {"inputs_embeds": embeds},
                      {"inputs_embeds": embeds, "attention_mask": MASK}):  # fmt: skip
            found.append(refusal(lambda given=given: model(**given).logits))
        for labels, kind in ((torch.tensor([0, 1, 2, 0]), None), (numbers(4, 3), "regression"),
                             ((numbers(4, 3) > 0).float(), None)):  # fmt: skip
            model.config.problem_type = kind
            found.append(model(input_ids=IDS, attention_mask=MASK, labels=labels).loss)
        out = model(
            input_ids=IDS[1:2], attention_mask=MASK[1:2], output_hidden_states=True, output_attentions=True
        )
        found.append([len(out.hidden_states), len(out.attentions), out.past_key_values is not None])
        model.config.pad_token_id = None
        found.append(refusal(lambda: model(input_ids=IDS)))
        found.append(model(input_ids=IDS[:1]).logits)
    return found


def _places(model_class: Any) -> Any:
    """Return classes of tokens and spans with losses, and types of dropout."""
    model = _drawn("Qwen2ForTokenClassification", num_labels=3, classifier_dropout=0.25)
    spans = _drawn("Qwen2ForQuestionAnswering")
    with torch.no_grad():
        labels = torch.tensor([[0, 1, 2, -100, -100], [1, 1, 2, 2, 0], [-100, -100, 0, 0, 1], [-100] * 5])
        one = model(input_ids=IDS, attention_mask=MASK, labels=labels)
        two = spans(input_ids=IDS, attention_mask=MASK, start_positions=torch.tensor([0, 1, 2, 9]),
                    end_positions=torch.tensor([2, 4, 4, 9]))  # fmt: skip
    found = [one.loss, one.logits, two.loss, two.start_logits, two.end_logits, model.dropout.p]
    plain = _drawn("Qwen2ForTokenClassification", num_labels=3)
    table = spans.get_input_embeddings()
    spans.set_input_embeddings(nn.Embedding(3, 16))
    return [
        *found,
        plain.dropout.p,
        list(table.weight.shape),
        list(spans.get_input_embeddings().weight.shape),
    ]


def _computed_again(made: Any) -> Any:
    """Return what a layer is given when it is computed again, in training and not."""
    seen: list[Any] = []

    class Layer(made):  # type: ignore[misc]
        def forward(self, states: Any, **options: Any) -> Any:
            seen.append(sorted(f"{name}={one}" for name, one in options.items()))
            return states

    layer = Layer()
    given = {"use_cache": True, "past_key_values": "cache", "cache": "cache", "layer_past": "past",
             "past_key_value": "one", "attention_mask": 3}  # fmt: skip
    calls: list[Any] = []

    def call_again(call: Any, *more: Any) -> Any:
        calls.append(len(more))
        return call(*more)

    for again, trains in ((False, True), (True, False), (True, True)):
        layer.gradient_checkpointing = again
        layer._gradient_checkpointing_func = call_again
        layer.train(trains)
        layer("states", **given)
    return [seen, calls]


ORIGINAL = "original_max_position_embeddings"
FACTORS = {"short_factor": [1.0, 1.5], "long_factor": [2.0, 4.0]}


def _lengths(made: Any) -> Any:
    """Return cosines of rows of several lengths, one after the other, of each kind whose frequencies change."""
    kinds: Sequence[Any] = (
        {"rope_type": "dynamic", "factor": 3.0}, {"rope_type": "longrope", "factor": 4.0, ORIGINAL: 16, **FACTORS},
        {"rope_type": "longrope", "attention_factor": 0.5, ORIGINAL: 16, **FACTORS}, {"rope_type": "default"},
    )  # fmt: skip
    found = []
    for kind in kinds:
        config = of_name("LlamaConfig")(
            **SIZES, rope_scaling=dict(kind) if kind["rope_type"] != "default" else None
        )
        if ORIGINAL in kind:
            config.original_max_position_embeddings = 16
        layer = made(config=config)
        for last in (3, 80, 40, 10, 17, 100, 63, 64):
            places = torch.tensor([[0, 1, last - 1]])
            cos, sin = layer(torch.zeros(1, 3, 16), places)
            found.append([cos[0, -1], sin[0, -1, :2]])
        found.append([str(cos.dtype), str(layer(torch.zeros(1, 3, 16).half(), places)[0].dtype)])
    return found


def _operation(
    options: Sequence[Any], given: Any, targets: Sequence[str], made: Any, back: bool = True
) -> Any:
    """Return what an operation makes of tensors, and what its reverse makes of that."""
    found: list[Any] = []
    config = SimpleNamespace(
        number=3, num_attention_heads=2, vision_config=SimpleNamespace(num_attention_heads=1)
    )
    config.get_text_config = lambda: config
    sizes = {"q.weight": torch.zeros(4, 3), "k.weight": torch.zeros(2, 3), "v.weight": torch.zeros(2, 3)}
    more = {"config": config, "model": SimpleNamespace(get_parameter=lambda name: sizes[name])}
    for option in options:
        one = made(**option)
        tensors = {
            name: [one.clone() for one in value] if isinstance(value, list) else value.clone()
            for name, value in given.items()
        }
        call = partial(one.convert, full_layer_name=targets[0], **more)
        there = refusal(lambda call=call, tensors=tensors: dict(
            call(tensors, source_patterns=list(given), target_patterns=list(targets))))  # fmt: skip
        found.append(there)
        reverse = type(one.reverse_op).__name__
        if isinstance(there, str) or not back:
            found.append(reverse)
            continue
        again = refusal(lambda one=one, there=there: dict(one.reverse_op.convert(
            dict(there), source_patterns=list(targets), target_patterns=list(given), full_layer_name=targets[0],
            **more)))  # fmt: skip
        found.append([reverse, again])
    return found


def _op(
    name: str, what: str, options: Sequence[Any], given: Any, targets: Sequence[str], back: bool = True
) -> Call:
    return Call("states", f"{LOADING}:{name}", what, partial(_operation, options, given, targets, back=back))


def _table(function: Any) -> Any:
    """Return a checksum of the conversions of every kind."""
    mapping = importlib.import_module("transformers.conversion_mapping")
    build = getattr(mapping, "_build_checkpoint_conversion_mapping", None)
    if build is None:
        raise NotServed("this release has no table of conversions")
    return {name: crc([_described(one) for one in ones]) for name, ones in sorted(build().items())}


def _described(one: Any) -> Any:
    def words(value: Any) -> Any:
        if isinstance(value, str | int | float | bool) or value is None:
            return value
        if isinstance(value, list | tuple):
            return [words(part) for part in value]
        if isinstance(value, dict):
            return {str(name): words(part) for name, part in value.items()}
        if hasattr(value, "pattern"):
            return value.pattern
        return [type(value).__name__, {name: words(part) for name, part in sorted(vars(value).items())
                                       if not name.startswith("_") and not callable(part)}]  # fmt: skip

    names = (
        "source_patterns",
        "target_patterns",
        "operations",
        "prefix_to_add",
        "prefix_to_remove",
        "model_prefix",
    )
    return [type(one).__name__, {name: words(getattr(one, name)) for name in names if hasattr(one, name)}]


def _starts(calls: Sequence[Any], function: Any) -> Any:
    """Return where means, spreads and largest values are not those due, and whether a tensor that was read is kept."""
    found: list[Any] = []
    for options, mean, spread, largest in calls:
        values = torch.zeros(300, 200)
        function(values, **options)
        close = abs(float(values.std()) - spread) <= 0.03 * spread
        close = close and abs(float(values.mean()) - mean) <= 0.03 * max(spread, 1e-6)
        found.append(close and float(values.abs().max()) <= largest * (1 + 1e-6))
        kept = torch.full((2, 2), 7.0)
        kept._is_hf_initialized = True  # type: ignore[attr-defined]
        function(kept, **options)
        found.append(bool((kept == 7.0).all()))
    return found


def _guarded(function: Any) -> Any:
    with function():
        kept = nn.Parameter(torch.full((2, 2), 7.0))
        kept._is_hf_initialized = True  # type: ignore[attr-defined]
        nn.init.normal_(kept)
        free = nn.init.ones_(nn.Parameter(torch.zeros(2)))
    before = bool((kept == 7.0).all())
    nn.init.zeros_(kept)
    return [before, free.tolist(), bool((kept == 0).all())]


def _distributions(made: Any) -> Any:
    """Return means, spreads and log-densities of a distribution of projected numbers, scaled and not."""
    output = made(dim=1)
    size = len(output.args_dim)
    raw = [numbers(3, 1, seed=one) for one in range(size)]
    args = output.domain_map(*raw)
    found: list[Any] = [list(args), size, list(output.event_shape), output.event_dim, output.value_in_support]
    for options in ({}, {"scale": torch.tensor(2.0)}, {"loc": torch.tensor(1.5), "scale": torch.tensor(0.5)}):
        one = output.distribution(args, **options)
        found.append(refusal(lambda one=one: [one.mean, one.variance, one.log_prob(torch.ones(3))]))
        found.append(refusal(lambda one=one: one.stddev))
    layer = output.get_parameter_projection(4)
    found.append([sorted(name for name, _ in layer.named_parameters()), len(layer(torch.zeros(2, 4)))])
    two = made(dim=2)
    return [*found, list(two.event_shape), refusal(lambda: two.distribution(
        two.domain_map(*[numbers(3, 2, seed=one) for one in range(size)])).log_prob(torch.ones(3, 2)))]  # fmt: skip


def _experts(made: Any) -> Any:
    """Return which implementations of experts give other outputs than the plain one, by masks and biases."""
    config = of_name("Qwen3MoeConfig")(
        **SIZES,
        num_experts=6,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
        head_dim=4,
        decoder_sparse_step=1,
    )
    found = []
    ids = torch.arange(3, 15).reshape(2, 6)
    model = made_model(made, config, 0).eval()
    if not hasattr(model, "set_experts_implementation"):
        raise NotServed("experts of this release have one implementation")
    for kind in ("eager", "batched_mm", "grouped_mm"):
        model.set_experts_implementation(kind)
        with torch.no_grad():
            found.append(model(input_ids=ids, use_cache=False).logits)
    return [bool((one - found[0]).abs().max() < 1e-4) for one in found]


def _activation(module: Any) -> Any:
    """Return values and gradients of activations that have parameters or bounds of their own."""
    found: list[Any] = []
    values = numbers(8, scale=4.0)
    for name, options in (
        ("ClippedGELUActivation", {"min": -0.1, "max": 1.0}), ("LaplaceActivation", {}), ("ReLUSquaredActivation", {}),
        ("XIELUActivation", {}), ("XIELUActivation", {"alpha_p_init": 0.5, "alpha_n_init": 1.1, "beta": 0.7}),
        ("AccurateGELUActivation", {}), ("QuickGELUActivation", {}), ("LinearActivation", {}), ("MishActivation", {}),
        ("GELUActivation", {"use_gelu_python": True}), ("GELUTanh", {"use_gelu_tanh_python": True}),
        ("PytorchGELUTanh", {}), ("NewGELUActivation", {}), ("FastGELUActivation", {}),
    ):  # fmt: skip
        made = getattr(module, name, None)
        if made is None:
            continue
        own = values.clone().requires_grad_(True)
        out = refusal(lambda made=made, options=options, own=own: made(**options)(own))
        if isinstance(out, Tensor):
            out.float().sum().backward()  # type: ignore[no-untyped-call]
        found.append([name, out, own.grad])
    return found


THREE = {"e.*.w": [numbers(2, 3, seed=one) for one in range(3)]}
TWO = {
    f"e.*.{name}": [numbers(2, 3, seed=first + one) for one in range(4)]
    for name, first in (("w1", 0), ("w3", 4))
}
FUSED = {"qkv.weight": numbers(8, 3)}
DRAWN: Mapping[str, Sequence[Any]] = {
    "trunc_normal_": [({"std": 0.5}, 0.0, 0.5, 2.0), ({"mean": 1.0, "std": 0.5, "a": 0.5, "b": 1.5}, 1.0, 0.2698, 1.5)],
    "uniform_": [({"a": -1.0, "b": 3.0}, 1.0, 4 / 12**0.5, 3.0)], "constant_": [({"val": 2.5}, 2.5, 0.0, 2.5)],
    "xavier_uniform_": [({}, 0.0, 0.06325, 0.1096), ({"gain": 3.0}, 0.0, 0.18974, 0.3287)],
    "xavier_normal_": [({}, 0.0, 0.06325, 1.0), ({"gain": 3.0}, 0.0, 0.18974, 2.0)],
    "kaiming_uniform_": [({}, 0.0, 0.1, 0.1733), ({"a": 2.0}, 0.0, 0.04472, 0.0775),
                         ({"mode": "fan_out"}, 0.0, 0.08165, 0.1415)],
    "kaiming_normal_": [({}, 0.0, 0.1, 1.0), ({"mode": "fan_out"}, 0.0, 0.08165, 1.0),
                        ({"nonlinearity": "relu"}, 0.0, 0.1, 1.0)],
    "orthogonal_": [({}, 0.0, 0.05774, 1.0), ({"gain": 3.0}, 0.0, 0.1732, 3.0)],
    "default_flax_embed_init_": [({}, 0.0, 0.07071, 1.0)],
}  # fmt: skip
"""Options of a start of a matrix [300, 200]; the mean, the spread and the largest value that are due."""
SERIES = "transformers.time_series_utils"
STARTS = "transformers.initialization"
CALLS: Sequence[Call] = (
    Call("formulas", "transformers:Qwen2ForSequenceClassification", "rows padded on either side", _rows),
    Call("formulas", "transformers:Qwen2ForTokenClassification", "classes of places and spans", _places),
    Call("models", "transformers.modeling_layers:GradientCheckpointingLayer", "what is computed again",
         _computed_again),
    Call("formulas", "transformers.models.llama.modeling_llama:LlamaRotaryEmbedding", "rows of changing lengths",
         _lengths),
    Call("models", "transformers:Qwen3MoeForCausalLM", "implementations of experts", _experts),
    Call("formulas", "transformers.activations:ACT2FN", "bounds and parameters",
         lambda one: _activation(importlib.import_module("transformers.activations"))),
    *(Call("formulas", f"{SERIES}:{name}", "means, spreads and densities", _distributions)
      for name in ("StudentTOutput", "NormalOutput", "NegativeBinomialOutput")),
    Call("states", f"{LOADING}:WeightConverter", "conversions of every kind", _table),
    _op("Chunk", "parts of the same size", [{}, {"dim": 1}], {"qkv.weight": numbers(6, 3)}, ["q.w", "k.w", "v.w"]),
    _op("Chunk", "as many parts as an option says", [{"num_shards_attribute": "number"}], {"w": numbers(6, 3)},
        ["p.*"]),
    _op("Split", "parts of sizes of a model", [{}], FUSED, ["q.weight", "k.weight", "v.weight"]),
    _op("MergeModulelist", "one list and two", [{}, {"dim": 1}], THREE, ["e.w"]),
    _op("SplitModulelist", "numbers of parts", [{}, {"dim": 1}], {"e.w": numbers(3, 2, 2)}, ["e.*.w"]),
    _op("Conv3dToLinear", "a matrix of patches", [{"in_channels": 2, "kernel_size": (1, 2, 2)}],
        {"p": numbers(3, 2, 1, 2, 2)}, ["p"]),
    _op("LinearToConv3d", "patches of a matrix", [{"in_channels": 2, "kernel_size": (1, 2, 2)}], {"p": numbers(3, 8)},
        ["p"]),
    _op("ErnieFuseAndSplitTextVisionExperts", "experts of two kinds", [{}], TWO, ["text.gate_up", "vision.gate_up"]),
    _op("Interleave", "rows that alternate", [{}, {"dim": 1}, {"inverse": True}], {"w": numbers(4, 4)}, ["w"]),
    _op("Inkling2LoopMergeMessageQueries", "queries of loops", [{}], {"a": numbers(6, 2), "b": numbers(6, 2, seed=1)},
        ["c"]),
    *(Call("models", f"{STARTS}:{name}", "values", partial(_starts, calls)) for name, calls in DRAWN.items()),
    Call("models", f"{STARTS}:guard_torch_init_functions", "weights that are read", _guarded),
)  # fmt: skip
PART_CALL_ROWS = rows_of(CALLS)
