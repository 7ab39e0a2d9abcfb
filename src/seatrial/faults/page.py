"""Generates the page of planted faults, docs/evidence/faults.md, from the tables and the measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import resources

from seatrial.faults.harness import harness_mutants, harness_tests
from seatrial.faults.mutate import Mutant, all_mutants
from seatrial.faults.plant import Plant, all_plants, modules_without_plants
from seatrial.faults.record import Seen, recorded
from seatrial.packaged import read_table

BROKEN_LINE = "broken_line.txt"
"""What `seatrial relations` printed when one line was broken; a test compares it with the current output."""
MISSES = "misses.yaml"
"""Why each fault that nothing sees is not seen, and what would see it."""

INTRODUCTION = """# Planted faults

Known bugs, planted one at a time in the reference stack, and what finds them. This page is generated: `make docs`.

A fault is an edit of one place in a module of refrl; it is planted before anything uses it, in a separate process,
and nothing on disk changes. Ids SBnnn are those of a catalogue of silent bugs of public projects. There are two
tables:

- **Plants** (`seatrial/faults/plants/`) were written by someone who knew the catalogue and refrl's source, and had
  not read the relations or the trials: their rate is the honest one.
- **Mutants** (`seatrial/faults/mutants/`) name the relations that must see them: they show that each relation can fail.

`seatrial faults list` lists the mutants, `seatrial faults score --mutant ID` runs what a mutant names on every default
seed and on tidy inputs, and `python -m seatrial.faults.sweep` measures what is recorded here: relations are asked in
the order of their cost, and a level-0 trial runs on what none of them finds."""


BLIND = """
## How many are seen by laws that did not know them

Plants are measured in parts; what a part misses shows which laws are missing, and laws are then written for the class
of bug, not for the plant. A rate that includes laws written afterwards is no longer blind. So, in order:

| measured | plants | seen then |
|---|---|---|
| first, in small parts, with laws added between | 111 | 96.4% |
| then, at once and blind, of those left | 184 | 75.0% |
| blind, in what spreads a policy over processes and in its checkpoints | 25 | 68.0% |
| blind, in vLLM as the engine, in what brings weights to engines, and in checkpoints | 19 | 21.1% |
| blind, in layouts, adapters and architectures; the nearest laws and the trial alone | 23 | 47.8% |
| blind, in policies and layouts, of those left of that set; the same laws | 19 | 78.9% |
| blind, in media, draft heads, routers, int8, adapters, resumes, optimizers; the nearest laws alone | 24 | 75.0% |
| blind, in the static decoder (blocks of 3 tokens, on CPU); 15 relations run on most, no trial | 42 | 92.9% |
| blind, at most two a module over 57 modules; most relations and level 0, as described below | 58 | 58.6% |
| blind, at most two a module over 56 modules drawn at random; the same relations and level 0 | 33 of 60 | 69.7% |
| blind, the rest of these 60, at the same commit or one without newer laws | 26 of 27 | 84.6% |
| blind, at most two a module, drawn at random, with the laws of parts and worked examples | 43 of 45 | 79.1% |
| blind, drawn the same way, with twice as many worked examples and whole policies | 53 of 61 | 81.1% |
| blind, drawn the same way, half of them seen by their planter in a direct call alone | 59 of 60 | 67.8% |

Of the 46 that the second measurement missed, three were misses of a switch: a new section of the configuration made the
adapter skip all laws of fine-tuning, which nothing said. Most others were of classes without a law: what a run leaves
on disk, options of own parts and exact names, made tasks and their splits, failures of verifiers and ranks, small
budgets of tokens, several updates a step, streams by their purpose, models of another kind, completions in parts and
turns. With laws for these, 179 of the 184 are seen; the table above counts each as it is seen now.

Of the 8 that the third missed, five are in Megatron-core's layouts of several processes, which R2 did not train in. The
others needed filtered rows in a layout, experts whose weights are not scaled, and a law of R13 that held at a constant
learning rate alone. Before it, no fault reached the processes that R2 starts, so that the six of `dtensor` over several
processes could not be seen: the tool was fixed first, and they count as seen. Of these 25 the relations about
each were asked, and not all.

Of the 15 that the fourth missed, six are in vLLM, which no relation reached: the conformance model's heads are too
narrow for it, and it needs a separate environment. Five are in weight syncs: R7 copied weights regardless of the
configuration, of a model with a separate head. R7.trained, R6.engine, R26.rows, R8.sync and R19.sync train, sync and
sample as configured, and see these eleven (those of vLLM where vLLM is installed). Four are in checkpoints and are
missed still.

