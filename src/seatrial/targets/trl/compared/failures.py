"""What releases of TRL break of compared runs, each with its finding."""

from __future__ import annotations

from dataclasses import replace

from seatrial.targets.common.known import KnownFailure, between

DIVIDED = (
    "R33.compared/micro-batches, equal lengths",
    "R33.compared/micro-batches, unequal lengths",
    "R33.compared/logged scalars, equal lengths",
    "R33.compared/adapters, micro-batches",
)
REPEATED = KnownFailure(
    "each micro-batch counts the tokens of the whole step, so that the loss is divided by their number twice",
    finding="TRL: micro-batches of GOLD and IW-OPD",
).of(*DIVIDED)
DIVIDED_PROCESSES = (
    "R33.processes/gradient, equal lengths",
    "R33.processes/gradient, unequal lengths",
    "R33.processes/logged scalars, equal lengths",
)
ACROSS = KnownFailure(
    "the tokens of all processes divide a loss whose gradients are averaged over processes",
    finding="TRL: GKD in several processes",
).of(*DIVIDED_PROCESSES)
ACROSS_EVALUATED = ACROSS.of(*DIVIDED_PROCESSES, "R33.processes/evaluation, equal lengths")
ACROSS_EVALUATED_BEFORE_5 = replace(
    ACROSS,
    reason="the tokens of all processes divide the loss of an evaluation too, which transformers before 5 counts there",
    releases=between("transformers", "4.50", "5"),
).of("R33.processes/evaluation, equal lengths")
OF_THE_FIRST = KnownFailure(
    "metrics are those of the first process's rows", finding="TRL: metrics of the first process"
).of("R33.processes/logged scalars, equal lengths", "R33.processes/evaluation, equal lengths")
EVALUATED = KnownFailure(
    "the evaluation loss is that of the first process: copies of prompts are cut as if they filled up the last batch",
    finding="TRL: the evaluation loss of copies in several processes",
).of("R33.processes/evaluation, equal lengths")
PADDING = KnownFailure(
    "padding of completions counts in the advantages and the divergence of MiniLLM",
    finding="TRL: padding and micro-batches of MiniLLM",
).of("R33.compared/neutral variations")
DIVERGENCE = KnownFailure(
    "the divergence of MiniLLM is summed over micro-batches",
    finding="TRL: padding and micro-batches of MiniLLM",
).of(*DIVIDED)
REPEATED_OF_ANY = REPEATED.of(*DIVIDED, "R33.adapter_kinds/adapters of every kind, micro-batches")
SUMMED = KnownFailure(
    "gradients of micro-batches are summed, and the mean of their losses is logged",
    finding="TRL: micro-batches of online DPO",
).of(*DIVIDED, "R33.compared/the logged loss", "R33.compared/the logged loss of two steps")
UNREAD = KnownFailure("`beta` of SDPO is not read", finding="TRL: beta of SDPO").of(
    "R33.compared/effective options"
)
TOKENS = KnownFailure(
    "dapo of SDPO is the mean of micro-batches' means over tokens", finding="TRL: dapo of SDPO"
).of("R33.compared/micro-batches, unequal lengths", "R33.processes/gradient, unequal lengths")
RIGHT = KnownFailure(
    "prompts are padded on the side of the given tokenizer, and completions follow the padding",
    finding="TRL: A2PO and padding on the right",
).of("R33.compared/neutral variations")
LIKELIHOOD = KnownFailure(
    "the negative log-likelihood is a mean over the tokens of each micro-batch",
    finding="TRL: the likelihood term of TPO",
).of("R33.compared/micro-batches, unequal lengths", "R33.processes/gradient, unequal lengths")
ROUNDED = KnownFailure(
    "adapters are merged into the frozen weights and taken out again with every weight sync, which rounds these",
    finding="TRL: frozen weights and weight syncs",
).of("R33.compared/adapters")
