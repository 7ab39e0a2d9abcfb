"""Episodes of several turns: what the environment wrote is read, kept, and not trained on."""

from collections.abc import Sequence

import pytest
import torch

from refrl.algorithms.batching import make_batch
from refrl.config import ConfigError, DataConfig
from refrl.generation.base import Completion, SamplingParams
from refrl.models.tokenization import make_byte_tokenizer
from refrl.rewards import make_verifier
from refrl.rollout.environments import make_environment
from refrl.rollout.environments.lookup import LookupEnvironment
from refrl.rollout.sync import RolloutWorker
from refrl.tasks import Example
from refrl.tasks.lookup import LookupTask, price_of

TOKENIZER = make_byte_tokenizer()
END = TOKENIZER.eos_token_id


class Scripted:
    """A sampler that says what its script says, by what the prompt ends with."""

    def __init__(self, script: dict[str, str], version: int = 0) -> None:
        """Take the replies; a reply that ends with `...` runs into the limit."""
        self.script = script
        self.version = version
        self.calls: list[list[str]] = []

    def generate(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, generator: torch.Generator
    ) -> list[Completion]:
        """Return the replies."""
        texts = [TOKENIZER.decode(list(prompt), skip_special_tokens=True) for prompt in prompts]
        self.calls.append(texts)
        return [self._reply(tuple(prompt), text) for prompt, text in zip(prompts, texts, strict=True)]

    def _reply(self, prompt: tuple[int, ...], text: str) -> Completion:
        said = next(reply for end, reply in self.script.items() if text.endswith(end))
        ids = tuple(TOKENIZER.encode(said.removesuffix("..."), add_special_tokens=False))
        whole = said.endswith("...")
        ids = ids if whole else (*ids, END)
        return Completion(
            prompt, ids, (-0.5,) * len(ids), "length" if whole else "stop", weight_version=self.version
        )


def worker(sampler: Scripted, **options: int) -> RolloutWorker:
    """Return a worker with the tool."""
    return RolloutWorker(
        sampler,
        TOKENIZER,
        lambda examples: [
            tuple(TOKENIZER.encode(example.prompt, add_special_tokens=False)) for example in examples
        ],
        environment=LookupEnvironment(**options),
    )


def example(word: str = "kiwi") -> Example:
    """Return the question of a price."""
    return Example(7, f"price {word}:", str(price_of(word)), "lookup")


PARAMS = SamplingParams(max_new_tokens=40)
PRICE = str(price_of("kiwi"))
ASKS_AND_SAYS = {f"={PRICE};": PRICE, "kiwi:": "?kiwi"}


def stream() -> torch.Generator:
    """Return a random stream."""
    return torch.Generator().manual_seed(3)


def test_the_tool_s_words_are_read_and_masked() -> None:
    """The second turn's prompt ends with them; 0 stands over exactly their tokens."""
    sampler = Scripted(ASKS_AND_SAYS)
    (episode,) = worker(sampler).sample([example()], PARAMS, stream())
    assert sampler.calls == [["price kiwi:"], [f"price kiwi:?kiwi={PRICE};"]]
    assert episode.mask is not None
    masked = [token for token, sampled in zip(episode.ids, episode.mask, strict=True) if not sampled]
    assert TOKENIZER.decode(masked) == f"={PRICE};"
    assert [logprob for logprob, one in zip(episode.logprobs, episode.mask, strict=True) if not one] == [
        0.0
    ] * 4
    assert episode.num_sampled == len("?kiwi") + 1 + len(PRICE) + 1
    assert episode.prompt_ids == tuple(TOKENIZER.encode("price kiwi:", add_special_tokens=False))


def test_the_last_turn_is_judged_and_not_the_tool() -> None:
    """Whoever asks and does not answer has no reward, though the right number stands in the sequence."""
    verifier = make_verifier("integer_match")
    for last, reward in ((PRICE, 1.0), ("no", 0.0)):
        team = worker(Scripted({f"={PRICE};": last, "kiwi:": "?kiwi"}))
        episodes = team.sample([example()], PARAMS, stream())
        rollouts = team.reward([example()], episodes, verifier)
        assert rollouts.texts == [last]
        assert list(rollouts.scores.rewards) == [reward]


