"""A worker in a process of its own: `python -m loadmaster.runs.workers.serve`.

The first message is the problem (`loadmaster.runs.workers.desk.setup_of`), each one after it a request;
the end of the input ends the process.
"""

from __future__ import annotations

import os
from pathlib import Path

from loadmaster.errors import LoadmasterError
from loadmaster.runs.workers.desk import Desk
from loadmaster.runs.workers.pool import packed
from loadmaster.runs.workers.processes import read_message, write_message


def main() -> None:
    """Serve till the input ends."""
    # Whatever else prints must not end up between messages.
    stdin, stdout = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    setup = read_message(stdin)
    if setup is None:
        return
    try:
        desk = Desk(setup)
    except LoadmasterError as error:
        write_message(stdout, packed({"error": error.message}))
        return
    write_message(stdout, packed({}))
    while (request := read_message(stdin)) is not None:
        write_message(stdout, desk.answer(request))


if __name__ == "__main__":
    main()