Of the 16 that the fifth and sixth missed, most are on a path that only one architecture has: the relations named
`architectures` and R17.media compare it with the plain model, in a run. The others needed layouts in bfloat16 and with
packed rows, the files next to adapters and weights, what a failed write leaves, means over several updates. With
these laws all are seen but one, which changes nothing that is kept.

Of the 24 that were planted after these laws were there, their nearest laws missed six: the tones of a sound in turn;
sines of an audio tower that train; ranks that all see the images of the first rows; one image for all rows of
fine-tuning; adapters whose layers begin alike; sums of gradients rounded to bfloat16. No law of images or sounds ran on
two processes or in fine-tuning, none looked at what trains, at what adapters begin with, and none at how the gradients
of micro-batches are added up. R28.media and laws in R6, R9, R10, R17 and R20 do so since, and see all six.

Of 42 in the static decoder, three were missed; a law of R26.rows sees them since. Eleven were measured by the sweep
as it is. The others were run against R6.run, R26.sampler, R26.rows, R9.run, R12.run, R7.trained, R6.engine, R26.engine,
R26.streams, R16.run, R23.run, R15.run, R22.run, R14.async and R19.async alone, and against no trial. Calls of
`decode_in_blocks` with and without each fault show that it is silent there; no whole runs were compared. Five more
faults, all of kept ids, raise an error in a run and do not count. One fault was corrected and measured again, since its
first version raised an error.

On 2026-11-26 someone who knew refrl, the catalogue and one line on each earlier plant planted 60 more, at most two a
module, over 57 modules. Nothing was measured before they were committed; two need TransferQueue or Ray and were left
out. They were measured against the code without the laws of that day: the relations nearest to each fault and level 0
first, then all others on one seed, with the plant's options or the default ones, except those that take longest and
are about something else (R1.run, R2 in layouts of other processes, R11, R13, R18.run, models with their own paths), and
for the default relations of one (`logged-lengths-with-the-tools-words`), cut short by time. 34 of 58 are seen; 90% were
wanted. Two more failed a law that has nothing to do with them (asynchronous runs with and without validation differ by
chance in that measurement), and count as missed.

The trials that execute these faults (`benchmarks/plants_by_trials.py`), chosen before: 18 ran on a CPU and 35 on an
H100, where four more were left out, since the sound code of that day failed there. 19 of 53 fail with the fault (36%;
70% were wanted). Of 7 the trial does not take the options that reach the fault; of the other 46 it is 41%.

What was missed is of these classes: what a run writes of itself (its configuration, rates, counts of fine-tuning,
failures in validations, passwords); limits that end a run; a file of a checkpoint; options of adapters and of groups
without spread; long answers; flags of the command; two paths of a model at once; commands next to training; resumes
over other data or another base; and, by trials, all that is a matter of a run's options. Laws for these classes see all
24 since (the table counts each as it is seen now), and trials compute the first update, logged scalars, the
sampling support, filters and the recorded configuration again from the rows. With those sensors the trials that had
passed ran once more, on two H100: of 56 plants whose trial passes on the sound stack 33 fail with the fault (59%). That
is no blind figure, as the sensors were written for classes of these plants.

On the same day, with the laws above, someone else planted 60 more in 56 modules, drawn at random by their lines. Who
planted knew refrl, the catalogue and the texts of earlier plants, and had seen by accident one assertion of a test of
plants and the list of models of refrl's target. They were committed before anything was measured, and measured once, at
the commit that follows the plants. The first 33 or so in the order of the draw were measured until the time was up, the
others not. From the sixth on, R2, R25 and R13.trainer were left out, except where they are the nearest, and so were the
longest relations: this is a lower bound. **23 of the 33 are seen (70%; 90% were wanted)**, two of them
by level 0 alone, three because a law raises an error with the fault. Of the ten missed, four were checked by their
planter in a direct call alone, and not in a run.

The trials that execute them, chosen before: all 50 that have one ran on two H100. **25 of 50 fail with the fault (50%;
70% were wanted)**. One more, `kept-ids-lost-in-packs`, fails its trial on a CPU; on CUDA its code does not run. Of 7
the trial does not take the options that reach the fault. Two of these were false alarms of the trial: a gradient of
4e-9, of advantages that are all zero, was compared relatively. That is fixed, and so is a check of scalars that was
silently left out where several verifiers were configured.

Trials since check times and rates against the rows, whether a token was drawn with the random number of the one
before, whether the reference is the policy before the first update, log-probabilities rounded to bfloat16, the
acceptance of drafts, rewards of rows that a verifier could not judge, and that changes of weights were decoded and
written. With these 7 more of the 50 fail on two H100, and one on a CPU (32 or 33 of 50, not blind). R14.files has
answers of many digits since, and sees one of the ten.

Of the 27 left, 26 were measured later, with the laws of that day, without the same relations: 22 are seen, so that of
the 59 of this set 45 are (76%). Laws written since see the four that were missed.

