// Reductions over all elements that a rank holds, over each of the tensors that make them up, or along one dimension; with
// the other ranks where each holds a part. Blocks, then ranks, are added up in a fixed order: all get the same bits.
//
// Every block reduces a stretch of the slice and meets the others; the first block joins what they found, exchanges it
// with the other ranks through the arenas, and meets them again: then the values lie in the arena.
#pragma once
#include "treadle_rows.h"

namespace treadle {

// How many elements of a rank come before element `global` of the whole; slices keep the order of the whole.
template <class Slice>
TREADLE_DEVICE int64_t below(int place, int64_t global) {
    int64_t first = 0, last = Slice::elements(place);
    while (first < last) {
        const int64_t middle = (first + last) / 2;
        if (Slice::global(place, middle) < global)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

template <class Slice, int PACK>
TREADLE_DEVICE int64_t stretch(const Task &task, int place) {
    return larger(PACK, round_up((Slice::elements(place) + task.blocks - 1) / task.blocks, PACK));
}

// The total of part k in the stretch of block b is partial[k + b]: both ascend together, so that no two share an entry.
template <class R, class Slice, int PACK, int PARTS, class T, class Read>
TREADLE_DEVICE void reduce_stretch(const Task &task, int place, Teams &shared, const int64_t *ends, T *partial, Read read) {
    const int64_t length = stretch<Slice, PACK>(task, place), elements = Slice::elements(place);
    int64_t begin = smaller(elements, length * block_of(task));
    const int64_t end = smaller(elements, begin + length);
    while (begin < end) {
        const int64_t part = PARTS == 1 ? 0 : part_of(ends, PARTS, Slice::global(place, begin));
        const int64_t stop = PARTS == 1 ? end : smaller(end, below<Slice>(place, ends[part]));
        T total = R::start();
        for (int64_t local = begin + int64_t(thread()) * PACK; local < stop; local += int64_t(threads()) * PACK) {
            if (local + PACK <= stop && Slice::run(place, local) >= PACK) {
                const auto values = read(std::integral_constant<int, PACK>(), Slice::global(place, local), local);
                TREADLE_UNROLL
                for (int i = 0; i < PACK; ++i) total = R::take(total, element(values, i));
            } else {
                for (int64_t i = local; i < smaller(local + PACK, stop); ++i)
                    total = R::take(total, element(read(std::integral_constant<int, 1>(), Slice::global(place, i), i), 0));
            }
        }
        total = over_block<R>(shared, total);
        if (thread() == 0) partial[part + block_of(task)] = total;
        begin = stop;
    }
}

// What all blocks of the rank found, by part; done by one block.
template <class R, class Slice, int PACK, int PARTS, class T>
TREADLE_DEVICE void join_stretches(const Task &task, int place, const int64_t *ends, const T *partial, T *totals) {
    const int64_t length = stretch<Slice, PACK>(task, place), elements = Slice::elements(place);
    for (int part = thread(); part < PARTS; part += threads()) {
        const int64_t begin = PARTS == 1 || part == 0 ? 0 : below<Slice>(place, ends[part - 1]);
        const int64_t end = PARTS == 1 ? elements : below<Slice>(place, ends[part]);
        T total = R::start();
        if (begin < end)
            for (int64_t block = begin / length; block <= (end - 1) / length; ++block)
                total = R::join(total, partial[part + block]);
        totals[part] = total;
    }
}

// Along one dimension: each thread goes down a column. `Whole` is what is reduced, `Result` what comes out, `Along` the
// part of the dimension that this rank holds, INNER the elements behind it.
template <class R, class Whole, class Result, class Along, int64_t EXTENT, int64_t INNER, class T, class Read>
TREADLE_DEVICE void reduce_columns(const Task &task, int place, T *totals, Read read) {
    const int64_t stride = int64_t(task.blocks) * threads();
    for (int64_t column = int64_t(block_of(task)) * threads() + thread(); column < Result::elements(place); column += stride) {
        const int64_t of = Result::global(place, column);
        T total = R::start();
        for (int64_t k = 0; k < Along::elements(place); ++k) {
            const int64_t global = (of / INNER * EXTENT + Along::global(place, k)) * INNER + of % INNER;
            total = R::take(total, element(read(global, Whole::local(place, global)), 0));
        }
        totals[column] = total;
    }
}

// The same along the last dimension: the threads of a block reduce a row together.
template <class R, class Whole, class Result, class Along, int64_t EXTENT, class T, class Read>
TREADLE_DEVICE void reduce_rows(const Task &task, int place, Teams &shared, T *totals, Read read) {
    for (int64_t row = block_of(task); row < Result::elements(place); row += task.blocks) {
        const int64_t begin = Result::global(place, row) * EXTENT;
        T total = R::start();
        for (int64_t k = thread(); k < Along::elements(place); k += threads()) {
            const int64_t global = begin + Along::global(place, k);
            total = R::take(total, element(read(global, Whole::local(place, global)), 0));
        }
        total = over_block<R>(shared, total);
        if (thread() == 0) totals[row] = total;
    }
}

// Totals become values; the first block's threads share them.
template <class R, class T>
TREADLE_DEVICE void finish(const T *totals, int64_t count, typename R::Value *values) {
    for (int64_t i = thread(); i < count; i += threads()) values[i] = R::finish(totals[i]);
}

template <class T>
TREADLE_DEVICE T *in_arena(const Task &task, int rank, int64_t offset) {
    return reinterpret_cast<T *>(task.arenas[rank] + offset);
}

// A one-shot AllReduce of `count` totals among the ranks of a group, by one block of each: everybody stores its totals to
// everybody, in the half of the slots that this run may use: the other half may still be read. False when it was given up.
template <class R, int RANKS, class T>
TREADLE_DEVICE bool exchange(const Task &task, int rank, int64_t flags, int64_t slots, int count, T *totals) {
    const int place = rank % RANKS, first = rank - place;
    const int64_t half = slots + int64_t(epoch_of(task) % 2) * RANKS * count * int64_t(sizeof(T));
    for (int peer = 0; peer < RANKS; ++peer) {
        T *to = reinterpret_cast<T *>(task.arenas[first + peer] + half) + int64_t(place) * count;
        for (int i = thread(); i < count; i += threads()) to[i] = totals[i];
    }
#ifdef TREADLE_COUNT
    if (thread() == 0)
        __atomic_fetch_add(&static_cast<Counts *>(block_context())->sent, (RANKS - 1) * count, __ATOMIC_RELAXED);
#endif
    barrier();
    for (int peer = thread(); peer < RANKS; peer += threads()) {
        const T *stored = reinterpret_cast<const T *>(task.arenas[first + peer] + half) + int64_t(place) * count;
        deliver(stored, int64_t(count) * int64_t(sizeof(T)), false);
        signal_system(&reinterpret_cast<Flag *>(task.arenas[first + peer] + flags)[place].value, epoch_of(task) + 1);
    }
    bool good = true;
    for (int peer = thread(); peer < RANKS; peer += threads())
        good &= wait_system(task, &reinterpret_cast<Flag *>(task.arenas[rank] + flags)[peer].value, epoch_of(task) + 1,
                            PARTIAL_SUMS, first + peer, count);
    barrier();
    const T *from = reinterpret_cast<const T *>(task.arenas[rank] + half);
    for (int i = thread(); i < count; i += threads()) {
        T total = from[i];
        for (int peer = 1; peer < RANKS; ++peer) total = R::join(total, from[int64_t(peer) * count + i]);
        totals[i] = total;
    }
    return good;
}

}  // namespace treadle
