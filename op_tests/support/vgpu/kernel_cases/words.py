"""Integer operations on Python's numbers, as machine words of 32 or `bits` bits."""

from __future__ import annotations

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def signed(value: int, bits: int = 32) -> int:
    """The low bits as a signed number."""
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def byte(value: int, index: int) -> int:
    return value >> 8 * index & 0xFF


def word(value: int, index: int) -> int:
    return value >> 16 * index & 0xFFFF


def rotated_left(value: int, distance: int, bits: int = 32) -> int:
    distance %= bits
    return ((value << distance) | (value >> (bits - distance))) & ((1 << bits) - 1)


def reversed_bits(value: int, bits: int = 32) -> int:
    return int(f"{value & ((1 << bits) - 1):0{bits}b}"[::-1], 2)


def leading_zeros(value: int, bits: int = 32) -> int:
    return bits - value.bit_length()


def trailing_zeros(value: int, bits: int = 32) -> int:
    return (value & -value).bit_length() - 1 if value else bits


def sign_run(value: int, bits: int = 32) -> int:
    """How many leading bits equal the sign; -1 when all do."""
    folded = value ^ (-(value >> (bits - 1)) & ((1 << bits) - 1))
    return leading_zeros(folded, bits) if folded else -1


def quotient(a: int, b: int) -> int:
    """C's: toward zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def remainder(a: int, b: int) -> int:
    return a - quotient(a, b) * b


def permuted(high: int, low: int, selector: int) -> int:
    """v_perm_b32: bytes of {high, low}, copies of a half's sign, 0x00 (12) or 0xff (above)."""
    joined, out = high << 32 | low, 0
    for i in range(4):
        pick = byte(selector, i)
        if pick < 8:
            selected = byte(joined, pick)
        elif pick < 12:
            selected = 0xFF if joined >> (16 * (pick - 8) + 15) & 1 else 0
        else:
            selected = 0 if pick == 12 else 0xFF
        out |= selected << 8 * i
    return out


def byte_differences(a: int, b: int) -> int:
    """The sum of absolute differences of the bytes."""
    return sum(abs(byte(a, i) - byte(b, i)) for i in range(4))
