"""Guards of a run of refrl: each module checks one subject while the run goes; `observer` calls them."""
