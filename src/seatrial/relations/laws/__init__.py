"""The laws, in packages by subject; a module that is added here is found."""
