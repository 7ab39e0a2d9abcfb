"""Setups of TRL's trainers, one module a kind of trainer."""
