"""Processes with devices of their own, for tests of several devices."""

import os
import socket
import subprocess
import sys


def start(code, *arguments, flags=""):
    """Start a Python process that runs some code on the CPU."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}",
            "JAX_PLATFORMS": "cpu",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process):
    """Return the last line of a process, which must succeed."""
    out, error = process.communicate(timeout=900)
    assert process.returncode == 0, error[-3000:]
    return out.splitlines()[-1]


def outputs_of_two(code):
    """Return the last lines of two processes, which know one address and a number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    both = [start(code, address, str(number)) for number in range(2)]
    return [output(process) for process in both]
