// Protocol LL128: lines of 120 bytes of data and an 8-byte flag, each moved by eight neighbouring threads. Between GPUs
// it needs links that carry 128 bytes in one piece, as NVLink does.
#pragma once
#include "treadle_range.h"

namespace treadle {

struct LL128 {
    static constexpr bool FLAGGED = true, LINES = true;
    TREADLE_BOTH static constexpr int64_t wire(int64_t bytes) { return (bytes + LINE_DATA - 1) / LINE_DATA * LINE; }

    template <class R>
    TREADLE_DEVICE static bool move(const Launch &launch, int flow, const Piece &piece) {
        constexpr int TOGETHER = WARP / LINE_THREADS;
        const int lane = thread() % LINE_THREADS;
        const int64_t lines = (piece.bytes + LINE_DATA - 1) / LINE_DATA;
        bool good = true;
        for (int64_t first = thread() / WARP * TOGETHER; first < lines && good; first += threads() / WARP * TOGETHER) {
            const int64_t line = first + thread() % WARP / LINE_THREADS;
            const int64_t at = line * LINE_DATA + lane * 16;
            const bool active = line < lines;
            uint64_t word[2] = {0, 0};
            if (flow & RECEIVE)
                good = load_line(launch, reinterpret_cast<const Line *>(piece.in) + line, active, lane, piece.in_flag,
                                 word);
            if (active) {
                half<R>(flow, piece, at, word[0]);
                if (lane < LINE_THREADS - 1) half<R>(flow, piece, at + 8, word[1]);
            }
            if (flow & SEND)
                store_line(reinterpret_cast<Line *>(piece.out) + line, active, lane, piece.out_flag, word);
        }
        return good;
    }

  private:
    template <class R>
    TREADLE_DEVICE static void half(int flow, const Piece &piece, int64_t at, uint64_t &value) {
        Word<8> word = flow & RECEIVE ? bits<Word<8>>(value) : read<8>(piece.source, at);
        word = with_second<R, 8>(flow, piece, at, word);
        if (flow & WRITE) write<8>(piece.target, at, word);
        value = bits<uint64_t>(word);
    }
};

}  // namespace treadle
