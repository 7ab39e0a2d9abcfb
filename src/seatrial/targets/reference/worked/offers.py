"""Worked examples of what refrl offers: recipes, files to start from, tiny models, the page of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args
from unittest.mock import patch

from refrl.config import describe, load_config
from refrl.config.run import GRPORunConfig, SFTRunConfig
from refrl.models import tiny
from refrl.recipes import find_config, recipe_loop, recipe_names, recipe_path, recipe_summary
from seatrial.relations.contracts.worked import WorkedExample
from seatrial.targets.reference.worked import described
from seatrial.targets.reference.worked.checkpoints import in_folder
from seatrial.targets.reference.worked.commands import called
from seatrial.targets.reference.worked.made import example, refused


def examples() -> Iterator[WorkedExample]:
    """Yield the examples."""
    yield from _of_recipes()
    yield from _of_files()
    yield from _of_options()
    yield from _of_draws()
    yield from described.examples()


def _of_recipes() -> Iterator[WorkedExample]:
    def first_lines() -> list[str]:
        return [recipe_path(name).read_text(encoding="utf-8").splitlines()[0] for name in recipe_names()]

    yield example(
        "summaries of recipes",
        True,
        lambda: [f"# {recipe_summary(name)}" for name in recipe_names()] == first_lines(),
    )
    yield example(
        "loops of recipes",
        True,
        lambda: all(recipe_loop(name) == name.partition("-")[0] for name in recipe_names() if "-" in name),
    )
    yield example("recipes are sorted", True, lambda: recipe_names() == sorted(recipe_names()))

    def listed() -> Any:
        code, printed, _ = called(["recipes"])
        lines = printed.splitlines()
        rows = zip(recipe_names(), lines, strict=True)
        return code, all(
            line.split()[:4] == ["refrl", recipe_loop(name), "--config", name]
            and line.endswith(recipe_summary(name))
            for name, line in rows
        )

    yield example("refrl recipes", (0, True), listed)
    yield example(
        "refrl recipes NAME",
        True,
        lambda: (
            called(["recipes", "grpo-smoke"])
            == (0, recipe_path("grpo-smoke").read_text(encoding="utf-8"), "")
        ),
    )
    yield refused(
        "there is no recipe 'grpo-smok'; did you mean 'grpo-smoke'",
        "a misspelt recipe",
        find_config,
        "grpo-smok",
    )
    yield example("a file that is not there", "grpo-smok.yaml", lambda: str(find_config("grpo-smok.yaml")))
    yield example("a file in a folder", "a/grpo-smoke", lambda: find_config("a/grpo-smoke").as_posix())
    yield example(
        "a recipe by its name", True, lambda: find_config("grpo-smoke") == recipe_path("grpo-smoke")
    )


def _of_files() -> Iterator[WorkedExample]:
    def written(folder: Path, kind: str, name: str, *, exists: str | None = None) -> Any:
        output = folder / "own"
        if exists is not None:
            output.mkdir()
            (output / exists).touch()
        code, printed, errors = called(["new", kind, name, "--output", str(output)])
        files = (
            sorted(path.name for path in output.iterdir() if path.stat().st_size) if output.exists() else []
        )
        left = any("{{" in (output / file).read_text(encoding="utf-8") for file in files)
        last = (
            printed.splitlines()[-1]
            if printed
            else errors.replace(str(output), "OUT").partition("; ")[0].strip()
        )
        return code, files, left, last

    run = "use it:  refrl grpo --config grpo-smoke policy.model_name=MODEL"
    both = ["my_part.py", "test_my_part.py"]
    for kind, used in (
        ("loss", "loss_fn.kind=my_part:MyPart"),
        ("verifier", "data.verifier=my_part:my_part"),
        ("task", "data.task=my_part:MyPart data.task_args={}"),
    ):
        yield example(
            f"refrl new {kind}", (0, both, False, f"{run} {used}"), in_folder(written), kind, "my_part"
        )
    bad = "refrl new: "
    for name, said in (
        ("My", "'My' is not a module name: use lower-case letters, digits and _, such as word_overlap"),
        ("a-b", "'a-b' is not a module name: use lower-case letters, digits and _, such as word_overlap"),
        ("1a", "'1a' is not a module name: use lower-case letters, digits and _, such as word_overlap"),
        ("json", "'json' is a module of Python, which json.py would hide: use another name"),
    ):
        yield example(f"refrl new loss {name}", (2, [], False, bad + said), in_folder(written), "loss", name)
    for exists in both:
        said = f"{bad}OUT/{exists} exists already: use another name, or --output another directory"
        yield example(
            f"refrl new where {exists} is",
            (2, [], False, said),
            in_folder(written),
            "loss",
            "my_part",
            exists=exists,
        )

    def made(*words: str) -> Any:
        found: list[Any] = []
        with patch.object(tiny, "make_model", lambda spec, output: found.append((spec, str(output)))):
            code, printed, _ = called(["make-model", "--output", "there", *words])
        ((spec, output),) = found
        return code, printed.strip(), output, spec

    yield example(
        "refrl make-model",
        True,
        lambda: made() == (0, "made there", "there", tiny.TinyModelSpec()),
    )
    words: dict[str, Any] = {
        "family": "qwen3_moe",
        "hidden_size": 96,
        "num_layers": 3,
        "num_heads": 6,
        "num_kv_heads": 3,
        "head_dim": 34,
        "intermediate_size": 35,
        "num_experts": 5,
        "experts_per_token": 2,
        "max_positions": 77,
        "seed": 8,
        "initializer_range": 0.5,
    }
    for name, value in words.items():
        if name not in ("num_heads", "num_kv_heads", "experts_per_token"):
            yield example(
                f"make-model with {name}",
                value,
                lambda name=name, value=value: getattr(
                    made(f"--{name.replace('_', '-')}", str(value))[3], name
                ),
            )
    flags = ("small_norms", "tie_word_embeddings", "draft_head")
    for name in flags:
        yield example(
            f"make-model with {name}",
            [flag == name for flag in flags],
            lambda name=name: [getattr(made(f"--{name.replace('_', '-')}")[3], flag) for flag in flags],
        )
    yield example(
        "make-model with every size",
        True,
        lambda: (
            made(
                *[
                    word
                    for name, value in words.items()
                    for word in (f"--{name.replace('_', '-')}", str(value))
                ]
            )[3]
            == tiny.TinyModelSpec(**words)
        ),
    )


OPTION_ROWS: Mapping[str, tuple[str, str]] = {
    "grpo.seed": ("whole number, >= 0, < 4.29497e+09", "`0`"),
    "policy.model_name": ("text", "required"),
    "policy.max_grad_norm": ("number or null, > 0", "`1.0`"),
    "policy.optimizer.betas": ("list of 2: number", "`[0.9, 0.95]`"),
    "policy.lora_cfg.target_modules": ("list: text or null", "`null`"),
    "policy.scheduler.name": ("`constant` or `linear` or `cosine`", '`"constant"`'),
    "policy.generation.colocated.enabled": ("true or false", "`true`"),
    "logger.observers": ("list: text", "`[]`"),
}
"""By option: value and default on the page of all options."""


def _of_options() -> Iterator[WorkedExample]:
    page = describe.configuration_page("Made.")
    cells = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    rows = {name.strip("`"): (value, default, *meaning) for name, value, default, *meaning in cells}
    for name, right in OPTION_ROWS.items():
        yield example(f"{name} on the page of options", right, lambda name=name: rows[name][:2])
    yield example(
        "every option has a meaning", [], lambda: [name for name, row in rows.items() if len(row) < 3]
    )
    yield example(
        "every option is on the page",
        [],
        lambda: sorted({*_names(GRPORunConfig), *_names(SFTRunConfig)} ^ rows.keys()),
    )
    sections = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    yield example(
        "sections of one command first",
        (True, True),
        lambda: (
            {"grpo", "loss_fn", "sft"} <= {*sections[: sections.index("policy")]},
            "Read by `refrl grpo` and `refrl sft`." in page.partition("## policy")[2].partition("## ")[0],
        ),
    )
    text = describe.effective_yaml(_least())
    yield example(
        "a doc, a section and a value as they are printed",
        [True] * 3,
        lambda: [line in text.splitlines() for line in ("policy:", '  model_name: "m"', "  # AdamW.")],
    )


def _least() -> GRPORunConfig:
    return load_config(GRPORunConfig, find_config("grpo-smoke"), ["policy.model_name=m"])


def _names(schema: Any, path: str = "") -> Iterator[str]:
    for name, field in schema.model_fields.items():
        inner = field.annotation
        if hasattr(inner, "model_fields"):
            yield from _names(inner, f"{path}{name}.")
        else:
            yield f"{path}{name}"


def _of_draws() -> Iterator[WorkedExample]:
    for family in get_args(tiny.Family):
        yield example(f"matrices of a {family} and its draft head that begin alike", [], _alike, family)


def _alike(family: tiny.Family) -> list[str]:
    """Return which matrices of models of three seeds, and of their draft heads, begin with the numbers of another."""
    begun: dict[tuple[float, ...], str] = {}
    wrong: list[str] = []
    for seed in range(3):
        spec = tiny.TinyModelSpec(
            family=family, hidden_size=8, num_heads=2, intermediate_size=8, experts_per_token=1, seed=seed
        )
        for part, drawn in (("model", tiny.weights(spec)), ("draft head", tiny.draft_weights(spec))):
            for name, tensor in drawn:
                if tensor.ndim == 1:
                    continue
                numbers = tensor.ravel()[:8] / tensor.ravel()[0]  # regardless of their spread
                key, place = tuple(numbers.round(3).tolist()), f"{name} of {part} {seed}"
                other = begun.setdefault(key, place)
                wrong += [f"{place} as {other}"] * (other != place)
    return wrong
