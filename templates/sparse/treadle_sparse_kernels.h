// Kernels of sparse gradients for GPUs. A unit is a row of `width` float32. Warps take units in runs of their own size, so
// that a vote is a word of a bitmap. What a kernel leaves for the next lies in memory of the caller.
#pragma once
#include <type_traits>

#include "treadle_sparse_slots.h"

namespace treadle {

constexpr int BATCH = 4;  // votes that a warp reads for at once
constexpr int CHUNK = 16 * WARP;
using Votes = std::conditional_t<WARP == 32, uint32_t, uint8_t>;
static_assert(sizeof(Votes) * 8 == WARP);

// A call: which fields matter, each kernel says.
struct SparseCall {
    Memory memory;
    int64_t count, width, chunks;
    const float *values;
    const int32_t *indices, *table;
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

// Writes `bitmap` of `values` [count, width], with zeros up to its last whole word.
TREADLE_KERNEL mark(TREADLE_TASK task) {
    const int64_t padded = (task.count + 31) / 32 * 32, run = run_of(task.width);
    each_run(task, padded, run, [&](int64_t first) {
        uint32_t votes[BATCH];
        occupied(task, first, votes);
        TREADLE_UNROLL for (int b = 0; b < BATCH; ++b)
            if (lane() == 0 && b * WARP < run && first + b * WARP < padded)
                reinterpret_cast<Votes *>(task.bitmap)[first / WARP + b] = Votes(votes[b]);
    });
}

// Chunks are those of each part of the memory, or of a bitmap of `count` bits. `work(found, votes)` for each run of one:
// what a thread's word or bit stands for, -1 for nothing, and the votes of those that found something.
template <class Work>
TREADLE_DEVICE void each_found(const Task &task, int64_t chunk, Work work) {
    const int64_t words = task.bitmap ? task.count : task.memory.part_words(), chunks = (words + CHUNK - 1) / CHUNK;
    const int64_t start = chunk / chunks * words, begin = chunk % chunks * CHUNK;
    for (int64_t at = begin; at < begin + CHUNK && at < words; at += WARP) {
        const int64_t i = start + at + lane();
        int32_t found = -1;
        if (at + lane() < words) {
            if (!task.bitmap)
                found = int32_t(task.memory.words[i]) - 1;
            else if (task.bitmap[i / 32] >> i % 32 & 1)
                found = task.table ? task.table[i] : int32_t(i);
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

// By one block: the counts of chunks become those of all chunks before; `offsets` has that of the first of each part, and
// that of all.
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
    if (thread() == threads() - 1) task.offsets[parts] = before;
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

// `out` [count, width]: the rows of `values` that `indices` [count] name.
TREADLE_KERNEL gather(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        task.out[row * task.width + column] = task.values[task.indices[row] * task.width + column];
    });
}

// Adds `values` [count, width] to the rows of `out` that `table` has for `indices` [count], which are distinct.
TREADLE_KERNEL add_rows(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        task.out[task.table[task.indices[row]] * task.width + column] += task.values[row * task.width + column];
    });
}

// Stores `values` [count, width] times `scale` to the rows of `out` that `indices` [count] name.
TREADLE_KERNEL write_rows(TREADLE_TASK task) {
    each_element(task, task.count, [&](int64_t row, int64_t column) {
        task.out[task.indices[row] * task.width + column] = task.values[row * task.width + column] * task.scale;
    });
}

}  // namespace treadle
