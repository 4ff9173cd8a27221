"""The schemas of the release before, by digest.

Run `python -m tests.support.former_schemas` after a release, when `tests/data/former_version` names
the new one's commit.
"""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
SCHEMAS: Final = "libs/schemas/schemas/events"
KEPT: Final = ROOT / "tests/data/former_schemas.json"
#: Texts that change no reader.
_TEXTS: Final = ("description", "title", "examples")


def digest(schema: str) -> str:
    """The digest of what an event may contain, without its texts."""
    content = json.dumps(_without_texts(json.loads(schema)), sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def _without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_texts(each)
            for name, each in value.items()
            # A field may have such a name too.
            if name not in _TEXTS or isinstance(each, dict)
        }
    return [_without_texts(each) for each in value] if isinstance(value, list) else value


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def main() -> None:
    """Write the digests of the commit that `tests/data/former_version` names."""
    commit = (ROOT / "tests/data/former_version").read_text().strip()
    names = _git("ls-tree", "--name-only", f"{commit}:{SCHEMAS}").split()
    kept = {
        name.removesuffix(".json"): digest(_git("show", f"{commit}:{SCHEMAS}/{name}"))
        for name in names
    }
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
