"""Worked examples of Transformers, one table a subject; see `contracts.worked`."""
