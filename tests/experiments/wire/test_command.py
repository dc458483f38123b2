"""The command writes the page, its values and its figure."""

import json

from experiments.wire import __main__ as command
from experiments.wire import measure
from tests import ROOT


def test_the_command_writes_three_files(tmp_path, monkeypatch):
    values = json.loads((ROOT / "docs" / "results" / "wire.json").read_text(encoding="utf-8"))
    about = {}

    def results(of_this_run, report):
        about.update(of_this_run)
        report("bytes")
        return values

    monkeypatch.setattr(measure, "results", results)
    assert command.main(["--output", str(tmp_path / "new")]) == 0
    written = {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()}
    assert sorted(written) == ["wire.json", "wire.md", "wire.png"]
    assert json.loads(written["wire.json"]) == values
    assert b"## Where communication dominates" in written["wire.md"]
    assert about["command"] == f"python -m experiments.wire --output {tmp_path / 'new'}"
    assert "MXNet" in about["versions"]
