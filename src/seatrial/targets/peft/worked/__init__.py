"""Worked examples of PEFT, one table a subject; see `contracts.worked`."""
