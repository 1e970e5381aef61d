// Protocol LL: packets of 4 bytes of data and a 4-byte flag, stored at once; the receiver polls the data itself.
#pragma once
#include "treadle_range.h"

namespace treadle {

struct LL {
    static constexpr bool FLAGGED = true, LINES = false;
    TREADLE_BOTH static constexpr int64_t wire(int64_t bytes) { return (bytes + 3) / 4 * 8; }

    // Never 0, which is what fresh slots hold; an old message of a slot has a smaller number.
    TREADLE_DEVICE static uint32_t flag(uint64_t message) { return uint32_t((message - 1) % 0xffffffffu) + 1; }

    template <class R>
    TREADLE_DEVICE static bool move(const Launch &launch, int flow, const Piece &piece) {
        bool good = true;
        for (int64_t at = int64_t(thread()) * 4; at < piece.bytes && good; at += int64_t(threads()) * 4) {
            Word<4> word;
            if (flow & RECEIVE)
                good = load_packet(launch, piece.in + 2 * at, flag(piece.in_flag), word.part[0]);
            else
                word = read<4>(piece.source, at);
            word = with_second<R, 4>(flow, piece, at, word);
            if (flow & WRITE) write<4>(piece.target, at, word);
            if (flow & SEND) store_packet(piece.out + 2 * at, word.part[0], flag(piece.out_flag));
        }
        return good;
    }
};

}  // namespace treadle
