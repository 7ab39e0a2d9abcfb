"""Worked examples of Transformers' `generate`: which inputs, lengths and masks it takes, and what it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from seatrial.targets.common.target import find_name
from seatrial.targets.common.worked_rows import Row, unlike

VOCABULARY, PAD, START, END = 30, 1, 2, 3
NUM_NEW = 4


@cache
def causal() -> Any:
    """Return a tiny Llama whose ids follow from its prompts."""
    made: Any = find_name("transformers", ["transformers:LlamaForCausalLM"])
    config: Any = find_name("transformers", ["transformers:LlamaConfig"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = made(
            config(
                vocab_size=VOCABULARY, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=24, initializer_range=0.6,
                pad_token_id=PAD, bos_token_id=START, eos_token_id=END,
            )
        )  # fmt: skip
    return model.eval()


@cache
def encoding() -> Any:
    """Return a tiny Bart whose ids follow from its inputs."""
    made: Any = find_name("transformers", ["transformers:BartForConditionalGeneration"])
    config: Any = find_name("transformers", ["transformers:BartConfig"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = made(
            config(
                vocab_size=VOCABULARY, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2,
                decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=40,
                init_std=0.6, pad_token_id=PAD, bos_token_id=0, eos_token_id=END, decoder_start_token_id=START,
                forced_eos_token_id=None,
            )
        )  # fmt: skip
    return model.eval()


def next_logits(model: Any, ids: Sequence[int], decoded: Sequence[int] | None) -> Tensor:
    """Return the last logits of a whole forward pass of a row."""
    given: dict[str, Any] = {"input_ids": torch.tensor([list(ids)]), "use_cache": False}
    if decoded is not None:
        given["decoder_input_ids"] = torch.tensor([list(decoded)])
    with torch.no_grad():
        logits: Tensor = model(**given).logits[0, -1].double()
    return logits


def _greedy(
    model: Any, ids: Sequence[int], number: int, first: Sequence[int] | None, ends: Any = ()
) -> list[int]:
    """Return the row that follows by the largest logits; behind an encoder the decoder's, which begins with `first`."""
    row = list(ids if first is None else first)
    for _ in range(number):
        row.append(
            int((next_logits(model, row, None) if first is None else next_logits(model, ids, row)).argmax())
        )
        if row[-1] in ends:
            break
    return row


PROMPTS: Sequence[Sequence[int]] = ((5, 9, 11, 4), (7, 8), (20,))


def batch(side: str = "left") -> tuple[Tensor, Tensor]:
    widest = max(map(len, PROMPTS))
    rows, masks = [], []
    for row in PROMPTS:
        pads, real = [PAD] * (widest - len(row)), [1] * len(row)
        rows.append(pads + list(row) if side == "left" else list(row) + pads)
        masks.append([0] * len(pads) + real if side == "left" else real + [0] * len(pads))
    return torch.tensor(rows), torch.tensor(masks)


def _cut(found: Tensor, start: int, ends: Sequence[int] = ()) -> list[list[int]]:
    """Return the new ids of rows, up to their ends."""
    rows = []
    for row in found[:, start:].tolist():
        place = next((at for at, one in enumerate(row, 1) if one in ends), len(row))
        rows.append(row[:place])
    return rows


def _inputs(mixin: Any) -> list[str]:
    """Return which ways to give prompts do not give the ids of each row alone."""
    model, (ids, mask) = causal(), batch()
    due = [_greedy(model, row, NUM_NEW, None)[len(row) :] for row in PROMPTS]
    own: Mapping[str, Any] = {"max_new_tokens": NUM_NEW, "do_sample": False, "eos_token_id": None}
    embeds = model.get_input_embeddings()(ids).detach()
    ways: Mapping[str, tuple[Mapping[str, Any], int]] = {
        "ids and a mask": ({"input_ids": ids, "attention_mask": mask}, 4),
        "ids under another name": ({"inputs": ids, "attention_mask": mask}, 4),
        "ids without a mask": ({"input_ids": ids, "eos_token_id": END, "min_new_tokens": NUM_NEW}, 4),
        "no cache": ({"input_ids": ids, "attention_mask": mask, "use_cache": False}, 4),
        "embeddings": ({"inputs_embeds": embeds, "attention_mask": mask}, 0),
        "embeddings and ids": ({"inputs_embeds": embeds, "input_ids": ids, "attention_mask": mask}, 4),
        "lengths of the whole": (
            {"input_ids": ids, "attention_mask": mask, "max_length": 8, "max_new_tokens": None}, 4,
        ),
        "a whole longer than asked": ({"input_ids": ids, "attention_mask": mask, "max_length": 30}, 4),
        "embeddings, lengths of the whole": (
            {"inputs_embeds": embeds, "attention_mask": mask, "max_length": 8, "max_new_tokens": None}, 0,
        ),
        "a cache of its own": (
            {"input_ids": ids, "attention_mask": mask, "past_key_values": _cache(model)}, 4,
        ),
        "a cache of one size": ({"input_ids": ids, "attention_mask": mask, "cache_implementation": "static"}, 4),
        "a prefill in parts": ({"input_ids": ids, "attention_mask": mask, "prefill_chunk_size": 2}, 4),
    }  # fmt: skip
    wrong = []
    for name, (given, start) in ways.items():
        found = model.generate(**{**own, **given})
        if name == "ids without a mask":  # the end may not be drawn: the row without it
            rows = [_without_end(model, row) for row in PROMPTS]
        else:
            rows = due
        got = _cut(found, start)
        wrong += [] if got == rows else [f"{name}: {got}, {rows} are due"]
    alone = model.generate(**{**own, "max_new_tokens": 3})[0].tolist()
    if alone != _greedy(model, [START], 3, None):
        wrong.append(f"no prompt: {alone}")
    first = model.generate(
        input_ids=ids[:1, :2], **{**own, "return_dict_in_generate": True, "max_new_tokens": 2}
    )
    longer = torch.cat([first.sequences, torch.tensor([[6]])], dim=1)
    second = model.generate(input_ids=longer, past_key_values=first.past_key_values, **own)
    if second[0].tolist() != _greedy(model, longer[0].tolist(), NUM_NEW, None):
        wrong.append(f"a cache of the call before: {second.tolist()}")
    return wrong


