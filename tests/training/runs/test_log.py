"""What a run logs: one line for each epoch, and in files one for some batches, too."""

import contextlib
import io
import json
import re

import pytest

from gluon_amp.training.console import train, train_text
from gluon_amp.training.runs import log

VALUES = r"  loss \S+  top-1 \d+\.\d\d %(  average \d+\.\d\d %)?  lr \S+  [\d,]+ (img|char)/s"
EPOCH = r"Epoch \d/2" + VALUES + r"(  ETA \d+:\d\d)?.*"
BATCH = r"Epoch \d/2  batch \d/\d" + VALUES + r"  ETA \d+:\d\d"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(main, *words):
    """Return the lines that a command prints on a terminal."""
    with contextlib.redirect_stdout(Terminal()) as out:
        assert main(list(map(str, words))) == 0
    return out.getvalue().splitlines()


def test_a_terminal_gets_a_line_for_each_epoch_and_the_file_those_of_batches(fashion, tmp_path):
    file = tmp_path / "run.log"
    options = [*fashion, *"--epochs 2 --dtype float16 --lr 0.01 --lr-mode constant".split()]
    shown = on_a_terminal(train.main, *options, "--logging-file", file)
    rows = [line for line in shown if line.startswith("Epoch ")]
    assert [line.split()[1] for line in rows] == ["1/2", "2/2"]
    assert all(re.fullmatch(EPOCH, line) and len(line) <= 80 for line in rows), rows
    assert "  ETA " in rows[0] and "ETA" not in rows[1] and "  scale " in " ".join(shown)
    written = file.read_text().splitlines()
    assert len([line for line in written if re.fullmatch(BATCH, line)]) == 2 * 5
    for start in (*rows, "data       fashion-mnist: ", "validated   23/23 images"):  # for both
        assert any(line.startswith(start) for line in shown)
        assert any(line.startswith(start) for line in written)


@pytest.mark.parametrize("text", [False, True])
def test_an_average_stands_in_the_line_of_the_epoch(text, fashion, tmp_path):
    small = "--characters 4000 --hidden 8 --embedding 8 --num-epochs 1 --max-batches 2".split()
    options = [*(small if text else fashion), "--ema-decay", 0.5]
    shown = on_a_terminal((train_text if text else train).main, *options)
    lines = "\n".join(shown)
    assert re.search(r"^Epoch 1/1  loss .*  top-1 .* %  average \d+\.\d\d %  lr ", lines, re.M)
    assert bool(re.search(r"  bits \d\.\d+$", lines, re.M)) == text
    assert max(map(len, shown)) <= 80


def test_without_a_terminal_the_output_is_that_of_the_file(trained):
    assert trained.out == trained.logging_file.read_text()
    assert re.search(BATCH, trained.out)


def test_a_line_is_as_wide_as_a_terminal_at_most():
    values = {f"value_{number}": "1" * 20 for number in range(4)}
    assert log.line(log.place(2, 24), {"loss": "0.5", "_speed": "9 img/s", "bits": None}) == (
        "Epoch 3/24  loss 0.5  9 img/s"
    )
    assert [len(line) for line in log.line("Epoch 3/24", values).splitlines()] == [70, 60]
    assert log.place(2, 24, 4, 6) == "Epoch 3/24  batch 5/6"
    times = {18: "0:18", 60: "1:00", 3725.4: "1:02:05", float("nan"): "-"}
    assert {seconds: log.duration(seconds) for seconds in times} == times


def test_records_of_batches_epochs_and_validations(trained):
    pytest.importorskip("tensorboardX")
    records = [json.loads(line) for line in trained.log_json.read_text().splitlines()]
    kinds = [record["record"] for record in records]
    assert kinds == [*["batch"] * 4, "epoch", "validation"] * 2
    assert [record["step"] for record in records] == [1, 2, 3, 4, 4, 4, 5, 6, 7, 8, 8, 8]
    for record in records[:4]:
        assert set(record) >= {"accuracy", "lr", "loss_scale", "skipped", "images_per_second"}
    assert records[-1]["images"] == 360
    assert records[4]["lr"] == records[3]["lr"] != records[2]["lr"]  # that of its last batch
    assert list(trained.tensorboard.glob("events.out.tfevents*"))


def test_json_has_no_nan(tmp_path):
    records = log.Records(tmp_path / "log.jsonl")
    records.write("epoch", 1, loss=float("nan"), lr=0.5)
    records.close()
    text = (tmp_path / "log.jsonl").read_text()
    assert text == '{"record": "epoch", "step": 1, "loss": null, "lr": 0.5}\n'
