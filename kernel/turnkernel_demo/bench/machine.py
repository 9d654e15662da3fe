"""Where and with what was measured. Reads what the system says of itself."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

__all__ = ["machine"]

_PACKAGES = ("turnkernel", "trio", "httpx", "orjson", "attrs", "cattrs")


def machine() -> dict[str, object]:
    """Date, processor, system and versions; nothing that names the machine or its user."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "processor": _processor(),
        "processors": os.cpu_count(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
