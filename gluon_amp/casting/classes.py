"""The class of an object that a cast changed: a subclass of its own class, with a mixin in front.

Changing the class of one object changes no other object and no class of MXNet, and can be undone.
An object has at most one mixin. A copy by `copy` or `pickle` is a copy of the stock object, whose
class is changed in the same way.
"""

import contextlib
from typing import Any, Callable, Dict, Iterable, Iterator, SupportsIndex, Tuple

_cast_classes: Dict[Tuple[type, type], type] = {}  # by mixin and stock class

STOCK: Any = object  # to a type checker, a mixin has all attributes of the class that it changes


class Mixin(STOCK):
    """Base class of the mixins."""

    def __init_subclass__(cls) -> None:
        """Skip the user's `__init_subclass__`, which may register subclasses."""

    def _to_copy(self) -> Tuple[dict, Any]:
        """Return the attributes of a stock copy, and what `_copied` makes it a cast one with."""
        return self.__dict__, None

    def _copied(self, state: Any) -> None:
        """Complete a copy, which has these attributes and this class."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple:
        attributes, state = self._to_copy()
        stock = object.__new__(stock_class(self))
        vars(stock).update(attributes)
        make, args, *rest = stock.__reduce_ex__(protocol)
        return _new, (type(self).__bases__[1], make, args), (rest[0] if rest else None, state)

    def __setstate__(self, states: Tuple[Any, Any]) -> None:
        attributes, state = states
        if hasattr(stock_class(self), "__setstate__"):
            super().__setstate__(attributes)
        else:
            self.__dict__.update(attributes or {})
        self._copied(state)


def _new(mixin: type, make: Callable, args: tuple) -> Any:
    made = make(*args)
    change_class(made, mixin)
    return made


class _MixinFirst(type):
    """The metaclass of cast classes, whose second base comes first in the method resolution order.

    An object can get a class whose first base is the object's class. Another first base has another
    layout in C, if the class has a base without `__dict__`, such as `abc.ABC`.

    Code that creates another object of an object's class, as a container does when it is sliced,
    gets one of the class without the mixin, which has no state of a cast.
    """

    def __call__(cls, *args, **kwargs):
        return cls.__bases__[0](*args, **kwargs)

    def mro(cls):
        base, mixin = cls.__bases__
        if isinstance(mixin, _MixinFirst):  # `init_trainer` makes a subclass of a cast class
            return super().mro()
        return [cls, *(c for c in mixin.__mro__ if c not in base.__mro__), *base.__mro__]


def change_class(one: Any, mixin: type) -> None:
    """Put a mixin in front of the stock class of an object; it is the same class at each call."""
    base = stock_class(one)
    if (mixin, base) not in _cast_classes:
        metaclass = type("CastClass", (_MixinFirst, type(base)), {})
        members = {"__module__": base.__module__, "__doc__": base.__doc__}
        _cast_classes[mixin, base] = metaclass(base.__name__, (base, mixin), members)
    one.__class__ = _cast_classes[mixin, base]


def restore_class(one: Any) -> None:
    """Undo `change_class`."""
    one.__class__ = stock_class(one)


def stock_class(one: Any) -> Any:
    """Return the class that an object had before `change_class`, or has."""
    cls = type(one)
    return cls.__bases__[0] if issubclass(cls, Mixin) else cls


@contextlib.contextmanager
def as_stock(objects: Iterable[Any]) -> Iterator[None]:
    """Restore the classes of objects within this context."""
    classes = [(one, type(one)) for one in objects]
    try:
        for one, _ in classes:
            restore_class(one)
        yield
    finally:
        for one, cls in classes:
            one.__class__ = cls