On the same day someone else planted 45 more, at most two a module, in modules drawn at random by their lines. Who
planted knew refrl, the catalogue and earlier plants, and had seen by accident the rates at the top of this page, ids of
relations in the catalogue of trials, and what each trial claims. Those who wrote laws in the meantime did not see them.
They were measured once, after the laws of parts (R35), of worked examples (R34), of refusals (R18.refused) and of the
store's model (DP13) were added; R2, R25, R13.trainer and the longest relations were asked only where they are the
nearest, so that this is a lower bound. **34 of 43 are seen (79%; 90% were wanted)**, two of them by level 0 alone, one
because a law raises an error with the fault; 14 are seen by R34 or R35. Two were not measured: the time was up. Of the
nine missed, six were checked by their planter in a direct call alone, and not in a run. R34.worked and R18.defaults see
four of the nine since.

The trials that execute them, chosen before: 32 ran on two H100, with sensors that recompute later steps, updates of the
optimizer, fine-tuning and prompts. **18 of 32 fail with the fault (56%; 70% were wanted)**; one of them refused the
options that reach the fault. Sensors written since for the classes missed see 7 of the 14 more (25 of 32, not blind):
every documented default, gradients of draft heads, files of exports, the base of adapters, what observers are shown,
and rows that ended. On the sound stack 31 trials ran there with two seeds and seven configurations: 216 runs passed,
none failed, 18 were Blocked without vLLM or Ray, and two (`arch-draft` with 8 and 16 prompts) because the trial had an
option that needs more prompts; it has it no more, and passes with both on a CPU.

Someone else then planted 61 more, again at random by lines, in modules of which each has two at most. Who planted
knew refrl, earlier plants, and by accident the texts of the mutants. Those who wrote laws in the meantime (worked
examples of 20 more subjects, R35.policies, more decoders) did not see them. They were measured once, as the set
before, some by the fast relations alone. **43 of 53 are seen (81%; 90% were wanted)**, 30 of them by R34. Eight were
not measured: five need Ray, TransferQueue or Triton, one run had no answer in time, and for two the time was up. Worked
examples written since see the ten that were missed; trials saw three of them.

The trials that execute them, chosen before: 28 ran on two H100. The sound stack failed two of them, by a new check
that compared rates per GPU with those of the whole run (fixed). **11 of the other 26 fail with the fault (42%; 70%
were wanted)**. Three of the 15 that pass have options that the trial refused. With checks written since for the
classes missed, 15 of these 17 fail on a CPU (not blind; three of them by no new check): files of rows, phases and
sizes of syncs, micro-batches, turns, pairs of options, prompts over the whole task, models of two seeds. With these
checks all trials ran on the sound stack on two H100 with two seeds and seven configurations, as far as ten minutes
went: of 229 runs 207 passed and none failed; 22 were Blocked, 17 without vLLM or Ray and five by options that their
models exclude. `parallel-ray-dp2` ran apart, on Ray 2.60 there, with three seeds and nine configurations: all 12 runs
passed.

Someone else then planted 60 more, again at random by lines, at most two a module, and ran each fault before it was
committed: 28 change a run, 32 change what a direct call gives, and no run that was tried. Those who wrote checks in
the meantime (worked examples over random inputs, records and files of trials) did not see them. They were measured
once, on a CPU: the fast relations, then the nearest ones and level 0, so that this is a lower bound. **40 of 59 are
seen (68%; 90% were wanted): 25 of the 28 that change a run (89%), and 15 of the 31 others.** One needs TransferQueue.
24 are seen by R34, 15 by other relations, one by level 0 alone. Worked examples written since for the classes missed
see the other 19 (not blind).

The trials that execute them, chosen before: 48 ran, on a CPU. **24 of 48 fail with the fault (50%; 70% were wanted):
18 of the 27 that change a run (67%), and 6 of the 21 others.** One more was chosen for a trial that refrl does not
have. In 12 of the 24 that pass, the trial runs the module and not the case that shows the fault, as their planter had
noted.

