"""Functions with a docstring, cut out of source files: the form of a code prompt and its answer.

Knows text only, no file and no token.
"""

import ast
import textwrap
import warnings
from collections.abc import Iterator

LONGEST = 2400  # characters of a function
LONGEST_DOCSTRING = 900
Function = ast.FunctionDef | ast.AsyncFunctionDef


def documented_functions(source: str) -> Iterator[str]:
    """The text of each function with a docstring and a body, dedented, without decorators."""
    lines = source.splitlines()
    for node in ast.walk(_parse(source)):
        if isinstance(node, Function) and _is_example(node):
            text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])) + "\n"
            if len(text) <= LONGEST and text.startswith(("def ", "async def ")):
                yield text


def prompt_end(text: str) -> int:
    """Characters up to the end of the line that closes the first docstring; 0 where there is none."""
    closing = text.find('"""\n', text.find('"""') + 3)
    return 0 if closing < 0 else closing + 4


def _parse(source: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in old code
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError):
            return ast.Module([], [])


def _is_example(node: Function) -> bool:
    """Whether it has a docstring of fitting length, no `self`, and a body that returns a value."""
    docstring = ast.get_docstring(node)
    if docstring is None or not 20 <= len(docstring) <= LONGEST_DOCSTRING or len(node.body) < 2:
        return False
    takes_self = bool(node.args.args) and node.args.args[0].arg in ("self", "cls", "mcs")
    returns = any(isinstance(inner, ast.Return) and inner.value for inner in ast.walk(node))
    return returns and not takes_self
