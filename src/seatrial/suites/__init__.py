"""The suites of checks that come with seatrial: package data."""
