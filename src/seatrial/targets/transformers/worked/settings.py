"""Worked examples of Transformers' configurations of generation: modes, refusals, updates, files, watermarks."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from seatrial.relations.contracts.worked import Refused
from seatrial.targets.common.known import KnownFailure, before
from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.scores import ids_of

PLACE = "transformers.generation.configuration_utils"
SCORES = "transformers.generation.logits_process"
MODES: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "nothing": ({}, False),
    "a sample": ({"do_sample": True}, False),
    "one beam": ({"num_beams": 1, "do_sample": False}, False),
    "beams": ({"num_beams": 2}, False),
    "sampled beams": ({"num_beams": 2, "do_sample": True}, False),
    "groups": ({"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5}, False),
    "constraints": ({"num_beams": 2, "force_words_ids": [[3]]}, False),
    "contrasts": ({"penalty_alpha": 0.6, "top_k": 4}, False),
    "contrasts of one": ({"penalty_alpha": 0.6, "top_k": 1}, False),
    "contrasts that are sampled": ({"penalty_alpha": 0.6, "top_k": 4, "do_sample": True}, False),
    "an assistant": ({}, True),
    "an assistant and a sample": ({"do_sample": True}, True),
    "an assistant and beams": ({"num_beams": 2}, True),
    "the prompt": ({"prompt_lookup_num_tokens": 3}, False),
    "a part": ({"assistant_early_exit": 3}, False),
    "layers": ({"dola_layers": "low"}, False),
    "layers and beams": ({"dola_layers": "low", "num_beams": 2}, False),
}
"""Options of generation, and whether an assistant is given."""


def _modes(made: Any) -> dict[str, str]:
    return {
        name: made(**options).get_generation_mode(object() if assists else None).value
        for name, (options, assists) in MODES.items()
    }


def _refused_at_once(made: Any) -> list[str]:
    """Return which options are taken that contradict themselves, or are refused at their edge."""
    wrong = []
    for options, due in (
        ({"suppress_tokens": [3, 4], "forced_eos_token_id": 3}, True), ({"suppress_tokens": [3],
        "forced_eos_token_id": [3, 5]}, False),
        ({"suppress_tokens": [3], "forced_bos_token_id": 3}, True), ({"suppress_tokens": [3],
        "forced_bos_token_id": 4}, False),
        ({"assistant_ensemble_weight": 0.0}, True), ({"assistant_ensemble_weight": 1.0}, True),
        ({"assistant_ensemble_weight": 0.5}, False), ({"compile_config": {"mode": "default"}}, True),
        ({"cache_implementation": "static", "max_cache_len": 5}, False), ({"streamer": 1}, True),
        ({"assistant_model": 1}, True),
        ({"negative_prompt_ids": 1}, True), ({"logits_processor": 1}, True), ({"num_return_sequences": 2}, True),
    ):  # fmt: skip
        try:
            made(**options)
            said = False
        except ValueError:
            said = True
        wrong += [] if said == due else [f"{options} is {'refused' if said else 'taken'}"]
    return wrong


def _equal(made: Any) -> list[bool]:
    """Return whether configurations are equal: of the same options, of others, of another version, of files."""
    one, other = made(top_k=3, do_sample=True), made(do_sample=True, top_k=3)
    older = made(do_sample=True, top_k=3)
    older.transformers_version = "1.0"
    folder = new_folder()
    one.save_pretrained(folder)
    return [
        one == other, hash(one) == hash(other), one == older, one == made(do_sample=True, top_k=4), one == 3,
        one == made.from_pretrained(folder), one == copy.deepcopy(one),
    ]  # fmt: skip


def _updated(made: Any) -> list[Any]:
    """Return options and what is left after changes: of entries of the caller's own, of a watermark, of a flaw."""
    config = made(top_k=3, do_sample=True)
    left = config.update(allow_custom_entries=True, own=1, top_k=4)
    more = config.update(other=2)
    config.update(watermarking_config={"bias": 1.5})
    try:
        config.update(max_new_tokens=0)
        said = False
    except ValueError:
        said = True
    return [config.own, config.top_k, left, more, type(config.watermarking_config).__name__, said]


def _files(made: Any) -> list[Any]:
    """Return what files have: under a name of their own, in a folder, without a compiler, with keys of ids."""
    compiled: Any = find_name("transformers", ["transformers:CompileConfig"])
    folder = Path(new_folder())
    config = made(top_k=3, do_sample=True, compile_config=compiled(), own={1: [2, (3, 4)]})
    config.save_pretrained(str(folder / "sub"), config_file_name="own.json")
    written = json.loads((folder / "sub" / "own.json").read_text(encoding="utf-8"))
    read = made.from_pretrained(str(folder / "sub"), "own.json")
    written.pop("transformers_version")
    return [
        sorted(path.name for path in (folder / "sub").iterdir()),
        written,
        [read.top_k, read.do_sample, read.own, read.compile_config],
    ]


