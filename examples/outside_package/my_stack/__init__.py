"""A loss, a verifier, a task, a relation, a rule, a reader and a target from outside: one file each."""
