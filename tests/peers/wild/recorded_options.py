"""Records what configurations of the installed Transformers fill in, with the oldest release that does the same.

    python -m tests.peers.wild.recorded_options [--new]

Run in the environment of each release in turn on the same file; the newest with `--new` adds options.
"""

import json
import sys

from packaging.version import Version

from seatrial.relations.not_served import NotServed
from seatrial.targets.common.target import release
from seatrial.targets.transformers.any_configurations import CASES, RECORD, ConfigurationsRecord, changed

SHORT = (",", ":")


def main(*, is_new: bool) -> None:
    """Add the installed release to the record."""
    installed, stack = release("transformers"), ConfigurationsRecord()
    found = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    for kind in stack.kinds:
        for case in CASES:
            releases = found.setdefault(kind, {}).setdefault(case, {})
            known = {name: (oldest, value) for oldest, own in releases.items() for name, value in own.items()}
            try:
                given = changed(stack._mapping[kind], case)
            except (NotServed, ImportError, AttributeError, KeyError):
                given = {}
            whole = stack.options_of(kind, case)
            for name, value in given.items() if is_new else ():
                known.setdefault(name, (installed, value))
            for name, (oldest, value) in known.items():
                if name not in whole:
                    continue
                if whole[name] == value:
                    known[name] = (min(oldest, installed, key=Version), value)
                else:
                    print(kind, case, name, "differs from", oldest, value, whole[name], flush=True)
            by_release: dict[str, dict[str, object]] = {}
            for name, (oldest, value) in sorted(known.items()):
                by_release.setdefault(oldest, {})[name] = value
            found[kind][case] = by_release
        found[kind] = {case: own for case, own in found[kind].items() if own}
    found = {kind: values for kind, values in sorted(found.items()) if values}
    lines = [f"{json.dumps(kind)}: {json.dumps(values, separators=SHORT)}" for kind, values in found.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(is_new="--new" in sys.argv)