def _unread(made: Any) -> list[bool]:
    """Return whether folders without a file, and with one of other words, are refused."""
    found = []
    for text in ("", "{"):
        folder = Path(new_folder())
        if text:
            (folder / "generation_config.json").write_text(text, encoding="utf-8")
        try:
            made.from_pretrained(str(folder))
            found.append(False)
        except OSError:
            found.append(True)
    return found


def _over_file(made: Any) -> None:
    path = Path(new_folder()) / "file"
    path.write_text("", encoding="utf-8")
    made(top_k=3, do_sample=True).save_pretrained(str(path))


def _of_model(made: Any) -> list[Any]:
    """Return what a configuration takes from a model's dictionary: its own ids before those of the text."""
    given = {
        "eos_token_id": 5,
        "bos_token_id": None,
        "text_config": {"eos_token_id": 6, "bos_token_id": 7, "pad_token_id": 8},
    }
    config = made.from_model_config(dict(given))
    decoded = made.from_model_config(
        {"decoder": {"decoder_start_token_id": 3}, "other": 4, "output_hidden_states": True}
    )
    return [
        [config.eos_token_id, config.bos_token_id, config.pad_token_id, config._from_model_config],
        [decoded.decoder_start_token_id, hasattr(decoded, "other"), decoded.output_hidden_states,
         decoded.return_dict_in_generate],
    ]  # fmt: skip


def _forced(made: Any) -> list[Any]:
    config = made(_from_model_config=True, force_bos_token_to_be_generated=True, bos_token_id=4, own=1)
    return [config.forced_bos_token_id, hasattr(config, "own")]


def _marks(made: Any) -> list[Any]:
    """Return options of a watermark: by default, of a dictionary, after a change, and of its processor."""
    config = made.from_dict({"bias": 1.5, "context_width": 2}, greenlist_ratio=0.5)
    before = dict(config)
    config.update(seeding_scheme="selfhash", not_known=3)
    processor = config.construct_processor(20, "cpu")
    text = json.loads(config.to_json_string())
    return [
        dict(made()), before, text, [processor.greenlist_size, processor.bias, processor.seeding_scheme,
                                     processor.context_width, processor.hash_key],
    ]  # fmt: skip


def _flawed_marks(made: Any) -> list[bool]:
    found = []
    for options in (
        {},
        {"seeding_scheme": "own"},
        {"greenlist_ratio": 1.5},
        {"greenlist_ratio": -0.5},
        {"context_width": 0},
    ):
        try:
            made(**options).validate()
            found.append(False)
        except ValueError:
            found.append(True)
    return found


def _greens(made: Any) -> list[Any]:
    """Return which ids a watermark adds to, against the generator of its seed; too short rows are left alone."""
    ids, scores = ids_of([5, 7], [6, 7], [6, 8]), torch.zeros(3, 12)
    processor = made(12, "cpu", greenlist_ratio=0.25, bias=1.5, hashing_key=11, context_width=1)
    found = processor(ids, scores)
    due = []
    for last in (7, 7, 8):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(11 * last))
        due.append(sorted(order[:3].tolist()))
    wide = made(12, "cpu", greenlist_ratio=0.25, bias=1.5, context_width=3)
    return [
        [[at for at, one in enumerate(row) if one == 1.5] for row in found.tolist()] == due,
        int((found != 0).sum()), torch.equal(wide(ids, scores), scores), int(scores.abs().sum()),
    ]  # fmt: skip


def _found_marks(made: Any) -> dict[str, Any]:
    """Return what a detector counts of six ids, of which some pairs are green, once and with those that repeat."""
    model = SimpleNamespace(bos_token_id=1, is_encoder_decoder=False, vocab_size=12, decoder_start_token_id=9)
    options = {
        "greenlist_ratio": 0.25,
        "bias": 2.0,
        "hashing_key": 11,
        "seeding_scheme": "lefthash",
        "context_width": 1,
    }
    ids, found = ids_of([1, 5, 7, 5, 7, 8, 2]), {}
    detector = made(model, "cpu", options)
    for repeated in (False, True):
        detector.ignore_repeated_ngrams = repeated
        detector._get_ngram_score_cached = lambda prefix, target: int(target) == 7
        result = detector(ids, return_dict=True)
        found["once" if repeated else "all"] = [
            float(result.num_tokens_scored[0]), float(result.num_green_tokens[0]),
             round(float(result.green_fraction[0]), 4),
            round(float(result.z_score[0]), 4), round(float(result.p_value[0]), 4), bool(result.prediction[0]),
            bool(detector(ids, z_threshold=0.5)[0]),
        ]  # fmt: skip
    return found