def _cache(model: Any) -> Any:
    made: Any = find_name("transformers", ["transformers:DynamicCache"])
    return made(config=model.config)


def _without_end(model: Any, prompt: Sequence[int]) -> list[int]:
    row = list(prompt)
    for _ in range(NUM_NEW):
        logits = next_logits(model, row, None)
        logits[END] = -torch.inf
        row.append(int(logits.argmax()))
    return row[len(prompt) :]


def _encoded(mixin: Any) -> list[str]:
    """Return which ways to give inputs to an encoder and its decoder do not give the ids of each row alone."""
    model, (ids, mask) = encoding(), batch("right")
    own: Mapping[str, Any] = {
        "max_new_tokens": NUM_NEW, "do_sample": False, "eos_token_id": None, "attention_mask": mask,
    }  # fmt: skip
    with torch.no_grad():
        states = model.get_encoder()(input_ids=ids, attention_mask=mask)
        embeds = model.get_input_embeddings()(ids)
    first = torch.tensor([[6, 7], [8, 9], [10, 11]])
    begun = torch.cat([torch.full((3, 1), START), first], dim=1)
    other = torch.tensor([[15], [16], [17]])
    table: Mapping[str, tuple[Mapping[str, Any], Sequence[Sequence[int]]]] = {
        "ids": ({"input_ids": ids}, [[START]] * 3),
        "embeddings": ({"inputs_embeds": embeds}, [[START]] * 3),
        "encoded states": ({"encoder_outputs": states}, [[START]] * 3),
        "no cache": ({"input_ids": ids, "use_cache": False}, [[START]] * 3),
        "decoder ids without the start": ({"input_ids": ids, "decoder_input_ids": first}, begun.tolist()),
        "decoder ids with the start": ({"input_ids": ids, "decoder_input_ids": begun}, begun.tolist()),
        "another start": ({"input_ids": ids, "decoder_start_token_id": 13}, [[13]] * 3),
        "a start of each row": ({"input_ids": ids, "decoder_start_token_id": [15, 16, 17]}, other.tolist()),
    }
    wrong = []
    for name, (given, firsts) in table.items():
        found = model.generate(**{**own, **given}).tolist()
        due = [_greedy(model, row, NUM_NEW, start) for row, start in zip(PROMPTS, firsts, strict=True)]
        wrong += [] if found == due else [f"{name}: {found}, {due} are due"]
    return wrong


def _lengths(mixin: Any) -> list[list[int]]:
    """Return the lengths of rows by each limit: of a causal model, of its embeddings, and of a decoder."""
    alone, encodes, (ids, mask) = causal(), encoding(), batch()
    embeds = alone.get_input_embeddings()(ids).detach()
    found = []
    for limits in ({"max_new_tokens": 3}, {"max_length": 7}, {"max_length": 9, "max_new_tokens": 2}, {}):
        own: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "attention_mask": mask, **limits}
        found.append([
            alone.generate(input_ids=ids, **own).shape[1],
            alone.generate(inputs_embeds=embeds, **own).shape[1],
            encodes.generate(input_ids=ids, **own).shape[1],
        ])  # fmt: skip
    return found


def _ends(mixin: Any) -> list[str]:
    """Return where rows do not end at their first end, several of them, and are not padded after it."""
    model, (ids, mask) = causal(), batch()
    plain = [_greedy(model, row, 6, None)[len(row) :] for row in PROMPTS]
    ends = [plain[0][1], plain[1][3]]
    wrong = []
    for pad in (PAD, None):
        given: dict[str, Any] = {
            "input_ids": ids,
            "attention_mask": mask,
            "max_new_tokens": 6,
            "do_sample": False,
        }
        given |= {"eos_token_id": ends, "pad_token_id": PAD if pad is None else pad}
        found = model.generate(**given)
        due = [_greedy(model, row, 6, None, ends)[len(row) :] for row in PROMPTS]
        longest = max(map(len, due))
        rows = [row + [PAD] * (longest - len(row)) for row in due]
        wrong += [] if found[:, 4:].tolist() == rows else [f"{found[:, 4:].tolist()}, {rows} are due"]
    unpadded = causal().generation_config
    kept, unpadded.pad_token_id = unpadded.pad_token_id, None
    try:
        found = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=ends
        )
    finally:
        unpadded.pad_token_id = kept
    rows = [row + [ends[0]] * (longest - len(row)) for row in due]
    return wrong + (
        [] if found[:, 4:].tolist() == rows else [f"padded with the first end: {found[:, 4:].tolist()}"]
    )


