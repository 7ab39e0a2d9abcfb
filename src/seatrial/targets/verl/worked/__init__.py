"""Worked examples of verl, one table a subject; see `contracts.worked`."""
