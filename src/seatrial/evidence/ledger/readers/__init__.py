"""Readers of ledgers, one module a stack, picked by what the files contain; other packages add some (`read.py`)."""
