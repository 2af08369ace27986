"""The test files that belong to a part: `make test P=chain`, `pytest --part chain`."""

import re
from pathlib import Path

__all__ = ["TESTS", "is_of_part"]

TESTS = Path(__file__).parent


def is_of_part(path: Path, part: str) -> bool:
    """Whether a folder or a word of the file's name is `part`: a protocol, package or verb."""
    name = str(path.relative_to(TESTS))
    return re.search(rf"(?:^|[/_]){re.escape(part)}[/_.]", name) is not None
