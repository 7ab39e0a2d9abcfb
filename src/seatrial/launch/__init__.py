"""How a command is started: as a process group of its own, ended by its own id, its output kept."""

from seatrial.launch.local import Launched, Progress, run_command

__all__ = ["Launched", "Progress", "run_command"]
