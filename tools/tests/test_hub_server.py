"""Starting the Hub: where it may listen, what it opens, and what `bundle serve` prints."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hubkit import REPO, ask, client, with_library

from bundle.errors import HubError
from bundle.hub.server import RunningHub, running_hub

TOOLS = Path(__file__).parents[1]


def refusal(store: Path, **options: object) -> HubError:
    with pytest.raises(HubError) as caught, running_hub(store, **options):  # type: ignore[arg-type]
        pass
    assert caught.value.hint
    assert caught.value.exit_code == 9
    return caught.value


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.com", "", "localhost.example.com", "1"])
def test_only_loopback_is_bound(tmp_path: Path, host: str) -> None:
    error = refusal(tmp_path / "store", host=host)
    assert str(error) == f"hub: host must be a loopback address, got {host}"
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "::1"])
def test_loopback_is_bound(tmp_path: Path, host: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with running_hub(tmp_path / "store", host=host) as hub:
        assert client(hub).whoami()["name"] == "local"


def test_a_busy_port_is_an_error_with_a_next_step(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        error = refusal(tmp_path / "store", port=port)
    assert str(error) == f"hub: port {port} on 127.0.0.1 is busy"
    assert "--port" in str(error.hint)


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_is_none(tmp_path: Path, port: int) -> None:
    assert f"port {port}" in str(refusal(tmp_path / "store", port=port))


def test_one_server_per_store(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store"):
        assert "served by another process" in str(refusal(tmp_path / "store"))
    with running_hub(tmp_path / "store"):
        pass  # the lock went with its holder


def test_a_folder_that_is_no_store_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    assert "is not a Hub store and not empty" in str(refusal(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_store_of_another_format_is_left_alone(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store"):
        pass
    (tmp_path / "store" / "hub.json").write_text('{"format": 2}')
    assert "has another format" in str(refusal(tmp_path / "store"))


def test_a_store_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    assert f"store {tmp_path / 'store'} cannot be opened: File exists" in str(refusal(tmp_path / "store"))


def test_the_state_outlives_the_server(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store") as first:
        commit = with_library(first)
    with running_hub(tmp_path / "store") as second:
        assert second.token == first.token
        assert client(second).repo_info(REPO, repo_type="kernel", revision="v1").sha == commit


def test_the_token_is_kept_for_its_owner_only(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store") as hub:
        place = hub.store / "token"
        assert place.read_text().strip() == hub.token
        assert stat.S_IMODE(place.stat().st_mode) == 0o600
    place.write_text("short\n")
    assert "at least 16 characters" in str(refusal(tmp_path / "store"))


def test_a_given_token_is_the_one_that_counts(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store", token="a token of my own choosing") as hub:
        assert ask(hub, "GET", "/api/whoami-v2", token="a token of my own choosing").status == 200
        assert not (hub.store / "token").exists()


def test_trusted_organisations_are_the_ones_named(tmp_path: Path) -> None:
    with running_hub(tmp_path / "store", trusted_orgs=("mine",)) as hub:
        assert vars(client(hub).get_organization_overview("mine"))["trustedKernelPublisher"] is True
        assert ask(hub, "GET", "/api/organizations/padfree/overview").status == 404


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_serve_verb(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "bundle", "serve", "--store", str(tmp_path / "my store")]
    environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    with subprocess.Popen(
        command, cwd=TOOLS, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        endpoint = re.fullmatch(r"export HF_ENDPOINT=(http://127\.0\.0\.1:\d+)\n", lines[1])
        assert endpoint, lines
        script = "".join(lines) + 'echo "$HF_TOKEN"'
        token = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.strip()
        hub = RunningHub(endpoint[1], token, tmp_path / "my store")
        assert client(hub).whoami()["name"] == "local"
        assert token not in "".join(lines)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
    assert "Traceback" not in stderr
    assert process.returncode in (0, 130, -number)


def test_a_proxy_is_not_asked_for_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    script = "from huggingface_hub import HfApi; print(HfApi().whoami()['name'])"
    with running_hub(tmp_path / "store") as hub:
        assert set(hub.environment()) == {"HF_ENDPOINT", "HF_TOKEN"}
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("NO_PROXY", "example.org")
        assert hub.environment()["NO_PROXY"] == "example.org,127.0.0.1"
        environment = {**os.environ, **hub.environment()}
        asked = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
    assert asked.stdout == "local\n", asked.stderr


def test_the_serve_verb_explains_itself(tmp_path: Path) -> None:
    def serve(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bundle", "serve", "--store", str(tmp_path / "store"), *words]
        return subprocess.run(command, cwd=TOOLS, capture_output=True, text=True, check=False, env={**os.environ})

    with socket.create_server(("127.0.0.1", 0)) as other:
        busy = serve("--port", str(other.getsockname()[1]))
    assert (busy.returncode, "is busy" in busy.stderr, "next:" in busy.stderr) == (9, True, True)
    outside = serve("--host", "0.0.0.0")
    assert (outside.returncode, "must be a loopback address" in outside.stderr) == (9, True)
    (tmp_path / "token").write_text("short")
    short = serve("--token-file", str(tmp_path / "token"))
    assert (short.returncode, "at least 16 characters" in short.stderr) == (2, True)
    absent = serve("--token-file", str(tmp_path / "absent"))
    assert (absent.returncode, "must be a readable text file" in absent.stderr) == (2, True)
