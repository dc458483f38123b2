"""The class of a cast block or parameter: a subclass of its own class, with a mixin in front.

Changing the class of one object changes no other object and no class of MXNet, and can be undone.
"""

_cast_classes = {}  # (mixin, class) -> subclass


class Mixin:
    """Base class of the mixins."""

    def __init_subclass__(cls) -> None:
        """Skip the user's `__init_subclass__`, which may register subclasses."""


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
        return [cls, *(c for c in mixin.__mro__ if c not in base.__mro__), *base.__mro__]


def cast_class(mixin: type, base: type) -> type:
    """Return the subclass of `mixin` and `base`; the same one at each call."""
    if (mixin, base) not in _cast_classes:
        metaclass = type("CastClass", (_MixinFirst, type(base)), {})
        members = {"__module__": base.__module__, "__doc__": base.__doc__}
        _cast_classes[mixin, base] = metaclass(base.__name__, (base, mixin), members)
    return _cast_classes[mixin, base]


def stock_class(cast: object) -> type:
    """Return the class that an object had before `cast_class`, or has."""
    cls = type(cast)
    return cls.__bases__[0] if issubclass(cls, Mixin) else cls
