"""Workers as the run sees them: processes of this computer, or actors of a Ray cluster.

Standard input and output of a process carry messages, each after its length in eight bytes.

Whoever reaches a Ray cluster can have it run anything. The one that is made here therefore listens
on loopback alone and asks for a token that only this process knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from loadmaster import signals
from loadmaster.errors import LoadmasterError, require
from loadmaster.runs.workers.pool import Address, StartWorker, WorkerLost
from loadmaster.runs.workers.server import Server, read_message, unpack, write_message

SERVE = "from loadmaster.runs.workers.server import main; main()"
_END_SECONDS = 2.0
LOOPBACK = ("127.0.0.1", "::1")
START_SECONDS = 60.0
"""Longest to wait for a worker: for room in the cluster, and till it has read the problem."""
_CONNECT_SECONDS = 5.0


class ProcessWorker:
    """A process that has been handed the problem and is ready."""

    def __init__(self, setup: bytes) -> None:
        # A session of its own: Ctrl-C is for the run to hear, not for its workers.
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        ready = unpack(self.call(setup)).about
        if "error" in ready:
            self.close()
            raise WorkerLost(
                f"a worker could not begin: {ready['error']}",
                object="worker",
                remedy="see to it and start again",
            )

    def call(self, request: bytes) -> bytes:
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None and stdout is not None
        try:
            write_message(stdin, request)
            reply = read_message(stdout)
        except (OSError, ValueError):
            reply = None
        if reply is None:
            self.close()
            raise WorkerLost(
                f"process {self.process.pid} ended with {self.process.returncode}",
                object="worker",
                number=self.process.returncode,
                remedy="see what killed it",
            )
        return reply

    def close(self) -> None:
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def hire_ray_workers(address: Address, setup: bytes) -> Iterator[tuple[StartWorker, int]]:
    """What hires workers of a cluster, and how many there shall be."""
    with contextlib.ExitStack() as stack:
        ray = require("ray", "ray")
        if address.cluster is None:
            stack.enter_context(_for_this_process_alone())
        if address.cluster is not None and address.cluster != "auto":
            _check_listens(address.cluster)
        if _join(ray, address):
            stack.callback(ray.shutdown)
        size = address.workers or int(ray.cluster_resources().get(address.resource or "CPU", 0))
        if size < 1:
            raise LoadmasterError(
                f"the Ray cluster has no '{address.resource or 'CPU'}' for workers",
                object="--workers",
                number=size,
                remedy="start nodes that have some",
            )
        takes: dict[str, Any] = {"num_cpus": 1}
        if address.resource is not None:
            takes = {"num_cpus": 0, "resources": {address.resource: 1}}
        # Ray starts none again: a place that has lost its worker may get one on another node.
        actor = ray.remote(**takes, max_restarts=0, scheduling_strategy="SPREAD")(Server)
        kept = ray.put(setup)
        yield (lambda place: RayWorker(ray, actor, kept)), size


class RayWorker:
    """An actor that has read the problem and is ready."""

    def __init__(self, ray: Any, actor: Any, setup: Any) -> None:
        self._ray = ray
        self._actor = actor.remote(setup)
        try:
            ray.get(self._actor.__ray_ready__.remote(), timeout=START_SECONDS)
        except Exception as error:
            self.close()
            raise self._lost(error) from None

    def call(self, request: bytes) -> bytes:
        try:
            reply: bytes = self._ray.get(self._actor.answer.remote(request))
        except Exception as error:  # the server itself raises nothing
            raise self._lost(error) from None
        return reply

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)

    def _lost(self, error: Exception) -> WorkerLost:
        if isinstance(error, self._ray.exceptions.GetTimeoutError):
            return WorkerLost(
                f"Ray had no worker ready after {START_SECONDS:g} s",
                object="--workers",
                number=START_SECONDS,
                remedy="ask for fewer, or add nodes",
            )
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = lines[-1][:300] if lines else ""
        return WorkerLost(
            f"a Ray worker was lost, {type(error).__name__}: {said}",
            object="--workers",
            remedy="see to the node",
        )


def _join(ray: Any, address: Address) -> bool:
    """Whether it was this that connected, and not somebody before."""
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a run tells nobody of itself
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address.cluster is None:
        options |= {"num_cpus": address.workers, "include_dashboard": False, "address": "local"}
    else:
        options["address"] = address.cluster
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(**options)
        signals.take_back()  # Ray's own end the process
    except Exception as error:
        said = str(error).strip().splitlines()
        raise LoadmasterError(
            f"no Ray cluster at '{address.cluster or 'this computer'}': {said[0][:300] if said else ''}",
            object="--workers",
            number=address.cluster,
            remedy="start one with 'ray start --head'; where it asks for a token, set "
            "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
        ) from error
    if address.cluster is None and (host := ray.util.get_node_ip_address()) not in LOOPBACK:
        ray.shutdown()
        raise LoadmasterError(
            f"Ray {ray.__version__} listens at {host}, for other computers too",
            object="--workers",
            number=host,
            remedy="use local:N, or a cluster of your own with ray:HOST:PORT",
        )
    return True


@contextlib.contextmanager
def _for_this_process_alone() -> Iterator[None]:
    """Ray's settings for a cluster that nobody else reaches; as they were before, afterwards.

    Ray takes an address on the network even where it is told 127.0.0.1, unless clusters are off:
    the switch has the names of the systems where they are off by default, and works on all.
    """
    constants: Any = require("ray._private.ray_constants", "ray")
    ours = {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    before = {name: os.environ.get(name) for name in ours}
    clusters = getattr(constants, "ENABLE_RAY_CLUSTER", True)
    os.environ.update(ours)
    constants.ENABLE_RAY_CLUSTER = False  # the switch, where Ray was imported before it was set
    _read_settings_again()
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = clusters
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        _read_settings_again()


def _read_settings_again() -> None:
    """Ray reads mode and token once, when it is imported and first used."""
    raylet = require("ray._raylet", "ray")
    with contextlib.suppress(AttributeError):  # a Ray before 2.52 has no tokens
        loader = raylet.AuthenticationTokenLoader.instance()
        raylet.Config.initialize("")
        loader.reset_cache()


def _check_listens(cluster: str) -> None:
    """Ray itself tries a wrong address for a minute."""
    host, _, port = cluster.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise LoadmasterError(
            f"nothing answers at '{cluster}': {error}",
            object="--workers",
            number=cluster,
            remedy="start a cluster there with 'ray start --head'; ray:// is for its client port, "
            "10001 unless told otherwise",
        ) from None
