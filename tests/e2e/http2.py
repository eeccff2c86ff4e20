"""As much of HTTP/2 as it takes to be a bad client of a gRPC server: connections that say nothing, calls that never go on."""

import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, GOAWAY = 0, 1, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_HEADER = 9


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header field, never indexed, not compressed (RFC 7541, 6.2.2)."""
    def text(string):
        assert len(string) < 127
        return bytes([len(string)]) + string.encode()
    return b"\0" + text(name) + text(value)


def call_headers(method, authority="localhost"):
    """Of a gRPC call of /package.Service/Method."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", method), (":authority", authority), ("te", "trailers"),
              ("content-type", "application/grpc")]
    return b"".join(literal(name, value) for name, value in fields)


class Connection:
    """A connection that has said hello and no more."""

    def __init__(self, address, timeout=10):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0))
        self.next_stream = 1
        self.buffer = b""

    def open_call(self, method, message=None, ended=False):
        """Begins a call, with a first message if one is given; returns its stream."""
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        frames = frame(HEADERS, END_HEADERS | (END_STREAM if ended and message is None else 0), stream, call_headers(method))
        if message is not None:
            frames += frame(DATA, END_STREAM if ended else 0, stream, b"\0" + struct.pack(">I", len(message)) + message)
        self.socket.sendall(frames)
        return stream

    def calls(self):
        """How many were begun."""
        return self.next_stream // 2

    def frames(self):
        """What comes, as (kind, flags, stream, payload), until the connection ends or its time-out. Pings are answered."""
        while True:
            while len(self.buffer) >= FRAME_HEADER:
                head, length = self.buffer[:FRAME_HEADER], FRAME_HEADER + int.from_bytes(self.buffer[:3], "big")
                if len(self.buffer) < length:
                    break
                payload, self.buffer = self.buffer[FRAME_HEADER:length], self.buffer[length:]
                if head[3] == PING and not head[4] & ACK:
                    self.socket.sendall(frame(PING, ACK, 0, payload))
                yield head[3], head[4], int.from_bytes(head[5:], "big") & 0x7FFFFFFF, payload
            try:
                data = self.socket.recv(1 << 16)
            except OSError:
                return
            if not data:
                return
            self.buffer += data

    def hear(self, count):
        """The streams on which a message comes, until there are so many of them."""
        heard = set()
        for kind, _, stream, _ in self.frames():
            if kind == DATA:
                heard.add(stream)
            if len(heard) == count:
                break
        return heard

    def is_answered(self, stream):
        """Whether a message comes back; not so if the call or the connection is ended without one."""
        for kind, flags, of, _ in self.frames():
            if of == stream and kind == DATA:
                return True
            if kind == GOAWAY or of == stream and flags & END_STREAM:
                return False
        return False

    def close(self):
        self.socket.close()
