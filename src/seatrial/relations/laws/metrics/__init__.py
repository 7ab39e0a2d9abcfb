"""Laws of logged metrics and of evaluation."""
