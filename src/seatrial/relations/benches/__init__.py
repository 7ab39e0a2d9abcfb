"""Test benches of laws that work on a running store: a store, rows in it, and what was found wrong."""
