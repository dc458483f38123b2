"""Looks at a training every so many steps: what other formats would do to each layer."""

from pathlib import Path
from typing import List, Optional, Sequence, Union

from gluon_amp.base.formats import FORMATS
from gluon_amp.base.messages import did_you_mean
from gluon_amp.inspection import heat_map
from gluon_amp.inspection.look import Row
from gluon_amp.inspection.look_files import LookFiles, read
from gluon_amp.inspection.sampler import Sampler
from gluon_amp.trainer.loss_scale import whole_number
from gluon_amp.trainer.scaled_trainer import check_scaled

from mxnet import gluon


class Watch:
    """What `watch` returns; it looks until it is closed, or its `with` block ends.

    `rows` has the `Row` of each tensor at all looks so far, those in the file of an earlier run
    included.
    """

    def __init__(
        self,
        net: gluon.Block,
        trainer: gluon.Trainer,
        every: int,
        what_if: Sequence[str],
        outputs: LookFiles,
        rows: List[Row],
    ) -> None:
        self.rows = rows
        self._trainer, self._every, self._formats = trainer, every, tuple(what_if)
        self._sampler, self._outputs = Sampler(net, trainer, self._formats), outputs
        trainer.step_listeners.append(self._before_update)
        self._begin_if_due(self._steps())

    def __repr__(self) -> str:
        looks = len({row.step for row in self.rows})
        return f"Watch(every={self._every}, what_if={self._formats}, {looks} looks)"

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop looking, and close the files; `rows` and `plot` stay."""
        if self._before_update in self._trainer.step_listeners:
            self._trainer.step_listeners.remove(self._before_update)
        self._sampler.end()
        self._outputs.close()

    def plot(self, path: Union[str, Path], what_if: Optional[str] = None, title: str = "") -> None:
        """Draw a heat map, layers by looks, with a panel for each direction.

        `path` has a suffix that matplotlib knows, such as .png or .svg. `what_if` is the format; by
        default the first one that is watched. `title` says what was trained. Raise `UsageError` if
        matplotlib is not installed, there was no look yet, or the file cannot be written, and
        `ValueError` for a format that is not watched.
        """
        name = self._formats[0] if what_if is None else what_if
        if name not in self._formats:
            raise ValueError(
                f"plot() got what_if={name!r}, expected one of {', '.join(self._formats)}, which "
                "are watched."
            )
        heat_map.draw(self.rows, name, Path(path), title)

    def _steps(self) -> int:
        """Return the number of steps so far, which a checkpoint keeps."""
        return self._trainer.optimizer.num_update + self._trainer.skips.total

    def _before_update(self) -> None:
        step = self._steps()
        if self._sampler.is_recording:
            calls = self._sampler.end()
            if step % self._every == 0:
                rows = self._sampler.rows(step, calls)
                self.rows += rows
                self._outputs.write(rows)
        self._begin_if_due(step + 1)

    def _begin_if_due(self, step: int) -> None:
        if step % self._every == 0:
            self._sampler.begin()


def watch(
    net: gluon.Block,
    trainer: gluon.Trainer,
    every: int = 100,
    what_if: Sequence[str] = ("float16", "bfloat16", "float8_e4m3"),
    file: Union[str, Path, None] = None,
    tensorboard: Union[str, Path, None] = None,
) -> Watch:
    """Look at every layer once in many steps: would other formats under- or overflow?

    A look is part of the steps 0, `every`, 2 `every`, and so on. It reads the gradients of the
    parameters before the update, runs the recorded forward pass once more for the outputs of the
    layers and the gradients of their data, and rounds all of them to each format. No number of the
    training changes. Dropout drops nothing in the second pass. Between looks, a step compares
    integers and nothing else.

    Activations are those of the first device; of a large one, about a million elements are read.
    Gradients carry the present loss scale, which each row names. In formats of 8 bits, a tensor is
    brought to the end of the range by a power of two, which each row names too.

    Parameters
    ----------
    net : Block
        Cast or not, hybridized or not. A block that cannot be traced, or that draws random numbers
        in other ways than dropout, has rows of its parameters only; a warning names it.
    trainer : Trainer
        That of the net's parameters; load its states first.
    every : int
        Steps between looks, skipped ones included.
    what_if : sequence of str
        Names of `gluon_amp.base.formats.FORMATS`.
    file : str or Path, optional
        A line of JSON is appended for each row. The rows of an earlier run of the same training are
        read from it. If it cannot be written any more, a warning says so and training continues.
    tensorboard : str or Path, optional
        The folder of TensorBoard's event files; needs the extra `tensorboard`.

    Returns
    -------
    Watch
        `.rows`, `.plot(path)`, `.close()`.

    Raises
    ------
    TypeError
        The trainer is not one of this package.
    ValueError
        An unknown format, or `every` is no whole number from 1.
    UsageError
        The file cannot be opened or holds something else, or tensorboardX is not installed.

    Examples
    --------
    >>> import gluon_amp as amp, mxnet as mx
    >>> net = mx.gluon.nn.Dense(1, in_units=2, use_bias=False)
    >>> net.initialize()
    >>> trainer = amp.Trainer(net.collect_params(), 'sgd', loss_scale=1)
    >>> with amp.watch(net, trainer, every=10, what_if=['float16']) as watch:
    ...     with mx.autograd.record():
    ...         loss = net(mx.nd.array([[1, 2**-30]]))  # the gradient of the weight
    ...     trainer.backward(loss)
    ...     report = trainer.step(1)
    >>> row = watch.rows[0]
    >>> row.direction, row.tensor, row.formats['float16'].underflow
    ('weight_gradient', 'weight', 0.5)
    """
    check_scaled(trainer, "watch")
    every = whole_number("every", every, 1)
    for name in what_if if not isinstance(what_if, str) else [what_if]:
        if name not in FORMATS or isinstance(what_if, str):
            raise ValueError(
                f"watch() got what_if={what_if!r}{did_you_mean(str(name), FORMATS)}: expected a "
                f"list of formats among {', '.join(FORMATS)}."
            )
    if not what_if:
        raise ValueError("watch() got no format in what_if: name at least one.")
    rows = read(Path(file)) if file is not None and Path(file).is_file() else []
    return Watch(net, trainer, every, what_if, LookFiles(file, tensorboard), rows)
