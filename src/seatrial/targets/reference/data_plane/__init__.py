"""refrl's data planes and rollout flow, offered to the relations."""
