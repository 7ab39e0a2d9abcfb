"""`python -m seatrial`."""

import sys

from seatrial.cli import main

sys.exit(main())
