"""Laws of command lines, defaults and declarations."""
