"""`--affected` depends on the functions that ran, and on imports only for what runs at import."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from seatrial.pytest_plugin.affected.calls import Probes, compile_with_probes
from seatrial.pytest_plugin.affected.keepers import keepers

FILES = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n',
    # A full __init__: every test imports everything.
    "src/pkg/__init__.py": "from pkg.maths import add, multiply, Shape, Square\nfrom pkg.store import table, get\n",
    "src/pkg/maths.py": '''
from pkg.tools import at_import, traced

def add(a, b):
    """Sum."""
    return a + b

def multiply(a, b):
    return sum(a for _ in range(b))

class Shape:
    size = at_import(2)

    def area(self):
        raise NotImplementedError

    @property
    def name(self):
        return type(self).__name__

class Square(Shape):
    def area(self):
        return multiply(self.size, self.size)

@traced
def decorated():
    return 1

def forked(): return 3
''',
    "src/pkg/tools.py": """
def at_import(value):
    return value

def traced(function):
    def wrapper(*values):
        return function(*values)
    return wrapper
""",
    "src/pkg/store.py": """
import functools
from pkg.parts import load, fill, lazy

@functools.cache
def table():
    return load()

_FOUND = {}
def get(key):
    if key not in _FOUND:
        _FOUND[key] = fill(key)
    return _FOUND[key]

class Store:
    _data = None

    @property
    def data(self):
        if self._data is None:
            self._data = lazy()
        return self._data

STORE = Store()
""",
    "src/pkg/parts.py": "def load(): return 1\ndef fill(key): return key\ndef lazy(): return 5\n",
    "test_maths.py": """
import os
import pytest
import pkg
from pkg.maths import decorated, forked

def test_add(): assert pkg.add(1, 2) == 3
def test_square(): assert pkg.Square().area() == 4
def test_name(): assert pkg.Square().name == "Square"
def test_decorated(): assert decorated() == 1
def test_fork():
    child = os.fork()
    if child == 0:
        os._exit(forked())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
@pytest.fixture(scope="module")
def made(): return pkg.add(1, 1)
def test_made(made): assert made == 2
def test_made_too(made): assert made == 2
""",
    "test_store.py": """
from pkg.store import STORE, get, table

