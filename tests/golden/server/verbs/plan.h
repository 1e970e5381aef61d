// three "workers"\n#error: 3 workers
//
// The plan as tables: which core slot handles each chunk, and where that slot is.
#pragma once

#include <cstdint>

namespace plan {

constexpr char NAME[] = "three \"workers\"\n#error: 3 workers";
constexpr char DIGEST[] = "137d3528b26498221866a692025f7b32cccbf0dac283d18fffb1ed125804379e";  // both ends have the same one

constexpr int WORKERS = 3, SERVERS = 1;
constexpr int OPTIMIZER = 1;  // as in treadle_server_numbers.h
constexpr bool ARRIVAL_ORDER = false, BYPASS = false;
constexpr int64_t CHUNK_BYTES = 4096;

struct Key {
    const char *name;
    int64_t elements;
    int type;  // as in treadle_server_numbers.h
};
constexpr Key KEYS[] = {
    {"conv.weight", 30000, 0},
    {"head\"; }\n#error", 777, 1},
    {"stem", 1000, 2},
};

// Devices have these names, unless TREADLE_DEVICES gives others in the same order.
constexpr const char *INTERFACES[] = {
    "mlx5_0",
    "mlx5_1",
};

struct Slot {
    int server, domain, core;
    int interface;  // -1: that of each worker
};
constexpr Slot SLOTS[] = {
    {0, 0, 0, 0},
    {0, 1, 0, 1},
};

// The interface of each worker at its server, where it has one of its own.
constexpr int WORKER_INTERFACES[WORKERS] = {-1, -1, -1};

// The slot of each chunk, in the order of keys.
constexpr uint16_t PLACES[] = {
    0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1,
    0, 1, 0, 1, 0, 1, 1, 1,
};

}  // namespace plan
