"""What a run prints on a terminal: one line for each epoch; and elsewhere: GluonCV's lines."""

import os
import pty
import re
import subprocess
import sys

import pytest

from gluon_amp.training.runs import log
from tests.training.runs.scripts import environment

SHORT = "train --dataset digits --num-epochs 2 --max-batches 2 --dtype float16 --log-interval 1"
# GluonCV's lines and our own, for files and programs
LINES = (
    r"Epoch\[\d\] Batch \[\d\]\tSpeed: [\d.]+ samples/sec\taccuracy=[\d.]+\tlr=[\d.]+",
    r"\[Epoch \d\] training: accuracy=[\d.]+",
    r"\[Epoch \d\] speed: \d+ samples/sec\ttime cost: [\d.]+",
    r"\[Epoch \d\] loss=[\d.]+\tloss scale: \d+\tskipped steps: \d+ \(\d+ in all\)",
    r"\[Epoch \d\] waited for data: \d+ % of the time",
    r"\[Epoch \d\] validation: err-top1=[\d.]+ err-top5=[\d.]+",
    r"\[Epoch \d\] validated 360/360",
)
COMMAND = [sys.executable, "-m", "gluon_amp", *SHORT.split()]


def on_a_terminal(*command):
    """Return what a command prints on a terminal, as lines without the bar's updates."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=follower, stderr=follower, env=environment()
    )
    os.close(follower)
    received = b""
    while True:
        try:
            part = os.read(leader, 1024)
        except OSError:  # Linux reports the end so
            break
        if not part:
            break
        received += part
    os.close(leader)
    assert process.wait() == 0, received.decode()
    lines = received.decode().replace("\r\n", "\n").split("\n")
    return [line.rpartition("\r")[2] for line in lines]


def test_a_terminal_gets_a_line_for_each_epoch_and_the_file_gluoncvs_lines(tmp_path):
    file = tmp_path / "run.log"
    shown = on_a_terminal(*COMMAND, "--logging-file", file)
    head = shown.index("epoch     loss     top-1        lr   scale  skips          speed  waited")
    for epoch, line in enumerate(shown[head + 1 : head + 3]):
        form = r" +\d+\.\d{4} +\d+\.\d\d % +[\d.]+ +[\d^-]+ +\d+ +\d+ images/s +\d+ %"
        assert re.fullmatch(rf" +{epoch}{form}", line), line
        assert len(line) <= 80
    assert not any("Epoch" in line for line in shown)
    written = file.read_text().splitlines()
    for form in LINES:
        assert len([line for line in written if re.fullmatch(form, line)]) >= 2, form
    assert shown[head] not in written
    # the plan and the summary are for both
    for start in ("data       digits: ", "validated   360/360 images"):
        assert any(line.startswith(start) for line in shown)
        assert any(line.startswith(start) for line in written)


def test_a_language_run_has_bits_per_character_in_its_lines(tmp_path):
    options = "--characters 20000 --hidden 8 --embedding 8 --num-epochs 1 --max-batches 2"
    command = [sys.executable, "-m", "gluon_amp", "train-lstm", *options.split()]
    shown = on_a_terminal(*command, "--logging-file", tmp_path / "run.log")
    (head,) = [number for number, line in enumerate(shown) if line.endswith("waited   bits")]
    assert re.fullmatch(r" +0 .* - +0 +\d+ chars/s +\d+ % +\d\.\d{3}", shown[head + 1])
    written = (tmp_path / "run.log").read_text()
    assert re.search(r"^\[Epoch 0\] validation: bits per character=\d", written, re.MULTILINE)


def test_without_a_terminal_the_output_is_that_of_the_file(tmp_path):
    file = tmp_path / "run.log"
    done = subprocess.run(
        [*COMMAND, "--logging-file", file], env=environment(), capture_output=True, encoding="utf-8"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == file.read_text()
    assert re.search(LINES[0], done.stdout)


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


@pytest.mark.parametrize("resume", ["no-such.ckpt", "file.ckpt"])
def test_a_wrong_checkpoint_is_refused_before_anything_is_printed(resume, tmp_path):
    (tmp_path / "file.ckpt").write_bytes(b"nothing")
    done = subprocess.run(
        [*COMMAND, "--resume", str(tmp_path / resume)],
        env=environment(),
        capture_output=True,
        encoding="utf-8",
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and str(tmp_path / resume) in done.stderr
