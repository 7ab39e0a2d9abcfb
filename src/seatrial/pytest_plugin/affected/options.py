"""The command line's options as dependencies of tests: `--backend=vllm`, `-W error`, `-o key=value`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from seatrial.pytest_plugin.affected.parts import digest

OPTION = "option"
"""The value of a command-line option."""

_SELECTING = """
    collectonly continue_on_collection_errors deselect exitfirst failedfirst file_or_dir ignore ignore_glob
    keepduplicates keyword last_failed_no_failures lf markers markexpr maxfail newfirst pyargs show_fixtures_per_test
    showfixtures stepwise stepwise_reset stepwise_skip count repeat_scope reruns reruns_delay only_rerun rerun_except
    randomly_seed randomly_reorganize random_order_seed disable_socket_plugin splits group
"""
_REPORTING = """
    cacheclear cacheshow capture code_highlight color css debug disable_warnings durations durations_min
    fold_skipped force_short_summary fulltrace help html junitprefix no_header no_summary pastebin quiet
    reportchars self_contained_html setuponly setupplan setupshow showcapture showlocals tbstyle trace
    traceconfig usepdb usepdb_cls verbose version xfail_tb xmlpath max_warnings logger_disable
"""
_PLACES = (
    "basetemp cache_dir inifilename rootdir plugins disable_plugin_autoload collect_in_virtualenv noconftest"
)
_SPREADING = """
    dist distload forked boxed loadgroup logxfdist looponfail maxprocesses maxschedchunk max_worker_restart
    maxworkerrestart no_loadscope_reorder loadscopereorder numprocesses px rsyncdir rsyncignore testrunuid tx
"""
_CHANGES_NO_TEST = frozenset(" ".join((_SELECTING, _REPORTING, _PLACES, _SPREADING)).split())
"""Options of pytest and well-known plugins that select, distribute or report tests."""
_PREFIXES = (
    "affected", "tracker_", "functional_dir", "seatrial_", "cov", "no_cov", "testmon", "no-testmon", "tmnet", "_",
    "log_cli", "log_file", "json_report", "doctest_continue", "doctestreport",
)  # fmt: skip


def option_values(options: argparse.Namespace) -> dict[str, str]:
    """Return a digest of the value of each option that may change what a test does."""
    return {
        name: digest(json.dumps(_plain(value)).encode())
        for name, value in vars(options).items()
        if name not in _CHANGES_NO_TEST and not name.startswith(_PREFIXES)
    }


def _plain(value: Any) -> Any:
    """Return a value as JSON; other objects are represented by their type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else type(value).__qualname__
