// Kernels that run at the same time on a rank, one on what the other has finished (CoCoNet, section 3.6). A producer makes
// units (tiles of a product, chunks of a collective), a consumer takes units of its own. `Link` says how they hang together:
//
//     RANKS               of a group; tables have one row for each
//     AT                  where its counters lie in the arena of a rank, one for each unit of the consumer
//     need(place, unit)   how many units of the producer that unit of the consumer is made of
//     feeds(place, unit)  the units of the consumer, [begin, end), that a unit of the producer is part of
//
// Counters only grow: in run e unit u is there once its counter has come to (e + 1) * need. A producer raises them after
// a barrier of its block, by an addition that publishes what the block has stored; a consumer looks before one.
#pragma once
#include "treadle_fusion.h"

namespace treadle {

struct Units {
    const int32_t *begin, *end;
};

template <class Link>
TREADLE_DEVICE uint64_t *counters_of(const Task &task, int rank) {
    return reinterpret_cast<uint64_t *>(task.arenas[rank] + Link::AT);
}

// Before a unit is read. False when the run has been given up. Called by one thread, before a barrier.
template <class Link>
struct Ready {
    TREADLE_DEVICE static bool wait(const Task &task, int rank, int64_t unit) {
        const uint64_t need = Link::need(rank % Link::RANKS, unit);
        return wait_rank(task, counters_of<Link>(task, rank) + unit, need * (epoch_of(task) + 1), TILES, rank, unit);
    }
};

// After a unit is stored. Called by one thread, after a barrier.
template <class Link>
struct Done {
    TREADLE_DEVICE static void signal(const Task &task, int rank, int64_t unit) {
        const Units fed = Link::feeds(rank % Link::RANKS, unit);
        for (const int32_t *at = fed.begin; at < fed.end; ++at) add_rank(counters_of<Link>(task, rank) + *at, 1);
    }
};

// Nothing to wait for and nothing to signal.
struct Always {
    TREADLE_DEVICE static bool wait(const Task &, int, int64_t) { return true; }
    TREADLE_DEVICE static void signal(const Task &, int, int64_t) {}
};

// In which order a rank makes its units: `count(place)` of them, `unit(place, turn)` one after the other, with one more
// counter at AT. Blocks take turns as they come, since a machine starts them in any order; in each run every
// block of the rank is turned away once. The result is `count` or more when there is none left.
template <class Order>
TREADLE_DEVICE int64_t take_turn(const Task &task, int rank) {
    const uint64_t turns = Order::count(rank % Order::RANKS) + task.blocks;
    return int64_t(add_rank(counters_of<Order>(task, rank), 1) - epoch_of(task) * turns);
}

}  // namespace treadle
