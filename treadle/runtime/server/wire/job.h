// What the server is told of a job, and what it tells: plain data, the same in Python (ctypes).
#pragma once

#include <cstdint>

namespace treadle {

enum Optimizer : int32_t { MEAN = 0, SGD = 1, NESTEROV = 2, ADAM = 3, LAMB = 4 };
enum Type : int32_t { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2 };

struct Job {
    const char *name;
    int32_t workers;  // of this server: those of its rack where there are two levels
    int32_t racks, rack;
    int32_t keys, groups;
    int64_t chunks;                 // of the whole model, numbered in the order of keys
    const int64_t *chunk_elements;  // [chunks]
    const int32_t *chunk_key;       // [chunks]
    const int32_t *chunk_slot;      // [chunks]: the core slot of this server, -1 where another server has it
    const int32_t *chunk_owner;     // [chunks]: the rack whose server optimizes it; null with one level
    const int32_t *key_type;        // [keys]: Type
    const int32_t *key_group;       // [keys]: its group of settings
    const double *settings;         // [groups * NUMBERS]: the first ones
    int32_t optimizer, synchronous, arrival_order, wide, bypass;
    int32_t shared;          // whether workers come over arenas, so that no memory is taken for early gradients
    int32_t snapshot_every;  // versions; 0 for none
    int64_t log;             // entries of the log of events that are kept, for tests; 0 for none
};

enum What : int32_t {
    LOST = 1,      // a worker is gone: `text` says why
    FINISHED = 2,  // every chunk of this server has version `step`
    SNAPSHOT = 3,  // the copy of version `step` is whole and stays until it is released
    LATE = 4,      // others have sent version `step`, which has waited for `worker` for a second, and goes on waiting
    PEER = 5,      // the server of rack `worker` is gone
};

struct Event {
    int32_t what, job, worker, unused;
    uint64_t step;
    char text[224];
};

struct Logged {  // one line of the log: who did what with which chunk, in ns of the monotonic clock
    uint64_t time;
    uint64_t step;
    int32_t chunk, worker, thread, act;  // act: 1 arrived, 2 added, 3 optimized, 4 sent
};

}  // namespace treadle
