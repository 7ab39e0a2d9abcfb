"""What a run writes and prints has no credentials."""

import pytest

from refrl.masking import MASK, masked, masked_text, masked_word


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://me:pass@host/x", f"https://{MASK}@host/x"),
        ("https://me:pa/ss@wo:rd@host/x", f"https://{MASK}@host/x"),
        ("https:/me:pass@host/x", f"https:/{MASK}@host/x"),
        ("https://abcdefghijkl@host/x", f"https://{MASK}@host/x"),
        ("http://localhost:6006/@scope/x", "http://localhost:6006/@scope/x"),
        ("data.task_args={api_key: 12, length: 3}", f"data.task_args={{api_key: {MASK}, length: 3}}"),
        (
            "max_new_tokens=16 pad_token=<pad> secretary: me",
            "max_new_tokens=16 pad_token=<pad> secretary: me",
        ),
    ],
)
def test_text(text: str, shown: str) -> None:
    """Credentials in URLs and values of secret-looking names, short and numeric ones too."""
    assert masked_text(text) == shown
    assert masked_text(shown) == shown


def test_words_of_a_command() -> None:
    """The whole value goes."""
    assert masked_word("data.task_args.password=a, b") == f"data.task_args.password={MASK}"
    assert masked_word("grpo.seed=1") == "grpo.seed=1"


def test_values() -> None:
    """Types stay; a key that is not set stays so; what is masked is masked once."""
    tree = {"a": {"api_key": 7, "hf_token": None, "sizes": [1, 2.5]}, "url": "s3://u:p@h/x", "flag": True}
    shown = {
        "a": {"api_key": MASK, "hf_token": None, "sizes": [1, 2.5]},
        "url": f"s3://{MASK}@h/x",
        "flag": True,
    }
    assert masked(tree) == shown == masked(shown)
