"""Locks of files."""

import errno
import fcntl

from gluon_amp.base.locks import lock


def test_one_holder(tmp_path):
    path = tmp_path / "lock"
    with open(path, "w") as first, open(path, "w") as second:  # each has a lock of its own
        assert lock(first) is True and lock(first.fileno()) is True
        assert lock(second) is False
        first.close()
        assert lock(second, wait=True) is True


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def fail(file, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    assert lock(0) is None
