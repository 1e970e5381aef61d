// Which elements of a sliced tensor a rank holds: element `local` of rank `rank` is element `global` of the flat tensor.
// From `local` on, `run` elements lie side by side in both.
#pragma once
#include <type_traits>

#include "treadle_fusion.h"

namespace treadle {

TREADLE_BOTH constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
TREADLE_BOTH constexpr int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
TREADLE_BOTH constexpr int64_t round_up(int64_t a, int64_t to) { return (a + to - 1) / to * to; }

// A tensor that every rank has whole.
template <int64_t SIZE>
struct Whole {
    static constexpr bool CONTIGUOUS = true;  // a rank's elements lie side by side in the whole
    TREADLE_DEVICE static int64_t elements(int) { return SIZE; }
    TREADLE_DEVICE static int64_t global(int, int64_t local) { return local; }
    TREADLE_DEVICE static int64_t local(int, int64_t global) { return global; }
    TREADLE_DEVICE static int64_t run(int, int64_t local) { return SIZE - local; }
};

// OUTER x EXTENT x INNER elements: the ranks hold equal parts along the middle, the last ones shorter or empty.
template <int64_t OUTER, int64_t EXTENT, int64_t INNER, int RANKS>
struct BlockSlice {
    static constexpr bool CONTIGUOUS = OUTER == 1;
    static constexpr int64_t MOST = (EXTENT + RANKS - 1) / RANKS;

    TREADLE_DEVICE static int64_t first(int rank) { return smaller(EXTENT, rank * MOST); }
    TREADLE_DEVICE static int64_t row(int rank) { return (smaller(EXTENT, (rank + 1) * MOST) - first(rank)) * INNER; }
    TREADLE_DEVICE static int64_t elements(int rank) { return OUTER * row(rank); }
    TREADLE_DEVICE static int owner(int64_t global) { return int(global / INNER % EXTENT / MOST); }
    TREADLE_DEVICE static int64_t global(int rank, int64_t local) {
        if (OUTER == 1) return first(rank) * INNER + local;
        return local / row(rank) * (EXTENT * INNER) + first(rank) * INNER + local % row(rank);
    }
    TREADLE_DEVICE static int64_t local(int rank, int64_t global) {
        if (OUTER == 1) return global - first(rank) * INNER;
        return global / (EXTENT * INNER) * row(rank) + global % (EXTENT * INNER) - first(rank) * INNER;
    }
    TREADLE_DEVICE static int64_t run(int rank, int64_t local) { return row(rank) - (OUTER == 1 ? local : local % row(rank)); }
};

// What a ring of CHANNELS copies leaves, tile by tile of RANKS * CHANNELS chunks of CAPACITY elements (CoCoNet, section 5).
template <int64_t SIZE, int CHANNELS, int64_t CAPACITY, int64_t ALIGN, bool RANK_MAJOR, int RANKS>
struct RingSlice {
    static constexpr bool CONTIGUOUS = false;
    static constexpr int64_t SHARE = CHANNELS * CAPACITY;  // elements of a rank in a whole tile
    static constexpr int64_t TILE = RANKS * SHARE;

    TREADLE_DEVICE static int64_t chunk(int64_t base) {
        return round_up(smaller(CAPACITY, (SIZE - base + RANKS * CHANNELS - 1) / (RANKS * CHANNELS)), ALIGN);
    }
    TREADLE_DEVICE static int64_t place(int rank, int64_t channel) {
        return RANK_MAJOR ? rank * CHANNELS + channel : channel * RANKS + rank;
    }
    TREADLE_DEVICE static int64_t elements(int rank) {
        const int64_t base = SIZE / TILE * TILE, q = chunk(base);
        int64_t total = SIZE / TILE * SHARE;
        for (int channel = 0; channel < CHANNELS; ++channel)
            total += smaller(q, larger(0, SIZE - base - place(rank, channel) * q));
        return total;
    }
    TREADLE_DEVICE static int owner(int64_t global) {
        const int64_t chunk_number = global % TILE / chunk(global / TILE * TILE);
        return int(RANK_MAJOR ? chunk_number / CHANNELS : chunk_number % RANKS);
    }
    TREADLE_DEVICE static int64_t global(int rank, int64_t local) {
        const int64_t base = local / SHARE * TILE, q = chunk(base), rest = local % SHARE;
        return base + place(rank, rest / q) * q + rest % q;
    }
    TREADLE_DEVICE static int64_t local(int, int64_t global) {
        const int64_t base = global / TILE * TILE, q = chunk(base), rest = global - base;
        const int64_t channel = RANK_MAJOR ? rest / q % CHANNELS : rest / q / RANKS;
        return base / RANKS + channel * q + rest % q;
    }
    TREADLE_DEVICE static int64_t run(int rank, int64_t local) {
        const int64_t q = chunk(local / SHARE * TILE);
        return smaller(q - local % SHARE % q, SIZE - global(rank, local));
    }
};

// Calls take(n, global, local) for all elements of a rank's slice: n of them, PACK where they lie side by side. All
// blocks of the rank share the work.
template <class Slice, int PACK, class Take>
TREADLE_DEVICE void over_slice(const Task &task, int place, Take take) {
    const int64_t elements = Slice::elements(place), stride = int64_t(task.blocks) * threads() * PACK;
    for (int64_t local = (int64_t(block_of(task)) * threads() + thread()) * PACK; local < elements; local += stride) {
        if (local + PACK <= elements && Slice::run(place, local) >= PACK)
            take(std::integral_constant<int, PACK>(), Slice::global(place, local), local);
        else
            for (int64_t i = local; i < smaller(local + PACK, elements); ++i)
                take(std::integral_constant<int, 1>(), Slice::global(place, i), i);
    }
}

}  // namespace treadle
