"""Heads of requests on plain sockets: what two readers might take for two requests is refused."""

from __future__ import annotations

import contextlib

import pytest
import serve_http
from serve_http import Answer, get, read_all, served

serve_http.need_server()


@pytest.fixture(scope="module")
def server():
    with served(model={"eos": 0}, check_descriptors=False) as one:
        yield one

BODY = b'{"prompt":"x","max_tokens":1}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def completion(*headers, line=b"POST /v1/completions HTTP/1.1", host=b"Host: test", body=None):
    """A request for a token, by hand. Its body is in chunks if one is given."""
    length = [b"Content-Length: %d" % len(BODY)] if body is None else []
    return b"\r\n".join([line, *([host] if host is not None else []), *headers, *length, b"Connection: close", b"", b""]) + (BODY if body is None else body)


#: Each was answered with 200, or served as if it were something else.
AMBIGUOUS = {
    "no host": (completion(host=None), 400, b"Host"),
    "a host with a path": (completion(host=b"Host: a/b"), 400, b"Host"),
    "two hosts in one": (completion(host=b"Host: a, b"), 400, b"Host"),
    "a user in the host": (completion(host=b"Host: a@b"), 400, b"Host"),
    "folded": (completion(b"X-A: b\r\n c"), 400, b"continued"),
    "folded by a tab": (completion(b"X-A: b\r\n\tc"), 400, b"continued"),
    "folded from the start": (completion(b"X-A:\r\n c"), 400, b"continued"),
    "a folded length": (completion(b"Content-Length:\r\n 29", body=BODY), 400, b"continued"),
    "a folded coding": (completion(b"Transfer-Encoding:\r\n chunked", body=CHUNKED), 400, b"continued"),
    "gzip before chunked": (completion(b"Transfer-Encoding: gzip, chunked", body=CHUNKED), 501, b"chunked"),
    "identity before chunked": (completion(b"Transfer-Encoding: identity, chunked", body=CHUNKED), 501, b"chunked"),
    "nothing before chunked": (completion(b"Transfer-Encoding: ,chunked", body=CHUNKED), 501, b"chunked"),
    "no coding": (completion(b"Transfer-Encoding:"), 501, b"chunked"),
    "codings in two headers": (completion(b"Transfer-Encoding: gzip", b"Transfer-Encoding: chunked", body=CHUNKED), 400, b"once"),
    "chunks of 1.0": (completion(b"Transfer-Encoding: chunked", line=b"POST /v1/completions HTTP/1.0", body=CHUNKED), 400, b"1.0"),
    "two encodings": (completion(b"Content-Encoding: gzip", b"Content-Encoding: identity"), 400, b"once"),
    "letters after a chunk": (completion(b"Transfer-Encoding: chunked", body=b"%x\r\n%sxx0\r\n\r\n" % (len(BODY), BODY)), 400, b""),
    "a space in a name": (completion(b"X A: b"), 400, b""),
    "a header without a name": (completion(b": b"), 400, b""),
    "no version": (b"GET /health\r\n\r\n", 400, b"HTTP/VERSION"),
    "0.9": (completion(line=b"POST /v1/completions HTTP/0.9"), 505, b"HTTP/1.1"),
    "2.0": (completion(line=b"POST /v1/completions HTTP/2.0"), 505, b"HTTP/1.1"),
    "another protocol": (completion(line=b"POST /v1/completions RTSP/1.0"), 400, b"HTTP/VERSION"),
    "more spaces": (completion(line=b"POST  /v1/completions  HTTP/1.1"), 400, b"HTTP/VERSION"),
    "a query that is a path": (get("http://test?/v1/nothing"), 200, b"<script>"),
    "a host alone": (get("http://test"), 200, b"<script>"),
}  # fmt: skip


@pytest.mark.hostile
@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_two_readers_might_take_for_two_requests_is_refused(server, name, pieces):
    data, status, words = AMBIGUOUS[name]
    with server.connect() as client:
        for at in range(len(data)) if pieces else [slice(None)]:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                client.sendall(data[at : at + 1] if pieces else data[at])
        answer = Answer(read_all(client))
    assert answer.status == status and words in answer.body, answer.body[:300]
    if status != 200:
        assert answer.error["message"] and answer.error["type"] == "invalid_request_error" and answer.headers["connection"] == "close"


def test_honest_heads_are_taken(server):
    for data in (completion(), completion(host=b"Host: [::1]:8000 "), completion(host=b"Host:"), completion(b"X:  a  b ", b"Y:", b"Z: \t"),
                 completion(b"Transfer-Encoding: Chunked ", body=CHUNKED), b"\r\n\r\n" + completion(), completion(b"Content-Encoding: Identity"),
                 completion(host=None, line=b"POST /v1/completions HTTP/1.0"), completion(line=b"POST http://test/v1/completions HTTP/1.1")):  # fmt: skip
        assert Answer(server.raw(data)).status == 200, data
    with server.connect() as client:  # lines of one request are not those of the next
        one = completion().replace(b"Connection: close\r\n", b"")
        client.sendall(one + one + completion())
        assert read_all(client).count(b"HTTP/1.1 200") == 3


def test_trailers_are_no_headers():
    """A key in a trailer was one: what stands before the server looks at headers."""
    with served(api_key="sesame") as server:
        for trailer in (b"Authorization: Bearer sesame", b"Host: other", b"Content-Encoding: gzip", b"X: y"):
            body = CHUNKED[:-2] + trailer + b"\r\n\r\n"
            assert Answer(server.raw(completion(b"Transfer-Encoding: chunked", body=body))).status == 401
            answer = Answer(server.raw(completion(b"Transfer-Encoding: chunked", b"Authorization: Bearer sesame", body=body)))
            assert answer.status == 200, trailer
