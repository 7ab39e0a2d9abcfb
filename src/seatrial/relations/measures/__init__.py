"""Measures that laws of whole runs and the guards of the reference stack share."""
