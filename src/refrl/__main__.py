"""`python -m refrl`."""

from refrl.cli import main

raise SystemExit(main())
