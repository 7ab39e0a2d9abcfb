"""verl as it is installed: its losses and advantages held to the relations."""
