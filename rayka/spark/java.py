"""The machine's Java: Spark 4.2 runs on 17 or newer, and RayDP starts its own JVM from the PATH.

PySpark takes `JAVA_HOME/bin/java` when JAVA_HOME is set, RayDP always takes `java` from the PATH; both must do.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

from rayka.errors import UnavailableError

JAVA_VERSION_MIN = 17
_NEED = f"Spark needs Java {JAVA_VERSION_MIN} or newer"
HOW_TO_GET_JAVA = (
    "install it (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; Fedora: dnf install java-17-openjdk-headless;"
    " macOS: brew install openjdk@17) and put its bin directory first on the PATH"
)
_ANSWER_TIMEOUT_SECONDS = 30


def require_java() -> int:
    """The major version of the oldest Java that Spark would use. Raises UnavailableError that says how to get one."""
    versions = {program: java_version(program) for program in _java_programs()}
    if not versions:
        raise UnavailableError(f"there is no Java; {_NEED}: {HOW_TO_GET_JAVA}")
    oldest = min(versions, key=lambda program: versions[program] or 0)
    version = versions[oldest]
    if version is None:
        raise UnavailableError(f"{oldest} does not say its version; {_NEED}: {HOW_TO_GET_JAVA}")
    if version < JAVA_VERSION_MIN:
        raise UnavailableError(f"{oldest} is Java {version}; {_NEED}: {HOW_TO_GET_JAVA}")
    return version


def java_version(program: str) -> int | None:
    """The major version that a `java` program reports, or None when it does not run or says nothing of the kind."""
    try:
        answer = subprocess.run(
            [program, "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_java_version(answer.stderr + answer.stdout)


def parse_java_version(text: str) -> int | None:
    """17 from `openjdk version "17.0.15"`, 8 from `java version "1.8.0_402"`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def _java_programs() -> list[str]:
    on_path = shutil.which("java")
    home = os.environ.get("JAVA_HOME")
    programs = [str(Path(home) / "bin" / "java")] if home else []
    return programs + ([on_path] if on_path else [])
