"""The file that names the hosts of a training, as DeepSpeed's launcher and optimum-habana read it.

optimum-habana says of a wrong line only that the file is wrong, and after the hosts have been asked; here it is the
line, before anything has started.
"""

from __future__ import annotations

import re
from pathlib import Path

from tasks.contract import UserError


def slots(hostfile: Path) -> dict[str, int]:
    """Accelerators by host, in the file's order; the first host is the one that the others meet at.

    Raises:
        UserError: there is no such file, or a line is not ``NAME slots=N``, or a host is named twice.
    """
    place = f"pretraining.gaudi.hostfile: {hostfile}"
    try:
        lines = hostfile.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UserError(f"{place}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{place}: is not text") from None
    found: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        parts = re.fullmatch(r"\s*(\S+)\s+slots=([1-9][0-9]{0,3})\s*", line)
        if parts is None:
            raise UserError(f"{place}, line {number}: {line.strip()[:60]!r} is not NAME slots=N")
        name, count = parts.groups()
        if name in found:
            raise UserError(f"{place}, line {number}: host {name} is named twice")
        found[name] = int(count)
    if not found:
        raise UserError(f"{place}: names no host; write NAME slots=N, a line each")
    return found
