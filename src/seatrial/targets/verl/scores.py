"""verl's rules that score answers, by the names of data that its trainer chooses them by."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from seatrial.targets.common.target import find_name

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
)
TAGGED: Cases = (
    ({"target": ["Paris"]}, "<answer>Paris</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer> the paris. </answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>London</answer>", 0.0),
    ({"target": ["Paris"]}, "<answer>Paris, France</answer>", 0.0),
    ({"target": ["Paris", "Lutetia"]}, "<answer>Lutetia</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>London</answer> <answer>Paris</answer>", 1.0),
    ({"target": ["Paris"]}, "<answer>Paris</answer> <answer>London</answer>", 0.0),
    ({"target": ["Paris"]}, "Paris", 0.0),
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


class VerlScore:
    """`default_compute_score` for one name of data; see `contracts.texts.Reward`."""

    data_source: ClassVar[str]
    others: ClassVar[Sequence[str]] = ()
    """Further names of data that the same rule scores."""
    cases: ClassVar[Cases]
    options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name(
            "verl",
            [
                "verl.utils.reward_score:default_compute_score",
                "verl.utils.reward_score:_default_compute_score",
            ],
        )

    def reward_cases(self) -> Iterable[tuple[Any, str, float]]:
        return self.cases

    def reward(self, problems: Sequence[Any], completions: Sequence[str]) -> list[float]:
        sources = itertools.cycle((self.data_source, *self.others))
        with contextlib.redirect_stdout(io.StringIO()):
            found = [
                self.compute(source, text, problem, **self.options)
                for source, problem, text in zip(sources, problems, completions, strict=False)
            ]
        return [float(one["score"] if isinstance(one, dict) else one) for one in found]


class VerlScoreOfCalls(VerlScore):
    """`rlla.compute_score`: calls of tools against those of the right answer."""

    data_source = "rlla"
    cases = CALLS
    options: ClassVar[Mapping[str, Any]] = {"extra_info": {"experiment_name": "qwen"}}

    def __init__(self) -> None:
        """Find the function."""
        self.compute = find_name("verl", ["verl.utils.reward_score.rlla:compute_score"])


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
    **{
        name: type(
            f"Verl_{name}",
            (VerlScore,),
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
