// What travels on a stream to the holder of states, and how it keeps them: the whole format.
//
// A state is what one device of one machine holds, `bytes` in a row. A holder keeps each of its states in one memfd of
// two halves, each at a multiple of 4096 (HALF_ALIGNED): a whole version stays in one while the next one fills the other.
// Beside the memory, where no other process writes, it keeps for each half its version, its phase (empty, filling,
// whole), the table of its pieces {offset, bytes, crc}, and the crc of all its bytes. Sums are CRC-32C.
//
// A stream begins with the greeting (runtime/wire/greeting.py); an agent's own ranks then get a Welcome with the memfds
// (runtime/checkpoint/welcome.py). Frames follow, each answered in order:
//
//   BEGIN   version, length            -> BEGUN (offset: where its half begins), or REFUSED
//   PIECE   version, offset, body      -> TAKEN once its sum is right, or REFUSED; a piece of a plan comes in several
//   PLACED  version, offset, length    -> TAKEN: the bytes are in the half already; flag UNSUMMED: the holder counts `sum`
//   COMMIT  version, length, sum       -> DONE: the pieces cover every byte once and have this sum together; or REFUSED
//   WANT    version                    -> after every piece is read again: BEGIN, PIECE..., COMMIT, which are not answered;
//                                         with flag HERE instead FOUND (offset, length, sum); or REFUSED
//
// BEGIN makes the other versions that are not older disappear, since whoever makes this one has rolled back, and takes
// a state away from an earlier stream that fills it. A stream that ends, or is refused anything but a WANT, loses what it
// has begun and not committed; the whole version stays.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reader.h"

namespace treadle {

enum Op : uint16_t { BEGIN = 1, PIECE, PLACED, COMMIT, WANT, BEGUN, TAKEN, DONE, FOUND, REFUSED };

enum Flag : uint16_t { UNSUMMED = 1, HERE = 2 };

constexpr uint64_t HALF_ALIGNED = 4096;
constexpr size_t LONGEST_TEXT = 400;  // of REFUSED

// Little endian. `head_sum` is that of all in front of it.
struct Frame {
    static constexpr uint32_t MARK = 0x50435254;  // "TRCP"
    uint32_t magic;
    uint16_t op;
    uint16_t flags;
    uint32_t machine, device;  // whose state
    uint64_t version;
    uint64_t offset;
    uint64_t length;  // bytes of the state that it is about
    uint64_t bytes;   // of the body: a piece, or the text of REFUSED
    uint32_t sum;     // of the state's bytes that it is about
    uint32_t body_sum;
    uint32_t unused;
    uint32_t head_sum;
};
static_assert(sizeof(Frame) == 64, "a frame's head");

inline Frame make_frame(Op op, uint32_t machine, uint32_t device, uint64_t version, uint64_t offset = 0, uint64_t length = 0, uint32_t sum = 0, uint16_t flags = 0) {
    return {Frame::MARK, op, flags, machine, device, version, offset, length, 0, sum, 0, 0, 0};
}

}  // namespace treadle
