"""Run the Python blocks of one section of README.md, in order, as if pasted into one session.

python .ci/readme_blocks.py "Size it first"
"""

import re
import sys
from pathlib import Path


def blocks(readme: str, section: str) -> list[str]:
    """The Python blocks between the section's heading and the next one of its level."""
    _, found, rest = f"\n{readme}".partition(f"\n## {section}\n")
    if not found:
        raise SystemExit(f"README.md has no section {section!r}")
    text = re.split(r"\n## ", rest, maxsplit=1)[0]
    return re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def main() -> None:
    """Run them."""
    section = sys.argv[1]
    found = blocks(Path("README.md").read_text(encoding="utf-8"), section)
    if not found:
        raise SystemExit(f"Section {section!r} has no Python block")
    session = {"__name__": "__main__"}
    for block in found:
        exec(compile(block, f"README.md: {section}", "exec"), session)


if __name__ == "__main__":
    main()
