"""Posts alarms to a web address."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request

from seatrial.errors import UsageError
from seatrial.report.rows import printable
from seatrial.verdict import Verdict

SECONDS = 10.0


def check_address(address: str) -> None:
    """Refuse an address that nothing can be posted to.

    Raises:
        UsageError: it is no HTTP address.
    """
    parts = urllib.parse.urlsplit(address)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"--webhook {address!r}: give an address that begins with http:// or https://")


def post_alarm(address: str, text: str, verdict: Verdict) -> None:
    """Post `{"text": ..., "verdict": {...}}`; a failure to deliver it is printed and ends nothing."""
    body = json.dumps({"text": text, "verdict": verdict.to_json()}).encode()
    request = urllib.request.Request(address, data=body, headers={"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS):
            return
    except (OSError, urllib.error.URLError) as error:
        host = urllib.parse.urlsplit(address).hostname
        print(printable(f"seatrial watch: {host} did not get the alarm: {error}"), file=sys.stderr)
