"""The relations, one module each; `RELATIONS` in a module lists what it offers."""
