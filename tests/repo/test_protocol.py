"""The modules of the protocol are generated from its .proto files."""

from pathlib import Path

import pytest
from grpc_tools import protoc

from tests.repo.source_tree import ROOT, SOURCE

PROTOCOL = SOURCE / "flight_protocol"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("protocol")
    sources = [str(path) for path in sorted(PROTOCOL.glob("*.proto"))]
    options = ["-I", str(ROOT / "src"), f"--python_out={folder}", f"--pyi_out={folder}"]
    assert protoc.main(["protoc", *options, *sources]) == 0
    return folder / PROTOCOL.relative_to(ROOT / "src")


def test_there_is_a_module_for_every_proto_file_and_no_other(made: Path) -> None:
    assert {path.name for path in made.iterdir()} == {path.name for path in PROTOCOL.glob("*_pb2.py*")}


@pytest.mark.parametrize("name", sorted(path.name for path in PROTOCOL.glob("*_pb2.py*")))
def test_a_module_of_the_protocol_is_what_its_proto_file_gives(made: Path, name: str) -> None:
    assert (PROTOCOL / name).read_text(encoding="utf-8") == (made / name).read_text(encoding="utf-8"), (
        "run `make proto`"
    )
