"""The same trials and relations on two commits, or two releases, of a stack: what the second one broke."""
