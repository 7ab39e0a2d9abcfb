"""Secrets are taken out of what is written and shown; ordinary words are not."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from seatrial.evidence.identity.redaction import MARK, Redactor, is_secret_name

HEX40 = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "OPENAI_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_SESSION_TOKEN",
        "GITHUB_TOKEN",
        "MLFLOW_TRACKING_PASSWORD",
        "NGC_API_KEY",
        "AZURE_STORAGE_KEY",
        "COMET_KEY",
        "db.password",
        "--api-key",
        "logger.wandb.api_key",
        "clientSecret",
        "SSH_PRIVATE_KEY",
        "PGPASSWORD",
        "dbpassword",
        "accesstoken",
    ],
)
def test_names_of_secrets(name: str) -> None:
    """Names that say so."""
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "pad_token_id",
        "eos_token",
        "max_new_tokens",
        "global_valid_toks",
        "tokens_per_sec",
        "TOKENIZERS_PARALLELISM",
        "num_tokens",
        "train/token_mult_prob_error",
        "policy.generation.stop_token_ids",
        "keyboard",
        "monkey",
        "sort_key",
        "author",
        "RAY_AUTH_MODE",
        "tokenizer",
        "secretary",
        "PYTHONPATH",
    ],
)
def test_names_of_the_field_are_no_secrets(name: str) -> None:
    """Tokens of a language model are not credentials."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("secret", "text"),
    [
        ("hf_" + "aB3" * 11, "login with {} now"),
        ("sk-" + "a1B2" * 8, "OPENAI: {}"),
        ("sk-ant-api03-" + "x9" * 20, "{}"),
        ("ghp_" + "Z9y" * 12, "git clone https://{}@example.org/a"),
        ("github_pat_" + "11AAAA" * 5, "{}."),
        ("nvapi-" + "q" * 30, "key {}"),
        ("AKIA" + "ABCDEFGH23456789"[:16], "aws {}"),
        (HEX40, "wandb: api_key={}"),
        (HEX40, "wandb login --key={}"),
        ("s3cr3t-pass", "postgres://user:{}@db.example.org/x"),
        ("abcdefgh.ijkl", "Authorization: Bearer {}"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.c2lnbmF0dXJl", "jwt {}"),
        ("pa55word!", "export DB_PASSWORD={}"),
        ("pa55word!", '{{"password": "{}", "user": "me"}}'),
        ("pa55word!", "logger.wandb.api_key={}"),
        ("pa/ss@word", "https://user:{}@db.example.org/x"),
        ("pa/ss@word", "policy.model_name=https:/user:{}@db.example.org/x is not a directory"),
        ("4711", "data.task_args.password={}"),
        ("ab1", '{{"api_key": "{}"}}'),
        ("line one\nline two", "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----"),
    ],
)
def test_a_secret_is_taken_out_and_said_to_be(secret: str, text: str) -> None:
    """Whatever stands around it."""
    shown = Redactor().text(text.format(secret))
    assert secret not in shown
    assert MARK in shown


@pytest.mark.parametrize(
    "text",
    [
        "step 3 loss 0.51 tokens: 12345 token_mult_prob_error=1.00002",
        "commit 0123456789abcdef0123456789abcdef01234567",
        "eos_token_id=151643 pad_token='<|endoftext|>'",
        "https://example.org/path?step=3",
        "policy.tokenizer.name=/models/qwen token=123456",
        "http://localhost:6006/packages/@scope and a@b",
        "password=None secret: false token: 12",
        "ratio 0.79 < key < 1.21",
    ],
)
def test_ordinary_lines_stay_as_they_are(text: str) -> None:
    """A log that is redacted into uselessness is no evidence."""
    assert Redactor({"PATH": "/usr/bin", "STEP_TOKEN": "3"}).text(text) == text


@given(
    st.text(string.ascii_letters + string.digits + "+/=.-_!", min_size=6, max_size=40), st.text(max_size=20)
)
def test_the_value_of_a_secret_variable_is_found_anywhere(secret: str, around: str) -> None:
    """The environment says what must not appear."""
    if secret.isdigit() or secret in MARK:
        return
    shown = Redactor({"MY_TOKEN": secret}).text(around + secret + around)
    assert secret not in shown.replace(MARK, "")


def test_words_of_a_command() -> None:
    """The word after a secret-named option goes, and so does an assignment."""
    words = [
        "prog",
        "--api-key",
        "abc",
        "--lr",
        "0.1",
        "HF_TOKEN=abcdefgh",
        "--token",
        "--verbose",
        "grpo.seed=1",
    ]
    assert Redactor().argv(words) == [
        "prog", "--api-key", MARK, "--lr", "0.1", f"HF_TOKEN={MARK}", "--token", "--verbose", "grpo.seed=1",
    ]  # fmt: skip


def test_the_whole_value_of_a_secret_looking_option_goes() -> None:
    """It may hold blanks and commas."""
    assert Redactor().argv(["data.task_args.api_key=one, two;3"]) == [f"data.task_args.api_key={MARK}"]


def test_environment_is_chosen_by_prefix_and_redacted() -> None:
    """Only what was asked for, and no secret among it."""
    environment = {"HF_HOME": "/x", "HF_TOKEN": "abcdefgh", "USER": "me", "NCCL_DEBUG": "INFO"}
    assert Redactor(environment).environment(environment, ["HF_", "NCCL_"]) == {
        "HF_HOME": "/x",
        "HF_TOKEN": MARK,
        "NCCL_DEBUG": "INFO",
    }
