"""Check the hash chain of a log without any of Yardmaster's code.

    yard log dump --raw | python3 check_chain.py

It reads the bytes of each record, computes their digests, and compares them with what the commits
of quota and scheduler name: the commit before, the inputs and the decisions. The exit code is 1 if
one differs. It does not recompute decisions: `yard replay verify` does.
"""

import base64
import hashlib
import json
import sys
from collections import defaultdict

TOPICS = ("admissions", "decisions")


def digest_of(raw):
    """SHA-256 over key, header names and contents, and value, each after its length (8 bytes)."""
    parts = [base64.b64decode(raw["key"])]
    for name, content in raw["headers"]:
        parts += [name.encode(), base64.b64decode(content)]
    if raw["value"] is not None:
        parts.append(base64.b64decode(raw["value"]))
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()


def digest_of_range(digests):
    """SHA-256 over the digests of consecutive records."""
    return hashlib.sha256(b"".join(digests)).hexdigest()


def check(topic, log):
    """Return the number of cycles of a topic and the head of its chain.

    Raises SystemExit: a digest differs.
    """
    head, term, owner, decided, cycles = "0" * 64, 0, None, [], 0
    for offset, (raw, digest) in sorted(log[topic].items()):
        record = json.loads(base64.b64decode(raw["value"]))
        if record["type"] == "TermStarted" and record["epoch"] > term:
            term, owner, decided = record["epoch"], record["source"], []
            head = hashlib.sha256(bytes.fromhex(head) + digest).hexdigest()
        elif (record["epoch"], record["source"]) != (term, owner):
            continue  # a late record of a fenced leader: no reader counts it
        elif record["type"] != "CycleCommitted":
            decided.append(digest)
        else:
            commit = record["data"]
            where = f"{topic} offset {offset}, cycle {commit['cycle']}"
            if commit["prev"] != head:
                raise SystemExit(f"{where}: prev is not the digest of the commit before")
            if commit["decisions_digest"] != digest_of_range(decided):
                raise SystemExit(f"{where}: the digest of its decisions differs")
            for taken in commit["inputs"]:
                given = log[taken["topic"]]
                offsets = range(taken["first"], taken["next"])
                found = [given[each][1] for each in offsets if each in given]
                if len(found) < len(offsets) or digest_of_range(found) != taken["digest"]:
                    raise SystemExit(f"{where}: the digest of its input {taken['topic']} differs")
            head, decided, cycles = digest.hex(), [], cycles + 1
    return cycles, head


def main():
    """Read the log from standard input and check both topics."""
    log = defaultdict(dict)
    for line in sys.stdin:
        row = json.loads(line)
        log[row["topic"]][row["offset"]] = row["raw"], digest_of(row["raw"])
    for topic in TOPICS:
        cycles, head = check(topic, log)
        print(f"{topic}: {cycles} cycles, head {head}")


main()