def _mixed_starts(made: Any) -> None:
    model = SimpleNamespace(bos_token_id=1, is_encoder_decoder=False, vocab_size=12)
    made(model, "cpu", {"greenlist_ratio": 0.25})(ids_of([1, 5, 6], [5, 6, 7]))


KEYS, DEPTH, GRAM = (3, 5), 2, 3
MULTIPLIER = 6364136223846793005


def _hash(start: int, numbers: Sequence[int]) -> int:
    """Return a hash of 64 bits."""
    for number in numbers:
        start = ((start + number) * MULTIPLIER + 1) % 2**64
    return start - 2**64 if start >= 2**63 else start


def _synth(made: Any, **options: Any) -> Any:
    return made(ngram_len=GRAM, keys=list(KEYS), sampling_table_size=64, sampling_table_seed=0, context_history_size=4,
                device=torch.device("cpu"), **options)  # fmt: skip


def _tournament(made: Any) -> list[Any]:
    """Return steps whose scores are not those of a tournament of two layers, and which first steps are skipped."""
    processor, wrong = _synth(made), []
    table = processor.sampling_table.tolist()
    context, history = [0, 0], list[int]()
    steps = [9, 4, 4, 4, 4, 4]
    for number, last in enumerate(steps):
        scores = torch.arange(5).float().mul(0.3).view(1, 5)
        found = processor(ids_of([8, last]), scores)[0].exp()
        context = context if number == 0 else [*context[1:], last]
        own = _hash(1, context)
        probs = scores[0].softmax(0).tolist()
        if own not in history:
            for key in KEYS:
                bits = [table[_hash(_hash(own, [token]), [key]) % 64] for token in range(5)]
                mass = sum(bit * prob for bit, prob in zip(bits, probs, strict=True))
                probs = [prob * (1 + bit - mass) for bit, prob in zip(bits, probs, strict=True)]
        total = found.sum().item()
        if any(abs(float(one) / total - due) > 1e-5 for one, due in zip(found, probs, strict=True)):
            wrong.append(number)
        history = [own, *history][:4]
    skipping = _synth(made, skip_first_ngram_calls=True)
    given = torch.arange(5).float().view(1, 5)
    same = [torch.equal(skipping(ids_of([8, last]), given), given) for last in steps[:4]]
    return [wrong, same]


def _synth_masks(made: Any) -> list[Any]:
    """Return masks before the first end, of contexts that are new, and values of rows against their definition."""
    processor = _synth(made)
    ids = ids_of([5, 6, 5, 6, 5, 7], [5, 6, 3, 3, 3, 3])
    table = processor.sampling_table.tolist()
    values = processor.compute_g_values(ids)
    due = [
        [[table[_hash(_hash(1, row[at : at + GRAM]), [key]) % 64] for key in KEYS] for at in range(4)]
        for row in ids.tolist()
    ]
    return [
        processor.compute_eos_token_mask(ids, 3).int().tolist(),
         processor.compute_context_repetition_mask(ids).int().tolist(),
        values.tolist() == due, round(processor.expected_mean_g_value(vocab_size=4), 4),
    ]  # fmt: skip


def _posterior(made: Any) -> list[Any]:
    """Return probabilities of a watermark by Bayes' rule of values of two layers, with a mask and another prior."""
    config: Any = find_name("transformers", ["transformers.generation.watermarking:BayesianDetectorConfig"])
    model = made(config(watermarking_depth=2))
    with torch.no_grad():
        model.likelihood_model_watermarked.beta.copy_(torch.tensor([[[0.5, -1.0]]]))
        model.likelihood_model_watermarked.delta.copy_(torch.tensor([[[[0.0, 0.0], [2.0, 0.0]]]]))
        model.prior.copy_(torch.tensor([0.3]))
    values, mask = (
        torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]] * 2),
        torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]]),
    )
    labels = torch.tensor([1.0, 0.0])
    with torch.no_grad():
        found = model(values, mask, labels=labels, loss_batch_weight=0.5, return_dict=True)

    def sigmoid(one: float) -> float:
        return 1 / (1 + math.exp(-one))

    due = []
    for kept in mask.tolist():
        odds = math.log(0.3 / 0.7)
        for (first, second), keep in zip(values[0].tolist(), kept, strict=True):
            for value, logit in ((first, 0.5), (second, -1.0 + 2.0 * first)):
                two = sigmoid(logit)
                odds += keep * (math.log(0.5 * ((value + 0.5) * two + 1 - two)) - math.log(0.5))
        due.append(sigmoid(odds))
    loss = -(math.log(due[0]) + math.log(1 - due[1])) / 2 + 4.0 * 0.5
    errors = [abs(float(one) - right) for one, right in zip(found.posterior_probabilities, due, strict=True)]
    return [max(errors) < 1e-5, abs(float(found.loss) - loss) < 1e-4]


