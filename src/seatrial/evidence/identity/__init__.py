"""Who ran, on what: commits, import origins, packages, devices; secrets redacted."""
