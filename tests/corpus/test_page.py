"""The table of public reports: every one is reproduced, or says why not; each reproduction has a planted fault."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import page

VALID = dict.fromkeys(page.scenarios(), "valid")  # what tests/scenario/test_shipped.py holds every scenario to


def test_the_page_says_what_is_here(root: Path) -> None:
    said = (root / "docs" / "corpus.md").read_text(encoding="utf-8")
    assert said == page.text(VALID), "python tests/corpus/page.py > docs/corpus.md"


def test_every_report_is_reproduced_or_says_why_not() -> None:
    known, found = page.reports(), page.rows(VALID)
    assert len(known) == 89
    for report, row in found.items():
        reasons = set(page.REASONS) & set(known[report])
        assert bool(row.scenarios or row.tests) is not bool(reasons), report
    assert sum(bool(row.scenarios or row.tests) for row in found.values()) >= 80


def test_every_reproduction_has_a_planted_fault() -> None:
    bare = [report for report, row in page.rows(VALID).items() if (row.scenarios or row.tests) and not row.planted]
    assert bare == []
