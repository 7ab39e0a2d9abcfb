"""Trials of one run as jobs: several at once on this machine, in containers, through Slurm or Ray; results gathered."""
