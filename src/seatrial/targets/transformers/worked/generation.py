"""Worked examples of the options of generation: what is written, read, changed and refused, and what encoders get."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from seatrial.targets.common.known import KnownFailure
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.caches import CACHE_ROWS
from seatrial.targets.transformers.worked.callers import CALLER_ROWS
from seatrial.targets.transformers.worked.drafts import DRAFT_ROWS
from seatrial.targets.transformers.worked.helpers import HELPER_ROWS
from seatrial.targets.transformers.worked.modes import MODE_ROWS
from seatrial.targets.transformers.worked.scores import SCORE_ROWS
from seatrial.targets.transformers.worked.settings import SETTING_ROWS
from seatrial.targets.transformers.worked.states import STATE_ROWS
from seatrial.targets.transformers.worked.stops import STOP_ROWS

WRITTEN: Sequence[Mapping[str, Any]] = (
    {},
    {
        "max_new_tokens": 7,
        "min_new_tokens": 2,
        "do_sample": True,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.75,
    },
    {"do_sample": True, "min_p": 0.25, "typical_p": 0.5, "epsilon_cutoff": 0.125, "eta_cutoff": 0.0625},
    {"num_beams": 4, "early_stopping": "never", "length_penalty": 0.5, "num_return_sequences": 3},
    {"num_beams": 2, "early_stopping": True, "max_length": 90, "min_length": 4},
    {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": [2, 3], "decoder_start_token_id": 4},
    {
        "repetition_penalty": 1.25,
        "no_repeat_ngram_size": 3,
        "encoder_no_repeat_ngram_size": 2,
        "use_cache": False,
    },
    {
        "bad_words_ids": [[1], [2, 3]],
        "suppress_tokens": [4],
        "begin_suppress_tokens": [5, 6],
        "guidance_scale": 1.5,
    },
    {
        "sequence_bias": [[[5, 6], -1.5]],
        "exponential_decay_length_penalty": [3, 1.25],
        "stop_strings": ["a", "b"],
    },
    {"cache_implementation": "static", "prompt_lookup_num_tokens": 3, "num_assistant_tokens": 4},
    {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "renormalize_logits": True,
    },
    {"forced_bos_token_id": 8, "forced_eos_token_id": 9, "remove_invalid_values": True, "max_time": 2.5},
    {"of_the_caller": {"one": [1, {"2": "b"}]}, "temperature": 0.5, "do_sample": True},
)
"""Options of generation; of each table a configuration is made."""
ADDED = ("transformers_version", "_from_model_config")
"""What a file has besides the options."""


def _own(written: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if name not in ADDED}


def _kept(config_class: Any) -> list[str]:
    """Return which options are others in dictionaries, texts and files, or after these were read."""
    wrong = []
    base = {name: value for name, value in config_class().to_dict().items() if name not in ADDED}
    for options in WRITTEN:
        config = config_class(**options)
        folder = new_folder()
        config.save_pretrained(folder)
        file = Path(folder) / "generation_config.json"
        config.to_json_file(str(file.with_name("whole.json")), use_diff=False)
        changed = {name: value for name, value in options.items() if name not in base or base[name] != value}
        forms: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
            "a dictionary": (config.to_dict(), {**base, **options}),
            "what differs": (config.to_diff_dict(), changed),
            "a text": (json.loads(config.to_json_string()), changed),
            "a whole text": (json.loads(config.to_json_string(use_diff=False)), {**base, **options}),
            "a file": (json.loads(file.read_text(encoding="utf-8")), changed),
            "a whole file": (
                json.loads(file.with_name("whole.json").read_text(encoding="utf-8")),
                {**base, **options},
            ),
            "a file that was read": (config_class.from_pretrained(folder).to_dict(), {**base, **options}),
            "a dictionary that was read": (
                config_class.from_dict(config.to_dict()).to_dict(),
                {**base, **options},
            ),
        }
        for what, (found, due) in forms.items():
            own = _own(found)
            wrong += [
                f"{name} is {own.get(name, 'left out')} in {what} of {dict(options)}"
                for name in sorted({*own, *due})
                if name not in own or name not in due or own[name] != due[name]
            ]
    return wrong


def _unused(config_class: Any) -> list[Any]:
    """Return options after a change and after a file was read under others, and what neither takes."""
    folder = new_folder()
    config_class(max_new_tokens=7, do_sample=True, top_k=3).save_pretrained(folder)
    changed = config_class(top_k=3)
    rest = changed.update(top_k=4, do_sample=True, not_known=1)
    own = {"_from_auto": True, "_from_pipeline": "text"}  # of the library's own callers
    read = config_class.from_pretrained(folder, top_k=5)
    made, unused = config_class.from_dict({"top_k": 3}, **own, return_unused_kwargs=True)
    return [
        [changed.top_k, changed.do_sample, hasattr(changed, "not_known"), rest],
        [read.top_k, read.max_new_tokens, read.do_sample],
        [unused, *(name in vars(made) for name in own)],
    ]


def _unused_of_file(config_class: Any) -> dict[str, Any]:
    """Return the arguments that are given back when a file is read."""
    folder = new_folder()
    config_class(do_sample=True, top_k=3).save_pretrained(folder)
    _, left = config_class.from_pretrained(folder, top_k=5, not_known=1, return_unused_kwargs=True)
    return dict(left)


def _changed_defaults(config_class: Any) -> list[Any]:
    """Return options after a change of those alone that are not set."""
    config = config_class(top_k=3, do_sample=True)
    left = config.update(defaults_only=True, top_k=5, temperature=0.5, not_known=1)
    return [config.top_k, config.temperature, config.do_sample, left]


def _nested(config_class: Any) -> list[Any]:
    """Return a configuration in a configuration as it is written and as it is read again, and one of a compiler."""
    import transformers

    own: Any = transformers.WatermarkingConfig
    config = config_class(watermarking_config=own(greenlist_ratio=0.5, bias=1.5, context_width=2))
    folder = new_folder()
    config.save_pretrained(folder)
    read = config_class.from_pretrained(folder).watermarking_config
    names = ("greenlist_ratio", "bias", "context_width")
    written = [
        json.loads(config.to_json_string(use_diff=differs))["watermarking_config"]
        for differs in (True, False)
    ]
    compiled: Any = transformers.CompileConfig
    text = config_class(compile_config=compiled(dynamic=True, mode="default")).to_json_string()
    return [
        *([one[name] for name in names] for one in written),
        [getattr(read, name) for name in names],
        [json.loads(text)["compile_config"][name] for name in ("dynamic", "mode")],
    ]


MODEL_OPTIONS = {"eos_token_id": 5, "pad_token_id": 6, "bos_token_id": 7}


def _of_model(config_class: Any) -> list[Any]:
    """Return what a configuration takes from one of a model."""
    import transformers

    made: Any = transformers.Qwen2Config
    config = config_class.from_model_config(made(**MODEL_OPTIONS, vocab_size=90))
    return [*(getattr(config, name) for name in MODEL_OPTIONS), hasattr(config, "vocab_size")]


REFUSED: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "early_stopping": (
        {"early_stopping": "soon"},
        {"early_stopping": True},
        {"num_beams": 1, "early_stopping": True},
        {"num_beams": 1, "early_stopping": "never"},
    ),
    "length_penalty": ({"length_penalty": 0.5}, {"num_beams": 1, "length_penalty": 2.0}),
    "num_return_sequences": (
        {"num_return_sequences": 2},
        {"num_beams": 1, "num_return_sequences": 2, "do_sample": False},
        {"num_beams": 3, "num_return_sequences": 4},
    ),
    "max_new_tokens": ({"max_new_tokens": 0}, {"max_new_tokens": -1}),
    "pad_token_id": ({"pad_token_id": -1},),
    "cache_implementation": ({"cache_implementation": "other"},),
    "temperature": ({"temperature": 0.5}, {"do_sample": False, "temperature": 0.5}),
    "top_p": ({"top_p": 0.5},),
    "top_k": ({"top_k": 5},),
    "min_p": ({"min_p": 0.5}, {"min_p": 0.0}),
    "typical_p": ({"typical_p": 0.5},),
    "epsilon_cutoff": ({"epsilon_cutoff": 0.5},),
    "eta_cutoff": ({"eta_cutoff": 0.5},),
    "output_scores": ({"output_scores": True},),
    "output_logits": ({"output_logits": True},),
    "logits_processor": ({"logits_processor": [1]},),
    "streamer": ({"streamer": 1},),
}
"""Configurations that are not saved, by the option that the error names."""
TAKEN: Sequence[Mapping[str, Any]] = (
    *WRITTEN,
    {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 50,
        "typical_p": 1.0,
        "epsilon_cutoff": 0.0,
        "eta_cutoff": 0.0,
    },
    {"num_beams": 1, "length_penalty": 1.0, "early_stopping": False, "num_return_sequences": 1},
    {"num_beams": 3, "num_return_sequences": 3},
    {"do_sample": True, "num_return_sequences": 5},
    {"max_new_tokens": 1, "pad_token_id": 0},
)
"""Configurations that are saved, those at the edge of the others among them."""


def _saves(config_class: Any, options: Mapping[str, Any]) -> str | None:
    """Return the words of the error, None where a configuration that is changed to these options is saved."""
    try:
        config = config_class(**options)
        config.save_pretrained(new_folder())
    except ValueError as error:
        return str(error)
    return None


def _refused(config_class: Any) -> list[str]:
    """Return which configurations are saved that contradict themselves, or whose error does not name the option."""
    wrong = []
    for name, tables in REFUSED.items():
        for options in tables:
            said = _saves(config_class, options)
            if said is None or name not in said:
                wrong.append(f"{dict(options)}: {said or 'saved'}")
    for options in TAKEN:
        said = _saves(config_class, options)
        wrong += [] if said is None else [f"{dict(options)} is refused: {said}"]
    return wrong


def _loaded_ones(config_class: Any) -> list[bool]:
    """Return whether a flawed file is saved again as it is, and after a change."""
    folder = Path(new_folder())
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.5}), encoding="utf-8")

    def saved(change: Callable[[Any], None]) -> bool:
        config = config_class.from_pretrained(str(folder))
        change(config)
        try:
            config.save_pretrained(new_folder())
        except ValueError:
            return False
        return True

    return [saved(lambda config: None), saved(lambda config: config.update(top_p=0.5))]


def _encoders() -> Iterator[tuple[str, Any]]:
    """Yield models of an encoder and a decoder; the encoder of the second takes any argument."""
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1,
             "decoder_attention_heads": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8, "vocab_size": 20,
             "max_position_embeddings": 32}  # fmt: skip
    ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2}
    for form in ("named", "any", "any, as model_kwargs"):
        made: Any = find_name("transformers", ["transformers:BartForConditionalGeneration"])
        config: Any = find_name("transformers", ["transformers:BartConfig"])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            yield form, made(config(**sizes, **ids)).eval()


def _given_to_encoders(mixin: Any) -> list[Any]:
    """Return the arguments, besides its own, that an encoder gets of a call of `generate`, by what it takes."""
    found = []
    for form, model in _encoders():
        seen: dict[str, Any] = {}
        encode = model.get_encoder().forward

        def watched(seen: Any, encode: Any, kwargs: Mapping[str, Any]) -> Any:
            seen.update(kwargs)
            return encode(**{name: value for name, value in kwargs.items() if name != "mark"})

        def named(
            input_ids: Any = None,
            attention_mask: Any = None,
            output_attentions: Any = None,
            output_hidden_states: Any = None,
            return_dict: Any = None,
            seen: Any = seen,
            encode: Any = encode,
        ) -> Any:
            given = {"input_ids": input_ids, "attention_mask": attention_mask}
            return watched(seen, encode, {**given, "return_dict": return_dict})

        def anything(input_ids: Any = None, seen: Any = seen, encode: Any = encode, **kwargs: Any) -> Any:
            return watched(seen, encode, {"input_ids": input_ids, **kwargs})

        def of_model(
            input_ids: Any = None, seen: Any = seen, encode: Any = encode, **model_kwargs: Any
        ) -> Any:
            return watched(seen, encode, {"input_ids": input_ids, **model_kwargs})

        model.get_encoder().forward = {"named": named, "any": anything}.get(form, of_model)
        given = {"input_ids": torch.tensor([[5, 6, 1]]), "attention_mask": torch.tensor([[1, 1, 0]])}
        model._validate_model_kwargs = lambda *names: None  # arguments of a model of the caller's own
        decoder = model.prepare_inputs_for_generation
        model.prepare_inputs_for_generation = lambda ids, decoder=decoder, **kwargs: decoder(
            ids, **{name: value for name, value in kwargs.items() if not name.endswith("mark")}
        )
        model.generate(**given, max_new_tokens=1, mark=3, decoder_mark=4)
        mask = seen.get("attention_mask")
        found.append([
            form, seen["input_ids"].tolist(), None if mask is None else mask.tolist(), seen.get("mark", "none"),
            "decoder_mark" in seen,
        ])  # fmt: skip
    return found


PLACE = "transformers:GenerationConfig"
# Sources: the documentation of GenerationConfig and of generate, and the words of its errors.
GENERATION_ROWS: Sequence[Row] = (
    Row("options", PLACE, "written and read again", _kept, [], since="5"),
    Row(
        "options",
        PLACE,
        "what is not known",
        _unused,
        [[4, True, False, {"not_known": 1}], [5, 7, True], [{}, False, False]],
    ),
    Row(
        "options",
        PLACE,
        "unused arguments of a file",
        _unused_of_file,
        {"not_known": 1},
        known=KnownFailure(
            "an argument that is no option is not given back but becomes one",
            finding="Transformers: unused arguments of a configuration of generation",
        ),
    ),
    Row(
        "options",
        PLACE,
        "a change of what is not set",
        _changed_defaults,
        [3, 0.5, True, {"top_k": 5, "not_known": 1}],
        since="5",
    ),
    Row(
        "options",
        PLACE,
        "configurations in a configuration",
        _nested,
        [[0.5, 1.5, 2], [0.5, 1.5, 2], [0.5, 1.5, 2], [True, "default"]],
        since="5",
    ),
    Row("options", PLACE, "of a model's configuration", _of_model, [5, 6, 7, False]),
    Row("combinations", PLACE, "configurations that are not saved", _refused, [], since="5"),
    Row(
        "combinations", PLACE, "flawed files that are saved again", _loaded_ones, [True, False], since="5.23"
    ),
    Row(
        "inputs",
        "transformers.generation.utils:GenerationMixin",
        "what encoders are given",
        _given_to_encoders,
        [
            ["named", [[5, 6, 1]], [[1, 1, 0]], "none", False],
            ["any", [[5, 6, 1]], [[1, 1, 0]], 3, False],
            ["any, as model_kwargs", [[5, 6, 1]], [[1, 1, 0]], 3, False],
        ],
        since="4.57",
    ),
    *SCORE_ROWS,
    *STOP_ROWS,
    *CACHE_ROWS,
    *STATE_ROWS,
    *MODE_ROWS,
    *CALLER_ROWS,
    *DRAFT_ROWS,
    *HELPER_ROWS,
    *SETTING_ROWS,
)
