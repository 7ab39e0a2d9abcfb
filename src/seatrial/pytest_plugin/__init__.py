"""The pytest plugin `seatrial`: tracker, lanes, affected-test selection, functional tests."""
