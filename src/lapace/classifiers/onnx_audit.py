"""What an ONNX file must not have: weights in other files.

onnxruntime reads tensors whose data lies elsewhere from the working folder, although the graph came
from memory: another file than the one that was hashed, and perhaps a secret one. The file is walked
field by field (protocol buffers, as `onnx.proto` numbers them) before onnxruntime sees it.
"""

from __future__ import annotations

from collections.abc import Iterator

# By kind of message: fields that hold messages, and their kinds.
INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
EXTERNAL_DATA, DATA_LOCATION = 13, 14  # fields of a tensor
ORT_FORMAT = b"ORTM"  # onnxruntime's own format, at byte 4; it is not walked here


def has_external_data(data: bytes) -> bool:
    r"""Whether a tensor of an ONNX file lies in another file.

    Raises:
        ValueError: It is no ONNX file.

    Examples:
        >>> has_external_data(b"\x3a\x04\x2a\x02\x70\x01")
        True
        >>> has_external_data(b"\x3a\x02\x2a\x00")
        False
    """
    if data[4:8] == ORT_FORMAT:
        raise ValueError("not the format of ONNX")
    stack = [("model", memoryview(data))]
    while stack:
        kind, message = stack.pop()
        for number, value in _fields(message):
            if kind == "tensor" and (
                number == EXTERNAL_DATA or (number, value) == (DATA_LOCATION, 1)
            ):
                return True
            inner = INSIDE[kind].get(number)
            if inner is not None and isinstance(value, memoryview):
                stack.append((inner, value))
    return False


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The number and value of each field of a message."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            value, place = _varint(message, place)
            yield number, value
        elif wire in (1, 5):
            place += 8 if wire == 1 else 4
        elif wire == 2:
            size, place = _varint(message, place)
            if place + size > len(message):
                raise ValueError("a field is longer than its message")
            yield number, message[place : place + size]
            place += size
        else:
            raise ValueError("groups are not used")
    if place != len(message):
        raise ValueError("a field is longer than its message")


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(message):
            raise ValueError("a number is cut short")
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value & (2**64 - 1), place
    raise ValueError("a number is too long")
