"""Files of other people: read from regular files alone, written whole or not at all.

Every reader opens through `open_regular` or `read_regular`, every writer through `replacing`. What
goes wrong is an `OSError` with the file's name and a sentence in `strerror`, which readers word as
their own error and the command line prints as one line.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loadmaster.errors import LoadmasterError
from loadmaster.units import show_bytes

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


_READING = os.O_RDONLY
for _flag in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY"):  # each where the system has it
    _READING |= getattr(os, _flag, 0)


_PAUSE_SECONDS = 0.1


def open_regular(path: str | Path, most_bytes: int) -> BinaryIO:
    """Open a regular file of at most `most_bytes` for reading.

    A pipe, a socket, a device or a folder is refused before it is opened: reading one could wait
    or go on for ever. A file may still grow while it is read; `read_regular` looks at that too.
    """
    path = Path(path)
    try:
        _check_regular(path, path.stat(), most_bytes)
        # O_NONBLOCK: what became a pipe since then does not make us wait either.
        handle = os.open(path, _READING)
    except ValueError:  # a null character, or one that no file system can write
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    try:
        _check_regular(path, os.fstat(handle), most_bytes)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: str | Path, most_bytes: int) -> bytes:
    """The bytes of a regular file; above `most_bytes` it is refused, however large it says to be."""
    with open_regular(path, most_bytes) as file:
        # As much as there is, then what may have come since: a read takes its memory beforehand.
        data = file.read(os.fstat(file.fileno()).st_size + 1)
        while len(data) <= most_bytes and (more := file.read(2**20)):
            data += more
    if len(data) > most_bytes:
        raise _too_large(Path(path), most_bytes)
    return data


def special_kind(path: str | Path) -> str | None:
    """What is there, as 'a folder', if it is no regular file; None if it is one, or nothing is there."""
    try:
        mode = Path(path).stat().st_mode
    except (OSError, ValueError):
        return None
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


class NotWritten(LoadmasterError):
    """A file can't be written."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """A disk that is full or closed to us is the user's to mend, not a bug."""
    try:
        yield
    except OSError as error:
        raise NotWritten(
            f"'{path}' can't be written: {error.strerror or error}",
            object=str(path),
            remedy="check the folder and the space on the disk",
        ) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path to write to; it takes the place of `path` if nothing goes wrong.

    It lies beside `path` under a name that nobody can guess, and is there already, as ours. Only a
    regular file or a new name is replaced. An `OSError` inside names `path`.
    """
    check_replaceable(path)
    temporary = path.with_name(f".loadmaster-{secrets.token_hex(8)}.tmp")
    with naming(path, temporary):
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        try:
            yield temporary
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let errors inside name `path`, which is being written: a full disk has no name, and that of a
    temporary file would tell nobody anything."""
    try:
        yield
    except OSError as error:
        if error.filename is None or str(error.filename) == str(temporary):
            error.filename, error.filename2 = str(path), None
        raise
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start : error.end])
        raise LoadmasterError(
            f"'{path}' can't be written: {half} is a character that no file of this kind can hold",
            object=str(path),
            remedy="rename what holds it",
        ) from None


def check_replaceable(path: Path) -> None:
    """Refuse to write over anything but a regular file: a rename would put a file in the place of a
    device, or of a link that leads elsewhere."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except ValueError:
        raise LoadmasterError(
            f"no file can be named {str(path)!r}", object=str(path), remedy="give another name"
        ) from None
    if not stat.S_ISREG(mode):
        raise LoadmasterError(
            f"'{path}' is {_KINDS.get(stat.S_IFMT(mode), 'no regular file')}",
            object=str(path),
            remedy="give the name of a regular file, or a new name",
        )


@contextmanager
def locking(path: Path, tries: int = 50) -> Iterator[bool]:
    """Whether nobody else is inside with this file, made if it is not there, as a lock; after `tries` tenths of a
    second nobody waits any longer. Where a file system has no locks, everybody is let in."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    try:
        yield _locked(handle, tries)
    finally:
        os.close(handle)


def _locked(handle: int, tries: int) -> bool:
    if fcntl is None:
        return True  # type: ignore[unreachable]
    for left in range(tries, 0, -1):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if left > 1:
                threading.Event().wait(_PAUSE_SECONDS)
        except OSError:
            return True
    return False


def same_file(one: str | Path, other: str | Path) -> bool:
    """Whether two names are of one file that is there, also through links."""
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):  # one of them is no file
        return False


def _check_regular(path: Path, found: os.stat_result, most_bytes: int) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind} and no regular file", str(path))
    if found.st_size > most_bytes:
        raise _too_large(path, most_bytes)


def _too_large(path: Path, most_bytes: int) -> OSError:
    return OSError(errno.EFBIG, f"it is larger than {show_bytes(most_bytes)}", str(path))
