"""verl as it is installed: adapters of its losses and advantages."""
