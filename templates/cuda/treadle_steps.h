// Steps of a threadblock: wait, move chunks, signal. One message per sending or receiving step; a message has
// `count` chunks, each of the bytes that this iteration moves.
#pragma once
#include "treadle_ll.h"
#include "treadle_ll128.h"
#include "treadle_simple.h"

namespace treadle {

// The step types of MSCCL.
constexpr int32_t S = SEND | READ, R = RECEIVE | WRITE, RCS = RECEIVE | WRITE | SEND, CPY = READ | WRITE;
constexpr int32_t RRS = RECEIVE | READ | REDUCE | SEND, RRC = RECEIVE | READ | REDUCE | WRITE, RRCS = RRC | SEND;
constexpr int32_t RE = READ | REDUCE | WRITE, NOP = 0;

// What the threads of a block share. Only the first thread writes it, and no other reads it but after a barrier.
struct Block {
    const BlockEntry *entry;
    LocalRank local;
    BlockState *states;              // states of all blocks of this rank
    BlockState *sender, *receiver;   // the blocks at the other ends
    char *inbox, *outbox;            // slots here, slots there
    uint64_t received, sent, iterations;
    int64_t offset, length;          // part of a chunk in this iteration
    int32_t step, failed, silent;    // a wait failed; so nothing is moved or signalled any more
};

TREADLE_DEVICE BlockState *states_of(const Launch &launch, int rank) {
    return reinterpret_cast<BlockState *>(launch.arenas[rank]);
}

TREADLE_DEVICE char *slots_of(const Launch &launch, int rank, int area) {
    return reinterpret_cast<char *>(states_of(launch, rank) + launch.shape.max_blocks) +
           int64_t(area) * launch.shape.slots * launch.shape.slot_bytes;
}

TREADLE_DEVICE void open(const Launch &launch, Block &block) {
    const BlockEntry &entry = launch.blocks[launch.first_block + block_index()];
    block.entry = &entry;
    block.local = launch.local[entry.rank - launch.first_rank];
    block.states = states_of(launch, entry.rank);
    if (entry.recv_block >= 0) {
        block.sender = states_of(launch, entry.recv_rank) + entry.recv_block;
        block.inbox = slots_of(launch, entry.rank, entry.recv_slots);
    }
    if (entry.send_block >= 0) {
        block.receiver = states_of(launch, entry.send_rank) + entry.send_block;
        block.outbox = slots_of(launch, entry.send_rank, entry.send_slots);
    }
    const BlockState &state = block.states[entry.id];
    block.received = state.received;
    block.sent = state.sent;
    block.iterations = state.iterations;
    block.failed = block.silent = 0;
}

TREADLE_DEVICE void close(Block &block) {
    BlockState &state = block.states[block.entry->id];
    state.received = block.received;
    state.sent = block.sent;
    state.iterations = block.iterations;
}

// The first wait of a block that failed, for the report.
TREADLE_DEVICE void note(Block &block, int reason, int wait_block, int wait_step) {
    block.failed = 1;
    BlockState &state = block.states[block.entry->id];
    if (state.reason != NOTHING) return;
    state.reason = reason;
    state.step = block.step;
    state.wait_block = wait_block;
    state.wait_step = wait_step;
}

TREADLE_DEVICE void wait_for_block(const Launch &launch, Block &block, int other, uint64_t value, int reason, int step) {
    const uint64_t *flag = &block.states[other].progress.value;
    if (!spin(flag, launch, [&] { return load_acquire_rank(flag) >= value; })) note(block, reason, other, step);
}

TREADLE_DEVICE void wait_for_step(const Launch &launch, Block &block, int other, int step) {
    wait_for_block(launch, block, other, block.iterations * launch.shape.stride + step + 1, FOR_STEP, step);
}

TREADLE_DEVICE void wait_for_message(const Launch &launch, Block &block) {
    const uint64_t *flag = &block.states[block.entry->id].filled.value, value = block.received + 1;
    if (!spin(flag, launch, [&] { return load_acquire_system(flag) >= value; })) note(block, FOR_MESSAGE, -1, -1);
}

TREADLE_DEVICE void wait_for_room(const Launch &launch, Block &block) {
    const uint64_t *flag = &block.states[block.entry->id].drained.value, value = block.sent + 1;
    const uint64_t slots = launch.shape.slots;
    if (!spin(flag, launch, [&] { return load_acquire_system(flag) + slots >= value; })) note(block, FOR_ROOM, -1, -1);
}

TREADLE_DEVICE Range range(const Launch &launch, const Block &block, int buffer, int index, int64_t bytes) {
    if (buffer == SCRATCH) return {block.local.scratch + index * launch.width + block.offset, bytes};
    const int64_t part = index / launch.part_chunks;
    const int64_t start = index % launch.part_chunks * launch.width + block.offset;
    const int64_t left = launch.part - start;
    const int64_t valid = launch.merged || left > bytes ? bytes : left > 0 ? left : 0;
    return {(buffer == INPUT ? block.local.input : block.local.output) + part * launch.part + start, valid};
}

template <class Reduce, class Protocol>
TREADLE_DEVICE void move(const Launch &launch, Block &block, int flow, const Step &step) {
    const int64_t bytes = launch.merged ? step.count * block.length : block.length;
    const int64_t wire = Protocol::wire(bytes);
    const uint32_t last = launch.shape.slots - 1;  // slots are a power of two
    Piece piece{};
    piece.bytes = bytes;
    piece.operation = launch.operation;
    piece.in_flag = block.received + 1;
    piece.out_flag = block.sent + 1;
    piece.in = block.inbox + int64_t(uint32_t(block.received) & last) * launch.shape.slot_bytes;
    piece.out = block.outbox + int64_t(uint32_t(block.sent) & last) * launch.shape.slot_bytes;
    bool good = true;
    for (int chunk = 0; chunk < (launch.merged ? 1 : step.count); ++chunk) {
        if (flow & READ) piece.source = range(launch, block, step.source_buffer, step.source + chunk, bytes);
        if (flow & WRITE) piece.target = range(launch, block, step.target_buffer, step.target + chunk, bytes);
        if (flow & REDUCE) piece.second = flow & RECEIVE ? piece.source : piece.target;
        good = Protocol::template move<Reduce>(launch, flow, piece) && good;
        piece.in += wire;
        piece.out += wire;
        yield();
    }
    if (!good) note(block, FOR_MESSAGE, -1, -1);
}

template <class Reduce, class Protocol>
TREADLE_DEVICE void perform(const Launch &launch, Block &block, int flow, int number, const Step &step) {
    const bool first = thread() == 0;
    if (first) {
        block.step = number;
        if (step.wait_block >= 0 && !block.failed) wait_for_step(launch, block, step.wait_block, step.wait_step);
        if (flow & RECEIVE && !Protocol::FLAGGED && !block.failed) wait_for_message(launch, block);
        if (flow & SEND && !block.failed) wait_for_room(launch, block);
        block.silent = block.failed;
    }
    if (flow) {
        barrier();
        if (!block.silent) move<Reduce, Protocol>(launch, block, flow, step);
        barrier();
    }
    if (first && !block.failed) {
        if (flow & SEND) {
            ++block.sent;
            if (!Protocol::FLAGGED) signal_system(&block.receiver->filled.value, block.sent);
        }
        if (flow & RECEIVE) signal_system(&block.sender->drained.value, ++block.received);
        if (step.awaited)
            signal_rank(&block.states[block.entry->id].progress.value,
                        block.iterations * launch.shape.stride + number + 1);
    }
}

// Chunk `index` of a buffer; step `step` of a threadblock, which another one waits for.
struct Place {
    int buffer, index;
};
struct Before {
    int block, step;
};
constexpr bool AWAITED = true, UNAWAITED = false;

// A step whose type is known when the kernel is compiled.
template <class Reduce, class Protocol, int FLOW>
TREADLE_NOINLINE void step(const Launch &launch, Block &block, int number, Place source, Place target, int count,
                           bool awaited, Before before = {-1, -1}) {
    perform<Reduce, Protocol>(launch, block, FLOW, number,
                              {FLOW, source.buffer, source.index, target.buffer, target.index, count, before.block,
                               before.step, awaited});
}

// Divides the output once every block of the rank is done; each block takes its share.
template <class Reduce>
TREADLE_NOINLINE void average(const Launch &launch, Block &block) {
    const int blocks = block.entry->rank_blocks;
    if (thread() == 0)
        for (int other = 0; other < blocks; ++other)
            wait_for_block(launch, block, other, block.iterations * launch.shape.stride, FOR_END, -1);
    barrier();
    const Range output = {block.local.output, block.local.averaged_bytes};
    const int64_t stride = int64_t(blocks) * threads() * 16;
    for (int64_t at = (int64_t(block.entry->id) * threads() + thread()) * 16; at < output.valid; at += stride) {
        Word<16> word = read<16>(output, at);
        TREADLE_UNROLL
        for (int i = 0; i < 4; ++i) word.part[i] = Reduce::divide(word.part[i], launch.shape.ranks);
        write<16>(output, at, word);
    }
}

// A launch of this block: `body` runs its steps once for every slice of the chunks.
template <class Reduce, class Body>
TREADLE_DEVICE void execute(const Launch &launch, Block &block, Body body) {
    const bool first = thread() == 0;
    if (first) open(launch, block);
    barrier();
    for (int slice = 0; slice < launch.slices; ++slice) {
        if (first) {
            block.offset = slice * launch.slice;
            const int64_t left = launch.width - block.offset;
            block.length = left < launch.slice ? left : launch.slice;
        }
        body();
        if (first && !block.failed)
            signal_rank(&block.states[block.entry->id].progress.value, ++block.iterations * launch.shape.stride);
    }
    if (block.local.averaged_bytes) average<Reduce>(launch, block);
    if (first) close(block);
}

}  // namespace treadle
