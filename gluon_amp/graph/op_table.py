"""The questions that all rooms ask of operators: the rule of one, and whether it has a word.

`op_groups` lists every operator of MXNet 1.9.1 once, with a kind and a reason. `op_words` has what
else is known of them, and `own_operators` what is known of those of the C++ library. `make
operators` measures against MXNet itself what can be measured.
"""

import re
from collections import defaultdict
from typing import Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from gluon_amp.base import registry
from gluon_amp.graph import own_operators
from gluon_amp.graph.attribute_values import flag
from gluon_amp.graph.op_groups import TABLE
from gluon_amp.graph.op_words import IMPLIED, OF_BACKWARD, OF_UNKNOWN, WORDS

Attributes = Optional[Mapping[str, str]]  # of a node, as in a symbol's JSON; None: of any node


class OpRule(NamedTuple):
    """How the graph pass treats one operator: a kind of `op_groups`, and why, in one line."""

    kind: str
    reason: str
    uncast: Tuple[int, ...] = ()  # positions of the inputs that are never cast


class Nodes(NamedTuple):
    """The nodes of an operator that a name of the table stands for, such as `RNN@gpu`."""

    op: str
    attribute: str = ""  # which has one of the values; '': whatever the attributes
    values: Tuple[str, ...] = ()
    device: str = ""  # '': on all devices

    @classmethod
    def named(cls, name: str) -> "Nodes":
        """Return what a name in the table stands for."""
        found = re.fullmatch(r"(\w+)(?:\[(\w+)=(.+)\])?(?:@(\w+))?", name)
        assert found, f"{name!r} is no name of an operator"
        op, attribute, values, device = found.groups("")
        return cls(op, attribute, tuple(values.split(",")), device)

    def include(self, attrs: Attributes, device: str = "cpu") -> bool:
        """Return whether a node is one of them; without attributes, whether any node is."""
        if self.device not in ("", device) or (self.attribute and attrs is None):
            return False
        if not self.attribute or attrs is None:
            return True
        text = attrs.get(self.attribute, "None")
        as_flag = "None" if text == "None" else str(flag(attrs, self.attribute))
        return text in self.values or as_flag in self.values


class Group(NamedTuple):
    """Operators of one rule."""

    kind: str
    reason: str
    nodes: Tuple[Nodes, ...]

    @property
    def names(self) -> List[str]:
        """The operators that have this rule whatever their attributes."""
        return [nodes.op for nodes in self.nodes if not nodes.attribute]


# By word and operator: nodes that have the word, and the inputs or attributes that it names
Marks = Dict[str, Dict[str, List[Tuple[Nodes, Tuple[str, ...]]]]]


def _read(text: str, marks: Marks) -> Iterator[Nodes]:
    """Yield the names in a part of the table, and add the words before them to `marks`."""
    words: List[Tuple[str, Tuple[str, ...]]] = []
    for token in text.split():
        if token.endswith(":"):
            found = re.findall(r"(\w+)(?:\(([\w,]+)\))?", token)
            words = [(word, tuple(names.split(","))) for word, names in found]
            continue
        nodes = Nodes.named(token)
        for word, arguments in words:
            for each in (word, *IMPLIED.get(word, ())):
                marks.setdefault(each, defaultdict(list))[nodes.op].append((nodes, arguments))
        yield nodes


def _without_comments(text: str) -> str:
    return re.sub(r"#.*", "", text)


def _groups(marks: Marks) -> Iterator[Group]:
    for text in re.split(r"^(?=\w)", _without_comments(TABLE), flags=re.M)[1:]:
        head, _, body = text.partition("\n")
        kind, reason = head.split(": ", 1)
        yield Group(kind, reason, tuple(_read(body, marks)))


_MARKS: Marks = {}
GROUPS = tuple(_groups(_MARKS))
_OWN = (f"{word}: {' '.join(names)}" for word, names in own_operators.WORDS.items())
WORDED = tuple(_read(_without_comments("\n".join([WORDS, *_OWN])), _MARKS))

_RULES: Dict[str, List[Tuple[Nodes, Group]]] = defaultdict(list)
for _group in GROUPS:
    for _nodes in _group.nodes:
        _RULES[_nodes.op].append((_nodes, _group))

_UNKNOWN = OpRule("float32", "not one of MXNet 1.9.1's operators: kept in float32")
_BACKWARD = OpRule("uncast", "part of a gradient, never in a forward graph")


def rule(op: str, attrs: Attributes = None) -> OpRule:
    """Return the rule for an operator or its alias; its node's attributes may change the rule.

    An operator that MXNet 1.9.1 does not have, such as a library's, stays in float32.
    """
    name = registry.canonical(op)
    if name.startswith("_backward_"):
        return _BACKWARD
    found = [(bool(n.attribute), group) for n, group in _RULES.get(name, ()) if n.include(attrs)]
    if not found:
        return _UNKNOWN
    _, group = max(found, key=lambda pair: pair[0])  # first that of nodes with these attributes
    return OpRule(group.kind, group.reason, inputs("uncast", name))


def arguments(
    word: str, op: str, attrs: Attributes = None, device: str = "cpu"
) -> Optional[Tuple[str, ...]]:
    """Return the inputs or attributes that a word of an operator names; None if it has it not.

    `op` is an operator or its alias, `device` a `Context.device_type`.
    """
    name, marks = registry.canonical(op), _MARKS[word]
    found = [texts for nodes, texts in marks.get(name, ()) if nodes.include(attrs, device)]
    if found:
        return tuple(text for texts in found for text in texts if text)
    words = OF_BACKWARD if name.startswith("_backward_") else () if _is_listed(name) else OF_UNKNOWN
    return () if word in words else None


def has(word: str, op: str, attrs: Attributes = None, device: str = "cpu") -> bool:
    """Return whether an operator has a word of `op_words`; arguments as for `arguments`."""
    return arguments(word, op, attrs, device) is not None


def inputs(word: str, op: str, attrs: Attributes = None) -> Tuple[int, ...]:
    """Return the positions of the inputs that a word of an operator names; () if it has it not."""
    return tuple(sorted(map(int, arguments(word, op, attrs) or ())))


def named(word: str) -> FrozenSet[str]:
    """Return the operators of which all nodes have a word, on a CPU."""
    return frozenset(op for op in _MARKS[word] if has(word, op))


def is_known(op: str) -> bool:
    """Return whether MXNet 1.9.1 has an operator of this name."""
    return registry.canonical(op) in _RULES or op.startswith("_backward_")


def names() -> List[str]:
    """Return the names of all operators that a forward graph may have, aliases included."""
    aliases = (name for name in registry.names() if name not in _RULES)
    listed = (name for group in GROUPS for name in group.names)
    return [*(name for name in aliases if registry.canonical(name) in _RULES), *listed]


def _is_listed(name: str) -> bool:
    """Return whether a name is one of the table, of our own operators, or of a variable."""
    return name in _RULES or own_operators.is_own(name) or name == "null"
