"""Shards of relations and of the fault sweep, merged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from seatrial.batch.merge import is_relations, merge_relations
from seatrial.cli import main
from seatrial.errors import UsageError
from seatrial.faults.record import Seen, load, save
from seatrial.faults.sweep import main as sweep
from seatrial.relations.registry import all_relations
from seatrial.trials.sharding import Shard


def test_shards_are_every_item_once() -> None:
    items = list(range(11))
    parts = [Shard.parse(f"{number}/3").take(items) for number in (1, 2, 3)]
    assert sorted(item for part in parts for item in part) == items
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["0/3", "4/3", "1", "1/", "a/b", "-1/2", "1/2/3"])
def test_a_wrong_shard_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"write i/n with i from 1 to n"):
        Shard.parse(text)


def test_the_shards_of_the_relations_list_each_relation_once(capsys: pytest.CaptureFixture[str]) -> None:
    found = []
    for number in (1, 2):
        assert main(["relations", "--list", "--shard", f"{number}/2"]) == 0
        found += [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert sorted(found) == sorted(relation.id for relation in all_relations())


def relations_file(path: Path, *verdicts: tuple[str, str], version: str = "1.0") -> Path:
    found = [
        {"name": name, "outcome": outcome, "reason": "why", "num_samples": 1, "details": {"laws": ["a"]}}
        for name, outcome in verdicts
    ]
    content = {"schema_version": 1, "argv": [], "releases": {"x": version}, "outcome": "?", "verdicts": found}
    path.write_text(json.dumps(content))
    return path


def test_files_of_relations_become_one_with_the_whole_outcome(tmp_path: Path) -> None:
    parts = [
        relations_file(tmp_path / "a.json", ("R1 x", "Pass")),
        relations_file(tmp_path / "b.json", ("R2 y", "Fail")),
    ]
    assert all(map(is_relations, parts))
    output = tmp_path / "whole.json"
    assert main(["report", *map(str, parts), "--merge", str(output)]) == 1
    whole = json.loads(output.read_text())
    assert whole["outcome"] == "Fail"
    assert [verdict["name"] for verdict in whole["verdicts"]] == ["R1 x", "R2 y"]


def test_parts_of_different_releases_or_of_one_shard_are_refused(tmp_path: Path) -> None:
    first = relations_file(tmp_path / "a.json", ("R1 x", "Pass"))
    other = relations_file(tmp_path / "b.json", ("R2 y", "Pass"), version="2.0")
    with pytest.raises(UsageError, match="no parts of one run"):
        merge_relations([first, other], tmp_path / "whole.json")
    with pytest.raises(UsageError, match="name each part once"):
        merge_relations([first, first], tmp_path / "whole.json")
    assert not (tmp_path / "whole.json").exists()


def test_detections_of_the_sweep_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = [tmp_path / "1.json", tmp_path / "2.json"]
    save(parts[0], {"a": Seen(by="R1", said="x")})
    save(parts[1], {"b": Seen(by=None, said="")})
    output = tmp_path / "whole.json"
    assert sweep(["--output", str(output), "--merge", *map(str, parts)]) == 0
    assert load(output) == {"a": Seen(by="R1", said="x"), "b": Seen(by=None, said="")}
    assert "2 faults" in capsys.readouterr().out
    assert sweep(["--output", str(output), "--merge", str(tmp_path / "no.json")]) == 2
