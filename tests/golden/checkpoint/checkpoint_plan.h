// a "ring"\n#error \.: copies of states in the memory of other machines. Written by treadle from a plan.
//
// Every device holds a state of STATE_BYTES. Round r of a device sends it to SENDS[machine][r] and receives the state of
// RECEIVES[machine][r]; round 0 is the copy to its own host.
#pragma once
#include <cstddef>
#include <cstdint>

namespace treadle {

constexpr int MACHINES = 5, DEVICES = 2, COPIES = 2;
constexpr size_t STATE_BYTES = 1000;
constexpr int SPANS = 3, MESSAGES = 2;
constexpr int BUFFERS = 4;
constexpr size_t BUFFER_BYTES = 256;

constexpr int SENDS[MACHINES][COPIES] = {
    {0, 1},
    {1, 0},
    {2, 3},
    {3, 4},
    {4, 2},
};
constexpr int RECEIVES[MACHINES][COPIES] = {
    {0, 1},
    {1, 0},
    {2, 4},
    {3, 2},
    {4, 3},
};

struct Piece {
    int span, round;
    size_t offset, bytes;
    int buffer;
};
// In the order in which they are sent; the last entry ends the table.
constexpr Piece PIECES[] = {
    {0, 1, 0, 256, 0},
    {1, 1, 256, 256, 1},
    {1, 1, 512, 256, 2},
    {2, 1, 768, 232, 3},
    {SPANS, 0, 0, 0, 0},
};

struct Own {
    int message;
    size_t offset, bytes;
};
// Copies to the own host while a message of the training runs; MESSAGES: after them all.
constexpr Own OWN[] = {
    {0, 0, 256},
    {1, 256, 256},
    {2, 512, 488},
    {MESSAGES + 1, 0, 0},
};

}  // namespace treadle
