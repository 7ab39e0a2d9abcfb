"""Contract of small functions that trainers share: each alone against a slow, plain one.

Part of `seatrial.relations.contracts`, which lists every component.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Batch(NamedTuple):
    """Rows as columns, and what holds for all of them."""

    tensors: dict[str, Tensor]
    objects: dict[str, list[Any]]
    facts: dict[str, Any]


class Episode(NamedTuple):
    """What an episode of several turns leaves."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    mask: Sequence[int]
    """1 for tokens that train."""
    logprobs: Sequence[float]
    num_turns: int
    rewards: Sequence[float] | None
    """Of the tools, in the order of their calls; None where a release keeps none."""
    text: str
    """Of all tokens after the prompt."""
    requests: Sequence[Sequence[int]]
    """Ids that each request to the model has."""
    sampling: Sequence[Mapping[str, Any]]
    """Options of each request."""
    sampled: Sequence[Sequence[int]]
    """Ids that the model answered to each, with the end token, if it answered at all."""
    sampled_logprobs: Sequence[Sequence[float]]
    called: Sequence[str]
    """`city` of each call that ran."""
    created: Sequence[Mapping[str, Any]] = ()
    """What the tool was made with for each call."""
    experts: Any = None
    """What is kept of the experts that the last request's answer names, `[[place]]` for each token; None without."""


class Rollout(NamedTuple):
    """A row that a rollout left."""

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    """Of the answer: 1 for tokens that train."""
    logprobs: list[float] | None
    experts_SLK: Tensor | None
    """Of prompt and answer, which may have fewer tokens than both."""
    reward: float | None
    num_turns: int
    extras: dict[str, Any]


class Continued(NamedTuple):
    """What a rollout has before an answer of the model."""

    text: str
    """Of all tokens."""
    answered: str
    """Of the tokens whose mask is 1."""
    mask: Sequence[int]
    """Of the tokens after the first prompt."""
    logprobs: Sequence[float]


class Template(NamedTuple):
    """A chat template that a stack ships."""

    name: str
    trains: bool
    """Whether it marks what the assistant says, for training."""
    replaces: str
    """Name of the template that it is used for in training; empty if it does not mark anything."""
    takes_system: bool
    takes_tools: bool
    reads: bool
    """Whether the stack reads answers that it writes."""
    thinks: bool
    """Whether a text before a call is written as a thought."""


