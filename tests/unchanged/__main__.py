"""`python -m tests.unchanged`, from the root of the repository."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from unchanged.entries import main

if __name__ == "__main__":
    sys.exit(main())
