"""Views drawn from results.json."""
