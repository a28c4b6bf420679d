"""The window of a vLLM server, asked of something that answers like one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from support.stand_ins import stand_in, vllm

from truncation_guard.trainer.context_window import get_context_window
from truncation_guard.trainer.limit import set_limit
from truncation_guard.trainer.vllm_server import server_window

MODELS = b'{"object": "list", "data": [{"id": "m", "max_model_len": 24}, {"max_model_len": 9}]}'


class Server(HTTPServer):
    answer: bytes = MODELS
    status = 200

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize("slash", ["", "/"])
def test_a_server_tells_the_window_of_the_model_that_trl_generates_with(server, slash):
    assert server_window(vllm("server", server_base_url=server.address + slash)) == 24
    assert server.paths == ["/v1/models"]


def test_host_and_port_are_an_address_too(server):
    backend = vllm(
        "server", server_base_url=None, server_host="127.0.0.1", server_port=server.server_port
    )
    assert server_window(backend) == 24


def test_each_backend_asks_once(server):
    one, other = (vllm("server", server_base_url=server.address) for _ in range(2))
    assert [server_window(one), server_window(one)] == [24, 24]
    assert len(server.paths) == 1
    server.answer = MODELS.replace(b"24", b"32")
    assert [server_window(other), server_window(one)] == [32, 24]


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (404, MODELS),
        (200, b"no JSON"),
        (200, b"\xff"),
        (200, b"[]"),
        (200, b'{"data": []}'),
        (200, b'{"data": [{"id": "m"}]}'),
        (200, b'{"data": [{"max_model_len": null}]}'),
    ],
)
def test_another_answer_tells_nothing_and_is_not_asked_for_again(server, status, answer):
    server.status, server.answer = status, answer
    backend = vllm("server", server_base_url=server.address)
    assert [server_window(backend), server_window(backend)] == [None, None]
    assert len(server.paths) == 1


def test_where_nobody_answers_the_window_is_that_of_the_arguments_or_the_model():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"  # bound, and not listening
        for given, window in ((40, 40), (None, 64)):
            backend = vllm("server", server_base_url=address, max_model_length=given)
            made = stand_in(use_vllm=True, vllm_generation=backend)
            assert get_context_window(made, 16) == window


def test_the_servers_window_comes_before_that_of_the_arguments_and_bounds_the_limit(server):
    backend = vllm("server", server_base_url=server.address, max_model_length=40)
    made = stand_in(use_vllm=True, vllm_generation=backend)
    assert get_context_window(made, 16) == 24
    set_limit(made, 20, longest_prompt=4)
    with pytest.raises(ValueError, match=r"window of 24 tokens\. Pass at most 20\.$"):
        set_limit(made, 21, longest_prompt=4)


def test_a_colocated_engine_is_not_asked_over_the_network(server):
    backend = vllm("colocate", server_base_url=server.address)
    assert get_context_window(stand_in(use_vllm=True, vllm_generation=backend), 16) == 48
    assert server.paths == []
