"""Pages are filled in, and the weights of the parts are counted."""

import pytest

from experiments import pages, weights


def test_parts_are_filled_in():
    page = "# T\n\n<!-- a -->\n\nold\n\n<!-- /a -->\n\nIt has <!-- b -->1<!-- /b --> part.\n"
    filled = page.replace("old", "| new |").replace("-->1<", "-->2<")
    assert pages.fill(page, {"a": "| new |", "b": "2"}) == filled
    assert pages.fill(filled, {"a": "old", "b": "1"}) == page
    for parts in ({"a": "x"}, {"a": "x", "b": "y", "c": "z"}):
        with pytest.raises(ValueError, match="lack a part: [bc]"):
            pages.fill(page, parts)
    assert pages.table(["a", "b"], [["x", "1"]]) == "| a | b |\n| :--- | ---: |\n| x | 1 |"


def test_the_weights_are_those_of_the_files(capsys):
    assert weights.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {row[0]: row[1:] for row in (line.strip("| ").split(" | ") for line in lines[2:8])}
    assert list(rows) == list(weights.PARTS)
    library = weights.sources(["gluon_amp"])
    parts = [rows[name] for name in list(rows)[:3]]
    assert sum(int(files) for files, _ in parts) == len(library)
    assert sum(int(n.replace(",", "")) for _, n in parts) == sum(map(weights.lines, library))
    assert lines[-1].startswith("`import gluon_amp` loads ")