def test_what_is_trained_on_is_what_was_sampled() -> None:
    """The batch's mask leaves the environment's tokens out, and keeps their place."""
    team = worker(Scripted(ASKS_AND_SAYS))
    rollouts = team.reward(
        [example()], team.sample([example()], PARAMS, stream()), make_verifier("integer_match")
    )
    batch = make_batch(rollouts.samples(), pad_token_id=0)
    mask = rollouts.completions[0].mask
    assert mask is not None
    assert batch.mask_BT[0].tolist() == list(mask)
    assert batch.completion_ids_BT[0].tolist() == list(rollouts.completions[0].ids)
    assert rollouts.metrics()["mean_gen_tokens_per_sample"] == sum(mask)


def test_rows_take_their_own_turns() -> None:
    """One asks, one does not, one runs into the limit: only the first goes on."""
    sampler = Scripted({f"={PRICE};": PRICE, "kiwi:": "?kiwi", "fig:": "12", "nut:": "?nut..."})
    examples = [example("fig"), example("kiwi"), example("nut")]
    plain, asked, cut = worker(sampler).sample(examples, PARAMS, stream())
    assert len(sampler.calls[1]) == 1
    assert (plain.mask, cut.mask) == (None, None)
    assert (plain.finish_reason, asked.finish_reason, cut.finish_reason) == ("stop", "stop", "length")
    assert asked.last_turn == (*TOKENIZER.encode(PRICE, add_special_tokens=False), END)


def test_turns_and_tokens_are_bounded() -> None:
    """An episode ends with its turns, and words that leave no room for an answer are not added."""
    again = Scripted({";": "?kiwi", "kiwi:": "?kiwi"})
    (episode,) = worker(again, max_turns=3).sample([example()], PARAMS, stream())
    assert len(again.calls) == 3
    assert episode.mask is not None
    assert episode.mask[-1] == 1
    (short,) = worker(Scripted(ASKS_AND_SAYS)).sample([example()], SamplingParams(max_new_tokens=9), stream())
    assert short.mask is None
    assert len(short.ids) <= 9


def test_turns_of_other_weights_are_told_apart() -> None:
    """Weights that changed between the turns show in the segments."""
    sampler = Scripted(ASKS_AND_SAYS)
    generate = sampler.generate

    def newer(*words: object) -> list[Completion]:
        sampler.version += 1
        return generate(*words)  # type: ignore[arg-type]

    sampler.generate = newer  # type: ignore[method-assign]
    (episode,) = worker(sampler).sample([example()], PARAMS, stream())
    assert episode.weight_version == 1
    assert episode.version_segments == ((0, 1), (len("?kiwi") + 1 + len(PRICE) + 2, 2))


def test_the_answer_is_the_tool_s_and_nobody_else_s() -> None:
    """The task's answers are the environment's prices."""
    task = LookupTask()
    for number in (0, 25, 26, task.num_examples - 1):
        prompt, answer = task.example(number)
        word = prompt.removeprefix("price ").removesuffix(":")
        assert LookupEnvironment().respond([f"?{word}"]) == f"={answer};"
    assert LookupEnvironment().respond(["57"]) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environment": "lokup"}, "did you mean 'lookup'"),
        ({"environment": "lookup", "environment_args": {"turns": 3}}, "unexpected keyword argument 'turns'"),
        ({"environment": "lookup", "environment_args": {"max_turns": 1}}, "must be at least 2"),
        ({"environment": "builtins:dict"}, "is no environment"),
    ],
)
def test_an_environment_that_cannot_be_made_is_refused(options: dict[str, object], message: str) -> None:
    """By the option that names it."""
    with pytest.raises(ConfigError, match=message):
        make_environment(DataConfig(task="lookup", **options))  # type: ignore[arg-type]


def test_arguments_without_an_environment_are_refused() -> None:
    """They would be believed to act."""
    with pytest.raises(ValueError, match=r"has no effect without data\.environment"):
        DataConfig(task="lookup", environment_args={"max_turns": 3})
