"""What ties the ranks of a run to the launcher that started them: where they meet, and a pipe that tells its end."""

from __future__ import annotations

import os
import threading

RENDEZVOUS = "REFRL_RENDEZVOUS"
"""Variable with the URL of the file in which ranks meet; set in ranks that `refrl.runtime.launcher` started."""
LIFELINE = "REFRL_LIFELINE"
"""Variable with the number of the pipe's reading end."""
LOST_LAUNCHER = 1
"""Exit status of a rank whose launcher is gone."""


def watch_lifeline() -> None:
    """Leave this process at once when the launcher is gone; without a launcher nothing is watched."""
    number = os.environ.get(LIFELINE)
    if number is None:
        return

    def watch() -> None:
        os.read(int(number), 1)
        os._exit(LOST_LAUNCHER)

    threading.Thread(target=watch, daemon=True, name="refrl-lifeline").start()
