"""The pages in a real Chromium: the policy allows our script and nothing else, and the script does what it should.

Needs `chromium` on the path; skipped where it is absent.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from base64 import b64encode
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.unit.report.test_html import NASTY, ledger, make_results, metrics

from seatrial.report.html import report_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the path: apt-get install chromium")
HOSTILE = "</script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">\u202e\ud800"


def page_of(folder: Path) -> Path:
    """Write the report of a run with hostile names and rows."""
    trial = folder / "trials" / "0"
    ledger(trial / "logs", 1, completion=HOSTILE, prompt=HOSTILE)
    metrics(trial, **{"train/reward": {str(step): step / 8 for step in range(1, 41)}, HOSTILE: {"1": 1.0}})
    page = folder / "report.html"
    page.write_text(report_html(make_results(), folder))
    return page


def dom(page: Path, folder: Path, fragment: str = "") -> tuple[str, str]:
    """Return the document as Chromium has it after load, and what it logs."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
        f"--user-data-dir={folder / 'profile'}", "--dump-dom", f"file://{page}{fragment}",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


def driven(page: Path, script: str) -> Path:
    """Return a copy of the page whose policy also allows a script that acts as a user would."""
    text = page.read_text()
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = text.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ", 1)
    copy = page.with_name("driven.html")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    return copy


def test_the_script_runs_and_hostile_content_does_not(tmp_path: Path) -> None:
    """Headings become buttons, so the policy allows our script; the title stays, and nothing is refused."""
    shown, console = dom(page_of(tmp_path), tmp_path)
    assert re.search(r"<th[^>]*><button[^>]*>Status</button>", shown)
    assert "<title>taken" not in shown and "<img" not in shown
    assert console == ""


def test_the_policy_stops_what_is_injected(tmp_path: Path) -> None:
    """Were a tag to get through, the browser would not run its handler, nor its script."""
    page = page_of(tmp_path)
    page.write_text(page.read_text().replace("</h1>", f"</h1>{HOSTILE.encode(errors='ignore').decode()}", 1))
    shown, console = dom(page, tmp_path)
    assert "<title>taken" not in shown
    assert "Content Security Policy" in console


def test_an_anchor_opens_the_folded_table(tmp_path: Path) -> None:
    """A link to a verdict shows it."""
    page = page_of(tmp_path)
    [anchor] = re.findall(r'<tr id="(grpo-smoke-origin[^"]*)"', page.read_text())
    closed, _ = dom(page, tmp_path)
    opened, _ = dom(page, tmp_path, f"#{anchor}")
    assert (closed.count('open=""'), opened.count('open=""')) == (0, 1)


def test_a_table_is_sorted_by_a_click(tmp_path: Path) -> None:
    """By name, upwards and then downwards."""
    script = """
const button = [...document.querySelectorAll("table.verdicts button")][1];
const names = () => [...document.querySelectorAll("table.verdicts tbody tr")].map(row => row.cells[1].textContent[0]);
const seen = []; for (let n = 0; n < 2; n++) { button.click(); seen.push(names().join("")); }
document.body.dataset.seen = seen.join(" ");"""
    shown, _ = dom(driven(page_of(tmp_path), script), tmp_path)
    found = re.search(r'data-seen="([^"]*)"', shown)
    assert found and found[1] == "<os so<".replace("<", "&lt;")


def test_values_are_shown_and_a_stretch_is_enlarged(tmp_path: Path) -> None:
    """The pointer shows the nearest step; after a drag the line has fewer points, and a click restores it."""
    script = """
const svg = document.querySelector("svg[data-chart]"), box = svg.getBoundingClientRect(), seen = {};
const send = (kind, part) => svg.dispatchEvent(new PointerEvent(kind,
  {clientX: box.left + part * box.width, clientY: box.top + 50}));
const dots = () => svg.querySelectorAll(".plot circle").length;
const [tip, reset] = [svg.parentElement.querySelector(".tip"), svg.parentElement.querySelector("button")];
send("pointermove", 0.55); seen.tip = tip.textContent; seen.dots = [dots()];
send("pointerdown", 0.4); send("pointermove", 0.6); send("pointerup", 0.6); seen.dots.push(dots());
seen.hidden = [reset.hidden]; reset.click(); seen.dots.push(dots()); seen.hidden.push(reset.hidden);
document.body.dataset.seen = encodeURIComponent(JSON.stringify(seen));"""
    shown, console = dom(driven(page_of(tmp_path), script), tmp_path)
    found = re.search(r'data-seen="([^"]*)"', shown)
    assert found, console
    seen = json.loads(unquote(found[1]))
    step, value = re.fullmatch(r"step (\d+)\nthis run: train/reward: ([\d.]+)", seen["tip"]).groups()  # type: ignore[union-attr]
    assert 19 <= int(step) <= 22 and float(value) == int(step) / 8
    assert seen["dots"][0] == seen["dots"][2] == 40 and 5 < seen["dots"][1] < 15
    assert seen["hidden"] == [False, True]
    assert NASTY not in shown
