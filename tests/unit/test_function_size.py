"""No function has more than 60 lines or 20 branches, unless a comment above it says why.

The comment is the line above the function and its decorators: `# size: REASON`. Lines of code
count, without the docstring, comments and empty lines. Branches are loops, conditions, handlers of
exceptions and cases. Functions defined inside count for themselves.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINES = 60
BRANCHES = 20
REASON = "# size: "

Function = ast.FunctionDef | ast.AsyncFunctionDef
BRANCH = (
    *(ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.comprehension),
    *(ast.ExceptHandler, ast.match_case),
)


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def lines_of_code(function: Function, source: list[str]) -> int:
    assert function.end_lineno is not None
    counted = set(range(function.lineno, function.end_lineno + 1))
    inside: list[ast.stmt] = [node for node in functions(function) if node is not function]
    if ast.get_docstring(function) is not None:
        inside.append(function.body[0])
    for node in inside:
        assert node.end_lineno is not None
        counted -= set(range(node.lineno, node.end_lineno + 1))
    lines = (source[number - 1].strip() for number in counted)
    return sum(bool(line) and not line.startswith("#") for line in lines)


def branches(node: ast.AST) -> int:
    return sum(
        isinstance(child, BRANCH) + branches(child)
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, Function)
    )


def has_reason(function: Function, source: list[str]) -> bool:
    first = min(node.lineno for node in (function, *function.decorator_list))
    above = source[first - 2].strip() if first > 1 else ""
    return above.startswith(REASON)


def too_large(text: str) -> dict[str, tuple[int, int]]:
    """The lines and branches of each function of a module above a limit, by its name."""
    source = text.splitlines()
    sizes = {
        f"{function.name}:{function.lineno}": (lines_of_code(function, source), branches(function))
        for function in functions(ast.parse(text))
        if not has_reason(function, source)
    }
    return {name: size for name, size in sizes.items() if size[0] > LINES or size[1] > BRANCHES}


def test_no_function_is_too_large_without_a_reason() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{name}": size
        for part in ("libs", "services", "cli")
        for path in sorted((ROOT / part).rglob("*.py"))
        for name, size in too_large(path.read_text()).items()
    }
    assert found == {}


def test_docstrings_comments_and_functions_inside_do_not_count() -> None:
    body = "    # a comment\n\n    x = 1\n"
    assert too_large(f'def f():\n    """One.\n\n    Two.\n    """\n{body * 59}') == {}
    assert too_large(f'def f():\n    """One."""\n{body * 60}') == {"f:1": (61, 0)}
    inside = "def f():\n    def g():\n" + "        if x: pass\n" * 20
    assert too_large(f"{inside}    if x: pass\n{body * 50}") == {}


def test_a_comment_above_the_decorators_gives_the_reason() -> None:
    long = "@cache\ndef f():\n" + "    if x: pass\n" * 21
    assert too_large(long) == {"f:2": (22, 21)}
    assert too_large(f"# size: a table of cases\n{long}") == {}
