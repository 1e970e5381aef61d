// Kernels of sparse gradients for CPUs. A call works in the memory of the caller.
#include <string>

#include "treadle_partition_host.h"
#include "treadle_sums_host.h"

#define TREADLE_API extern "C" __attribute__((visibility("default")))

namespace treadle {

inline thread_local std::string message;

// What `work` counts, or -1 if it fails, with a message.
template <class Work>
int64_t guarded(const Work &work) {
    try {
        return work();
    } catch (const std::exception &error) {
        message = error.what();
        return -1;
    }
}

}  // namespace treadle

using namespace treadle;

TREADLE_API const char *treadle_message() { return message.c_str(); }

TREADLE_API int64_t treadle_ranged(uint32_t word, uint32_t seed, uint32_t size) { return ranged(word, seed, size); }

TREADLE_API int64_t treadle_insert(const Partition *call) {
    return guarded([&] {
        call->counting ? list_all(*call) : insert_all(*call);
        return 0;
    });
}

TREADLE_API int64_t treadle_extract(const Partition *call) {
    return guarded([&] {
        call->counting ? deal_out(*call) : extract(*call);
        return 0;
    });
}

TREADLE_API int64_t treadle_own(int64_t units, int32_t parts, uint32_t seed, uint32_t *list, uint32_t *rank,
                                int64_t *counts, int32_t threads) {
    return guarded([&] {
        own(units, parts, seed, list, rank, counts, threads);
        return 0;
    });
}

TREADLE_API int64_t treadle_mark(const Owned *owned, const uint32_t *units, int64_t count, uint32_t *bitmap,
                                 uint32_t *ranks, int32_t threads) {
    return guarded([&] {
        mark(*owned, units, count, bitmap, ranks, threads);
        return 0;
    });
}

TREADLE_API int64_t treadle_ones_before(const uint32_t *bitmap, int64_t count, uint32_t *before) {
    return guarded([&] { return ones_before(bitmap, count, before); });
}

TREADLE_API int64_t treadle_add(const uint32_t *ranks, const float *values, int64_t count, int64_t width,
                                const uint32_t *bitmap, const uint32_t *before, float *sums, int32_t threads) {
    return guarded([&] {
        add(ranks, values, count, width, bitmap, before, sums, threads);
        return 0;
    });
}

TREADLE_API int64_t treadle_decode(const Owned *owned, const uint32_t *bitmap, const uint32_t *before, uint32_t *out,
                                   int32_t threads) {
    return guarded([&] {
        decode(*owned, bitmap, before, out, threads);
        return 0;
    });
}

TREADLE_API int64_t treadle_gather(const float *values, int64_t units, int64_t width, const uint32_t *indices,
                                   int64_t count, float *out, int32_t threads) {
    return guarded([&] {
        gather(values, units, width, indices, count, out, threads);
        return 0;
    });
}

TREADLE_API int64_t treadle_write(const uint32_t *indices, const float *values, int64_t count, int64_t width, float scale,
                                  float *out, int64_t units, int32_t threads) {
    return guarded([&] {
        write(indices, values, count, width, scale, out, units, threads);
        return 0;
    });
}

TREADLE_API int64_t treadle_number(const int64_t *indices, int64_t count, int64_t units, uint32_t *places,
                                   int32_t threads) {
    return guarded([&] { return number(indices, count, units, places, threads); });
}

TREADLE_API int64_t treadle_coalesce(const int64_t *indices, const float *values, int64_t count, int64_t width,
                                     const uint32_t *places, uint32_t *units, float *sums, int32_t threads) {
    return guarded([&] {
        coalesce(indices, values, count, width, places, units, sums, threads);
        return 0;
    });
}
