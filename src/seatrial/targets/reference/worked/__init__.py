"""Worked examples of refrl's functions, one module a subject (`seatrial.relations.contracts.worked`)."""
