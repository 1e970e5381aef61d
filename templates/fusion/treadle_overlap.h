// Kernels that run at the same time on a rank, one on what the other has finished (CoCoNet, section 3.6). A producer makes
// units (tiles of a product, chunks of a collective); so does a consumer take units. `Link` says how they hang together:
//
//     RANKS               of a group; tables have one row for each
//     AT                  where its counters lie in the arena of a rank: the ticket, then one for each consumer's unit
//     need(place, unit)   how many units of the producer that unit of the consumer is made of
//     feeds(place, unit)  the units of the consumer, [begin, end), that a unit of the producer is part of
//
// Counters only grow: in run e unit u is there once its counter has come to (e + 1) * need. A producer raises them after
// a barrier of its block, by an addition that publishes what the block has stored; a consumer takes it before one.
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
        return wait_rank(task, counters_of<Link>(task, rank) + 1 + unit, need * (task.epoch + 1), TILES, rank, unit);
    }
};

// After a unit is stored. Called by one thread, after a barrier.
template <class Link>
struct Done {
    TREADLE_DEVICE static void signal(const Task &task, int rank, int64_t unit) {
        const Units fed = Link::feeds(rank % Link::RANKS, unit);
        for (const int32_t *at = fed.begin; at < fed.end; ++at) add_rank(counters_of<Link>(task, rank) + 1 + *at, 1);
    }
};

// Where there is nothing to wait for, and nobody to tell.
struct Always {
    TREADLE_DEVICE static bool wait(const Task &, int, int64_t) { return true; }
    TREADLE_DEVICE static void signal(const Task &, int, int64_t) {}
};

// The next of `count` places in an order, count or more when there is none left. Blocks take them as they come, for
// nobody knows which ones a machine starts first. In each run every block of the rank is turned away once.
template <class Link>
TREADLE_DEVICE int64_t take_ticket(const Task &task, int rank, int64_t count) {
    return int64_t(add_rank(counters_of<Link>(task, rank), 1) - task.epoch * uint64_t(count + task.blocks));
}

}  // namespace treadle
