// Reductions inside a block, and kernels that take one row of the last dimension at a time. Threads and blocks are added
// up in a fixed order: the same launch gives the same sum, another number of threads one that is rounded otherwise.
#pragma once
#include "treadle_expression.h"
#include "treadle_slices.h"

namespace treadle {

// What sums are kept in: 16-bit floats in fp32.
template <class T>
using Total = Computed<T>;

template <class T>
struct SumOf {
    using Value = T;
    TREADLE_DEVICE static Total<T> start() { return 0; }
    TREADLE_DEVICE static Total<T> take(Total<T> total, T x) { return sum(total, widen(x)); }
    TREADLE_DEVICE static Total<T> join(Total<T> a, Total<T> b) { return sum(a, b); }
    TREADLE_DEVICE static T finish(Total<T> total) { return convert<T>(total); }
};

// The root of the sum of squares.
template <class T>
struct LengthOf : SumOf<T> {
    TREADLE_DEVICE static Total<T> take(Total<T> total, T x) { return sum(total, product(widen(x), widen(x))); }
    TREADLE_DEVICE static T finish(Total<T> total) { return convert<T>(std::sqrt(total)); }
};

template <class T>
struct GreatestOf {
    using Value = T;
    TREADLE_DEVICE static Total<T> start() { return lowest(Total<T>()); }
    TREADLE_DEVICE static Total<T> take(Total<T> total, T x) { return join(total, widen(x)); }
    TREADLE_DEVICE static Total<T> join(Total<T> a, Total<T> b) { return a != a || a > b ? a : b; }
    TREADLE_DEVICE static T finish(Total<T> total) { return convert<T>(total); }

  private:
    TREADLE_DEVICE static float lowest(float) { return -INFINITY; }
    TREADLE_DEVICE static double lowest(double) { return -INFINITY; }
    TREADLE_DEVICE static int32_t lowest(int32_t) { return INT32_MIN; }
    TREADLE_DEVICE static int64_t lowest(int64_t) { return INT64_MIN; }
};

template <class T>
struct LeastOf {
    using Value = T;
    TREADLE_DEVICE static Total<T> start() { return highest(Total<T>()); }
    TREADLE_DEVICE static Total<T> take(Total<T> total, T x) { return join(total, widen(x)); }
    TREADLE_DEVICE static Total<T> join(Total<T> a, Total<T> b) { return a != a || a < b ? a : b; }
    TREADLE_DEVICE static T finish(Total<T> total) { return convert<T>(total); }

  private:
    TREADLE_DEVICE static float highest(float) { return INFINITY; }
    TREADLE_DEVICE static double highest(double) { return INFINITY; }
    TREADLE_DEVICE static int32_t highest(int32_t) { return INT32_MAX; }
    TREADLE_DEVICE static int64_t highest(int64_t) { return INT64_MAX; }
};

// One entry for every warp; on the host, where blocks are small, for every thread.
#ifdef __CUDACC__
constexpr int TEAM = WARP;
constexpr int TEAMS = MAX_THREADS / WARP;
template <class R, class T>
TREADLE_DEVICE T over_team(T mine) {
    TREADLE_UNROLL
    for (int distance = WARP / 2; distance; distance /= 2)
        mine = R::join(mine, __shfl_down_sync(0xffffffff, mine, distance));
    return mine;
}
#else
constexpr int TEAM = 1;
constexpr int TEAMS = 64;
template <class R, class T>
TREADLE_DEVICE T over_team(T mine) {
    return mine;
}
#endif

struct Teams {
    double total[TEAMS];
};

// The total of what all threads of a block have, known to all of them.
template <class R, class T>
TREADLE_DEVICE T over_block(Teams &shared, T mine) {
    T *totals = reinterpret_cast<T *>(shared.total);
    mine = over_team<R>(mine);
    if (thread() % TEAM == 0) totals[thread() / TEAM] = mine;
    barrier();
    T total = totals[0];
    for (int team = 1; team * TEAM < threads(); ++team) total = R::join(total, totals[team]);
    barrier();
    return total;
}

// R of read(n, i) for the elements i of a row.
template <class R, int64_t WIDTH, int PACK, class Read>
TREADLE_DEVICE auto over_row(Teams &shared, Read read) {
    auto total = R::start();
    constexpr int64_t WHOLE = WIDTH / PACK * PACK;
    for (int64_t i = int64_t(thread()) * PACK; i < WHOLE; i += int64_t(threads()) * PACK) {
        const auto values = read(std::integral_constant<int, PACK>(), i);
        TREADLE_UNROLL
        for (int k = 0; k < PACK; ++k) total = R::take(total, element(values, k));
    }
    for (int64_t i = WHOLE + thread(); i < WIDTH; i += threads())
        total = R::take(total, element(read(std::integral_constant<int, 1>(), i), 0));
    return R::finish(over_block<R>(shared, total));
}

template <int64_t WIDTH, int PACK, class Take>
TREADLE_DEVICE void along_row(Take take) {
    constexpr int64_t WHOLE = WIDTH / PACK * PACK;
    for (int64_t i = int64_t(thread()) * PACK; i < WHOLE; i += int64_t(threads()) * PACK)
        take(std::integral_constant<int, PACK>(), i);
    for (int64_t i = WHOLE + thread(); i < WIDTH; i += threads()) take(std::integral_constant<int, 1>(), i);
}

}  // namespace treadle
