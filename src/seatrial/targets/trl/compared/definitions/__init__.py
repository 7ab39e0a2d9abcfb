"""Steps of TRL's trainers as their documentation defines them, row by row and in float64."""
