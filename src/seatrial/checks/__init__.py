"""Checks: closed expressions over logged series, judged after a run."""
