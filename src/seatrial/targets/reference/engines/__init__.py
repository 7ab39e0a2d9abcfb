"""refrl's samplers and weight syncs, offered to the relations."""
