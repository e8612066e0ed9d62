"""Every numbered equation has one home, and the index knows it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOME = ROOT / "src" / "lbq" / "functional"


def equation(function):
    """The number at the end of a docstring's first line, if there is one."""
    first_line, *_ = (ast.get_docstring(function) or "").splitlines() or [""]
    match = re.search(r"\(Eq\. (\d+)\)\.$", first_line)
    return int(match[1]) if match else None


def homes():
    found = {}
    for path in sorted(HOME.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and (number := equation(node)):
                found.setdefault(number, []).append(f"{path.stem}.{node.name}")
    return found


def test_all_nineteen_equations_have_a_home():
    assert sorted(homes()) == list(range(1, 20))


def test_only_equation_17_which_is_two_formulas_has_two_homes():
    assert {number for number, names in homes().items() if len(names) > 1} == {17}


def test_the_index_lists_exactly_the_homes():
    rows = re.findall(
        r"^\| (\d+) \| .* \| `(.+)` \|$", (ROOT / "docs/equations.md").read_text(), re.M
    )
    listed = {int(number): names.split("`, `") for number, names in rows}
    assert listed == homes()


def test_no_other_room_claims_an_equation():
    for path in (ROOT / "src" / "lbq").rglob("*.py"):
        if path.parent != HOME:
            for node in ast.walk(ast.parse(path.read_text())):
                assert not (isinstance(node, ast.FunctionDef) and equation(node)), path
