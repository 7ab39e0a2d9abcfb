"""R31.turns: an episode of several turns has the model's own tokens, masks, log-probabilities and limits."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from seatrial.relations.contracts.utilities import Episode
from seatrial.relations.law import Measure
from seatrial.relations.laws.utilities.numbers import Numbers, without
from seatrial.relations.laws.utilities.plain import relation_of

TURNS = relation_of(
    "turns",
    "episodes-have-the-tokens-that-were-sampled",
    "Tokens that the model sampled are trained as they are, what tools answer is not, and limits of turns hold.",
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "%s"}}\n</tool_call>'
GPT_OSS_CALL = (
    "<|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>"
    '{"city": "%s"}<|call|>'
)
TWO_TURNS = (f"I look. {CALL % 'Bern'}", f"Again. {CALL % 'Chur'}", "Sunny.")
TOOL_TEXT = "abcdefghijklmnopqrstuvwxyz"
MADE_WITH = {"place": "north"}
"""What an episode's tool is made with."""
TEMPLATE = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n' }}"
    "{{ 'Answer at length, and say why.' if long else 'Answer.' }}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages if message.role %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Writes a system prompt of its own, which an option changes, and a line break after each turn."""
TEMPLATE_OPTIONS = {"long": True}
SAMPLING = {"temperature": 0.7, "top_p": 0.9, "max_tokens": 77}


def _episode(stack: Any, answers: Sequence[str] = TWO_TURNS, **options: Any) -> Episode:
    given: Episode = stack.utilities["agent episode"](list(answers), TOOL_TEXT, SAMPLING, options)
    return given


def _wrong_tokens(episode: Episode) -> list[str]:
    """Return where ids, masks and log-probabilities are not those of the turns that were sampled."""
    wrong = []
    sizes = {len(episode.response_ids), len(episode.mask), len(episode.logprobs)}
    if len(sizes) != 1:
        return [
            f"{len(episode.response_ids)} ids, {len(episode.mask)} of a mask, {len(episode.logprobs)} log-probabilities"
        ]
    sampled = [token for turn in episode.sampled for token in turn]
    logprobs = [value for turn in episode.sampled_logprobs for value in turn]
    places = [place for place, on in enumerate(episode.mask) if on]
    trained = [episode.response_ids[place] for place in places]
    if trained != sampled[: len(trained)]:
        wrong.append("tokens that train are not those that the model sampled")
    if [episode.logprobs[place] for place in places] != logprobs[: len(trained)]:
        wrong.append("log-probabilities are at other tokens")
    if any(value for place, value in enumerate(episode.logprobs) if not episode.mask[place]):
        wrong.append("log-probabilities of tokens that were not sampled")
    whole = list(episode.prompt_ids) + list(episode.response_ids)
    for number, request in enumerate(episode.requests):
        if list(request[: len(whole)]) != whole[: len(request)]:
            wrong.append(f"request {number} does not continue the tokens before it")
    for number, (request, following) in enumerate(itertools.pairwise(episode.requests)):
        shown = [*request, *episode.sampled[number]]
        if list(following[: len(shown)]) != shown:
            wrong.append(f"request {number + 1} has other tokens than request {number} and its answer")
    return wrong


@TURNS.law(
    "tokens of several turns",
    "tokens of a tool that train, answers tokenized again, log-probabilities moved by what tools answer",
    excluded=without("agent episode"),
)
def tokens_are_those_sampled(stack: Any, case: Numbers) -> Measure:
    """Check ids, masks, log-probabilities and requests of episodes of one to three turns."""
    wrong: list[str] = []
    for answers in (TWO_TURNS, TWO_TURNS[1:], TWO_TURNS[2:]):
        episode = _episode(stack, answers)
        wrong += [f"{len(answers)} turns: {one}" for one in _wrong_tokens(episode)]
        if len(episode.requests) != len(answers) or sum(episode.mask) != sum(map(len, episode.sampled)):
            wrong.append(
                f"{len(answers)} turns: {len(episode.requests)} requests, {sum(episode.mask)} tokens train"
            )
        if episode.num_turns != 2 * len(answers):
            wrong.append(f"{len(answers)} turns: counted as {episode.num_turns}")
        if episode.rewards is not None and list(episode.rewards) != [0.5] * (len(answers) - 1):
            wrong.append(f"{len(answers)} turns: rewards of tools {list(episode.rewards)}")
    return Measure.count(wrong, "faults of episodes")


