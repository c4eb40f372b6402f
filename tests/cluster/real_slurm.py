"""A real Slurm of one node, started from unpacked Debian packages; nothing is installed."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = (
    "slurmctld", "slurmd", "slurm-client", "slurm-wlm-basic-plugins", "libhwloc15", "liblua5.1-0", "libmunge2",
    "libhttp-parser2.9", "libjson-c5", "libyaml-0-2", "libjwt0",
)  # fmt: skip
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "emabank" / "slurm"

CONFIGURATION = """
ClusterName=emabank
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/daemon.pid
PluginDir={plugins}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
KillWait=5
JobRequeue=1
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmUnavailableError(Exception):
    """No Slurm can be started on this machine."""


def programs() -> Path:
    """The unpacked packages, downloaded the first time."""
    root = CACHE / "root"
    if (root / "usr/sbin/slurmctld-wlm").exists():
        return root
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SlurmUnavailableError("Slurm comes from Debian packages, and this machine has no apt-get")
    packages = CACHE / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["apt-get", "download", *PACKAGES], cwd=packages, check=True, capture_output=True, text=True, timeout=300
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise SlurmUnavailableError(
            f"Debian packages of Slurm cannot be downloaded: {error.stderr or error}"
        ) from error
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", str(package), str(root)], check=True)
    return root


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def cluster(folder: Path, *, cpus: int = 2) -> Generator[dict[str, str]]:
    """Run Slurm; yields the environment variables with which its commands find it."""
    root = programs()
    libraries = root / "usr/lib" / f"{os.uname().machine}-linux-gnu"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    configuration = folder / "slurm.conf"
    user = os.environ.get("USER") or ("root" if os.getuid() == 0 else str(os.getuid()))
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname(), controller=_free_port(), daemon=_free_port(), folder=folder, cpus=cpus,
            plugins=libraries / "slurm-wlm", user=user,
        )
    )  # fmt: skip
    variables = {
        "SLURM_CONF": str(configuration),
        "LD_LIBRARY_PATH": f"{libraries}:{libraries / 'slurm-wlm'}",
        "PATH": f"{root / 'usr/bin'}:{os.environ['PATH']}",
    }
    sbin = root / "usr/sbin"
    commands = {
        "controller": [str(sbin / "slurmctld-wlm"), "-D", "-f", str(configuration)],
        "daemon": [
            str(sbin / "slurmd-wlm"), "-D", "-f", str(configuration), "-N", "node",
            "-d", str(sbin / "slurmstepd-wlm"),
        ],
    }  # fmt: skip
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in commands.items():
            with open(folder / f"{name}.log", "wb") as log:
                running.append(
                    subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT)
                )
        _wait_until_idle(variables, folder)
        yield variables
    finally:
        if running:
            _cancel_all(variables)
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_until_idle(variables: dict[str, str], folder: Path) -> None:
    until = time.monotonic() + 60
    while True:
        listing = subprocess.run(
            ["sinfo", "--noheader", "--format=%t"],
            env={**os.environ, **variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if listing.stdout.strip() == "idle":
            return
        if time.monotonic() > until:
            logs = "\n".join((folder / f"{name}.log").read_text()[-1500:] for name in ("controller", "daemon"))
            raise SlurmUnavailableError(
                f"Slurm did not start within a minute: {listing.stdout}{listing.stderr}\n{logs}"
            )
        time.sleep(0.2)


def _cancel_all(variables: dict[str, str]) -> None:
    """Cancel all jobs, and wait for their end while the daemons still run."""
    environment = {**os.environ, **variables}
    for state in ("PENDING", "RUNNING"):
        subprocess.run(["scancel", f"--state={state}"], env=environment, capture_output=True, check=False, timeout=30)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        listing = subprocess.run(
            ["squeue", "--noheader"], env=environment, capture_output=True, text=True, check=False, timeout=30
        )
        if not listing.stdout.strip():
            return
        time.sleep(0.2)
