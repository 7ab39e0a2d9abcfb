"""Formulas of a package are imported without what the package imports beside, and what is missing is named."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from seatrial.errors import BlockedError
from seatrial.targets import get_target
from seatrial.targets.common.stand_ins import import_part, without_init
from seatrial.targets.common.target import Gone, available

PACKAGE = "made_heavy_package"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that cannot be imported as a whole, with formulas that name a type of one of its modules."""
    root = tmp_path / PACKAGE
    (root / "losses").mkdir(parents=True)
    (root / "__init__.py").write_text("raise RuntimeError('needs eight GPUs')\n")
    (root / "engine.py").write_text("raise RuntimeError('needs an engine')\n")
    (root / "losses" / "__init__.py").write_text("")
    (root / "losses" / "clipped.py").write_text(
        f"from {PACKAGE}.engine import Engine, unwrap\n\n\n"
        "def loss(x: float, engine: Engine | None = None) -> float:\n    return unwrap(x) * x\n"
    )
    (root / "losses" / "other.py").write_text("import a_package_that_is_nowhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


@pytest.mark.usefixtures("package")
def test_a_formula_is_imported_without_its_package_and_the_stand_in_serves() -> None:
    """Types are empty classes; what is called is given."""
    without_init(PACKAGE)
    clipped = import_part(f"{PACKAGE}.losses.clipped", {f"{PACKAGE}.engine": {"unwrap": lambda x: x + 1}})
    assert clipped.loss(3.0) == 12.0
    assert isinstance(sys.modules[f"{PACKAGE}.engine"].Engine, type)


@pytest.mark.usefixtures("package")
def test_a_module_that_a_checkout_lacks_is_gone_and_a_missing_package_is_not() -> None:
    """The first is a fact about the release; the second blocks."""
    without_init(PACKAGE)
    with pytest.raises(Gone, match=r"no made_heavy_package\.losses\.newest"):
        import_part(f"{PACKAGE}.losses.newest", {})

    class NeedsOther:
        def __init__(self) -> None:
            import_part(f"{PACKAGE}.losses.other", {})

    with pytest.raises(BlockedError, match="a_package_that_is_nowhere"):
        available({"other": NeedsOther})


def test_a_package_that_is_nowhere_is_gone() -> None:
    """With the remedy."""
    with pytest.raises(Gone, match="PYTHONPATH"):
        without_init("a_package_that_is_nowhere")


def test_nemo_rl_blocks_where_there_is_no_checkout() -> None:
    """A path is missing, and nothing is wrong with the stack."""
    with pytest.raises(BlockedError, match="nemo_rl not installed here"):
        get_target("nemo-rl").components()
