"""Where the parts of a run live: one process or several."""
