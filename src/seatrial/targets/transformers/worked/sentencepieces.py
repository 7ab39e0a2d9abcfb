"""Worked examples of tokenizers that Transformers makes of a file of SentencePiece."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from seatrial.targets.common.trainers import new_folder
from seatrial.targets.common.worked_rows import Row
from seatrial.targets.transformers.worked.tiny_vocabularies import KINDS, PIECES, specials_of, tokenizer_of
from seatrial.targets.transformers.worked.tokenizers import TEXTS, class_name

KIND_OF_PIECE = {"<unk>": 2}
CONTROL, BYTE, PLAIN = 3, 6, 1
"""Numbers of SentencePiece for kinds of pieces."""
FAIRSEQ = ("XLMRoberta", "MBart")
"""Classes that number the special tokens in another order than the file."""
ADDING = ("T5", "XLNet")
"""Classes that add tokens of their own."""
TABLE: Mapping[str, str] = {
    "Llama": "metaspace", "Gemma": "metaspace", "CodeLlama": "metaspace", "Reformer": "metaspace",
    "T5": "unigram, as T5", "Albert": "unigram, padding first", "XLNet": "unigram, unknown first",
    "DebertaV2": "unigram, padding first", "XLMRoberta": "unigram", "MBart": "unigram", "MBart50": "unigram",
}  # fmt: skip


def _pieces(made: Any, name: str) -> tuple[list[tuple[str, float]], Sequence[str]]:
    """Return the pieces of a file with their scores, and which are special."""
    specials = list(specials_of(made, {}).values())
    found = KINDS[TABLE[name]](specials_of(made, {}))
    if "merges" in found:
        return [(piece, -float(number)) for number, piece in enumerate(found["vocab"])], specials
    if name in FAIRSEQ:
        rest = [pair for pair in found["vocab"] if pair[0] not in specials]
        return [*((one, 0.0) for one in ("<unk>", "<s>", "</s>")), *rest], specials
    return found["vocab"], specials


def _folder(made: Any, name: str) -> Path:
    from transformers.convert_slow_tokenizer import import_protobuf

    proto = import_protobuf().ModelProto()  # type: ignore[no-untyped-call]
    pieces, specials = _pieces(made, name)
    for text, score in pieces:
        piece = proto.pieces.add()
        piece.piece, piece.score = text, score
        kind = CONTROL if text in specials else BYTE if text.startswith("<0x") else PLAIN
        piece.type = KIND_OF_PIECE.get(text, kind)
    proto.trainer_spec.model_type = 2 if TABLE[name] == "metaspace" else 1
    proto.normalizer_spec.add_dummy_prefix = True
    folder = Path(new_folder())
    names = made.vocab_files_names
    (folder / names.get("vocab_file", "tokenizer.model")).write_bytes(proto.SerializeToString())
    config = {"tokenizer_class": class_name(name)}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _differences(name: str, made: Any) -> list[str]:
    """Return where a tokenizer of a file does not read texts as one of the same pieces does.

    Reading the file takes protobuf alone, while Transformers also requires SentencePiece.
    """
    converting = importlib.import_module(
        "transformers.convert_slow_tokenizer"
    )  # whose name a function has too
    with mock.patch.object(converting, "requires_backends", lambda *given: None):
        found = made.from_pretrained(_folder(made, name))
    due = tokenizer_of(made, TABLE[name], {})
    wrong = []
    for text in (TEXTS[0], *TEXTS[2:]):  # the other one has blanks that the file merges earlier
        tokens, right = [one.convert_ids_to_tokens(one(text)["input_ids"]) for one in (found, due)]
        wrong += [] if tokens == right else [f"{text!r}: {tokens}, {right} is due"]
        said, right = found.decode(found(text)["input_ids"]), due.decode(due(text)["input_ids"])
        wrong += [] if said == right else [f"{text!r}: {said!r}, {right!r} is due"]
    if name in FAIRSEQ:
        names = ["<s>", "<pad>", "</s>", "<unk>", PIECES[0][0]]
        ids = found.convert_tokens_to_ids(names)
        wrong += [] if ids == [0, 1, 2, 3, 4] else [f"{names}: {ids}"]
    elif name not in ADDING and found.get_vocab() != due.get_vocab():
        other = sorted(set(found.get_vocab().items()) ^ set(due.get_vocab().items()))
        wrong.append(f"numbers of tokens: {other[:6]}")
    if name == "T5":
        ids = found.convert_tokens_to_ids(["<extra_id_0>", "<extra_id_99>"])
        wrong += [] if ids == [len(found) - 1, len(found) - 100] else [f"first and last sentinel: {ids}"]
    return wrong


LATER = ("Albert", "MBart50", "Reformer", "T5", "XLMRoberta", "XLNet")
"""Classes that refused a file without a table of characters before 5.21."""
PIECE_ROWS: Sequence[Row] = tuple(
    Row(
        "texts",
        f"transformers:{class_name(name)}",
        "a file of SentencePiece",
        partial(_differences, name),
        [],
        since="5.21" if name in LATER else "5",
    )
    for name in TABLE
)