def _returned(mixin: Any) -> list[str]:
    """Return which fields of a result are not those of the model: logits, scores, states, attentions, transitions."""
    wrong = []
    for name, model, (ids, mask) in (
        ("causal", causal(), batch()), ("encoding", encoding(), batch("right")),
    ):  # fmt: skip
        encodes = name == "encoding"
        model.set_attn_implementation("eager")
        for more in (
            {"num_beams": 3, "num_return_sequences": 2},
            {"do_sample": True, "num_return_sequences": 2},
            {},
        ):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                found = model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=NUM_NEW, eos_token_id=None,
                    return_dict_in_generate=True, output_scores=True, output_logits=True, output_attentions=True,
                    output_hidden_states=True, temperature=0.5 if "do_sample" in more else None,
                    top_k=0 if "do_sample" in more else None, **{"do_sample": False, **more},
                )  # fmt: skip
            what, copies = f"{name}, {dict(more)}", more.get("num_return_sequences", 1)
            start = 1 if encodes else ids.shape[1]
            if len(found.sequences) != copies * len(PROMPTS) or len(found.logits) != NUM_NEW:
                wrong.append(f"{what}: {tuple(found.sequences.shape)}, {len(found.logits)} logits")
                continue
            states = found.decoder_hidden_states if encodes else found.hidden_states
            maps = found.decoder_attentions if encodes else found.attentions
            sizes = [len(states), len(maps), len(states[0]), len(maps[0]), states[1][0].shape[1]]
            if sizes != [NUM_NEW, NUM_NEW, 3, 2, 1]:
                wrong.append(f"{what}: sizes {sizes}")
            if encodes:
                sizes = [
                    len(found.encoder_hidden_states),
                    len(found.encoder_attentions),
                    len(found.cross_attentions),
                ]
                wrong += [] if sizes == [2, 1, NUM_NEW] else [f"{what}: sizes of the encoder {sizes}"]
            beams = found.get("beam_indices")
            raw = model.compute_transition_scores(found.sequences, found.scores, beams)
            normal = model.compute_transition_scores(
                found.sequences, found.scores, beams, normalize_logits=True
            )
            for row, sequence in enumerate(found.sequences.tolist()):
                prompt = list(PROMPTS[row // copies])
                due = [
                    next_logits(model, prompt, sequence[: start + step]) if encodes
                    else next_logits(model, prompt + sequence[start : start + step], None)
                    for step in range(NUM_NEW)
                ]  # fmt: skip
                scores = [one / (0.5 if "do_sample" in more else 1.0) for one in due]
                of_ids = [
                    float(one.log_softmax(-1)[sequence[start + step]]) for step, one in enumerate(scores)
                ]
                wrong += unlike(normal[row].tolist(), of_ids, f"{what}, row {row}, normal", 1e-3)
                if beams is not None:
                    total = float(found.sequences_scores[row])
                    sums = [float(raw[row][: step + 1].sum()) for step in range(NUM_NEW)]
                    wrong += unlike([total], [sums[-1] / NUM_NEW], f"{what}, row {row}, sum", 1e-3)
                    continue
                plain = [float(one[sequence[start + step]]) for step, one in enumerate(scores)]
                wrong += unlike(raw[row].tolist(), plain, f"{what}, row {row}, raw", 1e-3)
                for step, logits in enumerate(due):
                    wrong += unlike(
                        found.logits[step][row].tolist(), logits.tolist(), f"{what}, logits", 1e-3
                    )
            if beams is not None:
                totals = found.sequences_scores.view(len(PROMPTS), copies)
                wrong += [f"{what}: {totals.tolist()} rise"] if bool((totals.diff(dim=1) > 0).any()) else []
    return wrong[:5]


PLACE = "transformers.generation.utils:GenerationMixin"
# Sources: the documentation of GenerationMixin.generate, compute_transition_scores and GenerationConfig.
CALL_ROWS: Sequence[Row] = (
    Row("inputs", PLACE, "prompts in every form", _inputs, [], since="5.8"),
    Row("inputs", PLACE, "inputs of encoders in every form", _encoded, [], since="4.57"),
    Row(
        "edges",
        PLACE,
        "lengths by each limit",
        _lengths,
        [[7, 3, 4], [7, 3, 7], [6, 2, 3], [24, 20, 21]],
        since="5.8",
    ),
    Row("edges", PLACE, "rows that end", _ends, [], since="4.57"),
    Row("returns", PLACE, "logits, scores, states and transitions", _returned, [], since="4.57"),
)
