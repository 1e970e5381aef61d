// The order in which squares are added up for LAMB's norms, in double, so that every machine has the same sums. A chunk
// has leaves of 64 rows of 64 elements. A leaf is added row by row; then halves of the row are added until one sum is
// left. Leaves of a chunk are added in order, and so are chunks of a key.
#pragma once
#include "treadle_server_numbers.h"

namespace treadle::kernels {

constexpr int64_t LANES = 64, ROWS = 64, LEAF = LANES * ROWS;

struct Span {
    int64_t begin, end;
};

TREADLE_EITHER double squared(double value) { return value * value; }  // exact, as values come from float

TREADLE_EITHER int64_t leaves_of(int64_t elements) { return (elements + LEAF - 1) / LEAF; }

// Of a key of `n` elements in chunks.
TREADLE_EITHER int64_t lanes_of(int64_t n, int64_t chunk) {
    return (n / chunk * leaves_of(chunk) + leaves_of(n % chunk)) * LANES;
}
TREADLE_EITHER Span leaf_at(int64_t leaf, int64_t n, int64_t chunk) {
    const int64_t first = leaf / leaves_of(chunk) * chunk, begin = first + leaf % leaves_of(chunk) * LEAF;
    const int64_t last = first + chunk < n ? first + chunk : n;
    return {begin, begin + LEAF < last ? begin + LEAF : last};
}

// The sum of a row stands in its first lane.
TREADLE_EITHER void fold(double *lanes) {
    for (int64_t width = LANES / 2; width; width /= 2)
        for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
}

// 1 where a norm is 0.
TREADLE_EITHER double lamb_ratio(double weights, double direction) {
    return weights > 0 && direction > 0 ? sqrt(weights) / sqrt(direction) : 1.0;
}

}  // namespace treadle::kernels
