"""What refrl's parts refuse, and what is next to it: `seatrial.relations.contracts.refusals`."""