def test_table(): assert table() == 1
def test_table_again(): assert table() == 1
def test_get(): assert get("k") == "k"
def test_get_again(): assert get("k") == "k"
def test_lazy(): assert STORE.data == 5
def test_lazy_again(): assert STORE.data == 5
""",
}
MATHS = {"test_add", "test_square", "test_name", "test_decorated", "test_fork", "test_made", "test_made_too"}
STORE = {"test_table", "test_table_again", "test_get", "test_get_again", "test_lazy", "test_lazy_again"}


def _explain(project: Path, *arguments: str) -> tuple[set[str], str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "SEATRIAL_"))}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "seatrial.pytest_plugin", "-p", "no:cacheprovider"),
            *("--affected-explain", *arguments),
        ],
        cwd=project,
        env={**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    chosen = set(re.findall(r"^  run  \S+?::(\S+):", done.stdout, re.MULTILINE))
    return chosen, done.stdout + done.stderr


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("seeded") / "project"
    for name, text in FILES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    chosen, output = _explain(project)
    assert chosen == MATHS | STORE, output
    assert "13 passed" in output
    return project


@pytest.mark.parametrize(
    ("path", "old", "new", "affected"),
    [
        ("maths", "return a + b", "return b + a", {"test_add", "test_made", "test_made_too", "test_fork"}),
        ("maths", "return sum(", "return 0 + sum(", {"test_square", "test_fork"}),
        ("maths", "raise NotImplementedError", "raise ValueError", {"test_fork"}),
        ("maths", "return type(self)", "return self.__class__", {"test_name", "test_fork"}),
        ("maths", "return 1", "return 1 * 1", {"test_decorated", "test_fork"}),
        ("maths", "return 3", "return 4", {"test_fork"}),
        # What runs at import belongs to all that import it: signatures, a new method, a function called there.
        ("maths", "def add(a, b)", "def add(a, b=1)", MATHS | STORE),
        (
            "maths",
            "class Square(Shape):",
            "class Square(Shape):\n    def name(self): return 1\n",
            MATHS | STORE,
        ),
        ("tools", "return value", "return value + 0", MATHS | STORE),
        ("tools", "return function(*values)", "return function(*values) or 0", MATHS | STORE),
        # What the first test did for all.
        ("parts", "return 1", "return 1 + 0", MATHS | STORE),
        ("parts", "return key", "return key + ''", MATHS | STORE),
        ("parts", "return 5", "return 5 + 0", MATHS | STORE),
    ],
)
def test_an_edit_chooses_the_tests_that_ran_the_function(
    seeded: Path, tmp_path: Path, path: str, old: str, new: str, affected: set[str]
) -> None:
    project = Path(shutil.copytree(seeded, tmp_path / "project"))
    file = project / f"src/pkg/{path}.py"
    file.write_text(file.read_text().replace(old, new))
    chosen, output = _explain(project, "--collect-only")
    assert chosen == affected, output


def test_what_is_compiled_or_read_as_text_counts_as_a_whole(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["src"]\n')
    (tmp_path / "src").mkdir()
    (tmp_path / "src/kernels.py").write_text("def kernel(): return 1\ndef other(): return 2\n")
    (tmp_path / "src/reader.py").write_text(
        "import inspect, kernels\ndef text(): return inspect.getsource(kernels.kernel)\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import reader\ndef test_text(): assert 'return 1' in reader.text()\ndef test_plain(): pass\n"
    )
    _explain(tmp_path)
    file = tmp_path / "src/kernels.py"
    file.write_text(file.read_text().replace("return 1", "return 3"))
    chosen, output = _explain(tmp_path, "--collect-only")
    assert "test_text" in chosen, output


def _note(ran: list[str], sign: str, name: str) -> None:
    ran.append(sign + name)


PROGRAM = '''
"""A module."""
from __future__ import annotations
import functools

def plain(a, *, b=lambda x: x + 1):
    """Doc."""
    inner = lambda: a
    def nested(): return inner()
    return nested() + b(1)

def generator():
    got = yield 1
    yield got

async def coroutine(): return 4

@functools.lru_cache
def cached(x):
    if x: return x
    raise ValueError(x)

class C:
    """Of C."""
    total: int = sum(i for i in range(3))
    def only_doc(self):
        "Doc."
    @property
    def value(self): return super().__init__() or 7
'''


def test_a_module_with_probes_is_the_same_module(tmp_path: Path) -> None:
    """Values, documentation, signatures, lines and source text are those of the file; every call is told."""
    file = tmp_path / "module.py"
    file.write_text(PROGRAM)
    ran: list[str] = []
    probes = Probes(ran.append, *(partial(_note, ran, sign) for sign in "+-()"))
    probed, plain = ModuleType("probed"), ModuleType("plain")
    exec(compile_with_probes(PROGRAM.encode(), str(file), "module.py", probes), vars(probed))  # noqa: S102
    exec(compile(PROGRAM, str(file), "exec"), vars(plain))  # noqa: S102
    assert ran == []
    for name in ("plain", "generator", "coroutine", "cached"):
        mine, theirs = getattr(probed, name), getattr(plain, name)
        assert mine.__doc__ == theirs.__doc__
        assert list(inspect.signature(mine).parameters) == list(inspect.signature(theirs).parameters)
        assert inspect.getsource(inspect.unwrap(mine)) == inspect.getsource(inspect.unwrap(theirs))
    assert (probed.C.__doc__, probed.C.only_doc.__doc__, probed.C.total) == ("Of C.", "Doc.", 3)
    assert probed.plain(3) == plain.plain(3) == 5
    assert set(ran) == {"module.py::plain"}
    steps = probed.generator()
    assert (next(steps), steps.send("x")) == (1, "x")
    with pytest.raises(ValueError, match="0") as caught:
        probed.cached(0)
    assert ran[-2:] == ["+module.py::cached", "-module.py::cached"]
    assert caught.traceback[-1].lineno + 1 == PROGRAM.splitlines().index("    raise ValueError(x)") + 1
    assert probed.C().value == 7
    assert ran[-1] == "module.py::C.value"


@pytest.mark.parametrize(
    ("text", "keeps"),
    [
        ("def f():\n    global X\n    X = 1\n", True),
        ("X = {}\ndef f(k):\n    X[k] = 1\n", True),
        ("X = []\ndef f(k):\n    X.append(k)\n", True),
        ("def f(x):\n    y = []\n    y.append(x)\n    return y\n", False),
        ("X = []\ndef f(X):\n    X.append(1)\n", False),
        ("import functools\n@functools.lru_cache(None)\ndef f(): return 1\n", True),
        ("class C:\n    @cached_property\n    def f(self): return 1\n", True),
        ("class C:\n    @classmethod\n    def f(cls):\n        cls.made = 1\n", True),
        ("class C:\n    def f(self):\n        type(self).made = 1\n", True),
        ("class C:\n    def f(self):\n        if not hasattr(self, 'x'):\n            self.x = 1\n", True),
        (
            "class C:\n    def f(self):\n        try: self.x\n        except AttributeError: self.x = 1\n",
            True,
        ),
        ("class C:\n    def __init__(self):\n        if self.x:\n            self.x = 1\n", False),
        ("class C:\n    def f(self, value):\n        self.x = value\n", False),
        (
            "class C:\n def f(self, k):\n  if k not in self.x: self.x[k] = make(k)\n  return self.x[k]\n",
            True,
        ),
        (
            "class C:\n def f(self, k):\n  try: return self.x[k]\n  except KeyError: self.x[k] = make(k)\n",
            True,
        ),
        (
            "class C:\n def f(self, k):\n  y = self.x.get(k)\n  if y is None: y = self.x[k] = make(k)\n",
            True,
        ),
        ("class C:\n    def f(self, k):\n        if k in self.x:\n            self.y[k] = 1\n", False),
        ("class C:\n    def f(self, k):\n        self.x[k] = self.x.get(k, 0) + 1\n", False),
        ("def f():\n    return 1\n", False),
    ],
)
def test_functions_that_keep_what_they_made_are_known_by_their_text(text: str, keeps: bool) -> None:
    assert bool(keepers(ast.parse(text)).names) is keeps


SUSPENDED = {
    "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\n',
    "src/rollout.py": """
