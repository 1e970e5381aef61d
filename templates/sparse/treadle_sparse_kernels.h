// Kernels of sparse gradients for GPUs. A unit is a row of `width` float32. What a kernel leaves for the next lies in
// memory of the caller.
#pragma once
#include <cmath>

#include "treadle_sparse_slots.h"

namespace treadle {

constexpr int BATCH = 4;  // rows that a thread reads at once
constexpr int CHUNK = 16 * WARP;

// The units of a part in ascending order: those of `listed`, or `count` from `first` on. `rank` is that of any unit of the
// gradient within its part, null for a range.
struct Part {
    const int32_t *listed, *rank;
    int64_t units, first, count;
    uint32_t seed;
    int32_t parts, part;
};

// A call: which fields matter, each kernel says.
struct SparseCall {
    Memory memory;
    Part owned;
    int64_t count, width, units, chunks;
    const float *values;
    const int32_t *indices, *ends;
    uint32_t *bitmap, *before, *offsets;
    int32_t *found;
    float *out;
    float scale;
    int32_t device;
    void *stream;
    uint64_t order;  // of fibers: a seed
};

// The parameters of a launch.
struct Task : SparseCall {
    Abort abort;
    int64_t blocks;
};
using SparseKernel = void (*)(TREADLE_TASK);

TREADLE_DEVICE int lane() { return thread() % WARP; }
TREADLE_DEVICE int64_t place_of(const Task &) { return int64_t(block_index()) * threads() + thread(); }
TREADLE_DEVICE int64_t places(const Task &task) { return task.blocks * threads(); }

// `work(i)` for all of [0, count), by a thread each.
template <class Work>
TREADLE_DEVICE void each_of(const Task &task, int64_t count, Work work) {
    for (int64_t i = place_of(task); i < count; i += places(task)) work(i);
}

// `work(first)` for each run of [0, count), by a warp each, whose threads stay together.
template <class Work>
TREADLE_DEVICE void each_run(const Task &task, int64_t count, int64_t run, Work work) {
    const int64_t step = places(task) / WARP * run;
    for (int64_t first = place_of(task) / WARP * run; first < count; first += step) work(first);
}

// `work(row, column)` for all of `count` rows. As many neighbouring threads as a row has columns take one.
template <class Work>
TREADLE_DEVICE void each_element(const Task &task, int64_t count, Work work) {
    int side = 1;
    while (side < WARP && side < task.width) side *= 2;
    for (int64_t row = place_of(task) / side; row < count; row += places(task) / side)
        for (int64_t column = thread() % side; column < task.width; column += side) work(row, column);
}

// Rows that a warp takes at once: narrow ones are read by a thread each, wide ones by the whole warp.
TREADLE_BOTH inline int run_of(int64_t width) { return width < WARP ? BATCH * WARP : WARP; }

// Votes of a run of rows: whether anything in a row is not zero. Reads that do not wait for one another go together.
TREADLE_DEVICE void occupied(const Task &task, int64_t first, uint32_t (&votes)[BATCH]) {
    TREADLE_UNROLL for (int b = 0; b < BATCH; ++b) votes[b] = 0;
    if (task.width < WARP) {
        bool any[BATCH] = {};
        for (int64_t column = 0; column < task.width; ++column)
            TREADLE_UNROLL for (int b = 0; b < BATCH; ++b) {
                const int64_t row = first + b * WARP + lane();
                if (row < task.count) any[b] |= task.values[row * task.width + column] != 0;
            }
        TREADLE_UNROLL for (int b = 0; b < BATCH; ++b) votes[b] = ballot(any[b]);
        return;
    }
    for (int bit = 0; bit < WARP; bit += BATCH) {
        bool any[BATCH] = {};
        for (int64_t column = lane(); column < task.width; column += WARP)
            TREADLE_UNROLL for (int b = 0; b < BATCH; ++b) {
                const int64_t row = first + bit + b;
                if (row < task.count) any[b] |= task.values[row * task.width + column] != 0;
            }
        TREADLE_UNROLL for (int b = 0; b < BATCH; ++b) votes[0] |= uint32_t(ballot(any[b]) != 0) << (bit + b);
    }
}

// Inserts the units of `values` [count, width] that are not zero.
TREADLE_KERNEL collect(TREADLE_TASK task) {
    each_run(task, task.count, run_of(task.width), [&](int64_t first) {
        uint32_t votes[BATCH];
        occupied(task, first, votes);
        TREADLE_UNROLL for (int b = 0; b < BATCH; ++b)
            if (votes[b] >> lane() & 1) insert(task.memory, uint32_t(first + b * WARP + lane()));
    });
}

// Inserts `indices` [count].
TREADLE_KERNEL insert_listed(TREADLE_TASK task) {
    each_of(task, task.count, [&](int64_t i) { insert(task.memory, uint32_t(task.indices[i])); });
}

// Chunks are those of each part of the memory, or of the bitmap of a part that is owned. `work(found, votes)` for each
// WARP words or bits of one: what that of a thread stands for, -1 for nothing, and the votes of those with something.
template <class Work>
TREADLE_DEVICE void each_found(const Task &task, int64_t chunk, Work work) {
    const int64_t words = task.bitmap ? task.owned.count : task.memory.part_words(), chunks = (words + CHUNK - 1) / CHUNK;
    const int64_t start = chunk / chunks * words, begin = chunk % chunks * CHUNK;
    for (int64_t at = begin; at < begin + CHUNK && at < words; at += WARP) {
        const int64_t i = start + at + lane();
        int32_t found = -1;
        if (at + lane() < words) {
            if (!task.bitmap)
                found = int32_t(task.memory.words[i] - 1);
            else if (task.bitmap[i / 32] >> i % 32 & 1)
                found = task.owned.listed ? task.owned.listed[i] : int32_t(task.owned.first + i);
        }
        work(found, ballot(found >= 0));
    }
}

TREADLE_KERNEL count_chunks(TREADLE_TASK task) {
    each_run(task, task.chunks, 1, [&](int64_t chunk) {
        uint32_t count = 0;
        each_found(task, chunk, [&](int32_t, uint32_t votes) { count += ones_of(votes); });
        if (lane() == 0) task.before[chunk] = count;
    });
}

struct Sums {
    uint32_t before[MAX_THREADS];
};

// By one block: the counts of chunks become those of all chunks before; `offsets` has that of the first of each part, then
// that of all, and of a bitmap what is wrong with it: here, ones beyond its part.
TREADLE_KERNEL count_before(TREADLE_TASK task) {
    TREADLE_SHARED(Sums, sums);
    const int64_t begin = task.chunks * thread() / threads(), end = task.chunks * (thread() + 1) / threads();
    const int64_t parts = task.bitmap ? 1 : task.memory.parts, own = task.chunks / parts;
    uint32_t count = 0;
    for (int64_t chunk = begin; chunk < end; ++chunk) count += task.before[chunk];
    sums.before[thread()] = count;
    barrier();
    uint32_t before = 0;
    for (int i = 0; i < thread(); ++i) before += sums.before[i];
    for (int64_t chunk = begin; chunk < end; ++chunk) {
        if (chunk % own == 0) task.offsets[chunk / own] = before;
        const uint32_t here = task.before[chunk];
        task.before[chunk] = before;
        before += here;
    }
    if (thread() != threads() - 1) return;
    task.offsets[parts] = before;
    const int64_t bits = task.bitmap ? task.owned.count : 0;
    if (bits % 32 && task.bitmap[bits / 32] >> bits % 32) ++task.offsets[parts + 1];
}

// Writes what the chunks have to `found`, in their order.
TREADLE_KERNEL place_chunks(TREADLE_TASK task) {
    each_run(task, task.chunks, 1, [&](int64_t chunk) {
        uint32_t next = task.before[chunk];
        each_found(task, chunk, [&](int32_t found, uint32_t votes) {
            if (found >= 0) task.found[next + ones_of(votes & ((1u << lane()) - 1))] = found;
            next += ones_of(votes);
        });
    });
}

TREADLE_DEVICE bool names(const Task &task, int32_t index) { return index >= 0 && index < task.units; }

// `out` [count, width]: the rows of `values` [units, width] that `indices` [count] name, NaN where that is none.
TREADLE_KERNEL gather(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        const int32_t index = task.indices[row];
        task.out[row * task.width + column] = names(task, index) ? task.values[index * task.width + column] : NAN;
    });
}

