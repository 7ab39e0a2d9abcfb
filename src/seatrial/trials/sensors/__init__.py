"""Verdicts that trials share: on a training run, its ledger, and its learning."""
