"""What is a check, and what is refused when it is read."""

import pytest

from seatrial.checks import parse_check
from seatrial.checks.language.nodes import (
    After,
    Aggregate,
    Comparison,
    Last,
    Negate,
    Number,
    Point,
    Positions,
    SeriesRef,
    Steps,
)
from seatrial.checks.language.scan import MAX_DEPTH, MAX_LENGTH, MAX_TOKENS
from seatrial.errors import UsageError


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        ('mean(data["x"]) < 1', None),
        ('mean(data["x"], -6, -1) < 1', Positions(start=-6, end=-1)),
        ('median(data["x"], 2) < 1', Positions(start=2, end=0)),
        ('max(data["x"], last(5)) < 1', Last(count=5)),
        ('min(data["x"], after(10)) < 1', After(step=10)),
        ('slope(data["x"], steps(10, 90)) < 1', Steps(first=10, last=90)),
        ('coverage(data["x"], steps(0, 100, 10)) < 1', Steps(first=0, last=100, every=10)),
        ('last(data["x"], last(3)) < 1', Last(count=3)),
        ('ratio_above(data["x"], 2, after(3)) < 1', After(step=3)),
    ],
)
def test_ranges_are_positional_or_explicit(text: str, chosen: object) -> None:
    condition = parse_check(text).condition
    assert isinstance(condition, Comparison)
    aggregate = condition.operands[0]
    assert isinstance(aggregate, Aggregate)
    assert aggregate.range == chosen


def test_nodes_know_their_column_and_words() -> None:
    condition = parse_check('  1.5 > -data["é"]["3"] ').condition
    assert isinstance(condition, Comparison)
    bound, measured = condition.operands
    assert bound == Number(value=1.5) and bound.column == 1
    assert measured == Negate(operand=Point(series=SeriesRef(tag="é"), key="3"))
    assert (measured.column, measured.text) == (7, '-data["é"]["3"]')


def test_references_tell_the_runs_and_tags_read() -> None:
    check = parse_check('mean(data["a"]) < 1.1 * mean(run("baseline")["b"]) and "5" in data["c"]')
    assert check.tags() == {"a", "c"}
    assert check.tags("baseline") == {"b"}
    assert check.runs == {"baseline"}


