"""What a run prints on a terminal: one line for each epoch; and elsewhere: GluonCV's lines."""

import contextlib
import io
import json
import re

import pytest

from gluon_amp.training.console import train, train_text
from gluon_amp.training.runs import log

# The first of GluonCV's lines, which are for files and programs; `test_loop.py` has all
BATCH = r"Epoch\[\d\] Batch \[\d\]\tSpeed: [\d.]+ samples/sec\taccuracy=[\d.]+\tlr=[\d.]+"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(main, *words):
    """Return the lines that a command prints on a terminal."""
    with contextlib.redirect_stdout(Terminal()) as out:
        assert main(list(map(str, words))) == 0
    return out.getvalue().splitlines()


def test_a_terminal_gets_a_line_for_each_epoch_and_the_file_gluoncvs_lines(fashion, tmp_path):
    file = tmp_path / "run.log"
    options = [*fashion, *"--epochs 2 --dtype float16 --lr 0.01 --lr-mode constant".split()]
    shown = on_a_terminal(train.main, *options, "--logging-file", file)
    head = shown.index("epoch     loss     top-1        lr   scale  skips          speed  waited")
    # a slow disk may have a warning between the lines
    rows = [line for line in shown[head + 1 :] if re.match(r" +\d+ ", line)]
    for epoch, line in enumerate(rows[:2]):
        form = r" +\d+\.\d{4} +\d+\.\d\d % +[\d.]+ +[\d^-]+ +\d+ +\d+ images/s +\d+ %"
        assert re.fullmatch(rf" +{epoch}{form}", line), line
        assert len(line) <= 80
    assert len(rows) >= 2 and not any("Epoch" in line for line in shown)
    written = file.read_text().splitlines()
    assert len([line for line in written if re.fullmatch(BATCH, line)]) == 2 * 5
    assert "[Epoch 1] validated 23/23" in written
    assert shown[head] not in written
    for start in ("data       fashion-mnist: ", "validated   23/23 images"):  # for both
        assert any(line.startswith(start) for line in shown)
        assert any(line.startswith(start) for line in written)


@pytest.mark.parametrize("text", [False, True])
def test_an_average_has_a_column_and_lines_of_its_own(text, fashion, tmp_path):
    small = "--characters 4000 --hidden 8 --embedding 8 --num-epochs 1 --max-batches 2".split()
    file, options = tmp_path / "run.log", small if text else fashion
    options = [*options, "--ema-decay", 0.5, "--logging-file", file]
    shown = on_a_terminal((train_text if text else train).main, *options)
    (head,) = [number for number, line in enumerate(shown) if line.startswith("epoch")]
    assert re.search(r"  speed      ema( +bits)?$", shown[head]) and len(shown[head]) <= 80
    (row,) = [line for line in shown[head:] if line.startswith("    0 ")]
    assert re.search(r"/s +\d+\.\d\d %( +\d\.\d{3})?$", row) and len(row) == len(shown[head])
    lines = [line for line in file.read_text().splitlines() if "of the average" in line]
    assert len(lines) == 1 + text and max(map(len, lines)) <= 80
    assert not text or re.fullmatch(r"\[Epoch 0\] .* bits per character=[\d.]+", lines[1])
    bits = r"^\[Epoch 0\] validation: bits per character=\d"
    assert not text or re.search(bits, file.read_text(), re.MULTILINE)


def test_without_a_terminal_the_output_is_that_of_the_file(trained):
    assert trained.out == trained.logging_file.read_text()
    assert re.search(BATCH, trained.out)


def test_the_values_of_an_epoch_stand_under_their_names():
    columns = (*log.COLUMNS, ("bits", 7, "{:.3f}"))
    lines = [
        log.epoch_head(columns),
        log.epoch_line(columns, (0, 2.5, 100, 1e-05, "2^-24", 0, "9 chars/s", 100, 6.5)),
        log.epoch_line(columns, (999, 0.1, None, 0.4, None, 12, "12345 images/s", 0, None)),
    ]
    assert lines == [
        "epoch     loss     top-1        lr   scale  skips          speed  waited   bits",
        "    0   2.5000  100.00 %     1e-05   2^-24      0      9 chars/s   100 %  6.500",
        "  999   0.1000         -       0.4       -     12 12345 images/s     0 %      -",
    ]


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