// The rank of a unit in its part, -1 if it is in another one.
TREADLE_DEVICE int64_t rank_of(const Part &own, int32_t unit) {
    if (unit < 0 || unit >= own.units) return -1;
    if (own.rank) return ranged(unit, own.seed, own.parts) == uint32_t(own.part) ? own.rank[unit] : -1;
    return unit >= own.first && unit < own.first + own.count ? unit - own.first : -1;
}

// Adds `values` [count, width] to the rows of `out`, one for each unit of the part, at `indices` [count], which are
// distinct, and sets their bits. Counts those of another part.
TREADLE_KERNEL add_rows(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        const int64_t rank = rank_of(task.owned, task.indices[row]);
        if (column == 0 && rank >= 0) set_in(&task.bitmap[rank / 32], 1u << rank % 32);
        if (column == 0 && rank < 0) fetch_add(task.offsets + 2, 1);
        if (rank >= 0) task.out[rank * task.width + column] += task.values[row * task.width + column];
    });
}

// `out` [count, width]: row i is the sum of the rows of `values` that `found` has from `indices[i]` to `ends[i]`.
TREADLE_KERNEL sum_rows(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        const int32_t begin = task.indices[row], end = task.ends[row];
        float sum = task.values[task.found[begin] * task.width + column];
        for (int32_t i = begin + 1; i < end; ++i) sum += task.values[task.found[i] * task.width + column];
        task.out[row * task.width + column] = sum;
    });
}

// Stores `values` [count, width] times `scale` to the rows of `out` [units, width] that `indices` [count] name, if any.
TREADLE_KERNEL write_rows(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        const int32_t index = task.indices[row];
        if (names(task, index)) task.out[index * task.width + column] = task.values[row * task.width + column] * task.scale;
    });
}

}  // namespace treadle
