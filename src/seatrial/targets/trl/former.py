"""What earlier releases break that later ones fix, of TRL and of the `Trainer` that its trainers extend."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from seatrial.targets.common.known import KnownFailure, Releases, before, between
from seatrial.targets.trl.named import code_has, drops_caches, sources

OF_PROCESSES = re.compile(
    r"gather\(mean_kl\)\.nanmean\(\)|gather_for_metrics\(mean_kl\)\.mean\(\)"
    r"|gather_for_metrics\(model_output\[\"mean_chosen_logits\"\]\)|gathered_clip_ratio\.nanmean\(\)"
)
"""Code that averages one mean over tokens of each process."""
SEEDED = "set_seed(args.seed)"
"""Code of TRL that sets the seed before it makes what begins with random numbers."""
STEPS = "Transformers: the steps of its Trainer before 5.0"
ROWS = "TRL: rows of preferences and tools, before 1.9"
DISTILLATION = "TRL: distillation where padding is the end token, before 1.9"
FUSED = "TRL: what Liger's losses leave out, before 1.15"
LOSSES = "TRL: losses and logs of earlier releases"
FUNCTIONS = "TRL: small functions and scripts of earlier releases"


def _has(adapter: Any, words: str) -> bool:
    """Return whether TRL's own code of the trainer has these words."""
    return code_has(words, adapter.trainer_class, "trl")


def _of(*trainers: str, releases: Releases) -> Releases:
    """Return a test for runs of these trainers in some releases."""
    return lambda adapter: adapter.setup.trainer in trainers and releases(adapter)


def trains_first_tokens(adapter: Any) -> bool:
    """Return whether the first token of a row has a label in a run of a supervised trainer."""
    if adapter.setup.trainer != "SFT":
        return False
    return bool(adapter.trainer_spec.objective.trains == "all" or adapter.setup.edges == "all")


def of_tools_of_kto(adapter: Any) -> bool:
    """Return whether rows of `KTOTrainer` have tools of their own."""
    return adapter.setup.trainer == "KTO" and adapter.setup.form in ("own", "called")


def makes_before_the_seed(adapter: Any) -> bool:
    """Return whether a trainer makes what begins with random numbers before it sets the seed of its run."""
    return before("trl", "1.15")(adapter) and not _has(adapter, SEEDED)


def draws_before_the_seed(adapter: Any) -> bool:
    """Return whether a run makes adapters before its seed is set."""
    return adapter.setup.lora == "made" and makes_before_the_seed(adapter)


def scores_without_temperature(adapter: Any) -> bool:
    """Return whether GRPO does not divide the logits by the temperature that it samples at."""
    is_old = adapter.setup.trainer == "GRPO" and before("trl", "0.16")(adapter)
    return is_old and not _has(adapter, "self.temperature")


def reads_first_ids(adapter: Any) -> bool:
    """Return whether SFT or DPO looks at the first id of a prompt that has none."""
    is_one = adapter.setup.trainer in ("SFT", "DPO") and adapter.setup.edges == "all"
    return is_one and _has(adapter, "if isinstance(prompt_ids[0], list)")


def lays_rows_end_to_end(adapter: Any) -> bool:
    """Return whether a run of a supervised trainer has the rows of a batch in one row."""
    options = adapter.setup.options
    return adapter.setup.trainer == "SFT" and bool(options.get("packing") or options.get("padding_free"))


def masks_for_liger(adapter: Any) -> bool:
    """Return whether a run packs rows with masks of the assistant's turns, and its loss is Liger's."""
    options = adapter.setup.options
    return bool(adapter.setup.fused and options.get("packing") and options.get("assistant_only_loss"))


def compares_conversations(adapter: Any) -> bool:
    """Return whether a run is one of DPO on conversations."""
    return bool(adapter.setup.trainer == "DPO" and adapter.setup.form != "text")


def samples_without_caches(adapter: Any) -> bool:
    """Return whether trainers sample from layers that checkpoint gradients, and these take no cache."""
    return before("trl", "0.22")(adapter) and drops_caches()


