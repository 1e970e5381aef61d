// Plain data that the host driver, both device bodies and Python agree on.
#pragma once
#include <cstddef>
#include <cstdint>

namespace treadle {

constexpr int MAX_LOCAL_RANKS = 64;  // ranks of one launch; their pointers travel as kernel parameters
constexpr int LINE = 128;            // bytes of a cache line; flags that others poll stand in lines of their own

// Why a program was given up: a deadlock of fibers, a wait beyond its limit, a rank that closed its session early, one
// whose process is gone. Of two causes the later one is reported.
enum Cause : uint32_t { DEADLOCK = 1, LATE, CLOSED, LOST };

// What stands in an abort word, which is 0 while all is well; `rank` is where the cause lies.
constexpr uint32_t abort_word(Cause cause, int rank) { return uint32_t(cause) << 24 | uint32_t(rank); }

// Done by hosts: the first cause stays.
inline void set_abort(uint32_t *word, uint32_t cause) {
    uint32_t none = 0;
    __atomic_compare_exchange_n(word, &none, cause, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// The abort words of a program: one for each process, in memory of the host. A kernel polls that of its own process;
// whoever gives up sets them all.
struct Abort {
    uint32_t *word, *const *others;
    int32_t count;  // of the others
    uint32_t late;  // what a kernel stores whose wait exceeds the limit
};

enum Buffer : int32_t { INPUT, OUTPUT, SCRATCH };

// What a step does. The seven moving types of MSCCL are the combinations that make sense.
enum Flow : int32_t { RECEIVE = 1, SEND = 2, READ = 4, WRITE = 8, REDUCE = 16 };

enum Dtype : int32_t { BYTES, FLOAT32, FLOAT16, BFLOAT16, INT32 };
enum Operation : int32_t { SUM, MIN, MAX };

struct Step {
    int32_t flow;  // 0: nop
    int32_t source_buffer, source, target_buffer, target, count;
    int32_t wait_block, wait_step;  // -1: waits for nothing
    int32_t awaited;
};

// A threadblock. `*_slots` numbers the slot areas of the receiving rank, -1 for none.
struct BlockEntry {
    int32_t rank, id, rank_blocks, first_step, steps;
    int32_t recv_rank, recv_block, recv_slots;  // where messages come from, and this block's own slots
    int32_t send_rank, send_block, send_slots;  // where messages go, and the slots there
};

struct alignas(LINE) Flag {
    uint64_t value;
};

enum Reason : int32_t { NOTHING, FOR_MESSAGE, FOR_ROOM, FOR_STEP, FOR_END };

// What lasts from launch to launch. All counters only grow, so that nothing needs to be reset in between.
struct BlockState {
    Flag filled;    // messages that have arrived here; the sender writes it (Simple only)
    Flag drained;   // messages of this block that its receiver has taken; the receiver writes it
    Flag progress;  // iterations * stride + steps done; read by blocks of the same rank
    alignas(LINE) uint64_t received;
    uint64_t sent, iterations;
    int32_t reason, step, wait_block, wait_step;  // where a launch gave up, for the report
};

// A rank's arena: one BlockState for each of `max_blocks` blocks, then its slot areas.
struct Shape {
    int32_t ranks, max_blocks, slots, stride;  // stride: more than the steps of any block
    int64_t slot_bytes;                        // on the wire
};

struct LocalRank {
    char *input, *output, *scratch;
    int64_t averaged_bytes;  // bytes of the output to divide by the ranks at the end; 0 unless the operation is avg
};

// One launch. Sizes in bytes: a part is what one rank contributes, `width` one chunk of it, rounded up; the
// last chunks of a part may be short or empty. An iteration moves `slice` bytes of every chunk.
struct Launch {
    const BlockEntry *blocks;
    const Step *steps;
    char *const *arenas;  // by rank
    Abort abort;
    Shape shape;
    int32_t first_block, first_rank;
    int32_t part_chunks, slices, merged, operation;
    int64_t part, width, slice;
    uint64_t timeout_ns;
    LocalRank local[MAX_LOCAL_RANKS];
};

// What is fixed when a session opens; `devices` has one entry for each local rank, -1 elsewhere.
struct Config {
    int32_t ranks, blocks, steps, threads, slots, max_count;  // threads 0: as many as let all blocks be resident
    int64_t slot_bytes;  // payload that a slot should hold
    const int32_t *devices;
};

struct Call {
    const LocalRank *local;  // by rank; only local ones are read
    void *const *streams;    // by rank
    int32_t part_chunks, dtype, operation;
    int64_t part, element;  // bytes
    uint64_t timeout_ns, seed;
};

}  // namespace treadle
