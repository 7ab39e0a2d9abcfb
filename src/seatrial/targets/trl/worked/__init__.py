"""Worked examples of TRL's small functions, in tables (`seatrial.relations.contracts.worked`)."""
