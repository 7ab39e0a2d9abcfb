"""Worked examples of Accelerate's functions, in tables (`seatrial.relations.contracts.worked`)."""
