"""`python -m tests.forked.told STATUS FILE`: says what it sees, and ends with the status, or killed."""

import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path


def report_and_exit(sending: Connection, status: int) -> None:
    """Send whether a module is imported that only the server of `tests.forked` imports, and exit with the status."""
    sending.send("seatrial.bisect.console" in sys.modules)
    raise SystemExit(status)


if __name__ == "__main__":
    os.write(int(sys.argv[2]), b"through")
    imported = "transformers.modeling_utils" in sys.modules
    print(sys.argv[1:], os.environ["SAID"], Path.cwd(), imported, sys.stdin.read(), flush=True)
    print("beside", file=sys.stderr)
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[1] == "waits":
        signal.pause()
    raise SystemExit(int(sys.argv[1]))
