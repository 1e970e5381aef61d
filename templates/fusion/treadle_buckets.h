// One tensor whose elements lie in many tensors that were allocated apart (CoCoNet, section 5.4). It is cut into buckets;
// a table says where each begins. What a buffer of such a tensor points to is the table.
#pragma once
#include "treadle_slices.h"

namespace treadle {

constexpr int64_t BUCKET = 1024;  // elements of a bucket; the last one of a tensor may have fewer

struct Scattered {
    int64_t buckets, elements;
    const int64_t *start;          // [buckets + 1]: the first element of each bucket
    const int32_t *page;           // the bucket that has element 0, 1024, 2048, ...
    const uint64_t *address;       // tensor that each bucket is part of
    const int32_t *offset;         // start of each bucket in it, in elements
};

// The bucket that a thread found last; the next element is often in the same one, in all tensors alike.
struct Cursor {
    int64_t bucket, begin, end;

    TREADLE_DEVICE void seek(const Scattered &of, int64_t global) {
        if (begin <= global && global < end) return;
        bucket = of.page[global / BUCKET];
        while (of.start[bucket + 1] <= global) ++bucket;
        begin = of.start[bucket];
        end = of.start[bucket + 1];
    }
};

template <class T>
TREADLE_DEVICE T *place_of(const Scattered &of, Cursor &cursor, int64_t global) {
    cursor.seek(of, global);
    return reinterpret_cast<T *>(of.address[cursor.bucket]) + of.offset[cursor.bucket] + (global - cursor.begin);
}

template <class T, int N>
TREADLE_DEVICE Pack<T, N> load_scattered(const Scattered &of, Cursor &cursor, int64_t global) {
    const T *from = place_of<T>(of, cursor, global);
    if (global + N <= cursor.end) return load_user<T, N>(from);
    Pack<T, N> pack;
    for (int i = 0; i < N; ++i) pack[i] = load_user<T, 1>(place_of<T>(of, cursor, global + i))[0];
    return pack;
}

template <class T, int N>
TREADLE_DEVICE void store_scattered(const Scattered &of, Cursor &cursor, int64_t global, const Pack<T, N> &pack) {
    T *to = place_of<T>(of, cursor, global);
    if (global + N <= cursor.end) return store_user(to, pack);
    for (int i = 0; i < N; ++i) store_user(place_of<T>(of, cursor, global + i), Pack<T, 1>{pack[i]});
}

// As over_slice, with buckets dealt to warps in turn. A bucket may lie across the end of a slice.
template <class Slice, int PACK, class Take>
TREADLE_DEVICE void over_buckets(const Task &task, int place, const Scattered &of, Take take) {
    static_assert(Slice::CONTIGUOUS);
    const int64_t elements = Slice::elements(place);
    if (elements == 0) return;
    const int64_t begin = Slice::global(place, 0), end = begin + elements;
    const int width = int(smaller(WARP, threads())), lane = thread() % width;
    const int64_t warps = int64_t(task.blocks) * (threads() / width);
    Cursor cursor{};
    cursor.seek(of, begin);
    int64_t bucket = cursor.bucket + (int64_t(block_of(task)) * threads() + thread()) / width;
    for (; bucket < of.buckets && of.start[bucket] < end; bucket += warps) {
        const int64_t first = larger(begin, of.start[bucket]), last = smaller(end, of.start[bucket + 1]);
        for (int64_t global = first + int64_t(lane) * PACK; global < last; global += int64_t(width) * PACK) {
            if (global + PACK <= last)
                take(std::integral_constant<int, PACK>(), global, Slice::local(place, global));
            else
                for (int64_t i = global; i < last; ++i) take(std::integral_constant<int, 1>(), i, Slice::local(place, i));
        }
    }
}

}  // namespace treadle