def _row(
    name: str,
    what: str,
    call: Callable[[Any], Any],
    right: Any,
    since: str = "4.57",
    place: str = PLACE,
    wrong: str = "",
    fixed_in: str = "5.23",
) -> Row:
    known = KnownFailure(wrong, FINDING, before("transformers", fixed_in)) if wrong else None
    return Row("options", f"{place}:{name}", what, call, right, since=since, known=known)


FINDING = "Transformers: small functions of later releases"
WATERMARKS = "transformers.generation.watermarking"
PLAIN = {
    "greenlist_ratio": 0.25,
    "bias": 2.0,
    "hashing_key": 15485863,
    "seeding_scheme": "lefthash",
    "context_width": 1,
}
# Sources: the documentation of each class; Kirchenbauer et al. 2023; Dathathri et al. 2024 for tournaments.
SETTING_ROWS: Sequence[Row] = (
    _row(
        "GenerationConfig", "modes", _modes,
        {
            "nothing": "greedy_search", "a sample": "sample", "one beam": "greedy_search", "beams": "beam_search",
            "sampled beams": "beam_sample", "groups": "group_beam_search", "constraints": "constrained_beam_search",
            "contrasts": "contrastive_search", "contrasts of one": "greedy_search",
            "contrasts that are sampled": "sample",
            "an assistant": "assisted_generation", "an assistant and a sample": "assisted_generation",
            "an assistant and beams": "beam_search", "the prompt": "assisted_generation",
            "a part": "assisted_generation",
            "layers": "dola_generation", "layers and beams": "beam_search",
        },
    ),
    _row("GenerationConfig", "options that are refused at once", _refused_at_once, [], "5.21"),
    _row("GenerationConfig", "configurations that are equal", _equal, [True, True, True, False, False, True, True]),
    _row("GenerationConfig", "changes", _updated,
         [1, 4, {}, {"other": 2}, "WatermarkingConfig", True], "5.16"),
    _row("GenerationConfig", "files by name", _files,
         [["own.json"], {"do_sample": True, "own": {"1": [2, [3, 4]]}, "top_k": 3},
          [3, True, {"1": [2, [3, 4]]}, None]], "5"),
    _row("GenerationConfig", "files that are not there or not read", _unread, [True, True]),
    _row("GenerationConfig", "a file in the place of a folder", _over_file, Refused("should be a directory")),
    _row("GenerationConfig", "of a model's dictionary", _of_model, [[5, 7, 8, True], [3, False, True, True]], "5"),
    _row("GenerationConfig", "a start that is forced", _forced, [4, False], "5"),
    _row(
        "WatermarkingConfig", "options of a watermark", _marks,
        [PLAIN, {**PLAIN, "greenlist_ratio": 0.5, "bias": 1.5, "context_width": 2},
         {**PLAIN, "greenlist_ratio": 0.5, "bias": 1.5, "context_width": 2, "seeding_scheme": "selfhash"},
         [10, 1.5, "selfhash", 2, 15485863]],
    ),
    _row("WatermarkingConfig", "flawed options", _flawed_marks, [False, True, True, True, True]),
    _row("WatermarkLogitsProcessor", "ids that are added to", _greens, [True, 9, True, 0], place=SCORES),
    _row(
        "WatermarkDetector", "counts of green ids", _found_marks,
        {"all": [5.0, 2.0, 0.4, 0.7746, 0.2193, False, True], "once": [4.0, 1.0, 0.25, 0.0, 0.5, False, False]},
        place=WATERMARKS, wrong="pairs that repeat are counted, and the probability is another",
    ),
    _row("WatermarkDetector", "rows of which one begins with the start", _mixed_starts, Refused("inconsistent"),
         place=WATERMARKS, wrong="such rows are taken", fixed_in="5.20"),
    _row("SynthIDTextWatermarkLogitsProcessor", "a tournament", _tournament, [[], [True, True, False, True]],
         place=SCORES),
    _row("SynthIDTextWatermarkLogitsProcessor", "masks and values", _synth_masks,
         [[[1] * 6, [1, 1, 0, 0, 0, 0]], [[1, 1, 0, 0], [1, 1, 1, 0]], True, 0.6875], place=SCORES),
    _row("BayesianDetectorModel", "probabilities of a watermark", _posterior, [True, True], place=WATERMARKS),
)  # fmt: skip