def weights_answers_of_liger(adapter: Any) -> bool:
    """Return whether KTO has weights of its answers and the loss of Liger, which takes none."""
    weights = ("desirable_weight", "undesirable_weight")
    is_weighted = any(adapter.setup.options.get(name, 1.0) != 1.0 for name in weights)
    return adapter.setup.fused and is_weighted and _has(adapter, "LigerFusedLinearKTOLoss")


def adapts_head_of_liger(adapter: Any) -> bool:
    """Return whether SFT trains an adapter of the head with the kernel of Liger, which takes the head's own weight."""
    setup = adapter.setup
    own = setup.trainer == "SFT" and setup.fused and setup.head == "adapted"
    return own and before("trl", "1.15")(adapter)


def divides_micro_batches_of_liger(adapter: Any) -> bool:
    """Return whether GRPO with Liger's loss divides by the tokens of a micro-batch where those of a step are due."""
    counts = getattr(adapter.setup.objective, "reduction", "") == "tokens"
    return adapter.setup.fused and counts and before("trl", "1.11")(adapter)


def averages_processes(adapter: Any) -> bool:
    """Return whether a trainer with a reference, or with steps on parts of a batch, logs means of processes' means."""
    spec = adapter.trainer_spec
    has_one = spec.spreads and (adapter.setup.num_slices > 1 or getattr(spec.objective, "beta", 0))
    return bool(has_one) and any(OF_PROCESSES.search(one) for one in sources([adapter.trainer_class]))


