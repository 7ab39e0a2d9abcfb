"""Starts commands: each in its own process group, stopped by its id, with its output kept."""

from seatrial.launch.local import Launched, Progress, run_command

__all__ = ["Launched", "Progress", "run_command"]
