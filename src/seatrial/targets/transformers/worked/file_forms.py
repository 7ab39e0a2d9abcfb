"""Worked examples of AutoTokenizer on a folder whose file of the tokenizer is of any form: its tokens are the file's.

Configurations name classes of which the file may not be: byte pairs of bytes where words marked by a blank are usual.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import before
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row

TEXTS = ("The café is open.\nHe said: 'good  morning', twice.", "  good the", "open\n\n is 12", "日 e\u0301!")
WORDS = ("The", "café", "is", "open", "good", "morning", "said", "twice")
SPECIALS = ("<s>", "</s>", "<unk>", "<pad>")


def _core(model: Any, tokens: Sequence[str], first: bool) -> Any:
    from tokenizers import Tokenizer, processors

    core = Tokenizer(model)
    core.add_special_tokens(list(tokens))
    template = "<s> $A" if first else "$A"
    ids = [("<s>", core.token_to_id("<s>"))] if first else []
    core.post_processor = processors.TemplateProcessing(single=template, pair="$A $B", special_tokens=ids)
    return core


def _bytes() -> Any:
    from tokenizers import decoders, models, pre_tokenizers

    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "is"),
        ("i", "s"),
        ("g", "o"),
        ("go", "o"),
        ("Ġ", "goo"),
        ("o", "p"),
    ]
    letters = [*SPECIALS, *sorted(pre_tokenizers.ByteLevel.alphabet()), *map("".join, merges)]
    core = _core(models.BPE({one: at for at, one in enumerate(letters)}, merges), SPECIALS, False)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return core


def _blanks() -> Any:
    from tokenizers import decoders, models, normalizers

    merges = [("▁", "g"), ("▁g", "o"), ("▁go", "o"), ("h", "e"), ("i", "s"), ("▁", "is"), ("o", "p")]
    letters = sorted({*"".join(TEXTS), "▁"} - {" ", "日"})
    found = [*SPECIALS, *(f"<0x{one:02X}>" for one in range(256)), *letters, *map("".join, merges)]
    vocabulary = {one: at for at, one in enumerate(found)}
    core = _core(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True), SPECIALS, True)
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return core


def _pieces() -> Any:
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    letters = sorted({*"".join(TEXTS).lower()} - {" ", "\n", "日"})
    found = [*SPECIALS, *letters, *(f"##{one}" for one in letters), "cafe", "##ning", "the", "mor", "good"]
    core = _core(
        models.WordPiece({one: at for at, one in enumerate(found)}, unk_token="<unk>"), SPECIALS, False
    )
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece()
    return core


def _scored() -> Any:
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted({*"".join(TEXTS), "▁"} - {" ", "日"})
    found = [(one, 0.0) for one in SPECIALS] + [(one, -5.0 - at / 64) for at, one in enumerate(letters)]
    found += [("▁is", -2.0), ("▁good", -2.5), ("ning", -2.25), ("▁The", -1.0), ("open", -1.5)]
    core = _core(models.Unigram(found, unk_id=2), SPECIALS, False)
    core.pre_tokenizer = pre_tokenizers.Metaspace()
    core.decoder = decoders.Metaspace()
    return core


FORMS: Mapping[str, Callable[[], Any]] = {
    "byte pairs of bytes": _bytes, "byte pairs of letters": _blanks, "pieces of words": _pieces,
    "pieces with scores": _scored,
}  # fmt: skip


@cache
def _file(form: str) -> Any:
    return FORMS[form]()


def _folder(form: str, said: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    """Return a folder with a file of a form, the tokenizer's configuration and the model's."""
    folder = Path(new_folder())
    _file(form).save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", **said}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    if model:
        (folder / "config.json").write_text(json.dumps(dict(model)), encoding="utf-8")
    return str(folder)


def unlike_file(auto: Any, form: str, said: Mapping[str, Any], model: Mapping[str, Any]) -> str | None:
    """Return a text whose tokens, ids or decoded text are not those of the file."""
    read, core = auto.from_pretrained(_folder(form, said, model)), _file(form)
    for text in TEXTS:
        due = core.encode(text, add_special_tokens=False)
        found = read(text, add_special_tokens=False)["input_ids"]
        if found != due.ids:
            return (
                f"{type(read).__name__}, {text!r}: {read.convert_ids_to_tokens(found)}, {due.tokens} is due"
            )
        written, right = (
            read.decode(found, clean_up_tokenization_spaces=False),
            core.decode(due.ids, skip_special_tokens=False),
        )
        if written != right:
            return f"{type(read).__name__}: {written!r}, {right!r} is due"
    return None


OWN = {"qwen2", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp", "siglip2", "hyperclovax_vision_v2"}
"""Types of models whose tokenizers are of the model's class, regardless of what a folder says (Transformers 5)."""
BYTES, LETTERS = "byte pairs of bytes", "byte pairs of letters"
ANY_OF_5 = ("FNet", "TokenizersBackend")
BYTES_OF_5 = ("Roberta", "GPT2", "Deberta", "Bart", "Llama", "LED", "Luke", "Mvp", "Whisper")
ANY_OF_4 = (
    "Albert", "Llama", "Cohere", "Bart", "Barthez", "BigBird", "Pegasus", "Blenderbot", "BlenderbotSmall", "GPT2",
    "Bloom", "Roberta", "Camembert", "CodeLlama", "CodeGen", "Qwen2", "Deberta", "DebertaV2", "GPTNeoX", "FNet",
    "Gemma", "Herbert", "XLMRoberta", "LED", "Longformer", "T5", "MBart", "MBart50", "MT5", "Mvp", "Nllb",
    "OpenAIGPT", "Reformer", "RemBert", "Whisper", "XGLM", "XLNet",
)  # fmt: skip
"""Classes that take their whole tokenizer from the file. From 5 on, others take its tokens alone, and say so."""


