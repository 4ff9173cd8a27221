"""`yard conformance`: scenarios of other schedulers, held against the core that decides here."""

from collections import Counter
from pathlib import Path

import click

from yardmaster.cli.errors import BadUsage, Exit
from yardmaster.cli.session import Session, command
from yardmaster.simulation.conformance.formats import FORMATS
from yardmaster.simulation.conformance.scenarios import (
    Outcome,
    UnreadableScenario,
    Verdict,
    check,
    read,
)


@command("conformance")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def conformance(session: Session, files: tuple[Path, ...]) -> int:
    """Run scenario FILEs, one JSON object a line, through the scheduler's own core.

    Says what failed and what was skipped, and why; exit 1 when something failed.
    """
    texts = [(path, _text(path)) for path in files]
    counts: Counter[Outcome] = Counter()
    for path, text in texts:
        try:
            for scenario in read(text):
                verdict = check(scenario, FORMATS)
                counts[verdict.outcome] += 1
                if verdict.outcome is not Outcome.PASSED:
                    session.out.say(_line(verdict))
        except UnreadableScenario as error:
            raise BadUsage(f"{path}: {error}") from None
    session.out.say(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome))
    return int(Exit.CHECK_FAILED if counts[Outcome.FAILED] else Exit.DONE)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadUsage(f"cannot read {path}: {error}") from None


def _line(verdict: Verdict) -> str:
    return f"{verdict.outcome} {verdict.scenario}: {verdict.why}"
