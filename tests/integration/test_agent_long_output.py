"""Long output of a container, while agents and the engine restart; the engine is the test's own."""

import asyncio
from pathlib import Path

import pytest

from tests.support.docker_engine import IMAGE, OwnEngine, until_there
from tests.support.half_open import collect_half_open
from tests.support.node_agent import AgentCell
from yardmaster_node_agent.settings import Settings
from yardmaster_schemas.events.details import Run

pytestmark = pytest.mark.timeout(240)

#: Lines of 8 KiB: 37 MiB, of which the engine keeps 8 MiB in each file.
LINES = 4800
BODY = "x" * (8192 - len("0000 \n"))
#: Numbered lines, about 1 MiB/s. Each hundredth makes a file; a stop writes the last line's number.
WRITES = f"""
trap 'echo "$n" > stopped; exit 0' TERM
n=0
while :; do
  n=$((n + 1))
  printf '%04d %s\n' "$n" {BODY}
  case $n in *00) : > "$n";; esac
  [ $((n % 13)) -ne 0 ] || sleep 0.1
done
"""


async def test_output_is_exact_across_rotations_and_restarts_of_agent_and_engine(
    docker_engine: OwnEngine, tmp_path: Path
) -> None:
    """The engine ends the container when it stops itself; its last output is read after that."""
    cell = await AgentCell(tmp_path / "n1").open()
    cell.configure(
        executor="auto",
        engine_socket=docker_engine.socket,
        output_limit_bytes=2**30,
        tick_s=Settings(node="n1", data_dir=tmp_path).tick_s,
    )
    async with cell.agent():
        task = await cell.allocate(Run(script=WRITES, image=IMAGE, working_dir="."))
        work = cell.data_dir / "containers" / f"{task}.1.0" / "work"
        await until_there(work / "1500")
    await until_there(work / "2100")
    async with cell.agent():
        await until_there(work / "3300")
    await until_there(work / "3600")
    async with cell.agent():
        await until_there(work / str(LINES))
        assert await asyncio.to_thread(docker_engine.log_files) > LINES * len(BODY) // 2**23
        await asyncio.to_thread(docker_engine.stop)
        await asyncio.to_thread(docker_engine.start)
        assert (await cell.exit_of(task)).engine_restarted
        await cell.ended(task)
    last = int((work / "stopped").read_text())
    assert last >= LINES
    lines = (await cell.output(task)).splitlines(keepends=True)
    assert [line[:4] for line in lines] == [f"{number + 1:04d}" for number in range(last)]
    assert {line[4:] for line in lines} == {f" {BODY}\n"}
    await cell.ports().executor.sweep()
    await cell.assert_honest()
    await cell.log.close()
    collect_half_open()