@TURNS.law(
    "episodes that are cut",
    "the mask cut at another place than the ids, the last tokens kept",
    excluded=without("agent episode"),
)
def cut_episodes_keep_their_begin(stack: Any, case: Numbers) -> Measure:
    """Check that a longest answer keeps the begin of ids, masks and log-probabilities."""
    whole, wrong = _episode(stack), []
    first = len(whole.sampled[0])
    for longest in (5, first, first + 4, len(whole.response_ids) - 2):
        episode = _episode(stack, response_length=longest)
        found = [episode.response_ids, episode.mask, episode.logprobs]
        due = [whole.response_ids, whole.mask, whole.logprobs]
        size = len(episode.response_ids)
        if size > longest or any(
            list(one) != list(other[:size]) for one, other in zip(found, due, strict=True)
        ):
            wrong.append(f"longest {longest}: {size} ids, {len(episode.mask)} of a mask")
        if list(episode.prompt_ids) != list(whole.prompt_ids):
            wrong.append(f"longest {longest}: another prompt")
    return Measure.count(wrong, "episodes that are cut otherwise")


@TURNS.law(
    "answers of tools in the form of gpt-oss",
    "another form that the template of the tokenizer writes, no prompt for the next turn",
    excluded=without("agent episode as gpt-oss writes it"),
)
def answers_of_tools_have_their_form(stack: Any, case: Numbers) -> Measure:
    """Compare the text between two turns with OpenAI's description of its form."""
    called = GPT_OSS_CALL % "Bern"
    episode = _episode(stack, (called, "Sunny."), format="gpt-oss")
    found = episode.text.partition(called)[2].partition("Sunny.")[0]
    due = f"<|start|>functions.weather to=assistant<|channel|>commentary<|message|>{TOOL_TEXT}<|end|><|start|>assistant"
    # What is before it is the end of the turn.
    right = found.endswith(due) and found.count("<|start|>") == due.count("<|start|>")
    wrong = [] if right else [f"{found!r} between the turns, {due!r} is right"]
    return Measure.count([*wrong, *_wrong_tokens(episode)], "turns that are written otherwise")


@TURNS.law(
    "limits of turns",
    "one turn more or fewer than configured, turns of another kind",
    excluded=without("agent episode"),
)
def limits_of_turns_hold(stack: Any, case: Numbers) -> Measure:
    """Check the numbers of requests by the limits of the model's turns and of the tool's."""
    wrong = []
    plans: Sequence[tuple[dict[str, Any], int]] = (
        ({"max_assistant_turns": 1}, 1),
        ({"max_assistant_turns": 2}, 2),
        ({"max_user_turns": 1}, 2),
        ({"max_assistant_turns": 3, "max_user_turns": 1}, 2),
    )
    for options, due in plans:
        found = len(_episode(stack, **options).requests)
        wrong += [f"{options}: {found} requests, {due} are right"] if found != due else []
    return Measure.count(wrong, "limits that do not hold")


@TURNS.law(
    "texts of tools that are cut",
    "the wrong side cut, a text that is too long",
    excluded=without("agent episode"),
)
def texts_of_tools_are_cut(stack: Any, case: Numbers) -> Measure:
    """Check that texts of tools that are too long lose the configured side."""
    wrong = []
    for side, due in (("left", TOOL_TEXT[-10:]), ("right", TOOL_TEXT[:10]), ("middle", TOOL_TEXT[:5])):
        options = {"max_tool_response_length": 10, "tool_response_truncate_side": side}
        text = _episode(stack, TWO_TURNS[1:], **options).text
        end = TOOL_TEXT[-5:] if side == "middle" else due
        if due not in text or end not in text or TOOL_TEXT[:11] in text or TOOL_TEXT[-11:] in text:
            wrong.append(f"cut at the {side}: {text!r}")
    return Measure.count(wrong, "texts of tools that are cut otherwise")


@TURNS.law(
    "calls of a turn", "a call more than allowed, calls in another order", excluded=without("agent episode")
)
def as_many_calls_run_as_allowed(stack: Any, case: Numbers) -> Measure:
    """Check that the first calls of a turn run, as many as are allowed, and that the model reads each answer."""
    wrong = []
    several = "".join(CALL % city for city in ("Bern", "Chur", "Sion"))
    for allowed in (1, 2, 3):
        episode = _episode(stack, [several, "Sunny."], max_parallel_calls=allowed)
        if (
            list(episode.called) != ["Bern", "Chur", "Sion"][:allowed]
            or episode.text.count(TOOL_TEXT) != allowed
        ):
            wrong.append(f"{allowed} calls allowed: {list(episode.called)}")
    return Measure.count(wrong, "calls of tools that run otherwise")


