// Local memory of one chunk, whose end may be cut short: reads past it give zero, writes past it are dropped. So messages
// always have full size and the caller's tensors need no padding.
#pragma once
#include "treadle_reduce.h"

namespace treadle {

struct Range {
    char *data;
    int64_t valid;  // bytes
};

TREADLE_DEVICE bool aligned(const void *pointer, int bytes) {
    return (reinterpret_cast<uintptr_t>(pointer) & (bytes - 1)) == 0;
}

TREADLE_DEVICE uint32_t read_part(const char *from, int64_t left) {
    if (left >= 4 && aligned(from, 4)) return *reinterpret_cast<const uint32_t *>(from);
    uint32_t value = 0;
    if (left >= 4 && aligned(from, 2)) {
        const auto half = reinterpret_cast<const uint16_t *>(from);
        return half[0] | uint32_t(half[1]) << 16;
    }
    for (int i = 0; i < 4 && i < left; ++i) value |= uint32_t(uint8_t(from[i])) << 8 * i;
    return value;
}

TREADLE_DEVICE void write_part(char *to, int64_t left, uint32_t value) {
    if (left >= 4 && aligned(to, 4)) {
        *reinterpret_cast<uint32_t *>(to) = value;
    } else if (left >= 4 && aligned(to, 2)) {
        reinterpret_cast<uint16_t *>(to)[0] = uint16_t(value);
        reinterpret_cast<uint16_t *>(to)[1] = uint16_t(value >> 16);
    } else {
        for (int i = 0; i < 4 && i < left; ++i) to[i] = char(value >> 8 * i);
    }
}

template <int N>
TREADLE_DEVICE Word<N> read(const Range &range, int64_t at) {
    const char *from = range.data + at;
    if (at + N <= range.valid && aligned(from, N)) return *reinterpret_cast<const Word<N> *>(from);
    Word<N> word;
    TREADLE_UNROLL
    for (int i = 0; i < N / 4; ++i) word.part[i] = read_part(from + 4 * i, range.valid - at - 4 * i);
    return word;
}

template <int N>
TREADLE_DEVICE void write(const Range &range, int64_t at, const Word<N> &word) {
    char *to = range.data + at;
    if (at + N <= range.valid && aligned(to, N)) {
        *reinterpret_cast<Word<N> *>(to) = word;
        return;
    }
    TREADLE_UNROLL
    for (int i = 0; i < N / 4; ++i) write_part(to + 4 * i, range.valid - at - 4 * i, word.part[i]);
}

// One chunk that passes through a step: from the slot `in` or the range `source`, to the slot `out` or `target`. `second`
// is the other operand of a sum.
struct Piece {
    const char *in;
    char *out;
    Range source, second, target;
    int64_t bytes;
    int operation;
    uint64_t in_flag, out_flag;  // numbers of the messages, from 1
};

template <class R, int N>
TREADLE_DEVICE Word<N> with_second(int flow, const Piece &piece, int64_t at, const Word<N> &word) {
    if (!(flow & REDUCE)) return word;
    return join<R, N>(piece.operation, word, read<N>(piece.second, at));
}

}  // namespace treadle