import asyncio
from model import load, prompts, score

class Worker:
    _model = None

    async def model(self):
        if self._model is None:
            await asyncio.sleep(0)
            self._model = load()
        return self._model

    def rows(self):
        if self._model is None:
            self._model = load()
        for row in prompts():
            yield row

WORKER = Worker()

def unrelated(): return score(1)
""",
    "src/model.py": """
def load(): return 7
def prompts(): return [1, 2]
def score(x): return x
def never(): return 0
""",
    "test_rollout.py": """
import asyncio
from rollout import WORKER, unrelated

def test_first(): assert asyncio.run(WORKER.model()) == 7
def test_again(): assert asyncio.run(WORKER.model()) == 7
def test_rows(): assert list(WORKER.rows()) == [1, 2]
def test_open():
    rows = WORKER.rows()
    assert next(rows) == 1
    WORKER.open = rows
""",
    "test_other.py": "from rollout import unrelated\ndef test_unrelated(): assert unrelated() == 1\n",
}


@pytest.mark.parametrize(
    ("old", "new", "affected"),
    [
        (
            "return 7",
            "return 7 + 0",
            {"test_first", "test_again", "test_rows", "test_open", "test_unrelated"},
        ),
        ("return x", "return x + 0", {"test_unrelated"}),
        ("return 0", "return 1", set()),
    ],
)
def test_a_coroutine_or_generator_that_keeps_a_result_makes_no_file_count_as_a_whole(
    tmp_path: Path, old: str, new: str, affected: set[str]
) -> None:
    """What ran until it ended counts for all that import its file, and nothing else does."""
    for name, text in SUSPENDED.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    seeded, output = _explain(tmp_path)
    assert "5 passed" in output, (seeded, output)
    file = tmp_path / "src/model.py"
    file.write_text(file.read_text().replace(old, new))
    chosen, output = _explain(tmp_path, "--collect-only")
    assert chosen == affected, output
