"""Files of trainer states: archives of numbers, and those of stock MXNet.

Reading a file executes nothing: see `gluon_amp.files.archive` and `gluon_amp.files.pickles`.
"""

from gluon_amp.files import archive, atomic, pickles
from gluon_amp.files.schema import ANYTHING, check
from gluon_amp.trainer import states, stock_states

from mxnet import gluon

FILE = archive.Kind(
    states.FORMAT,
    states.VERSION,
    header="gluon_amp_states.json",
    foreign="is truncated or was not written by a Trainer's save_states, gluon_amp's or stock "
    "MXNet's: load another file, and a checkpoint with amp.load_checkpoint",
)


def write(path: str, saved: dict) -> None:
    """Write the result of `states.collect`; a crash leaves the old file or the complete new one."""
    arrays: archive.Arrays = {}
    header = {"trainer": archive.pack(saved, arrays, "trainer")}
    atomic.write(path, archive.encode(FILE, header, arrays))


def read(path: str, trainer: gluon.Trainer) -> dict:
    """Return the states in a file, as from `states.collect`; `states.restore` checks if they fit.

    What a file of stock MXNet does not hold, such as the loss scale, is the trainer's own. Raise
    `ValueError` if the file is truncated, damaged, forged or of another kind.
    """
    with open(path, "rb") as file:
        start = file.read(len(pickles.MAGIC))
        if start == pickles.MAGIC:
            return stock_states.convert(path, start + file.read(), trainer)
    header, arrays = archive.read(FILE, path)
    try:
        check(header, {"trainer": ANYTHING}, "the header")
        saved = archive.unpack(header["trainer"], arrays)
        check(saved, states.SCHEMA, "the state")
    except ValueError as error:
        raise archive.malformed(path, error) from None
    return saved
