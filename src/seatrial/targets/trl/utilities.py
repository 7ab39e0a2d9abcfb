"""TRL's small functions, whichever release is installed; see `contracts.utilities`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from types import SimpleNamespace
from typing import Any, ClassVar

from torch import Tensor

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.known import KnownFailure, KnowsFailures, between
from seatrial.targets.common.target import Gone, find_name, release
from seatrial.targets.trl import asynchronous, collators, templates, tiles
from seatrial.targets.trl.former import FUNCTIONS
from seatrial.targets.trl.preferences import find_trainer
from seatrial.targets.trl.sources import SOURCES, need_turns

UTILS = ("trl.trainer.utils", "trl.experimental.utils", "trl.data_utils", "trl.core")
"""Where releases keep them."""
PLAIN: Mapping[str, str] = {
    "logprobs": "selective_log_softmax",
    "entropy": "entropy_from_logits",
    "minimum": "nanmin",
    "maximum": "nanmax",
    "pad to length": "pad_to_length",
    "flush left": "flush_left",
    "flush right": "flush_right",
    "split": "split_tensor_dict",
    "shuffle": "shuffle_sequence_dict",
    "first true": "first_true_indices",
    "common prefix": "common_prefix_length",
    "without None": "remove_none_values",
}
"""Names of those that take what the contract says."""
PROMPTS = KnownFailure(
    "pairs that begin differently, or of which one begins the other, lose characters or a prompt",
    finding="TRL: prompts taken out of pairs",
).of(
    "R31.records/prompt of a pair, nothing in common",
    "R31.records/prompt of a pair, one answer begins the other",
)


PARTS = KnownFailure(
    "a mixture is split by the random state of each process, without a seed",
    finding="TRL: the held-out part of a mixture",
).of("R31.sources/parts of a mixture in several processes")
CUES = KnownFailure(
    "five templates for training mark the cue that opens the assistant's turn",
    finding="TRL: the cue of the assistant's turn in templates for training",
).of("R31.templates/trained part and the prompt")
FORMER = tuple(
    KnownFailure(reason, finding=FUNCTIONS, releases=between("trl", first, end)).of(*laws)
    for reason, first, end, laws in (
        (
            "the first token of a text is predicted from the text before it in a flattened batch",
            "0",
            "0.23.1",
            ("R31.collated/texts that are flattened", "R31.collated/packed texts"),
        ),
        (
            "a record's own variables of its template are left out of its texts",
            "0",
            "0.24",
            ("R31.chats/texts of a template with variables of a record's own",),
        ),
        (
            "the log odds of ORPO cancel where a probability is near one (trl-4763)",
            "0",
            "0.27",
            ("R31.numbers/odds near probabilities of one and zero",),
        ),
        (
            "the clip ratio of asynchronous GRPO counts tokens that the clip leaves as they are",
            "0",
            "1.7",
            ("R31.async_rollouts/a step",),
        ),
        (
            "the seconds that asynchronous GRPO waits are those since its last poll of the queue",
            "1.6",
            "1.10",
            ("R31.async_rollouts/a queue that is empty at times",),
        ),
        (
            "a template that drops calls of tools is said to take them",
            "1.1",
            "1.2",
            (
                "R31.templates/turns are written",
                "R31.templates/first turns of a conversation",
                "R31.templates/tools of a template",
            ),
        ),
    )
)


class Utilities(KnowsFailures):
    """Functions of `trl.trainer.utils`, `trl.data_utils`, `trl.rewards` and the losses of trainers."""

    known_failures: ClassVar[Sequence[KnownFailure]] = (PROMPTS, PARTS, CUES, *FORMER)

    def __init__(self) -> None:
        """Find those that the installed release has.

        Raises:
            Gone: there are none.
        """
        made: dict[str, Callable[..., Any]] = {}
        for name, own in PLAIN.items():
            if found := _found(own, UTILS):
                made[name] = found
        for name, (own, places, adapt) in {**ADAPTED, **SOURCES}.items():
            if found := _found(own, places):
                made[name] = adapt(found)
        if trainer := _trainer("ORPO"):
            made["odds loss"] = _odds_loss(trainer)
        if not made:
            raise Gone(f"trl {release('trl')} has none of {', '.join(PLAIN.values())}")
        made |= {**templates.functions(), **collators.functions(), **tiles.functions()}
        made |= asynchronous.functions()
        self.utilities: Mapping[str, Callable[..., Any]] = made


def _found(name: str, places: Sequence[str]) -> Any:
    """Return the function of this name; None if the release does not have it."""
    try:
        return find_name("trl", [f"{place}:{name}" for place in places])
    except Gone:
        return None


def _trainer(name: str) -> Any:
    """Return the trainer of this name; None if the release does not have it."""
    try:
        return find_trainer(name)[0]
    except Gone:
        return None


def _deviation(nanstd: Any) -> Callable[..., Any]:
    """Return `nanstd` with dimensions; releases before they were an option reduce all."""

    def deviation(values: Tensor, dims: Any) -> Any:
        if "dim" not in signature(nanstd).parameters:
            raise NotServed(f"nanstd of trl {release('trl')} takes no dimension")
        return nanstd(values, dim=dims)

    return deviation


def _pad(pad: Any) -> Callable[..., Any]:
    takes_multiple = "pad_to_multiple_of" in signature(pad).parameters

    def padded(rows: Sequence[Tensor], value: int, side: str, multiple: int | None) -> Any:
        if multiple is not None and not takes_multiple:
            raise NotServed(f"pad of trl {release('trl')} takes no multiple")
        more = {} if multiple is None else {"pad_to_multiple_of": multiple}
        return pad(list(rows), padding_value=value, padding_side=side, **more)

    return padded


def _repeated_order(sampler_class: Any) -> Callable[..., Any]:
    def order(
        num_rows: int, copies: int, batch: int, repeats: int, shuffles: bool, seed: int, epochs: int
    ) -> list[list[int]]:
        given: dict[str, Any] = {"mini_repeat_count": copies, "batch_size": batch, "repeat_count": repeats}
        given |= {"shuffle": shuffles, "seed": seed}
        if missing := set(given) - set(signature(sampler_class).parameters):
            raise NotServed(
                f"{sampler_class.__name__} of trl {release('trl')} takes no {', '.join(sorted(missing))}"
            )
        sampler = sampler_class(range(num_rows), **given)
        orders = [list(sampler) for _ in range(epochs)]
        if any(len(one) != len(sampler) for one in orders):
            raise ValueError(f"{sampler_class.__name__} says {len(sampler)} rows and yields {len(orders[0])}")
        return orders

    return order


def _repeated_stream(repeat: Any) -> Callable[..., Any]:
    def stream(records: Sequence[Any], copies: int, batch: int, repeats: int) -> list[Any]:
        import datasets

        iterable: Any = datasets.IterableDataset
        return list(repeat(iterable.from_generator(lambda: iter(records)), copies, batch, repeats))

    return stream


def _unpair(unpair: Any) -> Callable[..., Any]:
    from datasets import Dataset

    def unpaired(records: Sequence[Mapping[str, Any]]) -> list[Any]:
        if set(records[0]) > {"prompt", "chosen", "rejected"} and "extra columns" not in str(unpair.__doc__):
            raise NotServed(f"unpair_preference_dataset of trl {release('trl')} takes no extra columns")
        return list(unpair(Dataset.from_list([dict(one) for one in records])))

    return unpaired


def _several_logprobs(select: Any) -> Callable[..., Any]:
    def selected(logits: Tensor, ids: Tensor) -> Any:
        if "(..., K)" not in str(select.__doc__):
            raise NotServed(f"selective_log_softmax of trl {release('trl')} takes one id of a row")
        return select(logits, ids)

    return selected


def _extract_prompt(extract: Any) -> Callable[..., Any]:
    def extracted(chosen: Any, rejected: Any) -> tuple[Any, Any, Any]:
        need_turns(chosen)
        found = extract({"chosen": chosen, "rejected": rejected})
        return found["prompt"], found["chosen"], found["rejected"]

    return extracted


def _cut_records(truncate: Any) -> Callable[..., Any]:
    from datasets import Dataset

    return lambda columns, length: truncate(Dataset.from_dict(dict(columns)), length).to_dict()


def _messages_with_images(prepare: Any) -> Callable[..., Any]:
    """Return it for releases that return new messages, and for those that change a copy of the given ones."""
    if "images" not in signature(prepare).parameters:

        def refused(messages: Any, images: Any) -> Any:
            raise NotServed(f"prepare_multimodal_messages of trl {release('trl')} takes no images")

        return refused
    return lambda messages, images: prepare(messages, images=list(images))


def _think_format(reward: Any) -> Callable[..., Any]:
    return lambda texts: reward([[{"role": "assistant", "content": text}] for text in texts])


def _overlong(make: Any) -> Callable[..., Any]:
    return lambda lengths, longest, cache: make(longest, cache)(
        completion_ids=[[1] * length for length in lengths]
    )


def _repetition(make: Any) -> Callable[..., Any]:
    return lambda rows, n, largest: make(n, largest)(completion_ids=rows)


def _score(get_reward: Any) -> Callable[..., Any]:
    """Return the scores that it gives with a model that sums ids by position."""

    def backbone(*, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, **_: Any) -> Any:
        summed = (input_ids * (position_ids + 1) * attention_mask).cumsum(1)
        return SimpleNamespace(
            last_hidden_state=summed[..., None].float(), hidden_states=[summed[..., None].float()]
        )

    model = SimpleNamespace(base_model_prefix="model", model=backbone, score=lambda hidden: hidden)
    return lambda ids, pad, context: get_reward(model, ids, pad, context)[1]


def _odds_loss(trainer_class: Any) -> Callable[..., Any]:
    """Return the loss of `ORPOTrainer.odds_ratio_loss`, whose first result is beta log sigmoid."""

    def loss(chosen: Tensor, rejected: Tensor, beta: float) -> Any:
        trainer = SimpleNamespace(beta=beta, accelerator=SimpleNamespace(device=chosen.device))
        return -trainer_class.odds_ratio_loss(trainer, chosen, rejected)[0]

    return loss


def _cut_after_stop(truncate: Any) -> Callable[..., Any]:
    takes_several = "stop_token_ids" in signature(truncate).parameters

    def cut(ids: Tensor, stops: Sequence[int], pad: int) -> Any:
        if not takes_several and len(stops) > 1:
            raise NotServed(f"truncate_right of trl {release('trl')} takes one stop")
        return truncate(ids, list(stops) if takes_several else stops[0], pad)

    return cut


ADAPTED: Mapping[str, tuple[str, Sequence[str], Callable[[Any], Callable[..., Any]]]] = {
    "cut after stop": ("truncate_right", UTILS, _cut_after_stop),
    "logprobs of several": ("selective_log_softmax", UTILS, _several_logprobs),
    "deviation": ("nanstd", UTILS, _deviation),
    "pad": ("pad", UTILS, _pad),
    "repeated order": ("RepeatSampler", UTILS, _repeated_order),
    "repeated stream": ("repeat_iterable_dataset", UTILS, _repeated_stream),
    "unpair": ("unpair_preference_dataset", UTILS, _unpair),
    "extract prompt": ("extract_prompt", UTILS, _extract_prompt),
    "cut records": ("truncate_dataset", UTILS, _cut_records),
    "messages with images": ("prepare_multimodal_messages", UTILS, _messages_with_images),
    "score of answers": ("get_reward", UTILS, _score),
    "think format": ("think_format_reward", ("trl.rewards",), _think_format),
    "overlong": ("get_soft_overlong_punishment", ("trl.rewards",), _overlong),
    "repetition": ("get_repetition_penalty_reward", ("trl.rewards",), _repetition),
}
"""Those with arguments of their own: the name, where releases keep it, and what fits it to the contract."""


ADAPTERS: dict[str, type[Any]] = {"utilities": Utilities}