_OF_UPDATES_AND_RESUMES = (
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, one micro-batch a step",
    "R12.whole/gradient, an epoch that ends within a step",
    "R13.whole/gradient, after a resume",
    "R22.whole/loss, two micro-batches a step",
    "R22.whole/loss and scalars, a logging interval of two steps::loss",
)
_OF_EVALUATIONS = (
    "R23.whole/logged loss and scalars::loss",
    "R23.whole/logged loss and scalars, between steps that are logged::loss",
)
_OF_STEPS = (*_OF_UPDATES_AND_RESUMES, *_OF_EVALUATIONS)
_OF_PROCESSES_TOO = ("R2.whole/gradient, two processes", *_OF_STEPS, "R22.whole/loss, two processes")
FIRST_LABELS = KnownFailure(
    "transformers before 5 counts the first label of a row among the predicted ones (num_items_in_batch), which a "
    "row has that is trained as a whole, as releases of TRL before 0.17 always do",
    finding="Transformers: the first label of a row",
    releases=lambda adapter: trains_first_tokens(adapter) and between("transformers", "4.46", "5")(adapter),
).of("R2.whole/gradient, two processes", *_OF_UPDATES_AND_RESUMES, "R22.whole/loss, two processes")
"""Of rows whose first token trains: also an answer without a prompt."""
FIRST_LABELS_OF_EVALUATIONS = replace(
    FIRST_LABELS,
    releases=lambda adapter: trains_first_tokens(adapter) and between("transformers", "4.57", "5")(adapter),
).of(*_OF_EVALUATIONS)
"""Evaluations of earlier releases of Transformers pass no count, and take the mean of what is predicted."""
SEEDS = KnownFailure(
    "adapters are made before the seed of the run is set",
    finding="TRL: adapters made before the seed, before 1.15",
    releases=makes_before_the_seed,
).of("R33.compared/the process's random numbers, an adapter that is made")
_OF_OTHER_ROWS = ("R12.whole", "R13.whole/gradient, after a resume", "R15.whole", "R22.whole", "R23.whole")
TWO_ENDS = KnownFailure(
    "a second end token follows the answers of conversations (trl-4908)",
    finding="TRL: a second end token of DPO, before 0.28",
    releases=lambda adapter: compares_conversations(adapter) and before("trl", "0.28")(adapter),
).of(
    # Other rows, so that every scalar is another: no part of a law is named.
    *(law.partition("::")[0] for law in _OF_PROCESSES_TOO),
    "R22.whole/scalars, two micro-batches a step",
)
SUMS = KnownFailure(
    "gradients of micro-batches are summed, and not averaged (trl-6006)",
    finding=DISTILLATION,
    releases=before("trl", "1.7"),
).of(
    "R33.compared/micro-batches, equal lengths",
    "R33.compared/micro-batches, unequal lengths",
    "R33.compared/logged scalars, equal lengths",
    "R33.compared/adapters, micro-batches",
)
OF_GKD = (
    replace(SUMS, releases=_of("GKD", releases=before("trl", "1.7"))).of(
        "R12.whole/gradient, two micro-batches a step"
    ),
    KnownFailure(
        "the loss leaves out the first tokens of completions whose prompts are not the longest of a batch",
        finding=DISTILLATION,
        releases=_of("GKD", releases=before("trl", "1.7")),
    ).of(*_OF_STEPS),
    KnownFailure(
        "the tokens of all processes divide the loss of an evaluation too, which transformers before 5 counts there",
        finding="TRL: GKD in several processes",
        releases=_of("GKD", releases=between("transformers", "4.50", "5")),
    ).of("R23.whole/logged loss and scalars, two processes"),
)
"""Of whole runs on given completions."""
OF_UPDATES = (
    "R12.whole/gradient, two micro-batches a step",
    "R12.whole/gradient, one micro-batch a step",
    "R12.whole/gradient, an epoch that ends within a step",
    "R22.whole/loss, two micro-batches a step",
    "R22.whole/loss and scalars, a logging interval of two steps::loss",
)
"""Of a run of updates alone, with another loss."""
OF_FLAT_ROWS = (
    KnownFailure(
        "rows laid end to end see one another, unless attention is FlashAttention (trl-4170)",
        finding=FUNCTIONS,
        releases=lambda adapter: lays_rows_end_to_end(adapter) and between("trl", "0.19", "0.23.1")(adapter),
    ).of(
        # The model's inputs are others, so that every scalar is: no part of a law is named.
        *(law.partition("::")[0] for law in _OF_PROCESSES_TOO),
        "R22.whole/scalars, two micro-batches a step",
        "R22.whole/scalars, two processes",
        "R22.whole/entropy, divergence and clipping, two micro-batches a step",
        "R22.whole/means of a step are over all its rows",
        "R22.whole/means of a step are over the rows of both processes",
        "R23.whole/logged loss and scalars, two processes",
    ),
    KnownFailure(
        "packed rows lose the masks of the assistant's turns, where the loss is Liger's",
        finding=FUNCTIONS,
        releases=lambda adapter: masks_for_liger(adapter) and before("trl", "0.22")(adapter),
    ).of("R15.whole/first ids", "R15.whole/targets of what does not"),
)
_OF_DIVERGENCE = "R22.whole/entropy, divergence and clipping"
OF_TEMPERATURE = (
    KnownFailure(
        "GRPO samples at a temperature and scores without it (trl-3029)", LOSSES, scores_without_temperature
    ).of("R2.whole/gradient, two processes", *OF_UPDATES[:2], "R13.whole/gradient, after a resume"),
    KnownFailure(
        "the divergence of GRPO is of logits without their temperature (trl-3029), and kl is a mean of rows' means",
        LOSSES,
        lambda adapter: bool(adapter.setup.objective.beta) and scores_without_temperature(adapter),
    ).of(
        *(f"R22.whole/loss, two {one}" for one in ("micro-batches a step", "processes")),
        *(f"{_OF_DIVERGENCE}, two {one}::kl" for one in ("micro-batches a step", "processes")),
        "R22.whole/loss and scalars, a logging interval of two steps::loss, kl",
        *(
            f"R23.whole/logged loss and scalars{one}::kl"
            for one in ("", ", between steps that are logged", ", two processes")
        ),
    ),
)
OF_EVERY_TRAINER = (
    *OF_TEMPERATURE,
    *OF_GKD,
    *OF_FLAT_ROWS,
    FIRST_LABELS,
    FIRST_LABELS_OF_EVALUATIONS,
    TWO_ENDS,
    KnownFailure(
        "a chosen answer loses what it begins with and the rejected one does not (trl-6433)",
        finding=ROWS,
        releases=lambda adapter: adapter.setup.form == "opened" and before("trl", "1.9")(adapter),
    ).of(*_OF_OTHER_ROWS),
    KnownFailure(
        "KTO does not give the tools of a row to its template (trl-6259)",
        finding=ROWS,
        releases=lambda adapter: of_tools_of_kto(adapter) and before("trl", "1.8")(adapter),
    ).of(*_OF_OTHER_ROWS),
    replace(SEEDS, releases=draws_before_the_seed).of(
        "R26.whole/first weights", "R26.whole/rows and last weights", "R26.whole/new tensors of another seed"
    ),
    KnownFailure(
        "the head that a reward model does not have is made before the seed of the run is set",
        finding=FUNCTIONS,
        releases=lambda adapter: adapter.setup.adds_head and makes_before_the_seed(adapter),
    ).of(
        "R12.whole/gradient, two micro-batches a step",
        "R12.whole/gradient, one micro-batch a step",
        "R12.whole/gradient, an epoch that ends within a step",
        "R13.whole/gradient, after a resume",
        "R22.whole/loss, two micro-batches a step",
        "R22.whole/scalars, two micro-batches a step",
        "R22.whole/loss and scalars, a logging interval of two steps",
        "R23.whole/logged loss and scalars",
        "R23.whole/logged loss and scalars, between steps that are logged",
        "R26.whole/first weights",
        "R26.whole/rows and last weights",
    ),
    KnownFailure(
        "scalars of an evaluation are counted with those of training that are not logged yet (trl-3337)",
        finding=LOSSES,
        releases=_of("SFT", "GRPO", releases=before("trl", "0.18")),
    ).of("R23.whole/training is the same, logged at other steps"),  # any part: which ones has not been run
    KnownFailure(
        "Liger's loss of KTO takes no weights of answers, so that desirable_weight and undesirable_weight are not read",
        finding=FUSED,
        releases=weights_answers_of_liger,
    ).of(*OF_UPDATES),
    KnownFailure(
        "an adapter of the head is left out of the loss by Liger's kernel, and is not trained",
        finding=FUSED,
        releases=adapts_head_of_liger,
    ).of(*OF_UPDATES, "R12.whole/gradients are finite and not zero"),
    KnownFailure(
        "Liger's loss of GRPO is a mean of micro-batches' means over tokens",
        finding=FUSED,
        releases=divides_micro_batches_of_liger,
    ).of("R12.whole/gradient, two micro-batches a step", "R22.whole/loss, two micro-batches a step"),
    KnownFailure(
        "logits of KTO are sums over prompt, padding and vocabulary, divided by the number of examples (trl-6424)",
        finding=LOSSES,
        releases=_of("KTO", releases=before("trl", "1.9")),
    ).of(
        "R22.whole/scalars, two micro-batches a step::logits/*",
        "R22.whole/loss and scalars, a logging interval of two steps::logits/*",
        "R23.whole/logged loss and scalars::logits/*",
        "R23.whole/logged loss and scalars, between steps that are logged::logits/*",
    ),
    KnownFailure(
        "KTO logs of an interval the mean over the rows of all its steps, not that of the steps' means",
        finding=LOSSES,
        releases=_of("KTO", releases=before("trl", "1.9")),
    ).of("R22.whole/loss and scalars, a logging interval of two steps::logps/*, rewards/*"),
    KnownFailure(
        "predictions of DPO and KTO raise errors",
        finding=LOSSES,
        releases=_of("DPO", "KTO", releases=before("trl", "0.16")),
    ).of("R23.predictions"),
    KnownFailure(
        "a prompt without a token stops the preparation of the rows (an IndexError)",
        finding=LOSSES,
        releases=reads_first_ids,
    ).of("R12.whole", "R15.whole", "R22.whole"),
    KnownFailure(
        "kl, logits or clip ratios of a step are means of its processes' means, which have different numbers of tokens",
        finding="TRL: means of means in the log",
        releases=averages_processes,
    ).of(
        "R22.whole/means of a step are over the rows of both processes"
    ),  # any scalar: which has not been run
    KnownFailure(
        "the norm before the head decays, whose class is not torch's LayerNorm",
        finding=STEPS,
        releases=before("transformers", "4.53"),
    ).of("R10.whole/AdamW, clipped"),
    KnownFailure(
        "the logged learning rate is that of the next step",
        finding=STEPS,
        releases=before("transformers", "4.51"),
    ).of("R10.whole/logged learning rate"),
    KnownFailure(
        "the last step of an epoch is divided as if it had all its micro-batches (transformers-39659)",
        finding=STEPS,
        releases=lambda adapter: adapter.setup.trainer != "SFT" and before("transformers", "4.55")(adapter),
    ).of("R12.whole/gradient, an epoch that ends within a step"),
    KnownFailure(
        "a resume in the second epoch gets the order of the first one (transformers-40691)",
        finding=STEPS,
        releases=lambda adapter: adapter.shuffles and between("transformers", "4.50", "5")(adapter),
    ).of("R13.whole/rows, in the second epoch"),
)
FIRST_LABELS_COMPARED = replace(
    FIRST_LABELS,
    releases=lambda adapter: before("trl", "0.17")(adapter) and between("transformers", "4.46", "5")(adapter),
).of("R33.compared/evaluation of the trained rows")
ENDS = KnownFailure(
    "the end token of a sampled completion is not trained where it is the padding (trl-6357)",
    finding=DISTILLATION,
    releases=before("trl", "1.9"),
).of("R33.compared/neutral variations")
ENDS_OF_GIVEN = replace(ENDS, reason="the end token of an answer is not trained where it is the padding")
SWAPPED = KnownFailure(
    "the student and its teacher are swapped in the divergence and in its mixture",
    LOSSES,
    before("trl", "0.16"),
).of("R34.worked/formulas")
NO_ANSWER = KnownFailure(
    "the divergence of a batch without an answer is NaN", finding=LOSSES, releases=before("trl", "1.7")
).of("R34.worked/formulas")
UNREAD_OPTIONS = KnownFailure(
    "scripts do not read `model_init_kwargs` of a file of options", LOSSES, before("trl", "1.15")
).of("R34.worked/models")
LAUNCHES = KnownFailure(
    "commands other than `trl sft` do not pass the options of the launch on",
    finding=FUNCTIONS,
    releases=before("trl", "0.29"),
)
TYPES = KnownFailure(
    "scripts do not pass `dtype` on to their trainer, which loads a reference in float32",
    finding=FUNCTIONS,
    releases=before("trl", "1.5"),
)
UNMASKED = KnownFailure(
    "packing keeps the ids of rows alone, so that all tokens train where the assistant's turns should",
    finding=FUNCTIONS,
    releases=between("trl", "0.19", "0.20"),
).of("R34.worked/texts::*{'assistant_only_loss': True 'packing': True *")
LEAKS = KnownFailure(
    "rows laid end to end see one another (trl-4170)", finding=FUNCTIONS, releases=before("trl", "0.23.1")
).of("R34.worked/combinations::*{'padding_free': True *")
REPLACED = KnownFailure(
    "a collator that GKD is given is replaced", finding=FUNCTIONS, releases=before("trl", "0.22.0.dev0")
).of("R34.worked/batches::* a collator that is given")
BEFOREHAND = KnownFailure(
    "the reference of an evaluation is the trained model, where its log-probabilities are computed beforehand",
    finding=FUNCTIONS,
    releases=before("trl", "0.29"),
).of("R34.worked/validations::* computed beforehand *")
CACHES_DROPPED = KnownFailure(
    "completions are sampled without the tokens before the last one, where layers with gradient checkpointing take no "
    "cache",
    finding=FUNCTIONS,
    releases=samples_without_caches,
).of("R34.worked/steps::*{'gradient_checkpointing': True*")
SUMS_OF_DISTILLATION = replace(SUMS, releases=before("trl", "1.9"))