@TURNS.law("an answer without a token", "the prompt taken for the answer", excluded=without("agent episode"))
def an_answer_may_be_empty(stack: Any, case: Numbers) -> Measure:
    """Check that an episode whose only answer has no token has no token of an answer, and its whole prompt."""
    whole, episode = _episode(stack, TWO_TURNS[2:]), _episode(stack, [""])
    wrong = [] if list(episode.prompt_ids) == list(whole.prompt_ids) else ["another prompt"]
    if episode.response_ids or episode.mask:
        wrong.append(f"{len(episode.response_ids)} ids, {len(episode.mask)} of a mask")
    return Measure.count(wrong, "faults of an episode without a token")


@TURNS.law("options of sampling", "options changed or lost on the way", excluded=without("agent episode"))
def options_of_sampling_are_passed_on(stack: Any, case: Numbers) -> Measure:
    """Check that each request has the options of sampling that the episode was given."""
    given = _episode(stack).sampling
    wrong = [str(one) for one in given if {name: one.get(name) for name in SAMPLING} != SAMPLING]
    return Measure.count(wrong, "requests with other options")


@TURNS.law(
    "turns as the template writes them",
    "the template's own system prompt again or a part of it, a tool's answer twice",
    excluded=without("agent episode"),
    ends="<|im_end|>",
)
@TURNS.law(
    "line breaks between turns",
    "no line break after a turn that the model ended, two of them",
    excluded=without("agent episode"),
    ends="<|im_end|>\n",
)
def turns_are_written_by_the_template(stack: Any, case: Numbers, ends: str) -> Measure:
    """Compare the text after the prompt with that of a template with a system prompt, an option and line breaks."""
    due = "".join(
        f"{answer}{ends}<|im_start|>tool\n{TOOL_TEXT}{ends}<|im_start|>assistant\n"
        for answer in TWO_TURNS[:-1]
    )
    due += f"{TWO_TURNS[-1]}<|im_end|>"
    text = _episode(stack, templated=True).text
    text = text if ends.endswith("\n") else text.replace("<|im_end|>\n", "<|im_end|>")
    wrong = [] if text == due else [f"{text!r}, {due!r} is right"]
    return Measure.count(wrong, "episodes that are written otherwise")


@TURNS.law(
    "what tools are made with",
    "a tool that is made without what the row says",
    excluded=without("arguments of tools"),
)
def tools_are_made_with_what_the_row_says(stack: Any, case: Numbers) -> Measure:
    """Check that each call has a tool that was made with what the row gives for it."""
    made = stack.utilities["arguments of tools"](list(TWO_TURNS), TOOL_TEXT, MADE_WITH)
    wrong = [str(one) for one in made if one != MADE_WITH]
    if len(made) != len(TWO_TURNS) - 1:
        wrong.append(f"{len(made)} tools are made, {len(TWO_TURNS) - 1} are right")
    return Measure.count(wrong, "tools that are made with something else")


@TURNS.law(
    "what a tool knows of the right answer",
    "a tool of the release that looks for the right answer at another place than the row's",
    excluded=without("score of a tool"),
)
def tools_know_the_right_answer(stack: Any, case: Numbers) -> Measure:
    """Check that a tool that scores answers calls the row's right answer right, and others wrong."""
    wrong = []
    for right, answer, due in (("72", "72", 1.0), ("72", "27", 0.0), ("-3", "-3", 1.0)):
        found = stack.utilities["score of a tool"](right, answer)
        wrong += [f"{answer}, {right} is right: {found}"] if found != due else []
    return Measure.count(wrong, "answers that a tool scores otherwise")


@TURNS.law(
    "what interactions are given",
    "an interaction that is started or asked without what the row says",
    excluded=without("arguments of interactions"),
)
def interactions_are_given_what_the_row_says(stack: Any, case: Numbers) -> Measure:
    """Check that an interaction is started once and asked for each reply, with what the row gives for it."""
    answers, replies = ["Sunny.", "Sure.", "Yes."], ["And now?", "Really?", "Thanks."]
    started, asked = stack.utilities["arguments of interactions"](answers, replies, MADE_WITH)
    wrong = [str(one) for one in (*started, *asked) if one != MADE_WITH]
    if (len(started), len(asked)) != (1, len(replies)):
        wrong.append(f"started {len(started)} times, asked {len(asked)} times")
    return Measure.count(wrong, "interactions that are given something else")


