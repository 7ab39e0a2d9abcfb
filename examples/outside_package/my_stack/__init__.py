"""A loss, a verifier, a task, a relation, a reader and a target from outside: one file each."""
