"""What the demo tells: its acts, what stands on the stage, and what is proven in the end."""

from dataclasses import dataclass, field

from catchment.cli.demo.writers import Writers


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One part of the story: a sentence on what happens, and one on why that matters."""

    number: int
    title: str
    what: str
    why: str


SERVERS = Act(
    number=1,
    title="Two servers come up",
    what="Each has a lake and a queue; one control database knows both.",
    why="Nothing to install beside it: a shard is a folder and a process.",
)
WRITERS = Act(
    number=2,
    title="Two writers begin, over ADBC",
    what="Each row is one INSERT into duckling_queue; its ack says: on the disk.",
    why="Lakes are bad at small writes. The queue takes them and keeps its word.",
)
FRESH = Act(
    number=3,
    title="Read your writes, then flush them",
    what="A fresh read sees buffered rows; a flush on Spark makes them Parquet.",
    why="Readers do not wait, and the lake gets one file in place of hundreds.",
)
LEGACY = Act(
    number=4,
    title="A legacy tree is imported on Spark",
    what="Hive folders of Parquet become a table; then the import runs again.",
    why="Each file arrives exactly once, also after a crash: a ledger knows it.",
)
SCHEMA = Act(
    number=5,
    title="The schema changes under the writers",
    what="The model gets a column: a script is generated, rehearsed, and applied.",
    why="Nobody stops for it: rows of the old shape land with the default.",
)
MOVE = Act(
    number=6,
    title="The tenant moves while it is written to",
    what="History by Spark, then the log; both get every write; one swap decides.",
    why="Writers keep their connections, and wait for milliseconds.",
)
PROOF = Act(
    number=7,
    title="The proof",
    what="The writers stop, the rest is flushed, and promises are counted.",
    why="Acknowledged means there, once; or else this command exits with 1.",
)
ACTS = (SERVERS, WRITERS, FRESH, LEGACY, SCHEMA, MOVE, PROOF)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoCheck:
    """Something that must be so: what was promised, and what was found."""

    what: str
    promised: object
    found: object

    @property
    def ok(self) -> bool:
        return self.promised == self.found


@dataclass(slots=True, kw_only=True)
class Scene:
    """What is on the stage at this moment; the view looks at it a few times a second."""

    tenant: str = ""
    lives_in: str = ""
    dashboard: str = ""
    writers: Writers = field(default_factory=lambda: Writers(()))
    rows_flushed: int = 0

    @property
    def rows_buffered(self) -> int:
        """What is acknowledged and in no Parquet file yet."""
        return self.writers.acked - self.rows_flushed
