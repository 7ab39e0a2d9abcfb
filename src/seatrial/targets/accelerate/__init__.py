"""Accelerate as it is installed: loaders, accumulation, gathers and state by contract, in processes of a gloo group."""
