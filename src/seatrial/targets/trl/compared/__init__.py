"""TRL's trainers whose runs are compared with one another: a table of trainers, and one mechanism for all of them."""
