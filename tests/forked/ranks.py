"""`python -m tests.forked.ranks [CONFIG OUTPUT | FOLDER]`: the rank for these words; see `seatrial.faults.ranks`."""

import sys

from seatrial.targets.common import rank_worker
from seatrial.targets.reference import layouts, ranks

if __name__ == "__main__":
    words = sys.argv[1:]
    if len(words) == 2:
        ranks.main(words)
    elif words:
        layouts.main(words)
    else:
        rank_worker.main()
