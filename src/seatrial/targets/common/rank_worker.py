"""`python -m seatrial.targets.common.rank_worker`: one rank that answers calls until its standard input ends."""

from __future__ import annotations

import importlib
import json
import os
import queue
import sys
import threading
import time
import traceback
from datetime import timedelta
from typing import Any

RENDEZVOUS = "SEATRIAL_RENDEZVOUS"
"""Variable with the URL of the file in which the ranks meet."""
WAIT_SECONDS = 120.0
"""For which a rank waits for the others in an exchange."""
GRACE_SECONDS = 5.0
"""For a rank to end by itself, which removes its temporary files."""


def main() -> None:
    """Join the ranks, then answer."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a stack prints is no answer
    calls = _calls()
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=os.environ[RENDEZVOUS],
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=WAIT_SECONDS),
    )
    while (call := calls.get()) is not None:
        print(json.dumps(_answer(call)), file=answers, flush=True)


def _calls() -> queue.SimpleQueue[dict[str, Any] | None]:
    """Return requests as they come, and None at the end; this process then exits soon, even if it is waiting."""
    calls: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            calls.put(json.loads(line))
        calls.put(None)
        time.sleep(GRACE_SECONDS)
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="seatrial-rank-calls").start()
    return calls


def adapter_package(module: str) -> str:
    """Return the package with the adapters of a stack that is installed apart, by the module of one of them."""
    root = module.partition(".")[0]
    return "seatrial.targets" if root == "seatrial" else root


def _answer(call: dict[str, Any]) -> dict[str, Any]:
    import torch

    from seatrial.relations.not_served import NotServed
    from seatrial.relations.raised import error_line, misfit_of, place_of, refusal_of

    module, _, name = call["function"].partition(":")
    try:
        torch.save(getattr(importlib.import_module(module), name)(call["payload"]), call["output"])
    except NotServed as error:
        return {"not_served": str(error)}
    except ModuleNotFoundError as error:
        return {"missing": error.name, "text": str(error)}
    except Exception as error:  # noqa: BLE001  passed to the process that called, which raises it
        words, misfit = refusal_of(error), misfit_of(error, adapter_package(module))
        if words is not None:
            return {"not_served": f"refused: {words}"}
        return {
            "failed": traceback.format_exc(limit=-4),
            "raised": {"error": error_line(error), "at": place_of(error), "misfit": misfit},
        }
    return {}


if __name__ == "__main__":
    main()