UTILITIES: Mapping[str, str] = {
    "logprobs": "(logits [..., V], ids [...]) -> log-probabilities [...]",
    "logprobs of several": "(logits [..., V], ids [..., K]) -> log-probabilities [..., K]",
    "entropy": "(logits [..., V]) -> entropies [...]",
    "deviation": "(values, dimensions or None) -> deviation with divisor N - 1, NaN left out; NaN of fewer than two",
    "minimum": "(values [N]) -> smallest, NaN left out",
    "maximum": "(values [N]) -> largest, NaN left out",
    "odds loss": "(chosen and rejected mean log-probabilities [B], beta) -> -beta log sigmoid(log odds ratio) [B]",
    "pad": "(tensors with unequal shapes, value, side, multiple or None) -> one tensor, padded along every dimension",
    "pad to length": "(tensor, length, value, dimension) -> padded at the end; as it is where it is that long",
    "flush left": "(mask, tensor) -> both with each row's block of ones first, cut to the longest",
    "flush right": "(mask, tensor) -> both with each row's block of ones last, cut to the longest",
    "split": "(columns by name, n) -> n dictionaries of equally many rows; None stays None",
    "shuffle": "(columns by name) -> the same rows in another order; None stays None",
    "score of answers": "(ids [B, S], pad id, length of prompts) -> scores [B] of a model that sums each id times its "
    "position, from 1, up to a token",
    "first true": "(bools [..., S]) -> place of the first True, S where there is none",
    "cut after stop": "(ids [B, S], stop ids, pad id) -> ids padded after the first stop, mask up to and with it",
    "repeated order": "(rows, copies, batch, repeats, shuffles, seed, epochs) -> places, one list an epoch",
    "repeated stream": "(records, copies, batch, repeats) -> records in the order of `repeated order`",
    "unpair": "(records with prompt, chosen, rejected and more) -> records with completion and label",
    "extract prompt": "(chosen, rejected) -> what both begin with, and the rest of each",
    "cut records": "(columns of lists and others, length) -> columns with lists cut to the length",
    "without None": "(nested lists and dictionaries) -> the same without entries of dictionaries that are None",
    "common prefix": "(ids, other ids) -> number of ids that both begin with",
    "messages with images": "(messages of texts, images) -> messages of blocks, images before the first user's text",
    "think format": "(texts) -> 1.0 for each with one block of thought that begins it, else 0.0",
    "overlong": "(lengths, longest, cache) -> the punishment of each length (DAPO, equation 13)",
    "repetition": "(ids of each completion, n, largest penalty) -> the share of repeated n-grams times the penalty",
    "masked sum": "(values, mask, dimension or None) -> sum of what the mask shows; the rest may be NaN",
    "masked mean": "(values, mask, dimension or None) -> mean of what the mask shows",
    "masked variance": "(values, mask, whether the divisor is N - 1) -> variance of what the mask shows",
    "masked whitening": "(values, mask, whether the mean is taken off) -> [N], what the mask shows over its deviation",
    "group statistics": "(scores [B], group numbers [B]) -> mean, deviation and number of each; 0 and 1 of one row",
    "equal labels": "(labels of groups) -> for each two of them whether they are one group",
    "squared probabilities": "(logits [..., V]) -> sum of squared probabilities [...]",
    "merged metrics": "(lists by name) -> largest for names with max, smallest for min, else the mean",
    "metric of ranks": "(mean, sum, max or min; values of micro-batches of each rank) -> one number",
    "appended": "(dictionaries of steps, prefix) -> lists by prefixed name",
    "collated": "(rows of a data set) -> by name tensors stacked, all else as lists",
    "columns of rows": "(dictionaries with equal names) -> lists by name",
    "answer mask": "(ids [B, T], end id or ids) -> 1 up to and with the first end",
    "pad lists": "(lists, value, length or None) -> tensor padded at the end, never cut",
    "pad on a side": "(tensor [B, T], length, value, whether left) -> padded; as it is where it is that long",
    "fit to length": "(ids, mask, length, pad id, whether padded left, side that is cut) -> ids and mask [B, length]",
    "without padding": "(ids, mask, both padded on the left) -> lists of shown ids",
    "ends of rows": "(mask) -> flat places that are shown, sums of lengths from 0 on, longest row",
    "positions": "(mask) -> position of each place, padding not counted",
    "visible": "(mask [B, T]) -> whether each place attends to each other [B, 1, T, T]",
    "answer values": "(tokens' values of rows, lengths of prompts, of answers) -> values one place before [B, T]",
    "answer rows": "(as `answer values`) -> the same as a list without padding",
    "flattened": "(ids and mask of prompts padded left and answers padded right, T) -> ids and positions of each row",
    "flattened columns": "(as `flattened`, columns [B, S, ...] by name) -> widths [S, T], each row's columns",
    "expanded": "(values [B], lengths) -> each row's value once for each of its tokens, lists",
    "balanced parts": "(lengths, number of parts, whether of equally many rows) -> places of each part",
    "greedy parts": "(as `balanced parts`) -> rows in turn to the smallest part",
    "micro-batches by tokens": "(lengths, limit, least number or None, divisor or None, balance, group) -> places",
    "parts of groups": "(lengths, labels of groups in succession, number of parts) -> places of each part",
    "inverse order": "(places) -> where each row is",
    "imbalance": "(lengths, parts) -> extremes before and after, and the mean",
    "estimated work": "(type of a model, its sizes, lengths of rows) -> operations of forward and backward",
    "first fit": "(lengths, limit) -> number of micro-batches",
    "step metrics": "(tensors of a step, whether with a critic) -> metrics by verl's names",
    "timings": "(tensors of a step, seconds of stages) -> seconds, and milliseconds a token",
    "throughput": "(tokens of rows, seconds, GPUs) -> tokens a second and GPU",
    "row metrics": "(tensors of a step, turns and calls of rows) -> metrics of answers, turns and calls",
    "variance proxies": "(tensors of a step, with weights or not, norm of the gradient or None) -> metrics",
    "expert load": "(experts and mask of a batch, number of experts) -> deviations from a balanced load",
    "expert load of steps": "(batches of steps, interval, number of experts) -> what each step logs",
    "number of experts": "(configuration of a model) -> its number, or None",
    "rewards with KL": "(tensors of a step, coefficient, kind) -> rewards of tokens, mean KL of rows",
    "answer part": "(tensors of a step) -> mask of the answers",
    "speculation": "(drafted, accepted, steps of requests) -> means of ratios",
    "validation metrics": "(sources, prompts, scores, answers of rows) -> metrics of scores by source",
    "uneven rows": "(join, divide or select, batches of rows by column, argument) -> batches of rows by column",
    "restored rows": "(values in the order of parts, parts) -> values at their places",
    "rows without padding": "(values [B, T], lengths) -> values of each row, mask",
    "roles of options": "(options of a run) -> whether it has a reference policy, a critic and a reward model",
    "row that fills": "(columns of a row, end id, length) -> columns of a row that no loss or metric sees",
    "advantages of sessions": "(`step_parts.Output`s) -> GRPO's advantages of each output's tokens",
    "returned by a tool": "(what a tool's function returns) -> text, reward, metrics",
    "adapted modules": "(options of an adapter, name of a module) -> whether the module is adapted",
    "joined images": "(columns of each row or None, places or None) -> columns of all",
    "step metrics without answers": "(as `step metrics`) -> metrics of a step whose rows have no answer",
    "validation of failures": "(sources, prompts, accuracies or None of rows, answers due by source and prompt) ->"
    " means and deviations by source and name",
    "call formats": "() -> names of the formats of tool calls that the release reads",
    "tool calls": "(format, text, types of arguments by tool) -> text around the calls; names and arguments as JSON",
    "trainer loop": "(`trainer_flow.FlowPlan`) -> `trainer_flow.FlowRecord`",
    "trainer loop with a critic": "the same, of plans with a critic",
    "trainer loop that writes rows": "the same, with rows that are written to files",
    "trainer loop that is killed": "the same, of plans that say in which step",
    "columns of an episode": "(row) -> columns by verl's names, experts of the whole row, the reward at its last token",
    "batch of episodes": "(rows, pad id) -> columns by verl's names, positions of shown tokens, turns, extras",
    "own policy loss": "(columns [B, T], rows of a micro-batch) -> columns that a registered loss is given, by call",
    "events of a run": "(options, number of rows) -> each event that a callback sees, with its step",
    "logged losses": "(losses of steps, whether those that are not finite are filtered) -> the means that are logged",
    "columns of a run": "(options, form of the rows) -> columns that a collator is given",
    "rows after a resume": "(options, number of rows, last step before) -> rows by update and micro-batch",
    "steps of LoRA-FA": "(options, first A and B by layer, gradients of each step) -> A and B after each",
    "preconditioned steps": "the same",
    "ranks within a budget": "(options, weights of each step, gradients) -> ranks that are left after each, by layer",
    "activated adapters": "() -> `activated.Activated`, a model of adapters that ids activate",
    "parts of adapters": "(subject, seed) -> each use of a part: what is called, () -> (result, right result); see "
    "`laws.utilities.adapter_parts`",
    "own adapters": "() -> `own_adapters.Owner`, a model that adds and loads adapters itself",
    "mixed adapters": "(`mixtures.Mixing`) -> `mixtures.Mixed`, a model of several adapters",
    "older options": "() -> `older_options.MovedOption` of each option that a command takes under an older name",
    "rollouts": "(rows, whether with rewards, of a validation) -> `rollouts.Rolled`",
    "rollouts with rewards": "(as `rollouts`) -> the same, with a worker that computes rewards",
    "greedy rollouts": "(rows, which of them are greedy) -> options of sampling of each row's request",
    "prompts of agents": "(messages of rows, name of each row's agent, plan) -> `Prompted` of each row",
    "rollouts of workers": "(as `rollouts`, and how many workers) -> the same of rows that workers share",
    "times of rollouts": "(seconds of rows by worker, lengths of rows) -> extremes and means, those of the slowest row",
    "answer in parts": "(prompt, `rollouts.Part`s, longest answer, whether it is resumed) -> `rollouts.Resumed`",
    "message queue": "(capacity, operations) -> what each gives; see `laws.utilities.asynchronous`",
    "assembled batch": "(rows of prompts) -> facts of the batch that they become; see `laws.utilities.asynchronous`",
    "metrics of several steps": "(metrics of steps, GPUs) -> metrics of all",
    "metrics of several weighed steps": "(metrics of steps, their rows) -> metrics of all",
    "replay buffer": "(`laws.utilities.replay.Group`s, prompts wanted, options) -> what it gives, `Drawn`",
    "shared requests": "(servers, operations) -> what each did, and to which server; see `laws.utilities.servers`",
    "limits of a rollouter": "(plan) -> rows at once, steps, whether it pauses; see `laws.utilities.servers`",
    "fed prompts": "(prompts, copies, rows) -> prompts of each row that is asked for, then None",
    "continued forms": "() -> names of `cases.token_forms.FORMS` that the release has a builder of",
    "continued tokens": "(form, special tokens, template, messages, answers with stop, without, and what follows)"
    " -> text, text under the mask, mask and log-probabilities before each answer",
    "agent episode": "(answers of the model, text of the tool, options of sampling, options of the loop) -> `Episode`",
    "arguments of tools": "(answers, text of the tool, what the row says) -> what the tool of each call is made with",
    "score of a tool": "(right answer of the row, answer in a call) -> the score that the stack's own tool gives",
    "arguments of interactions": "(answers, replies, what the row says) -> what it is given first, for each reply",
    "agent episode as gpt-oss writes it": "(as `agent episode`, of a loop that knows the form of gpt-oss) -> `Episode`",
    "experts of episodes": "(as `agent episode`) -> `Episode` whose `experts` are those that each answer came with",
    "messages of an interaction": "(answers of the model, replies, text of the tool) -> conversation before each reply",
    "latest checkpoint": "(steps on disk, step in the note of the last or None) -> step that is found, or None",
    "merged model": "(kind, numbers of copies and shards) -> what the model has, and what the merged files have",
    "kept checkpoints": "(number saved in succession, limit or None) -> steps that are left",
    "random state": "() -> by library, whether draws after loading a state equal those after saving it",
    "batch operation": "(operation, batches, *arguments) -> batches; see `relations.laws.utilities.batches.RIGHT`",
    "sampler correction": "(log-probabilities of trainer and of sampler, mask, options of weights, rules that reject)"
    " -> weights of training tokens or None, mask, metrics; see `relations.laws.utilities.corrections`",
    "sampler correction of a step": "(as `sampler correction`) -> the same as the trainer makes them of its options",
    "reward calls": "(rows, what the function returns) -> what it is given; see `laws.utilities.reward_calls`",
    "rewards of calls": "(as `reward calls`) -> rewards at the last tokens of rows",
    "returned with rewards": "(as `reward calls`) -> what the function returns by name",
    "accuracies of numbers": "(as `reward calls`) -> accuracies of the rows of a function that returns numbers",
    "given rewards": "(rows whose batch has rewards) -> rewards, what came with them, number of calls",
    "turns of reward calls": "(as `reward calls`) -> turns and earlier scores that it is given",
    "reward calls of episodes": "(rows) -> ids of each answer, and the facts that the function is given with it",
    "reward functions of files": "(what the function of each file returns) -> the same, as each loaded one returns",
    "prompts of files": "(records of files, options) -> rows; see `laws.utilities.data_sets`",
    "request of turns": "(prompt, turns, whether the template writes each question again) -> texts, whether in order",
    "messages with media": "(messages, names of media by kind) -> pieces of each message, its kind and text or name",
    "pairs of files": "(records of files, options) -> ids and mask of chosen and rejected of each row",
    "dispatched to workers": "(batch, part of each worker, which answer, options) -> ids of each, ids that come back",
    "parts for workers": "(batch, part of each worker, form) -> batch and facts of each",
    "apply template": "(record of turns, template, names of tools) -> the record's texts as the template writes them",
    "to messages": "(record) -> the same with `role` and `content` for `from` and `value`, in `messages`",
    "is conversational": "(record) -> whether its columns are turns",
    "own prompt": "(record) -> with the prompt that a pair has in common, unless it has one in the pair's form",
    "mixture": "(data sets of rows, columns or None, shares or None, share held out or None) -> rows by part",
    "parse options": "(values of a file, words of a command line) -> options by name",
    "averaged reference": "(as averaged weights, options with updates of the reference) -> the reference's weights [N]",
    "averaged weights": "(weights before training and after each step [S + 1, N], options) -> BEMA's weights [N]",
    "encoded": "(texts with a second one or None, options of Transformers) -> tokens, masks, types, samples of parts",
    "padded encodings": "(rows of tokens and more, options) -> columns padded on a side, with a mask",
    "chat": "(conversations, options) -> tokens in ChatML, what the assistant says, mask",
    "decoded": "(rows of tokens, whether the tokenizer cleans up, options) -> texts",
    "decoded together": "the same, by the call that also takes one row",
    "rendered chat": "(template, messages, options and variables) -> text",
    "saved tokenizer": "(what a tokenizer is made with) -> what it is and gives after it was saved and loaded",
    "byte pairs": "(merges in order, word) -> its parts",
    "schema of a type": "(type) -> JSON schema of an argument",
    "schema of a tool": "(docstring, types by argument, arguments without a default) -> JSON schema",
    "processed scores": "(Transformers' class, its options, ids [B, S], scores [B, V]) -> scores [B, V]",
    "guided scores": "(scores of rows with a condition, then without it, scale) -> scores",
    "allowed scores": "(ids [B, S], scores [B, V], beams, tokens by prompt and last id) -> scores [B, V]",
    "streamed text": "(text, prompt, whether the prompt is left out) -> streamed pieces, joined",
    "stopped by strings": "(rows of pieces of text, strings) -> whether a string ends in the last piece",
    "stopped by bytes": "(rows of bytes, each a token, strings) -> whether a string ends in the last byte",
    "stopped": "(Transformers' class, its options, ids [B, S]) -> whether each row stops",
    "attended": "(kind of mask, padding, queries, keys in the cache, packed rows, attention) -> bools [B, Q, K]",
    "cached": "(kind of cache, operations) -> keys that each addition gives, and how many are kept",
    "activated": "(name, values) -> values",
    "causal loss": "(logits [B, S, V], labels [B, S], number of items or None, whether shifted) -> loss",
    "adafactor": "(options, weights, gradients of steps) -> weights after each step",
    "greedy rates": "(options, metrics) -> rates, from 0.2 on",
    "named optimizer": "(name, options of a run, weights, gradients of steps) -> matrix, bias and norm after each",
    "early stop": "(metrics of evaluations, options) -> number of evaluations, the best one and its weights",
    "order by length": "(lengths, batch, seed, form in which lengths are given) -> places in order",
    "shares by length": "(lengths, batch, processes, epoch, options) -> places of each process",
    "shares of rows": "(number of rows, batch, processes, whether the rest is dropped) -> places of each process",
    "shares of a stream": "(as `shares of rows`) -> the same of a stream",
    "rebalanced batches": "(lengths, rows of an update, processes, micro-batches of an update, options) -> by process "
    "and micro-batch its places",
    "joined batches": "(nested tensors of batches, padding, whether joined, batches between moves) -> nested rows",
    "first rows": "(nested tensors, number) -> the first rows of each",
    "number of rows": "(nested tensors) -> rows of the first that has any",
    "smoothed loss": "(logits [B, S, V], labels, epsilon, ignored label, whether shifted, number of items or None) -> "
    "loss",
    "names that decay": "(kinds of modules by name) -> parameters with weight decay",
    "rotated checkpoints": "(steps, limit or None, best step or None) -> steps that are left",
    "last of checkpoints": "(steps) -> the last one, None without any",
    "noise of embeddings": "(rows, length, width, alpha, whether training) -> largest, deviation, mean, over "
    "alpha / sqrt(length x width)",
    "packed attention": "(queries [B, Q, H, D], keys and values [B, K, G, D], mask or None, places in rows or None, "
    "lengths of rows or None, options) -> what queries get [B, Q, H, D]",
    "unpadded": "(values [B, S, D], mask) -> shown values, their places, sums of lengths, longest, put back in place",
    "logged training": "(options, number of rows) -> entries of the log; see `laws.utilities.short_runs.logged`",
    "served rows": "(form of the data set, options, number of rows) -> rows by update and micro-batch",
    "evaluated metrics": "(options, number of rows, batch) -> sums of what metrics are given, and the loss",
    "counted tokens": "(what is counted, whether with a mask, lengths of rows) -> tokens",
    "noise of a run": "(alpha or None, steps) -> whether embeddings have noise in training, evaluation, afterwards",
    "generated predictions": "(options, batch) -> a trainer's predictions, and those of its model of each row alone",
    "options of text": "(text) -> options of a configuration",
    "batch of rows": "(kind, rows, options, pad id) -> columns; see `laws.utilities.collated.DEFINITIONS`",
    "head in tiles": "(hidden, weight, bias or None, targets, options, ids of a tile) -> outputs, gradients",
    "divergence in tiles": "(hidden and weight of student, of teacher, beta, temperature, options) -> the same",
    "divergence of the largest": "(logits of student, of teacher, number, whether with the rest, alpha) -> divergences",
    "divergence of logits": "(logits of student, of teacher, alpha) -> divergences",
    "divergence of log-probabilities": "(of student, of teacher, alpha) -> divergences",
    "rest of ids": "(log-probabilities of some ids) -> the same, with that of all others behind them",
    "weighted losses": "(losses, log-probabilities, old ones, largest ratio) -> losses, gradients of losses and of "
    "probabilities",
    "divergence of sampled ids": "(logits of student, of teacher, ids) -> the gradient of the student's logits",
    "words of two tokenizers": "(start and end of each token of one, of the other) -> tokens of each word, for both",
    "probabilities of words": "(probabilities, tokens of each word, ids, which token varies) -> probabilities",
    "positions of media": "(way of writing videos, `laws.utilities.media.Segment`s, padding left, right) -> [3, S]",
    "padded for ranks": "(ids [1, S], positions [..., 1, S] or None, ranks, value) -> both padded, number added",
    "packed and padded": "(ids [1, S], positions [..., 1, S] or None, number added, value) -> both padded",
    "packed with ends": "(tokens [N, ...], ends of rows, longest row, size) -> the same, N a multiple of the size",
    "shares of ranks": "(as `padded for ranks`, whether positions stay whole) -> ids, positions, number by rank",
    "slices of ranks": "(values, dimension, ranks) -> slice of each rank, padded with zeros",
    "tokens to heads": "(values and weights [B, S, H, D] of ranks, ranks, tokens) -> heads of each rank, gradients",
    "heads to tokens": "(values and weights [B, S, H, D] of ranks, ranks) -> tokens of each rank, gradients",
    "gathered of ranks": "(values, weights, ranks, dimension, padding, whether scaled) -> all by rank, gradients",
    "MLP in tiles": "(inputs [B, S, D] of micro-batches, weights, weights of outputs, tiles) -> outputs, gradients",
    "fused head": "(hidden [B, S, D], weight [V, D], ids, labels or None, shifted labels or None, temperature) ->"
    " log-probabilities and entropies [B, S]",
    "generated rows": "(prompts, answers, longest answer, facts of the batch) -> columns, options of sampling",
    "flat places": "(places in a block, its shape, its offset, shape of the whole) -> places in the whole",
    "built optimizer": "(class, options, weights [N], gradients of steps) -> weights after each step",
    "precision": "(name) -> name of the type",
    "random masks": "(length, shares of shown tokens at most, of padding in front, of shown tokens at least) -> blocks"
    " of ones, the shortest, the longest, most padding",
    "size of a model": "(shapes of parameters, unit or auto) -> their number, unit",
    "put back": "(values [N, ...], flat places, B, S) -> [B, S, ...], zeros elsewhere",
    "values of rows": "(values [B, T], lengths of prompts and answers, tokens of a micro-batch or None) -> of each row",
    "log-probabilities of rows": "(values [B, T], lengths of prompts and answers, tokens of a micro-batch or None) ->"
    " of each row",
    "entropies of rows": "(values [B, T], lengths of prompts and answers, tokens of a micro-batch or None) -> of each"
    " row",
    "settings of models": "(role, settings by role, temperature, values [B, T]) -> settings of its model, the values",
    "logged rate": "(role, rates of steps) -> rate that the first step logs",
    "weighted policy loss": "(name of a loss, columns [B, T] by name, weights [B, T] or None) -> loss, its gradient by"
    " log-probability [B, T]",
    "names of weighted losses": "() -> by name whether its weights are of `tokens` or of `rows`",
    "updates of a model": "(actor or critic, its weights, rows, `model_updates.Updates`, part) -> weights after all, or"
    " what each update logs of a measure; see `laws.utilities.model_updates`",
    "rates of updates": "(as `updates of a model`, without a part) -> rate that each update logs",
    "scores of a model": "(actor, reference or critic, its weights, rows, `model_updates.Updates`) -> of each row's"
    " answer log-probabilities, entropies or values",
    "collated rows": "(columns of rows, whether of unequal lengths) -> rows by column",
    "tracked": "(project, experiment, what steps log) -> file, its records, lines of the console",
    "contents of checkpoints": "(options or None) -> parts to save, parts to load",
    "saved before the end": "(whose machine, seconds left, of a step, of a save, to spare) -> whether to save now",
    "decisions of a schedule": "(policy, ratio, whether no other servers, what it is given of steps) -> decisions",
    "renamed": "(values by name, prefix) -> values by prefixed name",
    "united": "(facts, other facts) -> both",
    "namespaces": "(nested values) -> the same, read from attributes",
    "regular values": "(nested values of a configuration) -> dictionaries and lists",
    "overridden": "(nested values of a configuration, changes) -> nested values",
    "tool of a function": "(name of a tool or None) -> what a model is given of it, and what a call returns",
    "results as text": "(results of tools, their names) -> text before the next answer",
    "resampled rows": "(scores of rows, method, power) -> whether rows stay whole, share of each score",
    "order of rows": "(number, whether shuffled, seed or None) -> rows, whether in order, again, of another seed",
    "differences of tokens": "(ids [B, T], other ids, mask) -> number of different ones of each row",
    "waits of requests": "(tokens a second, most tokens or None, times and tokens of requests) -> when each continues",
    "likeliest tokens": "(logits [N, V], teacher's log-probabilities [N, K], ids, least one or None, tokens at once or"
    " None) -> by name divergence, masses and overlap [N]",
    "metrics of distillation": "(values of rows' tokens by name, masks of answers, K) -> what is logged",
    "images of samples": "(columns of a batch) -> columns with the images in a list by sample",
    "images joined again": "(columns of a batch) -> its images by sample, joined again",
    "templates": "() -> list of `Template`",
    "written": "(template, turns, whether a prompt for an answer follows) -> text",
    "trained spans": "(template, turns) -> texts of the trained spans",
    "template for training": "(name of a template) -> name of the one for training, None if it needs none",
    "takes tools": "(template) -> whether it is said to write calls and results of tools",
    "read answer": "(template, text of the prompt, text of the answer, tools) -> turn",
    "asynchronous rollouts": "(turns by prompt and copy, limit of rounds of calls) -> rows, requests, rewards, counts",
    "asynchronous options": "options that each request of them has",
    "asynchronous environments": "(number of prompts) -> list of `Acted`, whose environments return tasks",
    "packed rollouts": "(rows, parts, limit of tokens or None) -> by batch and part its terms and its tokens",
    "cosine": "(verdicts, lengths, longest, bounds of wrong and of right answers) -> the rewards (arXiv 2502.03373)",
}
"""Functions by name, with what each takes and gives; tensors keep their precision unless a law says otherwise."""


@runtime_checkable
class Utilities(Protocol):
    """Small functions of a stack; an adapter has those that the installed release has."""

    utilities: Mapping[str, Callable[..., Any]]
    """By the names of `UTILITIES`, with those arguments."""
