"""One command in a process of its own, and what it took."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORKERS = HERE / "workers"


class FailedError(Exception):
    """The command did not end well; the message is the last line it said."""


@dataclass(frozen=True)
class Took:
    """CPU seconds are user and system time of the process and its children; peak memory in MiB.

    says: the JSON object in the last line of its output, if it printed one.
    """

    cpu: float
    wall: float
    peak: float
    says: dict[str, Any] = field(default_factory=dict)


def run(command: Sequence[str], folder: Path | None = None, **environment: str) -> Took:
    """Run to the end; raises `FailedError`."""
    env = {**os.environ, "PYTHONHASHSEED": "0", **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # as where it is not set: sources are compiled once
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begin = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=err, env=env, cwd=folder)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if process.returncode:
            raise FailedError(_last_line(err.read()) or f"exit code {process.returncode}")
        return Took(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024, _object(out.read()))


def _last_line(text: bytes) -> str:
    return (text.decode(errors="replace").strip().splitlines() or [""])[-1]


def _object(text: bytes) -> dict[str, Any]:
    line = _last_line(text)
    return json.loads(line) if line.startswith("{") else {}


@dataclass(frozen=True)
class Python:
    """An interpreter and what is set in its environment."""

    interpreter: str
    environment: dict[str, str] = field(default_factory=dict)

    def worker(self, name: str, **arguments: Any) -> Took:
        """One of the scripts in ``workers``, told its arguments as JSON."""
        script = str(WORKERS / f"{name}.py")
        return run([self.interpreter, script, json.dumps(arguments)], **self.environment)

    def missing(self, module: str) -> str | None:
        """Why a module cannot be imported, or None."""
        try:
            run([self.interpreter, "-c", f"import {module}"], **self.environment)
        except FailedError as error:
            return str(error)
        except OSError as error:
            return f"{self.interpreter}: {error.strerror}"
        return None

    def version(self, *packages: str) -> str:
        """Versions of Python and of the packages that are there."""
        script = (
            "import json, platform, importlib.metadata as m\n"
            f"there = {{d.name.lower() for d in m.distributions() if d.name}} & {set(packages)!r}\n"
            "print(json.dumps({'text': ', '.join(['Python ' + platform.python_version(),"
            " *(f'{name} {m.version(name)}' for name in sorted(there))])}))"
        )
        return str(run([self.interpreter, "-c", script], **self.environment).says["text"])


def kvsim_python(bytecode: Path) -> Python:
    """This interpreter with this checkout; compiled Python goes to a folder, not between the sources."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return Python(sys.executable, {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(bytecode)})
