"""Small tokenizers of every kind for `pairs_texts`, and how each frames a text and a pair."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seatrial.targets.common.target import find_name
from seatrial.targets.common.trainers import new_folder
from seatrial.targets.transformers.worked.encodings import PARTS, pieces

FAST = "transformers:PreTrainedTokenizerFast"
Frame = Sequence[tuple[str, int]]
"""Tokens of a frame, `A` and `B` for the texts, each with its type."""
SINGLE: Frame = (("[CLS]", 0), ("A", 0), ("[SEP]", 0))
PAIR: Frame = (*SINGLE, ("B", 1), ("[SEP]", 1))
NONE: tuple[Frame, Frame] = ((("A", 0),), (("A", 0), ("B", 1)))
LETTERS = [*"abcde .", "[PAD]", "[UNK]", "[CLS]", "[SEP]", "<added>"]


class Kind(NamedTuple):
    """A kind of tokenizer."""

    make: Callable[..., Any]
    single: Frame = SINGLE
    pair: Frame = PAIR
    flat: bool = False
    """Whether all types are zero without special tokens too."""

    def frame(self, has_pair: bool, framed: bool) -> Frame:
        """Return the frame of a text or a pair, with or without special tokens."""
        frame = self.pair if has_pair else self.single
        if framed:
            return frame
        return [(name, int(name == "B" and not self.flat)) for name, _ in frame if name in ("A", "B")]


def _fast(core: Any, **options: Any) -> Any:
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return find_name("transformers", [FAST])(tokenizer_object=core, **{**named, **options})


def _words(**options: Any) -> Any:
    return pieces(find_name("transformers", [FAST]), **options)


def _bytes(**options: Any) -> Any:
    """Return byte pairs without a frame."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "Ġd"]
    core = Tokenizer(
        models.BPE(vocab={one: at for at, one in enumerate(tokens)}, merges=[("a", "b"), ("Ġ", "d")])
    )
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    return _fast(core, **options)


def _unigram(single: str, pair: str) -> Callable[..., Any]:
    def make(**options: Any) -> Any:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

        vocabulary = [
            ("[PAD]", 0.0),
            ("[UNK]", 0.0),
            ("[CLS]", 0.0),
            ("[SEP]", 0.0),
            ("▁", -2.0),
            ("ab", -2.5),
        ]
        vocabulary += [(letter, -3.0 - at / 8) for at, letter in enumerate("abcde.")]
        core = Tokenizer(models.Unigram(vocabulary, unk_id=1))
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        core.decoder = decoders.Metaspace()
        core.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
        return _fast(core, **options)

    return make


_CLASSES: dict[str, Any] = {}


def _letters(**options: Any) -> Any:
    """Return a tokenizer in Python, of letters."""
    base: Any = find_name("transformers", ["transformers:PreTrainedTokenizer"])

    class Letters(base):  # type: ignore[misc]
        """Letters with a frame of their own."""

        vocab_files_names: Mapping[str, str] = {}
        model_input_names = ["input_ids", "token_type_ids", "attention_mask"]  # noqa: RUF012  of Transformers

        def __init__(self, **given: Any) -> None:
            self.table = {letter: at for at, letter in enumerate(LETTERS[:-1])}
            super().__init__(**given)

        @property
        def vocab_size(self) -> int:
            return len(self.table)

        def get_vocab(self) -> dict[str, int]:
            return {**self.table, **self.added_tokens_encoder}

        def _tokenize(self, text: str, **given: Any) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return self.table.get(token, self.table["[UNK]"])

        def _convert_id_to_token(self, index: int) -> str:
            letter: str = LETTERS[index]
            return letter

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            return "".join(tokens)

        def save_vocabulary(self, save_directory: str, filename_prefix: str | None = None) -> tuple[str, ...]:
            return ()

        def num_special_tokens_to_add(self, pair: bool = False) -> int:
            return 3 if pair else 2

        def build_inputs_with_special_tokens(
            self, one: list[int], other: list[int] | None = None
        ) -> list[int]:
            first, last = self.table["[CLS]"], self.table["[SEP]"]
            return [first, *one, last, *([] if other is None else [*other, last])]

        def create_token_type_ids_from_sequences(
            self, one: list[int], other: list[int] | None = None
        ) -> list[int]:
            return [0] * (len(one) + 2) + ([] if other is None else [1] * (len(other) + 1))

        def get_special_tokens_mask(
            self, one: list[int], other: list[int] | None = None, already_has_special_tokens: bool = False
        ) -> list[int]:
            if already_has_special_tokens:
                return [int(token in self.all_special_ids) for token in one]
            return [1, *([0] * len(one)), 1, *([] if other is None else [*([0] * len(other)), 1])]

    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    return _CLASSES.setdefault("Letters", Letters)(**{**named, **options})


def _old_bert(**options: Any) -> Any:
    path = Path(new_folder()) / "vocab.txt"
    path.write_text("\n".join(PARTS) + "\n", encoding="utf-8")
    legacy = "transformers.models.bert.tokenization_bert_legacy:BertTokenizerLegacy"
    return find_name("transformers", [legacy, "transformers:BertTokenizer"])(str(path), **options)


def _byt5(**options: Any) -> Any:
    return find_name("transformers", ["transformers:ByT5Tokenizer"])(**options)


KINDS: Mapping[str, Kind] = {
    "word pieces": Kind(_words),
    "byte pairs": Kind(_bytes, *NONE),
    "scored pieces with an end": Kind(
        _unigram("$A [SEP]", "$A [SEP] $B [SEP]"), (("A", 0), ("[SEP]", 0)),
        (("A", 0), ("[SEP]", 0), ("B", 0), ("[SEP]", 0)), True,
    ),
    "scored pieces with a begin": Kind(
        _unigram("[CLS] $A", "[CLS] $A [CLS]:1 $B:1"), (("[CLS]", 0), ("A", 0)),
        (("[CLS]", 0), ("A", 0), ("[CLS]", 1), ("B", 1)),
    ),
    "scored pieces with two separators": Kind(
        _unigram("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]"), SINGLE,
        (*SINGLE, ("[SEP]", 0), ("B", 0), ("[SEP]", 0)), True,
    ),
    "letters in Python": Kind(_letters, SINGLE, PAIR, True),
    "word pieces in Python": Kind(_old_bert, SINGLE, PAIR, True),
    "bytes in Python": Kind(
        _byt5, (("A", 0), ("</s>", 0)), (("A", 0), ("</s>", 0), ("B", 0), ("</s>", 0)), True,
    ),
}  # fmt: skip


def copied(tokenizer: Any, way: str) -> Any:
    """Return a copy of a tokenizer: saved and read, or deep; itself where no way is given."""
    if way == "saved and read":
        folder = Path(new_folder()) / "1"
        tokenizer.save_pretrained(folder)
        return type(tokenizer).from_pretrained(str(folder))
    return copy.deepcopy(tokenizer) if way else tokenizer


def as_lists(value: Any) -> Any:
    """Return an array or a tensor as lists, and everything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value
