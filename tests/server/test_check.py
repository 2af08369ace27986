"""`--check-config` creates and writes the folders like a start, and removes them again."""

import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from surecast.server.check import check
from surecast.server.config import ServerConfig, build
from surecast.storage.folder import Folder


def config(data_dir: Path | str, **node: Any) -> ServerConfig:
    mine = {
        "name": "e-1", "region": "e", "data_dir": str(data_dir),
        "listen": "127.0.0.1:0", "http": "", **node,
    }  # fmt: skip
    return build({"node": mine, "regions": {"e": {"replicas": {"e-1": "127.0.0.1:0"}}}})


def test_a_folder_that_can_be_created_is_accepted_and_removed_again(tmp_path: Path) -> None:
    assert problems(config(tmp_path / "a" / "b" / "data")) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "journal-1").write_bytes(b"x")
    assert problems(config(tmp_path)) == []
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["journal-1", "log"]


def problems(checked: ServerConfig) -> list[str]:
    found = check(checked)
    assert found.warnings == []
    return found.problems


@pytest.mark.parametrize("key", ["data_dir", "record"])
def test_a_folder_that_cannot_be_created_is_a_problem(key: str) -> None:
    """No user can create a folder in /proc, not even root."""
    folder = "/proc/surecast/data"
    checked = (
        config(folder) if key == "data_dir" else config("", record=folder, listen="127.0.0.1:9")
    )
    found = [problem for problem in problems(checked) if "/proc" in problem]
    assert found == [
        f"node.{key}: cannot make /proc/surecast: No such file or directory; fix that, or change "
        f"node.{key}"
    ]


def test_a_file_in_place_of_the_data_folder_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    (found,) = problems(config(tmp_path / "data" / "more"))
    assert found == f"node.data_dir: {tmp_path / 'data'} is not a folder"


def both() -> tuple[socket.socket, socket.socket]:
    """A TCP and a UDP socket that are bound to the same free port."""
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(type=socket.SOCK_DGRAM)
    udp.bind(tcp.getsockname())
    return tcp, udp


def test_a_data_folder_in_use_is_a_warning_though_the_ports_are_free(tmp_path: Path) -> None:
    lock = Folder(tmp_path / "log")
    found = check(config(tmp_path))
    lock.close()
    assert found.problems == []
    (warning,) = found.warnings
    assert warning.startswith(f"node.data_dir: in use by process {os.getpid()}")


def test_a_port_that_others_use_at_another_address_is_a_problem(tmp_path: Path) -> None:
    """The running node's own port does not hide a socket of another process."""
    lock = Folder(tmp_path / "log")
    with socket.create_server(("127.0.0.1", 0)) as own:
        port = own.getsockname()[1]
        code = (
            "import socket, sys\n"
            f"server = socket.create_server(('127.0.0.2', {port}))\n"
            "print(flush=True)\n"
            "sys.stdin.read()\n"
        )
        other = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdout.readline()
            found = check(config(tmp_path, http=f"127.0.0.2:{port}"))
            other.stdin.close()
    lock.close()
    (problem,) = found.problems
    assert problem.startswith(f"node.http: cannot listen on 127.0.0.2:{port}: Address already in")


def test_a_lock_that_is_a_circle_of_links_is_no_running_node(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "lock").symlink_to("lock")
    assert check(config(tmp_path)).warnings == []


def test_ports_of_the_running_node_are_a_warning(tmp_path: Path) -> None:
    """This process has the data folder and the ports, as a running node has."""
    lock = Folder(tmp_path / "log")
    tcp, udp = both()
    with tcp, udp, socket.create_server(("127.0.0.1", 0)) as http:
        listen, page = (f"127.0.0.1:{one.getsockname()[1]}" for one in (tcp, http))
        checked = config(tmp_path, listen=listen, http=page)
        assert check(checked) == (
            [],
            [
                f"node.data_dir, node.listen, node.http: in use by process {os.getpid()}, which is "
                "a server on this data folder. If that is this node, restart it to apply a change "
                "of the configuration; if not, give this node a data folder and ports of its own"
            ],
        )
        lock.close()  # the process that has the ports does not run this node any more
        found = problems(checked)
        assert len(found) == 3
        assert found[1] == (
            f"node.listen: cannot listen on {listen} for datagrams: Address already in use; stop "
            "the process that uses it (it may be this node, if that is running), or change "
            "node.listen"
        )


def test_a_port_of_another_process_is_a_problem_also_while_the_node_runs(tmp_path: Path) -> None:
    lock = Folder(tmp_path / "log")
    words = [
        sys.executable, "-c",
        "import socket; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); input()",
    ]  # fmt: skip
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        taken = f"127.0.0.1:{int(other.stdout.readline())}"
        (found,) = check(config(tmp_path, http=taken)).problems
        assert found.startswith(f"node.http: cannot listen on {taken}: Address already in use")
        other.kill()
    lock.close()


SCRIPT = """
import sys
from tests.server.test_check import config, problems
print("\\n".join(problems(config(sys.argv[1]))))
"""


def checked(folder: Path, **more: Any) -> str:
    """The problems that a process with other permissions finds."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder)], capture_output=True, text=True, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_data_folder_on_a_disk_without_space_is_a_problem(tmp_path: Path) -> None:
    def no_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    found = checked(tmp_path / "data", preexec_fn=no_bytes)
    assert found.startswith(f"node.data_dir: cannot write to {tmp_path / 'data'}: File too large")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs a folder of another user")
@pytest.mark.parametrize("part", ["", "log", "witness"])
def test_a_folder_of_another_user_is_a_problem(tmp_path: Path, part: str) -> None:
    """Root without CAP_DAC_OVERRIDE has the permissions of a normal user."""
    data = tmp_path / "data"
    (data / part).mkdir(parents=True)
    (data / part).chmod(0o500)
    found = checked(data, preexec_fn=drop_override)
    assert found.startswith(f"node.data_dir: cannot write to {data / part}: Permission denied")


def drop_override() -> None:
    """Drop CAP_DAC_OVERRIDE from the bounding set, so that the next program lacks it."""
    import ctypes

    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP, CAP_DAC_OVERRIDE
