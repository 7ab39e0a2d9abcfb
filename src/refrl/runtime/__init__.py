"""Where the parts of a run execute: in one process or several."""
