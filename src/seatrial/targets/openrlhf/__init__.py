"""OpenRLHF as it is installed: its losses held to the relations."""
