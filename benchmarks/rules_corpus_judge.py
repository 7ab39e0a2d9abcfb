"""What `seatrial watch` says of the labelled public logs, by half and label, with the list of errors.

    python benchmarks/rules_corpus_judge.py FOLDER [--half tuning|held-out] [--page FILE] [--json FILE]
    python benchmarks/rules_corpus_judge.py --judged FILE [--half ...] [--page FILE]   # draw what --json wrote
    python benchmarks/rules_corpus_judge.py FOLDER --list benchmarks/rules_corpus_strangers.yaml [...]

FOLDER holds ID/NAME for each log (`rules_corpus.py --fetch`). Each log is judged by the command with its defaults, in a
process of its own. A troubled run counts as found if a rule alarms, as named if a notice of a rule in `NAMES` is all
that there is, and as noticed if another notice is; an alarm on a healthy run is a false alarm. Logs labelled "cannot
say" are run for crashes alone. `--page` replaces the tables between the markers of that page: `<!-- corpus -->`, or the
name of another list. W&B files need wandb.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import rules_corpus

TROUBLED = ("stuck", "at the limit", "length runs away", "collapsed", "exploded", "saturated", "hacked")
NAMES = {
    "stuck": (
        "does-not-learn",
        "loss-does-not-fall",
        "reward-constant",
        "gradient-zero",
        "groups-silent",
        "groups-never-differ",
        "groups-zero-variance",
        "policy-deterministic",
        "updates-stop",
        "learning-rate-zero",
        "validation-freezes",
    ),
    "at the limit": ("length-at-cap", "length-at-limit", "truncated-and-flat", "length-with-reward"),
    "length runs away": ("length-runs-away", "length-with-reward"),
    "collapsed": (
        "reward-collapse",
        "reward-declines",
        "reward-falls-at-once",
        "reward-below-its-best",
        "reward-freezes",
        "validation-below-its-best",
        "length-collapse",
        "entropy-collapse",
    ),
    "exploded": (
        "loss-exploding",
        "loss-rises",
        "gradient-exploding",
        "entropy-explosion",
        "kl-drift",
        "scale-left",
        "finite",
    ),
    "saturated": ("preference-saturated",),
    "hacked": ("reward-hacked", "validation-falls"),
}
"""Rules whose notice names the trouble."""
TARGETS = (
    ("collapsed or exploded: alarm", ("collapsed", "exploded"), "at least 90 %"),
    ("at the limit or running away: alarm", ("at the limit", "length runs away"), "at least 75 %"),
    ("stuck: alarm, or a notice that names it", ("stuck",), "at least 60 %"),
    ("healthy: alarm", ("healthy, learns", "healthy, solved"), "at most 3 %"),
    ("all: not judged", rules_corpus.LABELS, "none with a curve"),
)
"""What is counted, of which labels, and the aim."""
LIMIT_S = 120


def judge(log: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what the command says of one log: exit code, rules that alarm, rules that give a notice."""
    (path,) = (folder / log["id"]).iterdir()
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "verdicts.json"
        command = [sys.executable, "-m", "seatrial", "watch", str(path), "--json", str(out)]
        try:
            ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            return {"exit": "timeout", "alarms": [], "notices": [], "said": f"over {LIMIT_S} s"}
        verdicts = json.loads(out.read_text())["verdicts"] if out.exists() else []
    levels: dict[str, list[str]] = {"alarm": [], "notice": []}
    for verdict in verdicts:
        level = verdict.get("details", {}).get("level")
        if level in levels:
            levels[level].append(verdict["name"].removeprefix("rule "))
    crashed = "Traceback" in ran.stderr
    said = ran.stderr.strip().splitlines()[-1:] or ran.stdout.strip().splitlines()[-1:]
    return {
        "exit": "traceback" if crashed else ran.returncode,
        "alarms": levels["alarm"],
        "notices": levels["notice"],
        "said": said[0] if said else "",
    }


def is_named(label: str, one: dict[str, Any]) -> bool:
    """Say whether a notice names the trouble of a label."""
    return bool(set(NAMES.get(label, ())) & set(one["notices"]))


