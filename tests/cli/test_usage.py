"""Wrong usage and a closed output: one JSON value, one error, no traceback."""

import json
from contextlib import redirect_stdout
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from catchment.cli.context import command
from catchment.cli.main import app, main
from catchment.errors import EXIT_STOPPED


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lake", "deliver"], "Missing argument"),
        (["lake", "deliver", "t", "p", "--retrie"], "No such option: --retrie"),
        (["lake", "deliver", "t", "p", "--mode", "fast"], "'fast' is not one of"),
        (["lake", "drain"], "No such command 'drain'"),
        (["nonsense"], "No such command 'nonsense'"),
        (["--nonsense"], "No such option: --nonsense"),
        (["lake", "audit", "--home", ""], "'--home': it is empty"),
        (["legacy", "plan", "--lake-home", ""], "'--lake-home': it is empty"),
    ],
)
def test_a_usage_error_is_one_json_value_if_json_is_requested(arguments: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, [*arguments, "--json"], prog_name="catchment")
    shown = json.loads(ended.stdout)
    assert (ended.exit_code, shown["error"]) == (2, "InputError")
    assert said in shown["message"]
    assert "--help` shows how it is called." in shown["hint"]
    assert said in ended.stderr


@pytest.mark.parametrize("raised", [KeyboardInterrupt(), RuntimeError("Query interrupted")])
def test_ctrl_c_is_one_error_also_in_the_midst_of_a_statement_of_duckdb(
    raised: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("catchment.foundation.events.configure_logging", lambda **_: None)
    with pytest.raises(typer.Exit) as ended, command(tmp_path, as_json=True):
        raise raised
    assert ended.value.exit_code == EXIT_STOPPED
    shown = json.loads(capsys.readouterr().out)
    assert (shown["error"], shown["message"]) == ("StoppedError", "Stopped by Ctrl-C.")


def test_a_usage_error_as_text_shows_the_usage() -> None:
    ended = CliRunner().invoke(app, ["lake", "deliver"], prog_name="catchment")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert "Usage: catchment lake deliver" in ended.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["lake", "audit", "--json"]])
def test_a_full_output_device_is_one_error(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["catchment", *arguments])
    monkeypatch.setattr("catchment.foundation.events.configure_logging", lambda **_: None)
    with Path("/dev/full").open("w") as full, redirect_stdout(full), pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "error: The output cannot be written: No space left on device." in capsys.readouterr().err
