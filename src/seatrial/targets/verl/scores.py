"""verl's rules that score answers, by the names of data that its trainer chooses them by."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from packaging.version import Version

from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.verl.rewards import ReadsFirstAnswers

Cases = Sequence[tuple[Any, str, float]]
"""The right answer, a text, and its score."""
NUMBERS: Cases = (
    ("72", "#### 72", 1.0),
    ("72", "first #### 27, no, #### 72", 1.0),
    ("72", "first #### 72, no, #### 27", 0.0),
    ("72", "72", 0.0),
    ("1234", "#### 1,234", 1.0),
    ("-3", "#### -3", 1.0),
    ("3", "#### -3", 0.0),
    ("0.5", f"{'so ' * 200}#### 0.5", 1.0),
    ("7", "#### 72", 0.0),
    ("72", "#### 72 apples", 1.0),
    ("72", "#### seventy-two", 0.0),
    ("72", "####72", 0.0),
    ("72", "", 0.0),
    ("72", "#### 72.5", 0.0),
    ("1234567", "#### 1,234,567", 1.0),
)
BOXED: Cases = (
    ("72", r"it is \boxed{72}", 1.0),
    ("72", r"it is \boxed{27}", 0.0),
    ("72", "it is 72", 0.0),
    ("72", r"\boxed{27}, no, \boxed{72}", 1.0),
    ("72", r"\boxed{72}, no, \boxed{27}", 0.0),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", 1.0),
    (r"\frac{1}{2}", r"\boxed{\frac12}", 1.0),
    (r"\frac{1}{2}", r"\boxed{\dfrac{1}{2}}", 1.0),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", 0.0),
    (r"\sqrt{3}", r"\boxed{\sqrt{3}}", 1.0),
    ("0.5", r"\boxed{.5}", 1.0),
    ("5", r"\boxed{x=5}", 1.0),
    ("72", r"it is $\boxed 72$.", 1.0),
    ("72", r"it is $\boxed 27$.", 0.0),
    ("72", r"\boxed{72", 0.0),
    ("72", r"\boxed{720}", 0.0),
    ("72", rf"\boxed{{72}} {'so ' * 400}", 1.0),
    ("72", rf"{'so ' * 400} \boxed{{72}}", 1.0),
    ("72", "\\boxed{\n72\n}", 1.0),
    ("-3", r"\boxed{-3}", 1.0),
    ("-3", r"\boxed{3}", 0.0),
    (r"\frac{\sqrt{3}}{2}", r"\boxed{\frac{\sqrt{3}}{2}}, so {} \}", 1.0),
    (r"\frac{1}{2}", r"\boxed{1/2}", 1.0),
    (r"\frac{1}{2}", r"\boxed{2/1}", 0.0),
    (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
    (r"\frac{1}{2}", r"\boxed{\tfrac{1}{2}}", 1.0),
    (r"\frac{1}{72}", r"\boxed{\frac1{72}}", 1.0),
    (r"\frac{1}{72}x", r"\boxed{\frac1{72}x}", 1.0),
    (r"\frac{1}{2}x", r"\boxed{\frac12x}", 1.0),
    (r"\frac{1}{2}+\frac{1}{3}", r"\boxed{\frac12+\frac13}", 1.0),
    (r"2\sqrt{3}", r"\boxed{2\sqrt3}", 1.0),
    (r"\sqrt{3}+\sqrt{5}", r"\boxed{\sqrt3 + \sqrt5}", 1.0),
    (r"\sqrt{3}", r"\boxed{\sqrt{5}}", 0.0),
    ("90", r"\boxed{90^\circ}", 1.0),
    ("90", r"\boxed{90^{\circ}}", 1.0),
    ("90", r"\boxed{90\text{ degrees}}", 1.0),
    ("10", r"\boxed{\$10}", 1.0),
    ("10", r"\boxed{10\%}", 1.0),
    ("10000", r"\boxed{10\!000}", 1.0),
    ("(1,2)", r"\boxed{\left(1, 2\right)}", 1.0),
    ("(1,2)", r"\boxed{(2,1)}", 0.0),
    ("5", r"\boxed{k = 5}", 1.0),
    ("5", r"\boxed{x+1=5}", 0.0),
    ("x+0.5", r"\boxed{x + .5}", 1.0),
    ("2^{0.5}", r"\boxed{2^{.5}}", 1.0),
    ("", "no answer", 0.0),
)
MARKED: Cases = (
    ("72", "Answer: 72", 1.0),
    ("72", "Answer: 27", -1.0),
    ("72", "Answer: 27\nAnswer: 72", 1.0),
    ("72", "Answer: 72\nAnswer: 27", -1.0),
    ("72", "72", -1.0),
    ("1234", "Answer: 1,234", 1.0),
    ("72", f"{'so ' * 200}\nAnswer: 72", 1.0),
    ("72", "Answer: $72$", 1.0),
    ("72", r"Answer: \boxed{72}", 1.0),
    ("72", "answer : 72", 1.0),
    ("72", "Answer: x = 72", 1.0),
    ("72", "Answer: 72 degrees", 1.0),
    ("72", r"Answer: \$72", 1.0),
    ("72", r"Answer: \text{72}", 1.0),
    ("72", r"Answer: \textbf{72}", 1.0),
    ("72", "Answer: the value is $72$ here", 1.0),
    ("72", "Answer: 72\nthat is it", 1.0),
    ("72", "Answer: 720", -1.0),
    ("72", "Answer: -72", -1.0),
    ("-72", "Answer: -72", 1.0),
    ("90", r"Answer: 90^\circ", 1.0),
    ("90", r"Answer: 90^{\circ}", 1.0),
    ("5", r"Answer: 5 \text{cm}", 1.0),
    ("5", r"Answer: 5 \text{m}", 1.0),
    ("1234", "Answer: 1{,}234", 1.0),
    ("1,234", "Answer: 1234", 1.0),
    ("(1,2)", "Answer: (1, 2)", 1.0),
    ("(1,2)", "Answer: (2, 1)", -1.0),
    (r"\frac{1}{2}", r"Answer: \frac12", 1.0),
    (r"\frac{1}{2}", r"Answer: \frac{1}{3}", -1.0),
    (r"\sqrt{3}", r"Answer: \sqrt3", 1.0),
    (r"\sqrt{3}", r"Answer: \sqrt5", -1.0),
    ("cat", "Answer: a cat", 1.0),
    ("1,2", r"Answer: 1,\text{and}2", 1.0),
)
BOXED_TOO: Cases = (
    ("72", r"it is \boxed{72}", 1.0),
    ("72", r"it is \boxed{27}", -1.0),
    ("72", "Answer: 27\n\\boxed{72}", -1.0),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", 1.0),
)
"""Texts without `Answer:`, whose box counts from verl 0.9.1 on."""
TAGGED: Cases = (
    ({"target": ["Paris"]}, "<answer>Paris</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer> the paris. </answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>London</answer>", 0.0),
    ({"target": ["Paris"]}, "<answer>Paris, France</answer>", 0.0),
    ({"target": ["Paris", "Lutetia"]}, "<answer>Lutetia</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>London</answer> <answer>Paris</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>Paris</answer> <answer>London</answer>", 0.0),
    ({"target": ["Paris"]}, "Paris", 0.0),
    ({"target": ["Paris"]}, "<answer>A Paris</answer>", 1.0),
    ({"target": ["The Hague"]}, "<answer>hague</answer>", 1.0),
    ({"target": ["theory"]}, "<answer>ory</answer>", 0.0),
    ({"target": ["New York"]}, "<answer>New  York\n</answer>", 1.0),
    ({"target": ["U.S."]}, "<answer>us</answer>", 1.0),
    ({"target": "Paris"}, "<answer>Paris</answer>", 1.0),
    ({"target": "Paris"}, "<answer>P</answer>", 0.0),
    ({"target": ["Paris"]}, "<answer>Paris", 0.0),
    ({"target": ["Paris"]}, "<answer>x</answer>" * 9 + "<answer>Paris</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>x</answer>" * 10 + "<answer>Paris</answer>", 0.25),
    ({"target": ["Paris"]}, "</answer>" * 10 + "<answer>Paris</answer>", 0.25),
)


def _call(*calls: tuple[str, dict[str, int]]) -> str:
    lines = [json.dumps({"name": name, "parameters": values}) for name, values in calls]
    return "\n".join(["<think>t</think>", "<tool_call>", *lines, "</tool_call>"])


_ONE, _TWICE = _call(("f", {"a": 1, "b": 2})), _call(("f", {"a": 1}), ("f", {"a": 1}))
_SAID = "<think>t</think>\n<response>yes</response>"
CALLS: Cases = (
    (_ONE, _ONE, 4.0),
    (_ONE, f"<|im_start|>assistant\n{_ONE}<|im_end|>\n", 4.0),
    (_ONE, _call(("f", {"a": 1, "b": 3})), 2.5),
    (_ONE, _call(("f", {"a": 1})), 1.75),
    (_ONE, _call(("g", {"a": 1, "b": 2})), -2.0),
    (_ONE, _ONE.removeprefix("<think>t</think>\n"), 3.0),
    (_ONE, _SAID, -3.0),
    (_ONE, "yes", -3.0),
    (_TWICE, _call(("f", {"a": 1})), 1.0),
    (_TWICE, _TWICE, 4.0),
    (_SAID, _SAID, 1.0),
    (_SAID, "yes", 0.0),
)
"""1 for the form, and -3 to 3 for the share of names and arguments (arXiv 2504.13958): 1 for the names of all
calls, 1 for the names of its arguments and 1 for each right value; each call of the text counts once."""


LATER: Mapping[str, tuple[str, Cases]] = {"math_dapo": ("0.9.1", BOXED_TOO)}
"""By the name of data: cases that count from a release on."""


def _score_of(found: Any) -> float:
    """Return the score; NaN where the accuracy with it says something else."""
    if not isinstance(found, dict):
        return float(found)
    right = float(found["score"]) > 0
    return float(found["score"]) if found.get("acc", right) == right else math.nan


class VerlScore:
    """`default_compute_score` for one name of data; see `contracts.texts.Reward`."""

    data_source: ClassVar[str]
    others: ClassVar[Sequence[str]] = ()
    """Further names of data that the same rule scores."""
    cases: Cases
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        """Find the function."""
        names = [f"verl.utils.reward_score:{prefix}default_compute_score" for prefix in ("", "_")]
        self.compute = find_name("verl", names)

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        since, more = LATER.get(self.data_source, ("0", ()))
        return [*self.cases, *(more if Version(release("verl")) >= Version(since) else ())]

    def reward(self, problems: Sequence[Any], completions: Sequence[str]) -> list[float]:
        sources = itertools.cycle((self.data_source, *self.others))
        with contextlib.redirect_stdout(io.StringIO()):
            found = [
                self.compute(source, text, problem, **self.options)
                for source, problem, text in zip(sources, problems, completions, strict=False)
            ]
        return [_score_of(one) for one in found]


class VerlScoreOfCalls(VerlScore):
    """`rlla.compute_score`: calls of tools against those of the right answer."""

    data_source = "rlla"
    cases = CALLS
    options: ClassVar[Mapping[str, Any]] = {"extra_info": {"experiment_name": "qwen"}}

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", ["verl.utils.reward_score.rlla:compute_score"])


_GSM8K, _SEARCH = "gsm8k:compute_score", "search_r1_like_qa_em:compute_score"
_SCORES = {"format_score": 0.1, "score": 2.0}
_PARIS = {"target": ["Paris"]}
_CASES_WITH_OPTIONS: Sequence[tuple[str, Mapping[str, Any], Any, Sequence[tuple[str, float]]]] = (
    (_GSM8K, _SCORES, "72", (("#### 72", 2.0), ("#### 27", 0.1), ("72", 0.0))),
    (
        _GSM8K,
        {"method": "flexible", **_SCORES},
        "72",
        (("so 72 apples", 2.0), ("27 or 72 .", 2.0), ("72 or 27", 0.1), ("-72", 0.1), ("none", 0.0)),
    ),
    (
        _SEARCH,
        _SCORES,
        _PARIS,
        (
            ("<answer>Paris</answer>", 2.0),
            ("<answer>Paris, France</answer>", 0.1),
            ("Paris", 0.0),
            ("<answer>x</answer>" * 10 + "<answer>Paris</answer>", 0.5),
        ),
    ),
    (
        f"{_SEARCH}_subem",
        _SCORES,
        _PARIS,
        (
            ("<answer>It is Paris, France.</answer>", 2.0),
            ("<answer>Par</answer>", 0.1),
            ("<answer>Paris</answer> <answer>Rome</answer>", 0.1),
            ("Paris", 0.0),
        ),
    ),
    (
        "math_dapo:compute_score",
        {"strict_box_verify": True},
        "72",
        (
            (r"\boxed{72}", 1.0),
            (r"\boxed{27}, no, \boxed{72}", 1.0),
            (r"\boxed{72}, no, \boxed{27}", -1.0),
            (r"\boxed{72 degrees}", -1.0),
            ("Answer: 72", -1.0),
        ),
    ),
)
"""Place of the function, its options, the right answer, and texts with their scores."""


class VerlScoreWithOptions(VerlScore):
    """Functions of `reward_score` with other options than `default_compute_score` gives them."""

    data_source = ""
    cases = tuple(
        ((place, options, truth), text, score)
        for place, options, truth, texts in _CASES_WITH_OPTIONS
        for text, score in texts
    )

    def __init__(self) -> None:
        """Find the functions."""
        found = {}
        for place in {place for place, *_ in _CASES_WITH_OPTIONS}:
            with contextlib.suppress(Gone):
                found[place] = find_name("verl", [f"verl.utils.reward_score.{place}"])
        self.cases = tuple(one for one in self.cases if one[0][0] in found)
        self.compute = lambda source, text, problem: found[problem[0]](text, problem[2], **problem[1])


MATHEMATICS: Cases = (
    ("72", r"Step 2: it is \boxed{72}", 1.0),
    ("72", r"\boxed{27}", 0.0),
    ("72", r"\boxed{27}, no, \boxed{72}", 1.0),
    ("72", "the answer is 72", 1.0),
    ("72", "the answer is 27", 0.0),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", 1.0),
    (r"\frac{1}{2}", r"\boxed{0.5}", 1.0),
    (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", 0.0),
    ("2x+3", r"\boxed{3+2x}", 1.0),
    ("2x+3", r"\boxed{3-2x}", 0.0),
    ("(1,2)", r"\boxed{(1, 2)}", 1.0),
    ("(1,2)", r"\boxed{(2,1)}", 0.0),
    ("1000", r"\boxed{1,000}", 1.0),
    ("72", "The answer is: 72", 1.0),
    ("72", "so x = 72", 1.0),
    ("72", "72 is the answer", 1.0),
    ("72", "the value", 0.0),
    ("72", r"\fbox{72}", 1.0),
    ("72", r"\boxed{72\text{ cm}}", 1.0),
    ("72", r"\boxed{72^\circ}", 1.0),
    ("72", r"\boxed{72\%}", 1.0),
    ("72", r"\boxed{\$72}", 1.0),
    ("72", r"\boxed{-72}", 0.0),
    ("72", r"\boxed{72.0}", 1.0),
    ("72", r"\boxed{72.5}", 0.0),
    (r"\frac{3}{2}", r"\boxed{1.5}", 1.0),
    (r"\frac{1}{2}", r"\boxed{\frac{2}{4}}", 0.0),
    (r"\frac{1}{2}", r"\boxed{\dfrac12}", 1.0),
    (r"\frac{1}{2}", r"\boxed{1/2}", 1.0),
    (r"\sqrt{12}", r"\boxed{2\sqrt{3}}", 1.0),
    (r"\sqrt{12}", r"\boxed{3\sqrt{2}}", 0.0),
    (r"2\pi", r"\boxed{2\pi}", 1.0),
    (r"2\pi", r"\boxed{6.28}", 1.0),
    (r"2\pi", r"\boxed{6.28319}", 1.0),
    (r"2\pi", r"\boxed{6.3}", 0.0),
    ("[1,2)", r"\boxed{[1, 2)}", 1.0),
    ("[1,2)", r"\boxed{(1,2)}", 0.0),
    ("(1,2)", r"\boxed{(1,2,3)}", 0.0),
    (r"(\frac{1}{2},3)", r"\boxed{(0.5, 3)}", 1.0),
    ("0.3333", r"\boxed{0.34}", 0.0),
    ("x^2-1", r"\boxed{(x-1)(x+1)}", 1.0),
    ("x^2-1", r"\boxed{(x-1)^2}", 0.0),
    ("1,234,567", r"\boxed{1234567}", 1.0),
    ("7 3/4", r"\boxed{7.75}", 1.0),
    ("x=5", r"\boxed{5}", 1.0),
    ("50%", r"\boxed{0.5}", 1.0),
)
_DOUBLED = {"inputs": ["1\n", "2\n", "5\n", "7\n"], "outputs": ["2\n", "4\n", "10\n", "14\n"]}
_LINES = {"inputs": ["3\n"], "outputs": ["0\n1\n2\n"]}
PROGRAMS: Cases = (
    (_DOUBLED, "```python\nprint(2 * int(input()))\n```", 1.0),
    (_DOUBLED, "print(2 * int(input()))", 1.0),
    (_DOUBLED, "so:\n```python\nprint(0)\n```\nno:\n```python\nprint(2 * int(input()))\n```\ndone", 1.0),
    (_DOUBLED, "```python\nprint(3 * int(input()))\n```", 0.0),
    (_DOUBLED, "```python\nn = int(input())\nprint(2 * n if n < 3 else n)\n```", 0.5),
    (_DOUBLED, "```python\nprint(2 *\n```", 0.0),
    (_LINES, "```python\nfor n in range(int(input())):\n    print(n)\n```", 1.0),
    (_LINES, "```python\nfor n in range(int(input())):\n    print(n + 1)\n```", 0.0),
    (_LINES, "```python\nfor n in reversed(range(int(input()))):\n    print(n)\n```", 0.0),
    (_LINES, "```python\nprint(0)\n```", 0.0),
)
"""The share of the tests that a program passes; lines count in their order."""
FAMILIES: Mapping[str, tuple[str, Cases]] = {
    "score-gsm8k": ("openai/gsm8k", NUMBERS),
    "score-math": ("lighteval/MATH", BOXED),
    "score-math-dapo": ("math_dapo", MARKED),
    "score-search": ("searchR1_nq", TAGGED),
    "score-numina": ("numina_aops_forum", MATHEMATICS),
    "score-programs": ("codecontests", PROGRAMS),
}
"""Adapters, each with the first name of its rule and the cases of it."""
OTHERS: Mapping[str, str] = {
    "score-math": "DigitalLearningGmbH/MATH-lighteval HuggingFaceH4/MATH-500",
    "score-math-dapo": "math math_dapo_reasoning aime2024",
    "score-search": "searchR1_triviaqa searchR1_popqa searchR1_hotpotqa searchR1_2wikimultihopqa searchR1_musique "
    "searchR1_bamboogle",
    "score-numina": "numina_synthetic_math numina_amc_aime numina_synthetic_amc numina_cn_k12 numina_olympiads",
    "score-programs": "apps codeforces taco",
}
"""Further names of the same rule; each case takes the next one of them."""
COVERED = frozenset(
    {source for source, _ in FAMILIES.values()}
    | {name for names in OTHERS.values() for name in names.split()}
)
ADAPTERS: dict[str, type[Any]] = {
    "score-calls": VerlScoreOfCalls,
    "score-options": VerlScoreWithOptions,
    **{
        name: type(
            f"Verl_{name}",
            (ReadsFirstAnswers, VerlScore) if name == "score-gsm8k" else (VerlScore,),
            {
                "__doc__": f"`default_compute_score` of `{source}` and of all names of its rule.",
                "data_source": source,
                "others": tuple(OTHERS.get(name, "").split()),
                "cases": cases,
                "thorough": name == "score-programs",
            },
        )
        for name, (source, cases) in FAMILIES.items()
    },
}
