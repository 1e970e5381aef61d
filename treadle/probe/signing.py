"""Bytes that only a process with the nonce of a probe can send."""

from __future__ import annotations

import hashlib
import hmac

TAG_BYTES = 8


def signed(payload: bytes, nonce: bytes, purpose: bytes) -> bytes:
    """`payload`, and what proves that its sender knows `nonce`; `purpose`, 16 bytes at most, keeps uses apart."""
    return payload + hashlib.blake2b(payload, key=nonce, person=purpose, digest_size=TAG_BYTES).digest()


def payload_of(data: bytes, nonce: bytes, purpose: bytes) -> bytes | None:
    """The payload of `data`, None where it was not signed so."""
    payload = data[:-TAG_BYTES]
    return payload if hmac.compare_digest(data, signed(payload, nonce, purpose)) else None
