"""The journal: small writes on the disk before DuckDB has them.

Keeping one row in DuckDB costs more than a millisecond, nearly all of it for planning and committing a statement. So
small writes are appended here, synced, and acknowledged; many of them are then settled in DuckDB together. The
numbers of the rows tell what was settled: an entry whose rows the store has is passed over.

The file is written from its start again once everything in it is settled, and never shrinks: overwriting what is
there costs one write of the disk, growing a file two. Every frame carries the life it belongs to, a random number that
changes with each new start; where it changes, or the checksum is wrong, the journal ends.

A wrong checksum may be damage too, where whole frames of the same life follow. What they hold tells: while the first
frame of a new life is being written over it, the old one is settled, all of it. A power cut may leave the header of an
old frame, and new pages behind it.

    frame   life, length, checksum │ length of the head │ head: whose buffer, which rows │ rows, as Arrow streams
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
# How each message of an Arrow stream begins: a mark, and how long what describes it is. At the end that is nothing.
_MESSAGE = struct.Struct("<Ii")
_STREAM_END = _MESSAGE.pack(0xFFFFFFFF, 0)
_BYTES_MAX = MIB
_FRAME = struct.Struct("<QII")
_HEAD = struct.Struct("<I")
# What comes of a frame that is whole and was not written by this class.
_UNREADABLE = (struct.error, ValueError, TypeError, LookupError, OSError, pa.ArrowException)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Rows as they were acknowledged: their first number, how many, and the Arrow stream that holds them."""

    table: TableId
    seq_first: int
    at: datetime
    count: int
    stream: pa.Buffer

    @classmethod
    def of(cls, table: TableId, seq_first: int, at: datetime, rows: pa.Table) -> "Entry":
        """What `pa.ipc.new_stream` would write."""
        parts = (rows.schema, *rows.to_batches())
        stream = pa.py_buffer(b"".join((*(part.serialize() for part in parts), _STREAM_END)))
        return cls(table=table, seq_first=seq_first, at=at, count=rows.num_rows, stream=stream)

    @property
    def shape(self) -> bytes:
        """What the stream begins with: its columns. Those of rows that are alike are the same."""
        size = _MESSAGE.size + _MESSAGE.unpack_from(self.stream)[1]
        return bytes(self.stream.slice(0, size))


def read(alike: Sequence[Entry]) -> pa.Table:
    """The rows of entries of one shape: read as one stream, which takes a third of the time of many."""
    shape = alike[0].shape
    inside = (each.stream.slice(len(shape), each.stream.size - len(shape) - len(_STREAM_END)) for each in alike)
    return pa.ipc.open_stream(b"".join((shape, *inside, _STREAM_END))).read_all()


class Journal:
    """An open journal. Whoever holds it appends and restarts it from one thread at a time."""

    def __init__(self, path: Path, *, incarnation: str) -> None:
        self._file = files.SyncedFile(path)
        self._incarnation = incarnation
        self._entries = 0
        # Where the next frame goes: what is acknowledged and not settled lies before.
        self.size = 0
        self._life = _new_life()

    @property
    def is_full(self) -> bool:
        """Whether it is time to settle: the more there is, the longer some writer waits for that."""
        return self._entries >= _ENTRIES_MAX or self.size >= _BYTES_MAX

    def append(self, entries: Sequence[Entry]) -> None:
        """Keep entries, all or none; they are durable when this returns.

        StorageFailedError before anything was kept, CommitUnknownError where only a new reading can tell.
        """
        head = [
            [each.table.schema, each.table.name, each.seq_first, each.at.isoformat(), each.stream.size]
            for each in entries
        ]
        text = json.dumps([self._incarnation, head]).encode()
        content = b"".join([_HEAD.pack(len(text)), text, *(each.stream for each in entries)])
        self._file.write(self.size, _FRAME.pack(self._life, len(content), zlib.crc32(content)) + content)
        self._file.sync()
        self.size += _FRAME.size + len(content)
        self._entries += len(entries)

    def restart(self) -> None:
        """Everything is settled: begin from the start."""
        self.size = self._entries = 0
        self._life = _new_life()

    def wipe(self) -> None:
        """Everything is settled: begin from the start, and let no reader find what was there."""
        self._file.write(0, bytes(_FRAME.size))
        self._file.sync()
        self.restart()

    def replay(self, is_settled: Callable[[Entry], bool]) -> list[Entry]:
        """What was appended since the last start, as far as it was acknowledged.

        BufferDamagedError where some of it cannot be read and was not settled.
        """
        entries: list[Entry] = []
        is_broken = False
        for frame in _frames(self._file.read()):
            if not frame.is_whole:
                # The last one, half written; or an old one, partly overwritten; or damaged.
                is_broken = True
                continue
            found = self._read(frame.content)
            if not is_broken:
                entries += found
            elif any(entry.count and not is_settled(entry) for entry in found):
                # It was acknowledged, and so was the one that cannot be read. Had these rows been settled, then all
                # before them too: settling takes everything there is.
                raise BufferDamagedError(f"{self._file.path}: a frame is damaged.", path=str(self._file.path))
        return entries

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file, of which everything is settled."""
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
        incarnation, head = json.loads(content[_HEAD.size : start])
        if incarnation != self._incarnation:
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
    life: int
    end: int
    content: bytes
    is_whole: bool


def _new_life() -> int:
    # Never 0, which is what a disk reads where nothing was written.
    return secrets.randbits(64) or 1


def _frames(content: bytes) -> Iterator[_Frame]:
    """The frames of the life that the journal begins with, whole or not."""
    found = _frame(content, 0)
    life = found.life if found else None
    while found is not None and found.life == life:
        yield found
        found = _frame(content, found.end)


def _frame(content: bytes, start: int) -> _Frame | None:
    if len(content) - start < _FRAME.size:
        return None
    life, length, checksum = _FRAME.unpack_from(content, start)
    if not life or length < _HEAD.size:
        return None
    end = start + _FRAME.size + length
    inside = content[start + _FRAME.size : end]
    return _Frame(life=life, end=end, content=inside, is_whole=len(inside) == length and zlib.crc32(inside) == checksum)
