"""The process that a front end starts as its kernel: it requests a fork of `forked_kernels` and
lives until that ends. If it is killed or interrupted, so is the kernel.

In: a socket's path, and the kernel's arguments. It imports little, to begin at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys


def main(path: str, *arguments: str) -> None:
    # A kernel ends with the process that is said to be its parent, which the front end is not.
    environment = {name: text for name, text in os.environ.items() if name != "JPY_PARENT_PID"}
    request = {"arguments": arguments, "environment": environment, "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        signal.signal(signal.SIGINT, lambda *_: connection.sendall(b"!"))
        connection.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