REFUSED = [
    # (text, column, what the message must say)
    ("", None, "empty"),
    ("   ", None, "empty"),
    ("exit(0)", 1, "not a comparison"),
    ('exit(0) < data["x"]["1"]', 1, "'exit' is not a function"),
    ('__import__("os").system("true") == 0', 17, "no attributes"),
    ('max(data["x"])', 1, "not a comparison"),
    ('max(data["x"]) < 1 or True', 23, "constant"),
    ('max(data["x"]) < 1 and 1', 24, "constant"),
    ("1 < 2", 1, "constant"),
    ('1 < 2 < max(data["x"])', 1, "constant"),
    ("not True", 5, "constant"),
    ('max(data["x"]) < 2 ** 3', 20, "**"),
    ('max(data["x"]) // 2 < 3', 16, "//"),
    ('max(data["x"]) % 2 < 3', 16, "allowed are + - * /"),
    ('max(data["x"]) < 1e19', 18, "may not exceed"),
    ('max(data["x"]) < 1e999', 18, "may not exceed"),
    ('max(data["x"]) < 0x10', 18, "decimal"),
    ('max(data["x"]) < 3j', 18, "decimal"),
    ('max(data["x"]) / 0 < 1', 18, "division by zero"),
    ('max(data["x"]) / (1 - 1) < 1', 19, "division by zero"),
    ('maxx(data["x"]) < 1', 1, "did you mean 'max'"),
    ('max(data["x"], 2) < 1', 16, "steps(first, last)"),
    ('max(max(data["x"])) < 1', 5, "is a number"),
    ('max(data["x"]["1"], 3) < 1', 5, "is a number"),
    ("max() < 1", 1, "takes a series"),
    ('max(*data["x"]) < 1', 1, "takes a series"),
    ('max(**data["x"]) < 1', 5, "**"),
    ('mean(data["x"], 2.5) < 1', 17, "whole numbers"),
    ('mean(data["x"], 1, 2, 3) < 1', 17, "whole numbers"),
    ('mean(data["x"], last(2), 3) < 1', 26, "one range"),
    ('mean(data["x"], last(0)) < 1', 17, "count >= 1"),
    ('mean(data["x"], steps(5, 1)) < 1', 17, "first <= last"),
    ('mean(data["x"], steps(1, 9, 0)) < 1', 17, "steps(first, last, every)"),
    ('mean(data["x"], after(-1)) < 1', 17, "step >= 0"),
    ('mean(data["x"], after(data["x"]["1"])) < 1', 17, "whole numbers"),
    ('mean(data["x"], ignore_top_p=2) < 1', 30, "from 0 to 1"),
    ('mean(data["x"], ignore_top_p=0.1, ignore_top_p=0.2) < 1', 48, "one option"),
    ('median(data["x"], ignore_top_p=0.1) < 1', 32, "takes no option"),
    ('quantile(data["x"]) < 1', 1, "takes a q"),
    ('quantile(data["x"], 1.5) < 1', 21, "from 0 to 1"),
    ('quantile(data["x"], last(3)) < 1', 1, "takes a q"),
    ('ratio_above(data["x"], abs(data["y"])) < 1', 24, "not a series"),
    ('len(data["x"], last(2)) < 1', 16, "whole series"),
    ('steps(1, 2) < data["x"]["1"]', 1, "is a range"),
    ('abs(data["x"], 1) < 1', 1, "abs takes one"),
    ("data < 1", 1, "followed by a tag"),
    ("max(data) < 1", 5, "followed by a tag"),
    ("data[x] < 1", 6, "a tag goes in quotes"),
    ("data[0] < 1", 6, "a tag goes in quotes"),
    ('data[""] < 1', 6, "a tag goes in quotes"),
    ('data["x"][1] < 1', 11, '["1"]'),
    ('data["x"]["1"]["2"] < 1', 1, "may have brackets"),
    ('data["x":"y"] < 1', 9, "no slices"),
    ('data["x"]["$MAX_STEPS"] < 1', 11, "shell variable"),
    ('run["b"]["x"] < 1', 1, "not known"),
    ('run("b") < 1', 1, "followed by a tag"),
    ('run()["x"] < 1', 1, "one name in quotes"),
    ('run(data["x"])["x"] < 1', 1, "one name in quotes"),
    ('x["y"] < 1', 1, "not known"),
    ('max < data["x"]["1"]', 1, "is a function"),
    ('"5" in "567"', 8, "not a number"),
    ('5 in data["x"]', 1, "only a step in quotes"),
    ('"5" in data["x"]["5"]', 8, "is followed by a series"),
    ('"5" in data["x"] in data["y"]', 1, "'in' is used alone"),
    ('data["x"]["1"] is data["y"]["1"]', 1, "'is' is not allowed"),
    ('(max(data["x"]) < 1) < 2', 2, "cannot be inside"),
    ('max(data["x"]) if max(data["y"]) else 1', 1, "not a comparison"),
    ('lambda: data["x"]["1"] < 1', 7, "lambdas"),
    ('[v for v in data["x"]] == 1', 1, "not in the language"),
    ('{"a"} == data["x"]["1"]', 1, "no sets"),
    ('(y := data["x"]["1"]) < 1', 4, "no slices"),
    ('max(data["x"]) < 1; exit(0)', 19, "one check"),
    ('max(data["x"]) < 1 # fine', 20, "no comments"),
    ('max(data["x"])\n< 1', 15, "one line"),
    ('max(data["x"]) < 1 2', None, "not an expression"),
    ('max(data["x"] < 1', None, "not an expression"),
    ('max(data["x) < 1', 10, "not closed"),
    ('max(data[f"x"]) < 1', 11, "no prefix"),
    ('max(data["x" "y"]) < 1', 14, "two strings"),
    ('max(data["""x"""]) < 1', 10, "triple quotes"),
    (r'max(data["a\x41"]) < 1', 12, "backslash"),
    ('max(data["a\u200bb"]) < 1', 12, "ZERO WIDTH SPACE"),
    ('max(data["a\u202eb"]) < 1', 12, "RIGHT-TO-LEFT OVERRIDE"),
    ('max(data["a\x00b"]) < 1', 12, "invisible"),
    ('m\u0430x(data["x"]) < 1', 2, "CYRILLIC SMALL LETTER A"),
    ('\uff4dax(data["x"]) < 1', 1, "FULLWIDTH"),
    ('max(data["x"]) \uff1c 1', 16, "FULLWIDTH LESS-THAN SIGN"),
    ('max(data["x"]) < \u0661', 18, "ARABIC-INDIC DIGIT ONE"),
    ("max(data[\u201cx\u201d]) < 1", 10, "LEFT DOUBLE QUOTATION MARK"),
    ('max(data["x"]) <\x00 1', 17, "control character"),
    ("+" * 9 + 'max(data["x"]) < 1', 9, "signs after one another"),
    ('+max(data["x"]) < 1', 1, "not in the language"),
    ('~max(data["x"]) < 1', 1, "not in the language"),
    ('max(data["x"]) < nan', 18, "not known"),
    ('max(data["x"]) < inf', 18, "not known"),
]


@pytest.mark.parametrize(("text", "column", "says"), REFUSED, ids=[repr(row[0])[:60] for row in REFUSED])
def test_what_is_not_in_the_language_is_refused_with_its_column(
    text: str, column: int | None, says: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse_check(text)
    message = str(refused.value)
    assert says in message
    if column is not None:
        assert f"at column {column}:" in message
        _told, shown, caret = message.split("\n")
        assert shown[len(caret) - 1] == (text.strip()[column - 1] if text[column - 1].isprintable() else "?")


@pytest.mark.parametrize(
    "text",
    [
        'max(data["' + "x" * MAX_LENGTH + '"]) < 1',
        "(" * (MAX_DEPTH + 1) + 'data["x"]["1"]' + ")" * (MAX_DEPTH + 1) + " < 1",
        'data["x"]["1"]' + " + 1" * MAX_TOKENS + " < 1",
        "not " * 9 + 'data["x"]["1"] < 1',
        "-" * 9 + 'data["x"]["1"] < 1',
        "(" * 100_000,
        "x" * 10_000_000,
        '"' * 10_000_000,
        "9" * 1_900 + ' < data["x"]["1"]',
    ],
    ids=[
        "long",
        "deep",
        "many words",
        "many nots",
        "many signs",
        "brackets",
        "10 MB",
        "10 MB of quotes",
        "digits",
    ],
)
def test_size_is_limited_before_it_is_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("Python's parser was called")

    monkeypatch.setattr("seatrial.checks.language.grammar.ast.parse", never)
    with pytest.raises(UsageError) as refused:
        parse_check(text)
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "(" * (MAX_DEPTH - 4) + 'max(data["x"])' + ")" * (MAX_DEPTH - 4) + " < 1",
        " + ".join(['data["x"]["1"]'] * 37) + " < 1",
        "-" * 8 + 'data["x"]["1"] < 1',
        'max(data["' + "x" * 1500 + '"]) < 1e18',
    ],
    ids=["deep", "many words", "many signs", "long"],
)
def test_what_is_just_within_the_limits_is_read(text: str) -> None:
    assert parse_check(text).tags()
