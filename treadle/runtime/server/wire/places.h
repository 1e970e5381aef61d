// Where chunks and the parts of an arena begin: both ends count them alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "arena.h"
#include "frame.h"
#include "job.h"

namespace treadle {

constexpr int64_t LINE = 64;    // of a cache: where chunks begin
constexpr int64_t PAGE = 4096;  // where the parts of an arena begin

constexpr int64_t rounded(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }
constexpr int64_t type_bytes(int32_t type) { return type == FLOAT32 ? 4 : 2; }

// Chunks as they travel: `bytes` of each, where it begins in a buffer of them all, and the bytes of that.
struct Places {
    std::vector<int64_t> offset;
    std::vector<uint32_t> bytes;
    int64_t total = 0;

    Places() = default;
    Places(int64_t chunks, const int64_t *elements, const int32_t *key, const int32_t *type) : offset(size_t(chunks)), bytes(size_t(chunks)) {
        for (size_t chunk = 0; chunk < size_t(chunks); ++chunk) {
            offset[chunk] = total;
            bytes[chunk] = uint32_t(elements[chunk] * type_bytes(type[key[chunk]]));
            total += rounded(bytes[chunk], LINE);
        }
    }
};

// Where the parts of an arena begin, and its bytes.
struct ArenaParts {
    int64_t rings, settings, gradients, values, bytes;

    ArenaParts(int64_t slots, int64_t groups, int64_t buffer)
        : rings(sizeof(Arena)),
          settings(rings + slots * rounded(sizeof(Rings), PAGE)),
          gradients(settings + rounded(slots * 2 * groups * NUMBERS * int64_t(sizeof(double)), PAGE)),
          values(gradients + rounded(buffer, PAGE)),
          bytes(values + rounded(buffer, PAGE)) {}

    Rings *rings_of(char *arena, int64_t slot) const { return reinterpret_cast<Rings *>(arena + rings + slot * rounded(sizeof(Rings), PAGE)); }

    // Those of version `step`: the one before is read while this one is written.
    double *settings_of(char *arena, int64_t slot, int64_t groups, uint64_t step) const {
        return reinterpret_cast<double *>(arena + settings) + (slot * 2 + int64_t(step & 1)) * groups * NUMBERS;
    }
};

}  // namespace treadle
