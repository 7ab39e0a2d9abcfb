"""`python -m refrl`."""

import gc

from refrl.cli import main

status = main()
# At its end the interpreter looks through all that was imported for what could be freed: seconds on a busy machine.
gc.freeze()
raise SystemExit(status)
