// Protocol Simple: bare data in slots, one flag per message. 16 bytes a thread at a time.
#pragma once
#include "treadle_range.h"

namespace treadle {

struct Simple {
    static constexpr bool FLAGGED = false, LINES = false;  // whether the data carries its own flags; by lines of 128 bytes
    TREADLE_BOTH static constexpr int64_t wire(int64_t bytes) { return (bytes + 15) / 16 * 16; }

    template <class R>
    TREADLE_DEVICE static bool move(const Launch &, int flow, const Piece &piece) {
        const int64_t stride = int64_t(threads()) * 16;
        int64_t at = int64_t(thread()) * 16;
        if (whole(flow & READ, piece.source, piece.bytes) && whole(flow & REDUCE, piece.second, piece.bytes) &&
            whole(flow & WRITE, piece.target, piece.bytes))
            for (; at + (UNROLL - 1) * stride + 16 <= piece.bytes; at += UNROLL * stride)
                words<R>(flow, piece, at, stride);
        for (; at < piece.bytes; at += stride) {
            Word<16> word = flow & RECEIVE ? load_slot(piece.in + at) : read<16>(piece.source, at);
            word = with_second<R, 16>(flow, piece, at, word);
            if (flow & WRITE) write<16>(piece.target, at, word);
            if (flow & SEND) store_slot(piece.out + at, word);
        }
        return true;
    }

  private:
    TREADLE_DEVICE static bool whole(bool used, const Range &range, int64_t bytes) {
        return !used || (aligned(range.data, 16) && range.valid >= bytes);
    }

    // Several words at once, all loads before the first store, so that their latencies overlap.
    template <class R>
    TREADLE_DEVICE static void words(int flow, const Piece &piece, int64_t at, int64_t stride) {
        Word<16> word[UNROLL];
        TREADLE_UNROLL
        for (int u = 0; u < UNROLL; ++u)
            word[u] = flow & RECEIVE ? load_slot(piece.in + at + u * stride) : local(piece.source, at + u * stride);
        if (flow & REDUCE) {
            Word<16> other[UNROLL];
            TREADLE_UNROLL
            for (int u = 0; u < UNROLL; ++u) other[u] = local(piece.second, at + u * stride);
            TREADLE_UNROLL
            for (int u = 0; u < UNROLL; ++u) word[u] = join<R, 16>(piece.operation, word[u], other[u]);
        }
        TREADLE_UNROLL
        for (int u = 0; u < UNROLL; ++u) {
            if (flow & WRITE) local(piece.target, at + u * stride) = word[u];
            if (flow & SEND) store_slot(piece.out + at + u * stride, word[u]);
        }
    }

    TREADLE_DEVICE static Word<16> &local(const Range &range, int64_t at) {
        return *reinterpret_cast<Word<16> *>(range.data + at);
    }
};

}  // namespace treadle
