"""Any stack as a target: its command line, its options and the places of its evidence, from one YAML file."""
