"""Views of a run, all drawn from results.json: console, Markdown, JUnit, the summary form."""