@TURNS.law(
    "experts of an episode",
    "experts that are lost on the way to training, those of an earlier turn",
    excluded=without("experts of episodes"),
)
def experts_are_those_of_the_last_answer(stack: Any, case: Numbers) -> Measure:
    """Check that the experts are those of all tokens that the last request had and gave, in their order."""
    wrong = []
    for answers in (TWO_TURNS, TWO_TURNS[2:]):
        episode: Episode = stack.utilities["experts of episodes"](list(answers), TOOL_TEXT, SAMPLING, {})
        due = list(range(len(episode.requests[-1]) + len(episode.sampled[-1])))
        given = None if episode.experts is None else list(episode.experts)
        wrong += [f"{len(answers)} answers: {given}"] if given != due else []
    return Measure.count(wrong, "episodes with other experts")


@TURNS.law(
    "messages of an interaction",
    "the result of a tool twice, an answer that is left out",
    excluded=without("messages of an interaction"),
    calls=1,
)
@TURNS.law(
    "messages of an interaction, several calls in a turn",
    "results of a turn again with each further one, in another order",
    excluded=without("messages of an interaction"),
    calls=2,
)
def interactions_have_the_conversation(stack: Any, case: Numbers, calls: int) -> Measure:
    """Compare the conversation before each reply with the turns so far, each once and in order."""
    called = "".join(CALL % city for city in ("Bern", "Chur")[:calls])
    answers, replies = [called, "Sunny.", "Sure."], ["And now?", "Thanks."]
    given = stack.utilities["messages of an interaction"](answers, replies, TOOL_TEXT)
    turns = [("assistant", called), *[("tool", TOOL_TEXT)] * calls, ("assistant", "Sunny.")]
    due = [turns, [*turns, ("user", replies[0]), ("assistant", "Sure.")]]
    found = [[(one["role"], one["content"]) for one in messages[1:]] for messages in given]
    wrong = [] if len(found) == len(due) else [f"{len(found)} replies, {len(due)} are right"]
    for number, (one, other) in enumerate(zip(found, due, strict=False)):
        wrong += [f"reply {number}: {one}"] if one != other else []
    return Measure.count(wrong, "conversations that are others")


PROMPT = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the weather?"})
SPOKEN: Sequence[tuple[str, Any]] = (("assistant", "I look."), ("tool", [TOOL_TEXT]), ("assistant", "Sunny."))


def requests_of_turns(
    prompt: Sequence[Mapping[str, str]], turns: Sequence[tuple[str, Any]], templated: bool
) -> dict[str, Any]:
    """Return the texts of a request, as the template writes its messages."""
    text, asked, trained = _written([(one["role"], one["content"]) for one in prompt]), [], ""
    header = "<|im_start|>assistant\n"
    found = {"prompt": text + header}
    for kind, content in turns:
        if kind == "assistant":
            asked.append(text + header)
            trained += f"{content}<|im_end|>\n"
        text += _written([(kind, one) for one in ([content] if isinstance(content, str) else content)])
    return {**found, "asked": asked, "text": text, "trained": trained, "positions": True}


def _written(messages: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for role, content in messages)


@TURNS.law(
    "messages of a request",
    "a header of an answer too many, tokens of a tool that train, the first turn's prompt for all",
    excluded=without("request of turns"),
    turns=(
        SPOKEN,
        (*SPOKEN, ("user", "And now?"), ("assistant", "Rain.")),
        (("assistant", "Both."), ("tool", ["one", "two"]), ("tool", ["three"]), ("assistant", "Done.")),
        (("assistant", "Sunny."),),
    ),
)
@TURNS.law(
    "messages of a request, a tool first",
    "the header of an answer before what a tool answers",
    excluded=without("request of turns"),
    turns=((("tool", [TOOL_TEXT]), ("assistant", "Sunny.")),),
)
def requests_are_what_the_template_writes(
    stack: Any, case: Numbers, turns: Sequence[Sequence[tuple[str, Any]]]
) -> Measure:
    """Compare the texts of requests with messages as the template writes them, with any line breaks between turns."""
    wrong = []
    for own in turns:
        for templated in (False, True):
            right = requests_of_turns(PROMPT, own, templated)
            given = stack.utilities["request of turns"](PROMPT, own, templated)
            wrong += [
                f"{len(own)} turns: {name} {given[name]!r}, {value!r} is right"
                for name, value in right.items()
                if _unbroken(given[name]) != _unbroken(value)
            ]
    return Measure.count(wrong, "texts of requests that are others")


def _unbroken(value: Any) -> Any:
    if isinstance(value, list):
        return [_unbroken(one) for one in value]
    return value.replace("<|im_end|>\n", "<|im_end|>") if isinstance(value, str) else value
