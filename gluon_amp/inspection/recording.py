"""Notes calls of blocks, by a `forward` of their own.

A hook could not change what a block returns, and a cast block runs as Python code while one inside
it has a hook.
"""

from typing import Any, Callable, Iterable, Tuple

from mxnet import gluon

# Gets path, block, arguments and result of a call, and returns what the call returns
Called = Callable[[str, gluon.Block, tuple, Any], Any]


class Recording:
    """Passes each call of blocks, also on symbols, to a function, until it is closed."""

    def __init__(self, blocks: Iterable[Tuple[str, gluon.Block]], called: Called) -> None:
        self._blocks = []
        for path, block in blocks:
            # A block in two places is recorded once.
            if not isinstance(vars(block).get("forward"), Recorded):
                object.__setattr__(block, "forward", Recorded(path, block, called))
                self._blocks.append(block)

    def close(self) -> None:
        """Give the blocks back the `forward` of their classes."""
        for block in self._blocks:
            object.__delattr__(block, "forward")
        self._blocks = []


class _OfClass:
    """The `forward` of a block's class, which a cast may change."""

    def __init__(self, block: gluon.Block) -> None:
        self.block = block

    def __call__(self, *arguments: Any) -> Any:
        return type(self.block).forward(self.block, *arguments)


class Recorded(_OfClass):
    """The `forward` of a block that is recorded."""

    def __init__(self, path: str, block: gluon.Block, called: Called) -> None:
        super().__init__(block)
        self.path, self.called = path, called

    def __call__(self, *arguments: Any) -> Any:
        return self.called(self.path, self.block, arguments, super().__call__(*arguments))

    def __reduce__(self) -> tuple:
        return _OfClass, (self.block,)  # a copy of the block is not recorded
