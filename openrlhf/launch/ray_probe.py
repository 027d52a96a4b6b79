"""Whether a Ray cluster can be reached, what it has, and whether its job agent takes jobs.

Invariant: an address that nobody answers at costs SECONDS at most; connecting happens in a child process. Nothing is
started on the cluster. A cluster without a job agent trains all the same: only `ray job submit` needs it, and says
"No available agent to submit job".

As a program (`python -m openrlhf.launch.ray_probe REPLY ADDRESS`) it is that child.
"""

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from openrlhf.launch import child
from openrlhf.launch.model_files import first_line

MODULE = "openrlhf.launch.ray_probe"
SECONDS = 25.0
KNOCK_SECONDS = 3.0
# A client's preface with its empty SETTINGS frame, which an HTTP/2 server answers with its own.
HTTP2_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
HTTP2_SETTINGS = b"\x04"
HTTP_SECONDS = 5.0
# Dashboard and agent come up some seconds after `ray start` has returned.
PATIENCE_SECONDS = 6.0


@dataclass
class Cluster:
    """What is known of a cluster. `job_error` is None when its job agent is alive."""

    address: str
    reached: bool = False
    error: str | None = None
    nodes: list[dict[str, float]] = field(default_factory=list)
    dashboard: str | None = None
    job_error: str | None = None

    def totals(self) -> dict[str, float]:
        names = {name for node in self.nodes for name in node}
        return {name: sum(node.get(name, 0.0) for node in self.nodes) for name in names}


@dataclass
class Probe:
    """A running probe; `result` waits for its end."""

    address: str
    process: child.Child | None
    error: str | None = None

    def result(self) -> Cluster:
        if self.process is None:
            return Cluster(self.address, error=self.error)
        said, code = self.process.answer(SECONDS)
        if said is not None:
            return Cluster(**said)
        ending = f"no answer within {SECONDS:g} s" if code is None else f"the connection ended with exit code {code}"
        return Cluster(self.address, error=ending)


def start(address: str) -> Probe:
    """Knocks at the address, then asks in a child process. `address` is any that Ray takes, or a dashboard's URL."""
    host, port = _host_and_port(running_here() if address == "auto" else address)
    if port is None:
        return Probe(address, None, "no cluster runs here" if address == "auto" else "it isn't HOST:PORT")
    fault = knock(host, port, speaks_http=address.startswith("http"))
    return Probe(address, None, fault) if fault else Probe(address, child.start(MODULE, address))


def foreign(address: str) -> str | None:
    """Why HOST:PORT can't be a cluster, as far as one knock at the door tells; None otherwise.

    Ray itself would go on asking for minutes when another program has the port.
    """
    host, port = _host_and_port(address)
    return None if port is None else knock(host, port)


def knock(host: str, port: int, *, speaks_http: bool = False) -> str | None:
    """What is wrong with a port that should be a dashboard's or, else, a cluster's (gRPC, so it speaks HTTP/2)."""
    try:
        with socket.create_connection((host, port), timeout=KNOCK_SECONDS) as opened:
            if speaks_http:
                return None
            opened.sendall(HTTP2_HELLO)
            kind = opened.recv(9)[3:4]  # of the first frame: length (3 bytes), type, flags, stream
    except (TimeoutError, ConnectionResetError):
        kind = b""
    except OSError as error:
        return f"{host}:{port} doesn't answer ({error})"
    return None if kind == HTTP2_SETTINGS else f"another program than Ray listens at {host}:{port}"


def wait_for(address: str, seconds: float) -> None:
    """Until the cluster takes jobs, or `seconds` have passed: a head that was just started needs some."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = start(address).result()
        if state.reached and state.job_error is None:
            return
        time.sleep(1.0)


def running_here() -> str | None:
    """The address of the cluster on this machine that Ray would join without RAY_ADDRESS, as Ray notes it down."""
    note = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
    return note.read_text().strip() if note.is_file() else None


def _host_and_port(address: str | None) -> tuple[str, int | None]:
    host, _, port = (address or "").split("://")[-1].split("/")[0].rpartition(":")
    return host.strip("[]"), int(port) if host and port.isdigit() else None


# In the child.


def _ask(reply: str, address: str) -> None:
    cluster = Cluster(address)
    try:
        if address.startswith("http"):
            cluster.dashboard = address.split("://")[1].rstrip("/")
            agent = _nodes_by_dashboard(cluster)
        else:
            agent = _nodes_by_ray(cluster)
        cluster.reached = True
    except Exception as error:  # Ray and urllib raise anything here
        cluster.error = first_line(error)
        child.reply(reply, asdict(cluster))
        return
    cluster.job_error = "the dashboard or the job agent doesn't answer"  # stands if the child is killed meanwhile
    child.reply(reply, asdict(cluster))
    cluster.job_error = _job_fault(cluster.dashboard, agent)
    child.reply(reply, asdict(cluster))


def _nodes_by_ray(cluster: Cluster) -> tuple[str, int] | None:
    """Fills in the cluster's nodes; returns host and port of the head node's job agent."""
    import ray

    context = ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.dashboard = context.dashboard_url or None
    alive = [node for node in ray.nodes() if node["Alive"]]
    cluster.nodes = [_countable(node["Resources"]) for node in alive]
    heads = [node for node in alive if "node:__internal_head__" in node["Resources"]]
    return (heads[0]["NodeManagerAddress"], heads[0].get("DashboardAgentListenPort", 0)) if heads else None


def _nodes_by_dashboard(cluster: Cluster) -> tuple[str, int] | None:
    summary = json.loads(_get(f"{cluster.dashboard}/nodes?view=summary"))["data"]["summary"]
    cluster.nodes = [_countable(node["raylet"].get("resourcesTotal", {})) for node in summary]
    heads = [node for node in summary if "node:InternalHead" in node["raylet"].get("resourcesTotal", {})]
    return (heads[0]["ip"], heads[0]["raylet"].get("dashboardAgentListenPort", 0)) if heads else None


def _countable(resources: dict[str, Any]) -> dict[str, float]:
    return {name: float(resources[name]) for name in ("CPU", "GPU") if name in resources}


def _job_fault(dashboard: str | None, agent: tuple[str, int] | None) -> str | None:
    """Why `ray job submit` would fail: the dashboard passes jobs on to the agent of the head node."""
    if not dashboard:
        return "the cluster has no dashboard"
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (fault := _http_fault(f"{dashboard}/api/version", "the dashboard")) and time.monotonic() < deadline:
        time.sleep(0.5)
    if fault or agent is None:
        return fault or "no head node is known"
    host, port = agent
    if port <= 0:
        return "the head node's job agent has no port: its own was taken when it started"
    while (fault := _http_fault(f"{host}:{port}/api/local_raylet_healthz", "the job agent")) is not None:
        if time.monotonic() >= deadline:
            return fault
        time.sleep(0.5)
    return None


def _http_fault(url: str, who: str) -> str | None:
    try:
        _get(url)
        return None
    except (OSError, urllib.error.HTTPError) as error:
        return f"{who} at {url.split('/')[0]} doesn't answer ({first_line(error)})"


def _get(url: str) -> bytes:
    # No proxy: dashboard and agents are addresses inside the cluster.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{url}", timeout=HTTP_SECONDS) as answer:
        return answer.read()


if __name__ == "__main__":
    _ask(sys.argv[1], sys.argv[2])
    os._exit(0)  # Ray's own shutdown may wait for a cluster that has gone