def _models() -> list[str]:
    """Return the types of models that have tokenizers."""
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    older = before("transformers", "5")(None)
    if not older and before("transformers", "5.22")(None):
        raise NotServed("a class of Llama 2 is made of any file")
    return sorted(name for name in TOKENIZER_MAPPING_NAMES if older or name not in OWN)


def _said(name: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield configurations that name a class: of the tokenizer, of the model, of neither form."""
    for end in ("", "Fast"):
        yield {"tokenizer_class": f"{name}{end}"}, {}
        yield {}, {"tokenizer_class": f"{name}{end}", "model_type": "bert"}


def _by_class(form: str, auto: Any) -> list[str]:
    """Return the classes whose tokens are not those of the file."""
    names = ANY_OF_4
    if not before("transformers", "5")(None):
        _models()
        names = (*ANY_OF_5, *(BYTES_OF_5 if form == BYTES else ()))
    wrong = []
    for name in names:
        class_ = name if name.endswith("Backend") else f"{name}Tokenizer"
        ways = [({"tokenizer_class": class_}, {})] if name != "Llama" else list(_said(class_))
        found = [unlike_file(auto, form, *way) for way in ways]
        wrong += [f"{name}, {way}: {one}" for way, one in zip(ways, found, strict=True) if one is not None]
    return wrong[:3]


def _by_model(form: str, class_: str, auto: Any) -> list[str]:
    """Return the types of models with which tokens are not those of the file, where a folder names a class."""
    wrong = []
    for name in _models():
        said = unlike_file(auto, form, {"tokenizer_class": class_}, {"model_type": name})
        wrong += [] if said is None else [f"{name}: {said}"]
    return wrong[:3]


AUTO = "transformers:AutoTokenizer"
FILE_FORM_ROWS: Sequence[Row] = (
    *(Row("texts", AUTO, f"classes, {form}", partial(_by_class, form), [], since="4.57") for form in FORMS),
    *(
        Row("texts", AUTO, f"types of models, {class_}, {form}", partial(_by_model, form, class_), [], since="4.57")
        for class_, form in (("LlamaTokenizer", BYTES), ("LlamaTokenizerFast", BYTES),
                             ("PreTrainedTokenizerFast", BYTES), ("PreTrainedTokenizerFast", LETTERS))
    ),
)  # fmt: skip
