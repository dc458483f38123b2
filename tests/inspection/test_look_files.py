"""The files of watch: lines of JSON, TensorBoard's events, and the heat map."""

import json
import re
import struct

import pytest

import gluon_amp as amp
from gluon_amp.base.messages import UsageError
from gluon_amp.inspection import look_files
from tests.inspection.nets import chain, one
from tests.inspection.test_watch import train, trainer_of

from mxnet import nd
from mxnet.gluon import nn


def test_lines_of_json_are_the_rows(tmp_path, caplog):
    net = chain(1, 1)
    trainer = trainer_of(net, scale=2.0**15)
    file = tmp_path / "looks.jsonl"
    with amp.watch(net, trainer, what_if=["float16"], file=file) as watch:
        train(net, trainer, 1, one(4))  # overflows
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == len(watch.rows) == 5
    assert lines[0]["largest"] is None and lines[0]["formats"]["float16"]["overflow"] == 1
    assert look_files.read(file) == watch.rows
    # On a full disk the file ends, and not the training.
    with amp.watch(net, trainer, every=1, what_if=["float16"], file="/dev/full") as watch:
        train(net, trainer, 2, one(1))
    assert len({row.step for row in watch.rows}) == 2
    assert caplog.text.count("cannot be written any more (No space left on device)") == 1


def test_a_resumed_training_appends_after_a_torn_line(tmp_path):
    file = tmp_path / "looks.jsonl"
    net = chain(2, 4)
    trainer = trainer_of(net)
    with amp.watch(net, trainer, every=2, what_if=["float16"], file=file):
        train(net, trainer, 2, one(1))
    with open(file, "a") as written:
        written.write('{"step": 2, "lay')  # killed here
    trainer.save_states(str(tmp_path / "states"))
    resumed = trainer_of(net)
    resumed.load_states(str(tmp_path / "states"))
    with amp.watch(net, resumed, every=2, what_if=["float16"], file=file) as watch:
        train(net, resumed, 3, one(1))
    assert sorted({row.step for row in watch.rows}) == [0, 2, 4]
    assert look_files.read(file) == watch.rows


def test_the_events_of_tensorboard_are_the_shares(tmp_path):
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event

    net = nn.Dense(1, in_units=2, use_bias=False)
    net.initialize()
    trainer = trainer_of(net, scale=1.0)
    with amp.watch(net, trainer, every=2, what_if=["float16"], tensorboard=tmp_path):
        train(net, trainer, 3, nd.array([[1, 2**-28]]))
    (file,) = tmp_path.glob("events.out.tfevents*")
    seen, content = {}, file.read_bytes()
    while content:  # records of TensorFlow: a length, its checksum, the event, its checksum
        (size,) = struct.unpack("<Q", content[:8])
        event = Event.FromString(content[12 : 12 + size])
        seen.update({(v.tag, event.step): v.simple_value for v in event.summary.value})
        content = content[16 + size :]
    tags = {tag for tag, _ in seen}
    assert len(tags) == 6 and len(seen) == 12
    assert seen["float16/weight_gradient/weight/underflow", 2] == 0.5


def test_the_heat_map_says_what_it_shows(tmp_path):
    pytest.importorskip("matplotlib")
    net = chain(2, 4)
    trainer = trainer_of(net)
    with amp.watch(net, trainer, every=2) as watch:
        with pytest.raises(UsageError, match="no look"):
            watch.plot(tmp_path / "map.png")
        train(net, trainer, 3, one(1))
    watch.plot(tmp_path / "map.svg", "float8_e4m3", "two layers")
    texts = re.findall("<!-- (.*) -->", (tmp_path / "map.svg").read_text())
    assert {"layer", "step", "outputs of the layers", "no value becomes 0", "1 %"} <= {*texts}
    assert "two layers (×: some overflow, grey: no tensor)" in texts
    with pytest.raises(UsageError, match="cannot write"):
        watch.plot(tmp_path / "map.nothing")
    with pytest.raises(ValueError, match="expected one of float16"):
        watch.plot(tmp_path / "map.png", "float32")
