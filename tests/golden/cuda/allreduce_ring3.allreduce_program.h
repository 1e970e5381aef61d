// treadle_allreduce_3 as tables, for treadle_open and the interpreter kernel.
#pragma once
#include "treadle_types.h"

namespace treadle::treadle_allreduce_3 {

constexpr int RANKS = 3, PART_CHUNKS = 3, MAX_COUNT = 1;

// rank, id, rank_blocks, first_step, steps, recv_rank, recv_block, recv_slots, send_rank, send_block, send_slots
constexpr BlockEntry BLOCKS[] = {
    {0, 0, 1, 0, 5, 2, 0, 0, 1, 0, 0},
    {1, 0, 1, 5, 5, 0, 0, 0, 2, 0, 0},
    {2, 0, 1, 10, 5, 1, 0, 0, 0, 0, 0},
};

// flow, source_buffer, source, target_buffer, target, count, wait_block, wait_step, awaited
constexpr Step STEPS[] = {
    {6, 0, 0, 0, 0, 1, -1, -1, 0},
    {23, 0, 2, 0, 0, 1, -1, -1, 0},
    {31, 0, 1, 1, 1, 1, -1, -1, 0},
    {11, 0, 0, 1, 0, 1, -1, -1, 0},
    {9, 0, 0, 1, 2, 1, -1, -1, 0},
    {6, 0, 1, 0, 0, 1, -1, -1, 0},
    {23, 0, 0, 0, 0, 1, -1, -1, 0},
    {31, 0, 2, 1, 2, 1, -1, -1, 0},
    {11, 0, 0, 1, 1, 1, -1, -1, 0},
    {9, 0, 0, 1, 0, 1, -1, -1, 0},
    {6, 0, 2, 0, 0, 1, -1, -1, 0},
    {23, 0, 1, 0, 0, 1, -1, -1, 0},
    {31, 0, 0, 1, 0, 1, -1, -1, 0},
    {11, 0, 0, 1, 2, 1, -1, -1, 0},
    {9, 0, 0, 1, 1, 1, -1, -1, 0},
};

}  // namespace treadle::treadle_allreduce_3
