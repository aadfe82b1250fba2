"""Answer a request of the workflow: a line of JSON in, a line of JSON out.

Started as a file (``python3 -I -S …/linumpy/launch/__main__.py COMMAND``), so that nothing but the
standard library and this package is seen.
"""

import sys
from pathlib import Path

if sys.version_info < (3, 9):  # noqa: UP036 - this file alone meets any Python
    print(
        f"{sys.executable} is Python {sys.version.split()[0]}; expected 3.9 or later: put one on "
        "PATH as python3, or set LINUMPY_PYTHON",
        file=sys.stderr,
    )
    sys.exit(1)
sys.path.append(str(Path(__file__).resolve().parents[2]))

from linumpy.launch.commands import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin, sys.stdout))
