"""JVMs that warm processes lend each other; stand-ins also end with their stdin."""

import os
import socket
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.shortcuts.lent_jvm import ASK, GIVE, Lender

JVM = {"kind": "local[1]", "port": 4711, "secret": "s"}
PATIENCE_S = 30


@pytest.fixture
def java() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def _said(lender: Lender, words: dict[str, Any], streams: list[int]) -> list[int]:
    """The streams that come back."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        lender.answer(theirs, words, streams)
        said, received, _, _ = socket.recv_fds(ours, 4096, 1)
    assert said
    return received


def _given(lender: Lender, java: subprocess.Popen[bytes]) -> None:
    assert java.stdin is not None
    assert _said(lender, {"kind": GIVE, "jvm": JVM}, [os.dup(java.stdin.fileno())]) == []
    java.stdin.close()


def test_a_returned_jvm_is_lent_once_to_a_process_of_its_kind(java: subprocess.Popen[bytes]) -> None:
    lender = Lender()
    _given(lender, java)
    assert _said(lender, {"kind": ASK, "of": "local[2]"}, []) == []
    (stdin,) = _said(lender, {"kind": ASK, "of": "local[1]"}, [])
    assert _said(lender, {"kind": ASK, "of": "local[1]"}, []) == []
    os.close(stdin)


def test_a_lent_jvm_ends_with_its_borrower_and_not_before(java: subprocess.Popen[bytes]) -> None:
    lender = Lender()
    _given(lender, java)
    (stdin,) = _said(lender, {"kind": ASK, "of": "local[1]"}, [])
    assert java.poll() is None
    os.close(stdin)
    assert java.wait(timeout=PATIENCE_S) == 0
