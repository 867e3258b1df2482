"""A process that serves forks: its children hold neither the port nor its clients' connections,
whichever of the two processes ends first."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest
import serve_http
from serve_http import post, read_all, served, until

serve_http.need_server()


@contextlib.contextmanager
def forked(clients=()):
    """A child that does nothing until it is ended; as os.fork makes it, without exec. Clients of
    the test are not the server's: the child closes them."""
    child = os.fork()
    if child == 0:
        for client in clients:
            client.close()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            time.sleep(100)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def sockets(child):
    """What sockets the child has, by their numbers in the kernel."""
    found = set()
    for one in os.listdir(f"/proc/{child}/fd"):
        with contextlib.suppress(OSError):
            found.add(os.readlink(f"/proc/{child}/fd/{one}"))
    return {one for one in found if one.startswith("socket:")}


def is_free(port):
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
            one.listen()
            return True
        except OSError:
            return False


def test_a_child_has_no_socket_of_the_server():
    before = sockets(os.getpid())
    with served() as server, server.connect() as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        client.recv(1)
        mine = {os.readlink(f"/proc/self/fd/{client.fileno()}")}
        with forked() as child:  # which begins a little later than fork() returns here
            assert until(lambda: sockets(child) - before == mine), (sockets(child), before, mine)
            assert server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3})).startswith(b"HTTP/1.1 200 ")


def test_the_port_is_free_once_the_server_is_closed_while_a_child_lives():
    with served(check_descriptors=False) as server:
        port = server.server.port
        with forked():
            assert not is_free(port)
            server.server.drain(0)
            assert until(lambda: is_free(port))


def test_clients_learn_of_the_end_while_a_child_lives():
    """Their answers end with the connection, which a copy in the child would hold open."""
    with served(check_descriptors=False) as server, server.connect() as idle, server.connect() as asked:
        asked.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        idle.recv(1 << 16)
        with forked():
            asked.settimeout(20)
            assert read_all(asked).startswith(b"HTTP/1.1 200 ")
            server.server.drain(0)
            idle.settimeout(20)
            with contextlib.suppress(ConnectionResetError):
                while idle.recv(1 << 16):
                    pass


def test_clients_that_left_are_forgotten_while_children_live():
    """epoll goes on to report a descriptor that was closed here and is open there."""
    with served() as server, contextlib.ExitStack() as stack:
        for _ in range(3):
            clients = [server.connect() for _ in range(20)]
            for client in clients:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                client.recv(1)
            stack.enter_context(forked(clients))
            for client in clients:
                client.close()
        assert until(lambda: server.server.counts()["connections"] == 0)
        begin = time.process_time()
        time.sleep(1)
        assert time.process_time() - begin < 0.5  # nothing is looked at again and again
        assert server.raw(post("/v1/completions", {"prompt": "x", "max_tokens": 3})).startswith(b"HTTP/1.1 200 ")


def test_many_forks_while_clients_come_and_go():
    with served() as server:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            with server.connect() as client:
                client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
                child = os.fork()
                if child == 0:
                    os._exit(len(sockets(os.getpid())) > 60)
                client.recv(1)
            assert os.waitpid(child, 0)[1] == 0


PARENT = """
import multiprocessing, os, sys, time
from accrt import serve
def work(pipe):
    pipe.send(os.getpid())
    time.sleep(100)
model = serve.simulated()
server = serve.Server(serve.Engine(model.model), model.text, name="sim", port=0)
one, other = multiprocessing.get_context("fork").Pipe()
child = multiprocessing.get_context("fork").Process(target=work, args=(other,), daemon=False)
child.start()
print(server.port, one.recv(), flush=True)
time.sleep(100)
"""


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork")
def test_the_port_is_free_once_the_parent_was_killed_and_a_worker_lives():
    parent = subprocess.Popen([sys.executable, "-c", textwrap.dedent(PARENT)], stdout=subprocess.PIPE)
    port, child = map(int, parent.stdout.readline().split())
    try:
        assert not is_free(port)
        parent.kill()
        parent.wait()
        assert os.path.exists(f"/proc/{child}") and until(lambda: is_free(port))
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()
