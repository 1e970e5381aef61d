// Collectives over symmetric memory: every rank has a buffer of the same layout, and every kernel knows all of them. No
// slots and no messages: a rank copies its input into its buffer, waits until all have, and reads what it needs from the
// buffers of others, or has the switch read them all. Block b of a rank only waits for block b of the others.
//
// A buffer is a head and two halves that launches take in turn. A launch writes to a half that was last read two
// launches ago, and whoever meets the others has seen all of them begin this launch, so end the one before: nobody has
// to wait until all have read. Counters only grow and lie in the buffers, so that a CUDA graph can replay a launch.
#pragma once
#include "treadle_multicast.h"
#include "treadle_range.h"

namespace treadle {

constexpr int MAX_BLOCKS = 32;
constexpr uint64_t TICKETS = 64;  // of each launch, dealt out to its blocks; at least MAX_BLOCKS
constexpr uint64_t PHASES = 2;

enum Method : int32_t { ONE_SHOT, TWO_SHOT, REDUCE_SCATTER, ALL_GATHER, BROADCAST };
enum Phase : int32_t { ENTRY = 1, EXIT = 2 };

struct Head {
    Flag tickets;                                             // TICKETS for each launch of this rank that has ended
    alignas(LINE) uint32_t abort;                             // the launch has been given up
    int32_t block, peer, phase;                               // by which block, whom it waited for, and where
    alignas(LINE) uint64_t arrived[MAX_BLOCKS][MAX_MEMBERS];  // phases that a block of a rank has come to; they write it
};

// What a caller asks for.
struct Exchange {
    Members members;
    const char *input;
    char *output;
    int64_t bytes, half;   // of the larger of the two tensors, and of half a buffer
    uint64_t timeout_ns;
    uint64_t launches;     // of this rank before this one; for the host only, which has no streams
    int32_t rank, root, method, operation, averages;
    int32_t blocks;        // at most, 0 for no limit
};

// The parameters of a launch, by value. The tensors hold `parts` parts of `part` bytes; in a half they lie `stride` bytes
// apart, a multiple of 16. `blocks` is how many there are.
struct Task : Exchange {
    Abort abort;
    int64_t part, stride;
    int32_t parts;
};
using SymmetricKernel = void (*)(TREADLE_TASK);

TREADLE_BOTH inline Head &head_of(const Task &task, int rank) { return *reinterpret_cast<Head *>(task.members.buffer[rank]); }

// What the threads of a block share.
struct Visit {
    uint64_t launch;
    int32_t failed;
};

// The part of a launch that one block does: words [first, first + count) of every part, in the half that begins at `half`.
struct Share {
    int64_t half, first;
    int count;
};

TREADLE_DEVICE Share share_of(const Task &task, const Visit &visit) {
    const int64_t words = task.stride / 16, first = words * block_index() / task.blocks;
    return {int64_t(sizeof(Head)) + int64_t(visit.launch & 1) * task.half, first,
            int(words * (block_index() + 1) / task.blocks - first)};
}

// Offset in a buffer of word `word` of the share in a part.
TREADLE_DEVICE int64_t place(const Task &task, const Share &share, int part, int word) {
    return share.half + part * task.stride + (share.first + word) * 16;
}

TREADLE_DEVICE Range range_of(const Task &task, const char *data, int part) {
    const int64_t left = task.bytes - part * task.part;
    return {const_cast<char *>(data) + part * task.part, left > task.part ? task.part : left > 0 ? left : 0};
}

// `work(part, word)` for every word of the share in `parts` parts, dealt out to the threads.
template <class Work>
TREADLE_DEVICE void each(const Share &share, int parts, const Work &work) {
    for (int at = thread(); at < parts * share.count; at += threads()) {
        work(at / share.count, at % share.count);
        yield();
    }
}

// Waits until this block of every rank has come to `phase`. Whoever gives up tells all others.
TREADLE_DEVICE bool meet(const Task &task, Visit &visit, Phase phase) {
    if (task.members.multicast) multicast_fence();
    barrier();
    const uint64_t value = visit.launch * PHASES + phase;
    for (int peer = thread(); peer < task.members.ranks; peer += threads())
        signal_system(&head_of(task, peer).arrived[block_index()][task.rank], value);
    Head &own = head_of(task, task.rank);
    for (int peer = thread(); peer < task.members.ranks; peer += threads()) {
        const uint64_t *flag = &own.arrived[block_index()][peer];
        if (spin(flag, task, [&] { return load_acquire_system(flag) >= value; })) continue;
        visit.failed = 1;
        own.block = block_index(), own.peer = peer, own.phase = phase;
        for (int other = 0; other < task.members.ranks; ++other)
            *static_cast<volatile uint32_t *>(&head_of(task, other).abort) = 1;
    }
    barrier();
    if (task.members.multicast) multicast_fence();
    return !visit.failed;
}

// The word of a part over all ranks.
template <class T>
TREADLE_DEVICE Word<16> result_of(const Task &task, bool switched, int64_t at) {
    Word<16> word = switched ? multicast_join<T>(task.members, task.operation, at)
                             : joined<T>(task.members, task.operation, at);
    if (task.averages)
        TREADLE_UNROLL
        for (int i = 0; i < 4; ++i) word.part[i] = Reduction<T>::divide(word.part[i], task.members.ranks);
    return word;
}

// False when it was given up.
template <class T>
TREADLE_DEVICE bool exchange(const Task &task, Visit &visit) {
    const Share share = share_of(task, visit);
    const Members &members = task.members;
    const bool multicast = members.multicast != nullptr, switched = multicast && Switched<T>::can(task.operation);
    char *own = members.buffer[task.rank];
    const auto given = [&](int part, int word) { return read<16>(range_of(task, task.input, part), (share.first + word) * 16); };
    const auto got = [&](int part, int word, const Word<16> &w) {
        write<16>(range_of(task, task.output, part), (share.first + word) * 16, w);
    };
    const auto publish = [&](int64_t at, const Word<16> &w) {
        if (multicast) multicast_spread(members, at, w);
        else store_slot(own + at, w);
    };
    const auto copy_in = [&] {
        each(share, task.parts, [&](int part, int word) { store_slot(own + place(task, share, part, word), given(part, word)); });
    };
    switch (task.method) {
        case ONE_SHOT:
        case REDUCE_SCATTER: {
            const int mine = task.method == REDUCE_SCATTER ? task.rank : 0;
            copy_in();
            if (!meet(task, visit, ENTRY)) return false;
            each(share, 1, [&](int, int word) { got(0, word, result_of<T>(task, switched, place(task, share, mine, word))); });
            return true;
        }
        case TWO_SHOT:
            copy_in();
            if (!meet(task, visit, ENTRY)) return false;
            each(share, 1, [&](int, int word) {
                const int64_t at = place(task, share, task.rank, word);
                const Word<16> sum = result_of<T>(task, switched, at);
                if (multicast) multicast_spread(members, at, sum);
                else spread(members, at, sum);
            });
            if (!meet(task, visit, EXIT)) return false;
            each(share, task.parts, [&](int part, int word) { got(part, word, load_slot(own + place(task, share, part, word))); });
            return true;
        case ALL_GATHER:
            each(share, 1, [&](int, int word) { publish(place(task, share, task.rank, word), given(0, word)); });
            if (!meet(task, visit, ENTRY)) return false;
            each(share, task.parts, [&](int part, int word) {
                got(part, word, load_slot((multicast ? own : members.buffer[part]) + place(task, share, part, word)));
            });
            return true;
        case BROADCAST:
            if (task.rank == task.root)
                each(share, 1, [&](int, int word) { publish(place(task, share, 0, word), given(0, word)); });
            if (!meet(task, visit, ENTRY)) return false;
            each(share, 1, [&](int, int word) {
                got(0, word, load_slot((multicast ? own : members.buffer[task.root]) + place(task, share, 0, word)));
            });
            return true;
    }
    return false;
}

template <class T>
TREADLE_DEVICE void perform(const Task &task, Visit &visit) {
    uint64_t *tickets = &head_of(task, task.rank).tickets.value;
    if (thread() == 0) {
        visit.launch = load_acquire_rank(tickets) / TICKETS;
        visit.failed = 0;
    }
    barrier();
    if (!exchange<T>(task, visit)) return;
    barrier();
    // The number of the launch stands until its last block ends, so that a late block reads it too.
    if (thread() == 0) add_rank(tickets, block_index() ? 1 : TICKETS - (task.blocks - 1));
}

}  // namespace treadle
