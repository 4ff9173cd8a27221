"""`yard conformance`: compare the core with recorded decisions of other schedulers."""

from collections import Counter
from pathlib import Path

import click

from yardmaster_cli.errors import BadUsage, Exit
from yardmaster_cli.session import Session, command
from yardmaster_simulation.conformance.formats import FORMATS
from yardmaster_simulation.conformance.scenarios import (
    Outcome,
    UnreadableScenario,
    Verdict,
    check,
    lines,
    read_line,
)


@command("conformance")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
def conformance(session: Session, files: tuple[Path, ...]) -> int:
    """Compare this scheduler with recorded decisions of other schedulers.

    FILES have one scenario per line, as JSON. The command prints each failed or skipped scenario
    with the reason. The exit code is 2 if a line cannot be read, else 1 if a scenario failed.

    Files to try are in the source tree, in tests/conformance/scenarios: 375 decisions of
    Determined, 57 divisions and 231 decisions of KAI-Scheduler, and 8 examples from the
    documentation of Run:ai. docs/explanation/conformance.md describes their formats.
    """
    texts = [(path, _text(path)) for path in files]
    counts: Counter[Outcome] = Counter()
    unread: list[str] = []
    for path, text in texts:
        for number, line in lines(text):
            try:
                verdict = check(read_line(number, line), FORMATS)
            except UnreadableScenario as error:
                unread.append(_shown(f"{path}: {error}"))
                continue
            counts[verdict.outcome] += 1
            if verdict.outcome is not Outcome.PASSED:
                session.out.say(_line(verdict))
    session.out.say(", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome))
    if unread:
        raise BadUsage("\n".join(unread))
    return int(Exit.CHECK_FAILED if counts[Outcome.FAILED] else Exit.DONE)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise BadUsage(f"cannot read {path}: {why}") from None


def _line(verdict: Verdict) -> str:
    return _shown(f"{verdict.outcome} {verdict.scenario}: {verdict.why}")


def _shown(text: str) -> str:
    """Escape the unprintable characters in a name that a scenario chose."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
