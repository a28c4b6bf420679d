"""README.zh-CN.md says what README.md says: as far as that can be seen without reading it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def parts(name: str) -> tuple[list[str], list[int], list[int]]:
    """Code blocks, levels of the headings, and cells of each row of a table."""
    text = (ROOT / name).read_text(encoding="utf-8")
    blocks = re.findall(r"^```.*?^```$", text, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    headings = [len(line.split()[0]) for line in prose if re.match(r"#+ ", line)]
    cells = [len(re.findall(r"(?<!\\)\|", line)) - 1 for line in prose if line.startswith("|")]
    return blocks, headings, cells


def test_the_translation_has_the_same_code_headings_and_tables() -> None:
    english, chinese = parts("README.md"), parts("README.zh-CN.md")
    assert english[0]
    assert chinese == english


def test_what_they_link_to_is_there() -> None:
    for name in ("README.md", "README.zh-CN.md"):
        links = re.findall(r"\]\(([^)#]+)\)", (ROOT / name).read_text(encoding="utf-8"))
        local = [link for link in links if "://" not in link]
        assert len(local) >= 5
        assert [link for link in local if not (ROOT / link).exists()] == []
