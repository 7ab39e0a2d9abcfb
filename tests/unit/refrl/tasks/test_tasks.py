"""Tasks number their prompts, splits share none, and the order of drawing can be resumed."""

from collections.abc import Callable

import pytest

from refrl.config import ConfigError, DataConfig
from refrl.rewards import make_verifier
from refrl.tasks import TASKS, PromptSource, make_splits, make_task

SMALL = {
    "reverse": {"min_length": 1, "max_length": 3, "alphabet_size": 4},
    "add": {"digits": 1},
    "count_letters": {"length": 4, "alphabet_size": 3},
    "code_print": {"limit": 5, "num_operators": 3},
    "lookup": {"max_length": 2, "alphabet_size": 8},
    "colour": {},
    "pitch": {"num_bands": 2},
}
SIZES = {
    "reverse": 4 + 16 + 64, "add": 100, "count_letters": 3 * 81, "code_print": 75, "lookup": 8 + 64,
    "colour": 4 * 3**4, "pitch": 4 * 2**4,
}  # fmt: skip


def test_every_task_is_tested() -> None:
    """A new task is added to the table above."""
    assert set(SMALL) == set(TASKS)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_numbers_and_prompts_are_one_to_one(name: str) -> None:
    """All numbers of the space give different prompts or media, as many as combinatorics says."""
    task = make_task(name, SMALL[name])
    media = getattr(task, "media", lambda number: None)
    prompts = {(task.example(number)[0], media(number)) for number in range(task.num_examples)}
    assert len(prompts) == task.num_examples == SIZES[name]


def reversed_word(prompt: str) -> str:
    """Return the word of the prompt, backwards."""
    return "".join(reversed(prompt.removeprefix("reverse ").removesuffix("=")))


def sum_of_terms(prompt: str) -> str:
    """Return the sum of the prompt's numbers."""
    return str(sum(map(int, prompt.removesuffix("=").split("+"))))


def number_of_cuts(prompt: str) -> str:
    """Return how often the letter cuts the word of the prompt."""
    _, letter, _, word = prompt.removesuffix("=").split(" ")
    return str(len(word.split(letter)) - 1)


@pytest.mark.parametrize(
    ("name", "solve"), [("reverse", reversed_word), ("add", sum_of_terms), ("count_letters", number_of_cuts)]
)
def test_answers_are_right(name: str, solve: Callable[[str], str]) -> None:
    """Worked out from the words of the prompt."""
    task = make_task(name, SMALL[name])
    assert all(solve(prompt) == answer for prompt, answer in map(task.example, range(task.num_examples)))


def test_known_examples() -> None:
    """The forms that prompts have."""
    assert make_task("reverse", {"min_length": 3, "max_length": 3}).example(0) == ("reverse aaa=", "aaa")
    assert make_task("add", {"digits": 2}).example(1207) == ("12+7=", "19")
    assert make_task("count_letters", {"length": 2, "alphabet_size": 2}).example(2) == ("count a in ab=", "1")


@pytest.mark.parametrize("name", sorted(SMALL))
def test_splits_share_no_prompt_and_hold_what_was_asked(name: str) -> None:
    """Also when they take the whole space."""
    size = SIZES[name]
    splits = make_splits(DataConfig(task=name, task_args=SMALL[name], num_train=size - 20, num_validation=20))
    train, validation = (
        {(example.prompt, example.media) for example in split} for split in (splits.train, splits.validation)
    )
    assert len(train) == size - 20
    assert len(validation) == 20
    assert not train & validation


def test_splits_depend_on_the_seed_alone() -> None:
    """One seed gives one draw; another seed another; more training prompts leave the validation split as it is."""

    def config(**changes: int) -> DataConfig:
        return DataConfig(task="add", **{"num_train": 50, "num_validation": 20, "seed": 1, **changes})

    assert make_splits(config()) == make_splits(config())
    assert make_splits(config()).validation != make_splits(config(seed=2)).validation
    assert make_splits(config()).validation == make_splits(config(num_train=500)).validation


def test_splits_are_drawn_evenly() -> None:
    """The mean number of the drawn examples lies where that of an even draw would: within 5 standard errors."""
    task = make_task("add", {"digits": 2})
    splits = make_splits(DataConfig(task="add", task_args={"digits": 2}, num_train=2000, num_validation=500))
    for split in (splits.train, splits.validation):
        mean = sum(example.prompt_id for example in split) / len(split)
        assert abs(mean - (task.num_examples - 1) / 2) < 5 * task.num_examples / (12 * len(split)) ** 0.5


