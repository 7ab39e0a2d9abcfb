"""Recipes are found by name, and a configuration is shown whole with its docs."""

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from refrl.cli import main
from refrl.config import ConfigError, GRPORunConfig, SFTRunConfig, describe, load_config
from refrl.config.base import Section
from refrl.config.checkpointing import CheckpointingConfig
from refrl.config.describe import option_docs
from refrl.recipes import find_config, recipe_loop, recipe_names, recipe_path


def test_a_recipe_is_named_or_a_file_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of that name in the folder is meant first."""
    monkeypatch.chdir(tmp_path)
    assert find_config("grpo-smoke") == recipe_path("grpo-smoke")
    assert find_config("grpo-smoke.yaml") == Path("grpo-smoke.yaml")
    assert find_config("own/grpo-smoke") == Path("own/grpo-smoke")
    Path("grpo-smoke").touch()
    assert find_config("grpo-smoke") == Path("grpo-smoke")
    with pytest.raises(ConfigError, match=r"there is no recipe 'grpo-smoek'; did you mean 'grpo-smoke'\?"):
        find_config("grpo-smoek")


def test_the_list_names_every_recipe_with_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each is valid under the schema of that command."""
    assert main(["recipes"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[3] for line in shown] == recipe_names()
    for line in shown:
        loop, name = line.split()[1], line.split()[3]
        assert recipe_loop(name) == loop
        load_config({"grpo": GRPORunConfig, "sft": SFTRunConfig}[loop], recipe_path(name))


def test_a_recipe_is_printed_as_it_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """To copy and change."""
    assert main(["recipes", "grpo-smoke"]) == 0
    assert capsys.readouterr().out == recipe_path("grpo-smoke").read_text()
    assert main(["recipes", "grpo-smok"]) == 2
    assert "did you mean 'grpo-smoke'?" in capsys.readouterr().err


def schemas(schema: type[Section]) -> set[type[Section]]:
    """Return a schema and those of its sections."""
    inner = [field.annotation for field in schema.model_fields.values()]
    found = {schema}
    for kind in inner:
        if isinstance(kind, type) and issubclass(kind, Section):
            found |= schemas(kind)
    return found


@pytest.mark.parametrize(
    "schema", sorted(schemas(GRPORunConfig) | schemas(SFTRunConfig), key=lambda kind: kind.__name__)
)
def test_every_option_has_a_doc(schema: type[Section]) -> None:
    """A section by the doc of its class."""
    docs = option_docs(schema)
    missing = [
        name
        for name, field in schema.model_fields.items()
        if name not in docs
        and not (isinstance(field.annotation, type) and issubclass(field.annotation, Section))
    ]
    assert missing == []


def test_the_printed_configuration_is_the_effective_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defaults and overrides in; read again it is the same, and every option has its doc above it."""
    words = ["grpo.seed=7", "policy.tokenizer.chat_template=byte", "data.system_prompt='a: b # c'"]
    assert main(["grpo", "--config", "grpo-smoke", "--print-config", *words]) == 0
    shown = capsys.readouterr().out
    (tmp_path / "shown.yaml").write_text(shown)
    config = load_config(GRPORunConfig, recipe_path("grpo-smoke"), words)
    assert load_config(GRPORunConfig, tmp_path / "shown.yaml") == config
    assert yaml.safe_load(shown)["grpo"]["seed"] == 7
    lines = shown.splitlines()
    assert lines[lines.index("  ratio_clip_max: 0.2") - 1].startswith("  # Upper clip")


def test_help_loads_neither_torch_nor_the_schema(repository: Path) -> None:
    """`refrl --help` answers at once."""
    script = (
        "import sys\nfrom refrl.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'pydantic', 'yaml') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "[]"


def test_docs_are_read_while_other_code_parses() -> None:
    """What runs when garbage is collected may parse; afterwards garbage is collected again."""

    def parse(_phase: str, _info: object) -> None:
        ast.parse("x = (1 + 2)")

    before = gc.get_threshold()
    gc.callbacks.append(parse)
    gc.set_threshold(20)
    try:
        describe._docs_in_module.cache_clear()
        docs = option_docs(CheckpointingConfig)
        collects = gc.isenabled()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(parse)
    assert docs
    assert collects
