"""A record equals a second one, and differs where one value does."""

import gzip
import json

from experiments.unchanged.__main__ import main


def test_a_record_is_compared_with_another(tmp_path, capsys):
    before, after = tmp_path / "before", tmp_path / "after"
    for folder in (before, after):
        assert main(["record", "--output", str(folder), "--only", "steps", "--limit", "2"]) == 0
    assert main(["compare", str(before), str(after)]) == 0
    assert "steps: equal 4, different 0" in capsys.readouterr().out
    file = after / "steps-0.json.gz"
    texts = json.loads(gzip.decompress(file.read_bytes()))
    texts["0 plain"] = texts["0 plain"].replace("applied", "skipped", 1)
    file.write_bytes(gzip.compress(json.dumps(texts).encode()))
    assert main(["compare", str(before), str(after)]) == 1
    told = capsys.readouterr().out
    assert "steps: equal 3, different 1" in told and "  0 plain" in told
