"""What a run saves: directories that appear whole or not at all."""
