"""What a run saves: directories that appear complete or not at all."""