def test_a_space_too_small_for_disjoint_splits_is_refused() -> None:
    """The message has both numbers."""
    with pytest.raises(ConfigError, match=r"need 101 different prompts, add has 100"):
        make_splits(DataConfig(task="add", task_args={"digits": 1}, num_train=81, num_validation=20))


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        (
            "sort",
            {},
            "data.task='sort' is unknown; known: add, code_print, colour, count_letters, lookup, pitch, reverse",
        ),
        ("add", {"digit": 2}, "data.task_args.digit is unknown to add; it takes digits"),
        ("add", {"digits": "2"}, "data.task_args.digits should be an integer"),
        ("add", {"digits": True}, "data.task_args.digits should be an integer"),
        ("add", {"digits": 0}, "digits=0 must lie between 1 and 1000"),
        ("reverse", {"min_length": 5, "max_length": 4}, "min_length=5"),
        ("reverse", {"alphabet_size": 27}, "alphabet_size=27"),
        ("count_letters", {"length": 0}, "length=0"),
        ("count_letters", {"alphabet_size": 1}, "alphabet_size=1"),
        ("count_letters", {"length": 2000}, "length=2000 must lie between 1 and 1000"),
        ("reverse", {"max_length": 2000}, "max_length=2000 must be at most 1000"),
        ("code_print", {"limit": 1}, "limit=1"),
        ("code_print", {"num_operators": 4}, "num_operators=4"),
        ("ad", {}, "did you mean 'add'?"),
        ("math:pi", {}, "data.task=math:pi is no task"),
        ("builtins:dict", {}, "data.task=builtins:dict is no task: it must be a class"),
        ("collections:OrderedDict", {}, "is no task: it must"),
        ("fractions:Fraction", {}, "data.task=fractions:Fraction is no task: it must have name, verifier"),
    ],
)
def test_wrong_arguments_are_refused(name: str, arguments: dict[str, int | str], words: str) -> None:
    """Unknown task, unknown argument, wrong type, wrong range."""
    with pytest.raises(ConfigError) as caught:
        make_task(name, arguments)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("reverse", {"max_length": 22}), ("add", {"digits": 30}), ("count_letters", {"length": 100})],
)
def test_a_space_beyond_what_a_tensor_counts_has_prompts_too(name: str, arguments: dict[str, int]) -> None:
    """Different prompts, ids that fit 64 bits and follow the prompt, one draw per seed."""
    config = DataConfig(task=name, task_args=arguments, num_train=300, num_validation=50, seed=4)
    splits = make_splits(config)
    assert make_task(name, arguments).num_examples > 2**63
    examples = [*splits.train, *splits.validation]
    assert (
        len({example.prompt for example in examples})
        == len({example.prompt_id for example in examples})
        == 350
    )
    assert all(0 <= example.prompt_id < 2**63 for example in examples)
    assert make_splits(config) == splits
    assert make_splits(config.model_copy(update={"seed": 5})).validation != splits.validation


def test_the_code_task_is_solved_by_its_solution_and_judged_by_running() -> None:
    """The sandbox runs each; the answer alone, or another problem's solution, is wrong."""
    task = make_task("code_print", {"limit": 3, "num_operators": 3})
    verifier = make_verifier(task.verifier)
    splits = make_splits(DataConfig(task="code_print", task_args={"limit": 3}, num_train=3, num_validation=2))
    for example in splits.train:
        assert verifier(example.target, example.answer) == 1.0
        assert verifier(example.answer, example.answer) == 0.0
    assert task.example(20) == ("print 0*2:", '[{"stdin": "", "stdout": "0\\n"}]')
    assert task.solution(20) == "print(0*2)"
    assert verifier("print(1)", task.example(20)[1]) == 0.0


def test_every_epoch_is_a_permutation_of_its_own() -> None:
    """No prompt is lost or repeated within an epoch, wherever the steps fall."""
    examples = make_splits(DataConfig(task="add", num_train=10, num_validation=1)).train
    source = PromptSource(examples, seed=3, shuffle=True)
    drawn = [example for _ in range(10) for example in source.draw(3)]
    epochs = [drawn[:10], drawn[10:20], drawn[20:30]]
    assert all(
        {example.prompt_id for example in epoch} == {e.prompt_id for e in examples} for epoch in epochs
    )
    assert epochs[0] != epochs[1]


def test_the_order_depends_on_the_seed() -> None:
    """Without shuffling it is that of the split."""
    examples = make_splits(DataConfig(task="add", num_train=30, num_validation=1)).train
    orders = [PromptSource(examples, seed=seed, shuffle=True).draw(30) for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert PromptSource(examples, seed=0, shuffle=False).draw(30) == list(examples)


@pytest.mark.parametrize("before", [0, 4, 10, 13])
def test_drawing_goes_on_from_a_cursor(before: int) -> None:
    """Resumed within an epoch, at its end, and in a later one."""
    examples = make_splits(DataConfig(task="add", num_train=10, num_validation=1)).train
    whole = PromptSource(examples, seed=5, shuffle=True)
    whole.draw(before)
    state = whole.state_dict()
    resumed = PromptSource(examples, seed=5, shuffle=True)
    resumed.load_state_dict(state)
    assert resumed.draw(25) == whole.draw(25)
