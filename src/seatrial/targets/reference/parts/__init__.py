"""refrl's functions, named parts, tasks and texts, offered to the relations."""
