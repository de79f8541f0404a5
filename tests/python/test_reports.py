"""The table of reports in tests/README.md names tests that exist."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def rows():
    """(report, [(file, test)]) of each row. A cell lists files, each followed by tests that all of them hold."""
    table = (ROOT / "tests" / "README.md").read_text().split("| Report |")[1]
    for line in table.splitlines()[2:]:
        report, _, tests = (cell.strip() for cell in line.strip("|").split(" | "))
        pairs = []
        for group in tests.split(";"):
            files, names = group.split(": ", 1)
            pairs += [(file, name) for file in re.findall(r"`([^`]+)`", files) for name in re.findall(r"`([^`]+)`", names)]
        yield report, pairs


def test_every_report_has_a_test_that_is_there():
    seen = 0
    for report, pairs in rows():
        assert pairs, report
        for file, name in pairs:
            assert re.search(rf"\b(fn|def) {name}\(", (ROOT / file).read_text()), f"{report}: {file}: {name}"
        seen += 1
    assert seen > 30