Before it, checks were added to trials that compare every field of a run with other evidence, and every row and series
of runs that should agree. With these checks 78 runs of the trials that a CPU carries were judged on the sound stack:
all trials of levels 0 to 5, 18 of them in bfloat16, 30 with two updates a step, packing or eight completions. None
failed, except by two new checks, which were false alarms and are fixed: rows of layouts in bfloat16, where later
tokens may differ, and routers that Megatron-core does not log. Six were Blocked, by options that exclude one another
and without vLLM and Ray."""


def page() -> str:
    """Return the page."""
    parts = [
        INTRODUCTION,
        *_figures(),
        BLIND,
        *_misses(),
        *_modules(),
        *_broken_line(),
        *_table("Plants", all_plants()),
        *_table("Mutants", all_mutants()),
        *_harness(),
    ]
    return "\n".join(parts) + "\n"


def misses() -> dict[str, str]:
    """Return why each undetected fault is not detected."""
    return dict(read_table("seatrial.faults", MISSES) or {})


def _faults() -> list[Mutant | Plant]:
    return [*all_plants(), *all_mutants()]


def _seen(fault: Mutant | Plant) -> Seen:
    return recorded().get(fault.id, Seen(by=None, said="not measured"))


def _figures() -> Iterator[str]:
    yield from ("", "| | plants | mutants |", "|---|---|---|")
    planted: list[list[Mutant | Plant]] = [[*all_plants()], [*all_mutants()]]
    tables = [[fault for fault in of if fault.id in recorded()] for of in planted]
    by = [Counter(_kind(fault) for fault in of) for of in tables]
    bugs = [len({known for fault in of for known in fault.catalogue}) for of in tables]
    rows: dict[str, list[int] | list[str]] = {
        "faults in modules that a run imports": [len(of) for of in planted],
        "of these, measured": [len(of) for of in tables],
        "distinct known bugs among them": bugs,
        "seen by a relation": [count["relation"] for count in by],
        "seen by a level-0 trial alone": [count["level 0"] for count in by],
        "seen by neither": [count["nothing"] for count in by],
        "rate over what was measured": [
            f"{1 - count['nothing'] / max(1, len(of)):.1%}" for count, of in zip(by, tables, strict=True)
        ],
    }
    yield from (f"| {name} | {cells[0]} | {cells[1]} |" for name, cells in rows.items())


def _kind(fault: Mutant | Plant) -> str:
    by = _seen(fault).by
    return "nothing" if by is None else by if by == "level 0" else "relation"


def _misses() -> Iterator[str]:
    measured = [fault for fault in _faults() if fault.id in recorded()]
    missed = [fault for fault in measured if _seen(fault).by is None]
    reasons: dict[str, str] = misses()
    yield from ("", "## What nothing sees", "")
    if not missed:
        yield "None of the faults that were measured; a new one is more likely to be (see the rates above)."
        return
    yield from ("| fault | what is wrong | why it is not seen, and what would see it |", "|---|---|---|")
    for fault in missed:
        yield f"| {fault.id} | {fault.what} | {reasons.get(fault.id, 'not looked into yet')} |"


def _modules() -> Iterator[str]:
    number = Counter(fault.module for fault in _faults())
    yield from ("", "## By module", "", "| module | faults |", "|---|---|")
    yield from (f"| {module} | {count} |" for module, count in sorted(number.items()))
    yield from ("", "Modules of a run in which none is planted:", "", "| module | why |", "|---|---|")
    yield from (f"| {module} | {reason} |" for module, reason in sorted(modules_without_plants().items()))


def _broken_line() -> Iterator[str]:
    text = resources.files("seatrial.faults").joinpath(BROKEN_LINE).read_text(encoding="utf-8")
    yield from (
        "",
        "## What a broken line says",
        "",
        "In a copy of refrl, the token mean was made a mean of row means. "
        "`seatrial relations --target reference --relation R1.loss` printed this and exited 1:",
        "",
        "```text",
        text.rstrip(),
        "```",
    )


def _table(title: str, faults: Sequence[Mutant | Plant]) -> Iterator[str]:
    yield from (
        "",
        f"## {title}",
        "",
        "| fault | known bugs | what is wrong | seen by |",
        "|---|---|---|---|",
    )
    for fault in faults:
        seen = (_seen(fault).by or "nothing") if fault.id in recorded() else "not measured yet"
        yield f"| {fault.id} | {' '.join(fault.catalogue) or '-'} | {fault.what} | {seen} |"


def _harness() -> Iterator[str]:
    mutants = harness_mutants()
    yield from (
        "",
        "## The 42 mutants of another harness",
        "",
        "The rlvr-experiments project held 43 new tests for a harness that covers its trainer; they killed "
        f"{sum(mutant.killed_there for mutant in mutants)} of {len(mutants)} one-line mutants. Each has a "
        "counterpart in refrl, which each default seed kills.",
        "",
        "| theirs | part | killed there | ours |",
        "|---|---|---|---|",
    )
    for mutant in mutants:
        killed = "yes" if mutant.killed_there else "no"
        yield f"| {mutant.theirs} | {mutant.part} | {killed} | {mutant.ours} |"
    yield from ("", "Its 43 tests, and what holds the same here:", "", "| test | here |", "|---|---|")
    for test in harness_tests():
        here = ", ".join(f"`{name}`" if "::" in name else name for name in test.ours)
        yield f"| {test.test} | {here}{f'; {test.note}' if test.note else ''} |"
