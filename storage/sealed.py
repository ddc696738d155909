"""JSON files that hold their own checksum, so that damage anywhere in them is found.

The last member of the object, `checksum`, is the sha256 of all bytes before it.
"""

import hashlib

from pydantic import BaseModel

_MEMBER, _END = b',\n  "checksum": "', b'"\n}\n'


def seal(record: BaseModel) -> str:
    """A record as the content of such a file."""
    body = record.model_dump_json(indent=2).removesuffix("\n}")
    return f"{body}{_MEMBER.decode()}{_sha256(body.encode())}{_END.decode()}"


def unseal(content: bytes) -> bytes:
    """The record's JSON; a file of an earlier version, without a checksum, as it is.

    Raises:
        ValueError: the checksum is not that of the content.
    """
    body, member, rest = content.rpartition(_MEMBER)
    if not member:
        return content
    if rest != _sha256(body).encode() + _END:
        raise ValueError("its checksum is not that of its content")
    return body + b"\n}"


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
