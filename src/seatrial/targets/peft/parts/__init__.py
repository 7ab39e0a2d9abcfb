"""Parts of PEFT that are no type of low-rank adapter on linear layers; see `relations.laws.utilities.adapter_parts`."""
