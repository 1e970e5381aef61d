// What travels between a worker and one core of a server, in order, on a stream of their own.
#pragma once

#include <cstdint>

namespace treadle {

constexpr uint32_t MAGIC = 0x56525354;  // "TSRV"

enum Op : uint16_t {
    PUSH = 1,       // a gradient; no answer
    PUSH_PULL = 2,  // a gradient; the answer is the VALUE of the version that it makes
    PULL = 3,       // no body; the answer is the VALUE of version `step` or a later one, once it is there
    VALUE = 4,      // from the server: the weights (or the mean gradient) of version `step`
    SETTINGS = 5,   // `chunk` groups of NUMBERS doubles: settings of the optimizer from version `step` on
    FAILED = 6,     // from the server: text; the stream ends behind it
};

enum Flag : uint16_t {
    EMPTY = 1,  // a push without a gradient and without a body: it counts as zeros, or skips the chunk if all are empty
};

constexpr int NUMBERS = 16;  // of a group of settings

// Little endian. `step`: a push makes version `step` of its chunk, one more than the version before. Who sends is known
// by the stream. Sums are CRC-32C, that of the head over all in front of it.
struct Frame {
    static constexpr uint32_t MARK = MAGIC;
    uint32_t magic;
    uint16_t op;
    uint16_t flags;
    uint32_t chunk;
    uint32_t bytes;
    uint64_t step;
    uint32_t body_sum;
    uint32_t head_sum;
};
static_assert(sizeof(Frame) == 32, "a frame's head");

}  // namespace treadle