def rates(logs: list[dict[str, Any]], judged: dict[str, dict[str, Any]]) -> str:
    """Draw the rates of each half next to their aims."""
    halves = [half for half in rules_corpus.HALVES if any(log["half"] == half for log in logs)]
    lines = [f"| | aim | {' | '.join(halves)} |", f"|---|---|{'---|' * len(halves)}"]
    for what, labels, aim in TARGETS:
        cells = []
        for half in halves:
            own = [log for log in logs if log["half"] == half and log["label"] in labels]
            counted = [log for log in own if _counts(what, log["label"], judged[log["id"]])]
            share = f" ({100 * len(counted) / len(own):.0f} %)" if own else ""
            cells.append(f"{len(counted)} of {len(own)}{share}")
        lines.append(f"| {what} | {aim} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _counts(what: str, label: str, one: dict[str, Any]) -> bool:
    """Say whether what was said of a log counts for a line of the rates."""
    if what.endswith("not judged"):
        return one["exit"] not in (0, 1)
    return bool(one["alarms"]) or ("notice" in what and one["exit"] in (0, 1) and is_named(label, one))


def table(logs: list[dict[str, Any]], judged: dict[str, dict[str, Any]]) -> str:
    """Draw the counts by half and label, then every log that was judged wrongly."""
    lines = []
    for half in rules_corpus.HALVES:
        own = [log for log in logs if log["half"] == half and log["id"] in judged]
        if not own:
            continue
        lines += [
            "",
            f"| {half} half | logs | alarm | notice that names it | other notice | neither | not judged |",
            "|---|---|---|---|---|---|---|",
        ]
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for log in own:
            groups[log["label"]].append(judged[log["id"]])
        for label in rules_corpus.LABELS:
            found = groups.get(label, [])
            if not found:
                continue
            skipped = [one for one in found if one["exit"] not in (0, 1)]
            ran = [one for one in found if one["exit"] in (0, 1)]
            alarmed = sum(bool(one["alarms"]) for one in ran)
            quiet = [one for one in ran if not one["alarms"]]
            named = sum(is_named(label, one) for one in quiet)
            noticed = sum(bool(one["notices"]) for one in quiet) - named
            rest = len(quiet) - named - noticed
            lines.append(
                f"| {label} | {len(found)} | {alarmed} | {named} | {noticed} | {rest} | {len(skipped)} |"
            )
    lines += ["", "Judged wrongly, or not at all:", "", "| log | half | label | said |", "|---|---|---|---|"]
    for log in logs:
        one = judged.get(log["id"])
        if one is None or (log["label"] == "cannot say" and one["exit"] != "traceback"):
            continue
        wrong = bool(one["alarms"]) == log["label"].startswith("healthy") or one["exit"] not in (0, 1)
        if wrong and not (one["exit"] == 0 and is_named(log["label"], one)):
            said = (
                f"alarm: {', '.join(one['alarms'])}"
                if one["alarms"]
                else f"notice: {', '.join(one['notices'])}"
            )
            said = said if one["alarms"] or one["notices"] else f"exit {one['exit']}"
            lines.append(f"| {log['repository']} {log['path']} | {log['half']} | {log['label']} | {said} |")
    return "\n".join(lines).strip() + "\n"


def main() -> int:
    """Judge, print the tables, and write what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--judged", type=Path, help="draw what --json wrote, and judge nothing")
    parser.add_argument("--half", choices=rules_corpus.HALVES)
    parser.add_argument("--page", type=Path, help="replace the tables between the markers of this page")
    parser.add_argument("--json", type=Path, help="write what was said of each log")
    parser.add_argument("--list", type=Path, default=rules_corpus.LIST, help="another list of labelled logs")
    arguments = parser.parse_args()
    logs = rules_corpus.load(arguments.list)
    chosen = [log for log in logs if arguments.half in (None, log["half"])]
    if (arguments.folder is None) == (arguments.judged is None):
        parser.error("name the folder of logs, or --judged FILE")
    if arguments.judged is not None:
        judged = json.loads(arguments.judged.read_text())
        found = [judged[log["id"]] for log in chosen]
    else:
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda log: judge(log, arguments.folder), chosen))
    judged = {log["id"]: one for log, one in zip(chosen, found, strict=True)}
    shown = rates(chosen, judged) + "\n" + table(logs, judged)
    print(shown)
    if arguments.json:
        arguments.json.write_text(json.dumps(judged, indent=1) + "\n")
    if arguments.page:
        name = "corpus" if arguments.list == rules_corpus.LIST else arguments.list.stem
        begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, marker, rest = arguments.page.read_text().partition(begin)
        if not marker or end not in rest:
            parser.error(
                f"{arguments.page} has no lines {begin} and {end}; write them where the tables belong"
            )
        arguments.page.write_text(f"{before}{begin}\n\n{shown}\n{end}{rest.partition(end)[2]}")
    return int(any(one["exit"] == "traceback" for one in found))


if __name__ == "__main__":
    sys.exit(main())
