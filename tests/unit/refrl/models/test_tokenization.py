"""One token per byte; any text survives; text cannot spell a special token."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refrl.config import ConfigError
from refrl.models.byte_tokenizer import EOS, VOCAB_SIZE
from refrl.models.tokenization import (
    decode_completions,
    encode_answers,
    encode_prompts,
    load_tokenizer,
    make_byte_tokenizer,
)

TOKENIZER = make_byte_tokenizer()
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.sampled_from(
    ["<|eos|>", "a<|pad|>b", "<|bos|><|eos|>", " lead", "trail ", "a  b", "can't . , !", "\x00\r\n\t"]
)


@given(text=TEXTS)
def test_ids_are_the_bytes_and_decode_to_the_text(text: str) -> None:
    """Whatever the text, special words and white space included; a prompt has the first token before it."""
    (answer,) = encode_answers(TOKENIZER, [text])
    (prompt,) = encode_prompts(TOKENIZER, [text])
    assert bytes(answer) == text.encode()
    assert prompt == (TOKENIZER.bos_token_id, *answer)
    assert decode_completions(TOKENIZER, [answer, (*prompt, TOKENIZER.eos_token_id)]) == [text, text]


def test_special_tokens_are_distinct_and_above_the_bytes() -> None:
    """A padding token that is the end token would hide the end from training."""
    ids = {TOKENIZER.pad_token_id, TOKENIZER.bos_token_id, TOKENIZER.eos_token_id}
    assert ids == {256, 257, 258}
    assert len(TOKENIZER) == VOCAB_SIZE == 259


def test_bytes_that_are_no_text_decode_to_replacement_characters() -> None:
    """A model may sample them; Python's own decoder is the oracle."""
    ids = (0xFF, 0x61, 0xE2, 0x82, 0x62)
    assert decode_completions(TOKENIZER, [ids]) == [bytes(ids).decode("utf-8", errors="replace")]


def test_it_is_saved_and_loaded_unchanged(tmp_path: Path) -> None:
    """As an ordinary Hugging Face directory."""
    TOKENIZER.save_pretrained(str(tmp_path))
    loaded = load_tokenizer(tmp_path)
    text = f"grün {EOS} 日本  "
    assert encode_prompts(loaded, [text]) == encode_prompts(TOKENIZER, [text])
    assert (loaded.pad_token_id, loaded.bos_token_id, loaded.eos_token_id) == (256, 257, 258)


def test_a_missing_padding_token_becomes_the_end_token(tmp_path: Path) -> None:
    """Masks come from lengths, so that this is safe."""
    tokenizer = make_byte_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(str(tmp_path))
    assert load_tokenizer(tmp_path).pad_token_id == 258


def test_a_tokenizer_without_an_end_token_is_refused(tmp_path: Path) -> None:
    """Completions could not end."""
    tokenizer = make_byte_tokenizer()
    tokenizer.eos_token = None
    tokenizer.save_pretrained(str(tmp_path))
    with pytest.raises(ConfigError, match="names no eos_token"):
        load_tokenizer(tmp_path)


def test_a_missing_directory_an_empty_one_and_a_broken_file_are_refused(tmp_path: Path) -> None:
    """Each with its remedy; nothing is looked up elsewhere."""
    with pytest.raises(ConfigError, match=r"does not exist.*make-model"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(ConfigError, match=r"holds no tokenizer.*policy\.tokenizer\.name"):
        load_tokenizer(tmp_path)
    TOKENIZER.save_pretrained(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_tokenizer(tmp_path)
