"""The results of all runs, in one JSON file beside the table."""

import json
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from experiments.clients.run import Job
from gluon_amp.base.messages import UsageError
from gluon_amp.files import atomic

KEY = ("case", "policy", "seed", "steps")


class Records:
    """Finished runs, each of which is written to the file at once."""

    def __init__(self, path: Path):
        self._path = path
        self._runs: Dict[Tuple, Dict[str, Any]] = {}
        if path.exists():
            try:
                self._runs = {_key(run): run for run in json.loads(path.read_text())["runs"]}
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"{path} is not a file of results: {error!r}.") from None

    def find(self, job: Job) -> Optional[Dict[str, Any]]:
        """Return the record of a run, or None if there is none of this very program."""
        record = self._runs.get(_key(job.key))
        return record if record and record["digest"] == job.key["digest"] else None

    def add(self, record: Dict[str, Any]) -> None:
        """Add a record, or replace the one of the same run, and write the file."""
        self._runs[_key(record)] = record
        lines = ",\n".join(json.dumps(run) for _, run in sorted(self._runs.items()))
        atomic.write(self._path, f'{{"runs": [\n{lines}\n]}}\n'.encode())


def _key(record: Dict[str, Any]) -> Tuple:
    return tuple(record[name] for name in KEY)
