"""The table of options of TRL's trainers: which one a law would see ignored."""
