"""OpenRLHF as it is installed: adapters of its losses."""
