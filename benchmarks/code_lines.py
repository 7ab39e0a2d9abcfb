"""Counts lines of code in `src`, without blank lines, comments and docstrings, by package.

    python benchmarks/code_lines.py [--depth 2] [FOLDER ...]

A line counts if a token of code starts, ends or continues on it. Data files (YAML, JSON, templates) are counted apart,
so that code moved to data is seen.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
DATA_SUFFIXES = (".yaml", ".json", ".html", ".txt", ".js", ".css")


def code_lines(source: str) -> int:
    """Return how many lines of a Python source hold code; docstrings are not code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.AST) -> set[int]:
    """Return the lines of strings that stand alone as statements: docstrings of modules, classes, functions, fields."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def count(folder: Path, depth: int) -> tuple[Counter[str], Counter[str]]:
    """Return (code lines, data lines) of the packages below a folder, down to `depth` names."""
    code: Counter[str] = Counter()
    data: Counter[str] = Counter()
    for path in sorted(folder.rglob("*")):
        package = "/".join(path.relative_to(folder).parent.parts[:depth]) or "."
        if path.suffix == ".py":
            code[package] += code_lines(path.read_text(encoding="utf-8"))
        elif path.suffix in DATA_SUFFIXES:
            data[package] += sum(1 for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return code, data


def main() -> None:
    """Print one row a package and the sum."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "src"])
    parser.add_argument(
        "--depth", type=int, default=2, help="names of a package that make a row (default: 2)"
    )
    arguments = parser.parse_args()
    for folder in arguments.folders:
        code, data = count(folder, arguments.depth)
        for package in sorted(code | data):
            print(f"{code[package]:7,} code {data[package]:7,} data  {package}")
        print(f"{code.total():7,} code {data.total():7,} data  in all of {folder.name}")


if __name__ == "__main__":
    main()
