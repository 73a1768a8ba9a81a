"""A process that has imported what notebooks import, and forks a kernel for each that is asked for.

In: the number of a listening socket, whose connections send a line of JSON each (`start_kernel.py`
does). A kernel ends with its connection, and the connection with the kernel. The process ends with
its standard input.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading

import ipykernel.kernelapp
import ipykernel.zmqshell  # noqa: F401 - a kernel imports it when it is asked for its shell

import jitmagic.compile.pipeline  # its imports are what most of a kernel's start takes
import jitmagic.notebook.magics  # noqa: F401
from tests.forks import become, freeze


def next_connection(listener: socket.socket) -> socket.socket | None:
    """In a fork of its own; None at the end."""
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        if not os.fork():
            return connection
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def be_kernel(connection: socket.socket) -> None:
    request = json.loads(connection.makefile().readline())
    become({**request, "stdout": os.devnull, "stderr": os.devnull})

    def obey() -> None:
        while connection.recv(1):
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)

    threading.Thread(target=obey, daemon=True).start()
    ipykernel.kernelapp.launch_new_instance()


if __name__ == "__main__":
    freeze()
    listener = socket.socket(fileno=int(sys.argv[1]))
    if (connection := next_connection(listener)) is not None:
        listener.close()
        be_kernel(connection)
