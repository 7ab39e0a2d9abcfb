"""Shell scripts read as words; bash itself is the oracle of what the words are."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from seatrial.migrate.shell import ShellError, Word, expand, parse_script
from seatrial.migrate.shell_walk import ScriptWalk


def read_commands(script: str) -> list[list[Word]]:
    """Return the simple commands of a script, in the order of the text."""
    found: list[list[Word]] = []
    ScriptWalk(lambda walk, command: found.append(command)).walk(parse_script(script))
    return found


def words(script: str, **values: str | list[str]) -> list[list[list[str] | str]]:
    return [[expand(word, values) for word in command] for command in read_commands(script)]


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("a b\nc", [[["a"], ["b"]], [["c"]]]),
        ("a \\\n  'b c' \\\n  \"d e\"\n", [[["a"], ["b c"], ["d e"]]]),
        ("a # b\nc d#e", [[["a"]], [["c"], ["d#e"]]]),
        ("a;b && c || d | e &", [[["a"]], [["b"]], [["c"]], [["d"]], [["e"]]]),
        ("a'b'\"c\"d", [[["abcd"]]]),
        ('a\\ b "\\$x \\" \\n"', [[["a b"], ['$x " \\n']]]),
        ("a > out 2>&1 < in b 2>> log", [[["a"], ["b"]]]),
        ("a <<EOF b\nx y\nEOF\nc", [[["a"], ["b"]], [["c"]]]),
        ("a <<-'EOF'\n\tx\n\tEOF\nc", [[["a"]], [["c"]]]),
        ("a <<< 'x y' b", [[["a"], ["b"]]]),
        ("a <(b c) d", [[["a"], "<(b c) is known only when the script runs", ["d"]]]),
        ("a '' \"\"", [[["a"], [""], [""]]]),
        ("a $", [[["a"], ["$"]]]),
        ('a $\'b c\' $"d" "$\'"', [[["a"], ["b c"], ["d"], ["$'"]]]),
    ],
)
def test_commands_and_words(script: str, expected: list[list[list[str]]]) -> None:
    assert words(script) == expected


def test_variables_are_expanded_where_the_script_knows_them() -> None:
    known = {"N": "20", "A": ["x y", "z"]}
    assert words('a $N "${N}s" \'$N\' ${M:-7} "${A[@]}" "$N$N"', **known) == [
        [["a"], ["20"], ["20s"], ["$N"], ["7"], ["x y", "z"], ["2020"]]
    ]


@pytest.mark.parametrize(
    "word",
    ["$M", "${M}", "$(date)", "`date`", "$'a\\n'", "$((1 + 2))", "$1", "$@", "${N%.json}", '"${B[@]}"', "$A"],
)
def test_what_only_a_shell_knows_is_told_as_text(word: str) -> None:
    [[_, result]] = words(f"a {word}", N="20", A=["x"])
    assert isinstance(result, str)


@pytest.mark.parametrize("script", ["a 'b", 'a "b', "a $(b", "a ${b", "a `b", "A=(b", "A=(b; c)"])
def test_what_is_not_closed_is_refused(script: str) -> None:
    with pytest.raises(ShellError):
        words(script)


def test_lines_are_those_of_the_script() -> None:
    [first, second] = read_commands("\na 'b\nc' \\\n d\ne\n")
    assert [word.line for word in first] == [2, 2, 4]
    assert [word.line for word in second] == [5]


PIECES = st.lists(
    st.sampled_from(
        [
            "a",
            "b c",
            "'",
            '"',
            "\\",
            " ",
            "$N",
            "${N}",
            "#",
            "x=1",
            "\\\n",
            "\t",
            "$",
            "é",
            "→",
            "\u3000",
            "\U0007234b",
            "¡",
            "=",
            "'$N'",
            '"$N"',
        ]
    )
    | st.text(alphabet="ab \"'\\$#", max_size=4),
    max_size=12,
).map("".join)


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is the oracle")
@given(text=PIECES)
@example(text="a\\")
@example(text="''\\$")
@example(text="a$N$N\\\\")
@example(text="\\\\$")
@example(text='"a\\')
def test_words_are_those_of_bash(text: str) -> None:
    """Bash prints the words of the same line, separated by NUL; `N` holds a value without spaces."""
    script = f"printf '%s\\0' begin {text}\n"
    ran = subprocess.run(
        ["bash", "--norc", "-c", f"N=20; {script}"],
        capture_output=True,
        check=False,
        env={"LC_ALL": "C.UTF-8"},
        timeout=20,
    )
    try:
        commands = list(read_commands(script))
    except ShellError:
        return  # The parser refuses some words that bash takes; what it refuses is told, and nothing is misread.
    if ran.returncode != 0 or len(commands) != 1:
        return
    expanded = [expand(word, {"N": "20"}) for word in commands[0][2:]]
    if any(isinstance(item, str) for item in expanded):
        return
    flat = [text for item in expanded for text in item]
    assert flat == ran.stdout.decode().split("\0")[:-1]


SIGNS = ["'", '"', "\\", "\n", "$", "${", "}", "(", ")", "`", "<", ">", "|", "&", ";", "#", " ", "$((", "$'"]
WORDS = [
    *("<<E ", "E\n", "A=(", "A=1 ", "A+=2 ", "if ", "else ", "fi\n", "for x in ", "done\n", "{ ", "}\n"),
    *("case ", "esac;", "f ", '"${A[@]}"'),
]
HOSTILE = st.lists(st.sampled_from(SIGNS + WORDS) | st.text(max_size=3), max_size=40).map("".join)


@given(text=HOSTILE)
@example(text="{\U0007234b")  # Ended the process in the scanner of tree-sitter-bash 0.25.1.
@example(text="$((\U00107744")
def test_any_text_is_read_or_refused(text: str) -> None:
    seen: list[Word] = []
    walk = ScriptWalk(lambda walk, command: seen.extend(command))
    try:
        walk.walk(parse_script(text))
    except ShellError as error:
        assert str(error)
        return
    for word in seen:
        assert isinstance(expand(word, walk.values), list | str)
