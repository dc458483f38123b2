"""Files with a correct digest that gluon_amp would not write: anybody can compute a digest."""

import copy
import hashlib
import io
import json
import zipfile

DEEP = []
for _ in range(80):
    DEEP = [DEEP]

NUMBERS = (None, True, False, 0, -1, 1.5, 2**70, -(2**70), 10**400, float("nan"), float("inf"))
TEXTS = ("", "x", "two\nlines", "\ud800", "float32", "x" * 5000)
CONTAINERS = ([], {}, [None], [[]], DEEP)
PACKED_DICTS = (
    {"dict": 3},
    {"dict": [1]},
    {"dict": [[1, 2, 3]]},
    {"dict": [[{"dict": []}, 1]]},
    {"dict": [[1, 2], [1, 3]]},
    {"dict": []},
)
PACKED = (
    {"tuple": 3},
    {"tuple": []},
    {"array": "nothing"},
    {"array": 3},
    {"array": None},
    {"scalar": []},
    {"scalar": "nothing"},
    {"call": "os.system"},
    {"dict": [], "tuple": []},
    {"array": {}},
    {"__class__": 1},
)
HOSTILE = (*NUMBERS, *TEXTS, *CONTAINERS, *PACKED_DICTS, *PACKED)


def signed(data: bytes) -> bytes:
    """Return bytes with their correct digest at the end."""
    return data[:-64] + hashlib.sha256(data[:-64]).hexdigest().encode()


def members(data: bytes) -> dict:
    """Return names and contents of an archive, the header first."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def archive(contents, compression=zipfile.ZIP_STORED) -> bytes:
    """Return an archive of these (name, content) pairs."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, content in contents:
            file.writestr(zipfile.ZipInfo(name), content, compression)
        file.comment = b" " * 64
    return signed(buffer.getvalue())


def with_header(data: bytes, header) -> bytes:
    """Return an archive with another header, JSON or text."""
    (name, _), *arrays = members(data).items()
    text = header if isinstance(header, (str, bytes)) else json.dumps(header)
    return archive([(name, text), *arrays])


def header_of(data: bytes) -> dict:
    """Return the header of an archive."""
    return json.loads(next(iter(members(data).values())))


def places(node):
    """Yield all (container, key) pairs in nested lists and dicts."""
    keys = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in list(keys):
        yield node, key
        yield from places(node[key])


def mutations(header: dict, random, count: int):
    """Yield copies of a header, each changed in one place."""
    for _ in range(count):
        changed = copy.deepcopy(header)
        all_places = list(places(changed))
        node, key = all_places[random.randint(len(all_places))]
        way = random.randint(6)
        if way == 0:
            del node[key]
        elif way == 1 and isinstance(node, list):
            node.append(copy.deepcopy(node[key]))
        elif way == 2:
            other, its_key = all_places[random.randint(len(all_places))]
            node[key] = copy.deepcopy(other[its_key])
        elif way == 3 and isinstance(node, dict):
            node[f"{key}."] = node.pop(key)
        else:
            node[key] = copy.deepcopy(HOSTILE[random.randint(len(HOSTILE))])
        yield changed
