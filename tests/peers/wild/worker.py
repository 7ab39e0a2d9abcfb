"""Holds releases of a stack to the relations, one process each, forked after the imports that all of them share.

    python worker.py < jobs.json

Run by runner.py with the environment `wild`, which has torch but none of the releases. A job is an object with
`release` (a folder of one package, or null), `target`, `adapters`, `expect`
(a file of known failures, or null), `report` (where the verdicts go) and `console`.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SHARED = (
    "datasets",
    "accelerate",
    "peft",
    "transformers.trainer",
    "transformers.models.qwen2.modeling_qwen2",
)
"""Imported once: they take longer than most jobs."""
OWN_RELEASES = ("peft", "accelerate", "transformers")
"""Targets whose releases are among these; they are imported by each job."""


def judge(job: Mapping[str, Any]) -> None:
    """Run `seatrial relations` on one release, with its words in the console file of the job."""
    console = os.open(job["console"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(console, 1)
    os.dup2(console, 2)
    if job["release"]:
        late = sorted(one.name for one in Path(job["release"]).iterdir() if one.name in sys.modules)
        if late:
            raise RuntimeError(f"{job['release']}: {late} are imported already, of another release")
        sys.path.insert(0, job["release"])
        importlib.invalidate_caches()
    from seatrial.cli import main

    words = ["relations", "--target", job["target"], "--json", job["report"], "--shrink-seconds", "0"]
    words += ["--expect", job["expect"]] if job.get("expect") else []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        tempfile.tempdir = folder  # a fork ends without the cleaning that folders wait for
        code = main([*words, *(word for name in job["adapters"] for word in ("--adapter", name))])
        os.chdir("/")
    sys.exit(code)


if __name__ == "__main__":
    jobs = json.load(sys.stdin)
    if not any(job["target"] in OWN_RELEASES for job in jobs):
        for module in SHARED:
            importlib.import_module(module)
    context = multiprocessing.get_context("fork")
    for asked in jobs:
        process = context.Process(target=judge, args=(asked,))
        process.start()
        process.join()
