"""Looks at a training every so many steps: what other formats would do to each layer."""

import logging
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Set, Tuple, Union

from gluon_amp.base.formats import FORMATS
from gluon_amp.base.messages import did_you_mean, reason_of
from gluon_amp.casting.binding import binding_of, running_blocks
from gluon_amp.inspection import heat_map
from gluon_amp.inspection.look import (
    Row,
    activations,
    graph_without_randomness,
    weight_gradients,
)
from gluon_amp.inspection.look_files import LookFiles, read
from gluon_amp.inspection.operators import contains_cast
from gluon_amp.inspection.recording import Recording
from gluon_amp.inspection.replay import Call, record
from gluon_amp.inspection.unchanged import drop_errors
from gluon_amp.trainer.loss_scale import whole_number
from gluon_amp.trainer.scaled_steps import check_scaled

import mxnet as mx
from mxnet import autograd, gluon

logger = logging.getLogger("gluon_amp")


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
        self._net, self._trainer = net, trainer
        self._every, self._formats = every, tuple(what_if)
        self._outputs = outputs
        self._calls: List[Call] = []
        self._recording: Optional[Recording] = None
        self._python: Set[gluon.Block] = set()  # blocks without a graph that can be repeated
        self._warned: Set[str] = set()  # their paths
        trainer.step_listeners.append(self._before_update)
        self._record_if_due(self._steps())

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
        self._end_recording()
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
        if self._recording is not None:
            calls = self._end_recording()
            if step % self._every == 0:
                self._look(step, calls)
        self._record_if_due(step + 1)

    def _record_if_due(self, step: int) -> None:
        if step % self._every == 0:
            blocks = self._blocks(self._net)
            self._recording = record(blocks, self._calls, graph_without_randomness)

    def _blocks(self, net: gluon.Block, path: str = "") -> Iterator[Tuple[str, gluon.Block]]:
        """Yield path and block of the outermost blocks that can be run again, as far as known."""
        for at, block in running_blocks(net, path):
            if block in self._python or (contains_cast(block) and not block._active):
                for name, child in block._children.items():
                    yield from self._blocks(child, f"{at}.{name}" if at else name)
            elif not getattr(binding_of(block), "untraceable", None):
                yield at, block

    def _end_recording(self) -> List[Call]:
        if self._recording is not None:
            self._recording.close()
        calls, self._calls, self._recording = self._calls, [], None
        return calls

    def _look(self, step: int, calls: List[Call]) -> None:
        trainer = self._trainer
        scale = trainer.used_scale()
        calls = [call for call in calls if call.device == trainer.contexts[0]]
        # Those that a backward pass has reached
        reached = [c for c in calls if any(p is not None and p._fresh_grad for p in c.probes)]
        repeatable = [call for call in reached if call.graph]
        for call in reached:
            if not call.graph:
                self._warn(call, "it cannot be traced, or draws random numbers")
        with autograd.pause():
            rows = [row for _, row in weight_gradients(self._net, self._formats, scale, step)]
            try:
                rows += activations(self._net, repeatable, self._formats, scale, step)
            except mx.MXNetError as error:  # a look must not end a training
                drop_errors()
                self._warn(repeatable[0], reason_of(error))
        self.rows += rows
        self._outputs.write(rows)

    def _warn(self, call: Call, reason: str) -> None:
        if binding_of(call.block) is None and not call.block._active:
            self._python.add(call.block)  # which calls its children with arrays
        if call.path not in self._warned:
            self._warned.add(call.path)
            logger.warning(
                "watch() sees only the gradients of the parameters of block %s, which cannot be "
                "run again (%s), and in later looks what its children compute, unless it is cast "
                "or hybridized.",
                repr(call.path) if call.path else "'' (the net itself)",
                reason,
            )


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
