"""Laws of whole runs, judged by the rows, weights and metrics that they leave."""
