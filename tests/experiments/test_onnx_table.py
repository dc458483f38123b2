"""The table of exported networks, with one small network; `make onnx` runs all."""

from experiments import onnx_table


def test_a_network_has_a_row_for_each_policy():
    rows = onnx_table.run("operators")
    assert [row[:2] for row in rows] == [["operators", policy] for policy in onnx_table.POLICIES]
    for _, _, largest, allowed, size, error in rows:
        assert not error and 0 < largest <= allowed < 0.1 and size > 0


def test_a_network_without_a_file_is_named_with_its_reason(monkeypatch):
    def refused(*arguments, **options):
        raise ValueError("block 2, operator X has no translation\nmore")

    monkeypatch.setattr(onnx_table.amp, "export_onnx", refused)
    good = [["a", policy, 1e-6, 1e-5, 2.5, "", 0] for policy in onnx_table.POLICIES]
    bad = [[*onnx_table.exported("b", None, (), 0, p), 1] for p in onnx_table.POLICIES]
    values = {"runs": ["M on D, with V", "N on D, with V"], "rows": good + bad}
    parts = onnx_table.parts(values)
    assert parts["count"] == "2 of 4 files of 2 networks"
    assert "| a | float32 | 1e-06 | 1e-05 |" in parts["networks"]
    assert "- b in float32: block 2, operator X has no translation\n" in parts["refused"]
    assert parts["missing"].startswith("mx/alexnet, ")
    assert parts["measured"] == "1: M on D, with V; 2: N on D, with V"
    crashed = onnx_table.run_in_process("mx/no_such_network")
    assert [row[:5] for row in crashed] == [
        ["mx/no_such_network", policy, None, None, None] for policy in onnx_table.POLICIES
    ]
    assert all(row[5] for row in crashed)
