"""The journal: small writes are on disk here before DuckDB has them.

Storing one row in DuckDB takes more than a millisecond, nearly all of it to plan and commit a
statement. So small writes are appended here, synced, and acknowledged; many of them are then
settled in DuckDB together. The rows' numbers tell which entries are settled: replay skips an entry
whose rows the store has.

Once everything in the file is settled, it is overwritten from the start. It never shrinks:
overwriting costs one disk write, growing a file two. Every frame carries the id of its cycle, a
random number that changes each time the journal restarts. The journal ends where the id changes or
the checksum is wrong.

If whole frames of the same cycle follow a wrong checksum, it is damage or a power cut while the
first frame of a new cycle was written over an old one, which may leave the header of an old frame
followed by new pages. The content of the following frames decides: in the second case, all of them
are settled.

    frame   cycle, length, checksum │ length of the head │ head: generation, rows │ rows, as Arrow streams
"""

import json
import secrets
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from catchment.errors import BufferDamagedError
from catchment.foundation import files
from catchment.foundation.ids import TableId
from catchment.foundation.settings import MIB

SUFFIX = ".journal"
ENTRY_BYTES_MAX = 256 * 1024
_ENTRIES_MAX = 500
# Prefix of each message of an Arrow stream: a marker and the length of its description. A length of
# 0 ends the stream.
_MESSAGE = struct.Struct("<Ii")
_STREAM_END = _MESSAGE.pack(0xFFFFFFFF, 0)
_BYTES_MAX = MIB
_FRAME = struct.Struct("<QII")
_HEAD = struct.Struct("<I")
# Errors from a frame that is whole but was not written by this class.
_UNREADABLE = (struct.error, ValueError, TypeError, LookupError, OSError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Rows as they were acknowledged: first number, count, and the Arrow stream with their values."""

    table: TableId
    seq_first: int
    at: datetime
    count: int
    stream: pa.Buffer

    @classmethod
    def of(cls, table: TableId, seq_first: int, at: datetime, rows: pa.Table) -> "Entry":
        """Build an entry; its stream is the one that `pa.ipc.new_stream` would write."""
        parts = (rows.schema, *rows.to_batches())
        stream = pa.py_buffer(b"".join((*(part.serialize() for part in parts), _STREAM_END)))
        return cls(table=table, seq_first=seq_first, at=at, count=rows.num_rows, stream=stream)

    @property
    def shape(self) -> bytes:
        """The schema message at the start of the stream; equal for rows of the same columns."""
        size = _MESSAGE.size + _MESSAGE.unpack_from(self.stream)[1]
        return bytes(self.stream.slice(0, size))


def read(alike: Sequence[Entry]) -> pa.Table:
    """Return the rows of entries of one shape, read as one stream, in a third of the time."""
    shape = alike[0].shape
    inside = (each.stream.slice(len(shape), each.stream.size - len(shape) - len(_STREAM_END)) for each in alike)
    return pa.ipc.open_stream(b"".join((shape, *inside, _STREAM_END))).read_all()


class Journal:
    """An open journal. The owner appends and restarts from one thread at a time."""

    def __init__(self, path: Path, *, generation: str) -> None:
        self._file = files.SyncedFile(path)
        self._generation = generation
        self._entries = 0
        # Offset of the next frame; acknowledged entries that are not settled lie before it.
        self.size = 0
        self._cycle = _new_cycle()

    @property
    def is_full(self) -> bool:
        """Whether it is time to settle: the more entries, the longer some writer waits for that."""
        return self._entries >= _ENTRIES_MAX or self.size >= _BYTES_MAX

    def append(self, entries: Sequence[Entry]) -> None:
        """Store entries, all or none; they are durable when this returns.

        Raises StorageFailedError if nothing was stored, CommitUnknownError if only reading the file
        again can tell.
        """
        head = [
            [each.table.schema, each.table.name, each.seq_first, each.at.isoformat(), each.stream.size]
            for each in entries
        ]
        text = json.dumps([self._generation, head]).encode()
        content = b"".join([_HEAD.pack(len(text)), text, *(each.stream for each in entries)])
        self._file.write(self.size, _FRAME.pack(self._cycle, len(content), zlib.crc32(content)) + content)
        self._file.sync()
        self.size += _FRAME.size + len(content)
        self._entries += len(entries)

    def restart(self) -> None:
        """Start over, after everything was settled."""
        self.size = self._entries = 0
        self._cycle = _new_cycle()

    def wipe(self) -> None:
        """Start over, after everything was settled, and make the previous frames unreadable."""
        self._file.write(0, bytes(_FRAME.size))
        self._file.sync()
        self.restart()

    def replay(self, is_settled: Callable[[Entry], bool]) -> list[Entry]:
        """Return the acknowledged entries of the current cycle.

        Raises BufferDamagedError if one of them cannot be read and was not settled.
        """
        entries: list[Entry] = []
        is_broken = False
        for frame in _frames(self._file.read()):
            if not frame.is_whole:
                # The last frame, half written; or an old one, partly overwritten; or damaged.
                is_broken = True
                continue
            found = self._read(frame.content)
            if not is_broken:
                entries += found
            elif any(entry.count and not is_settled(entry) for entry in found):
                # This frame was acknowledged, and so was the unreadable one. If these rows were
                # settled, all rows before them would be too: settling takes everything.
                raise BufferDamagedError(f"{self._file.path}: a frame is damaged.", path=str(self._file.path))
        return entries

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file, after everything was settled."""
        files.remove(self._file.path)

    def _read(self, content: bytes) -> list[Entry]:
        try:
            return list(self._entries_of(content))
        except _UNREADABLE as error:
            reason = " ".join(str(error).split())
            raise BufferDamagedError(
                f"{self._file.path}: a frame cannot be read: {reason}", path=str(self._file.path)
            ) from error

    def _entries_of(self, content: bytes) -> Iterator[Entry]:
        start = _HEAD.size + _HEAD.unpack_from(content)[0]
        generation, head = json.loads(content[_HEAD.size : start])
        if generation != self._generation:
            raise BufferDamagedError(f"{self._file.path} belongs to another buffer.", path=str(self._file.path))
        for schema, name, seq_first, at, size in head:
            stream = pa.py_buffer(content[start : start + size])
            rows = pa.ipc.open_stream(stream).read_all()
            rows.validate()
            yield Entry(
                table=TableId(schema, name),
                seq_first=seq_first,
                at=datetime.fromisoformat(at),
                count=rows.num_rows,
                stream=stream,
            )
            start += size


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    cycle: int
    end: int
    content: bytes
    is_whole: bool


def _new_cycle() -> int:
    # Never 0, which is what an unwritten disk block contains.
    return secrets.randbits(64) or 1


def _frames(content: bytes) -> Iterator[_Frame]:
    """Yield the frames of the journal's first cycle, whole or not."""
    found = _frame(content, 0)
    cycle = found.cycle if found else None
    while found is not None and found.cycle == cycle:
        yield found
        found = _frame(content, found.end)


def _frame(content: bytes, start: int) -> _Frame | None:
    if len(content) - start < _FRAME.size:
        return None
    cycle, length, checksum = _FRAME.unpack_from(content, start)
    if not cycle or length < _HEAD.size:
        return None
    end = start + _FRAME.size + length
    inside = content[start + _FRAME.size : end]
    return _Frame(
        cycle=cycle, end=end, content=inside, is_whole=len(inside) == length and zlib.crc32(inside) == checksum
    )
