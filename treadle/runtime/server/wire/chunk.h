// A chunk on its core: who has sent what of it, and where its numbers lie.
#pragma once

#include "memory.h"
#include "model.h"

namespace treadle {

// What one worker (or the server of another rack) has sent of a chunk's next version, and what it waits for.
struct Mark {
    const void *data = nullptr;  // the gradient, while it waits to be added
    uint64_t pull = 0;           // the version that a PULL asks for
    bool here = false, empty = false, wants = false, pulls = false;
    bool former = false;  // it came over a stream that has ended since, and may come again
};

// A sum and those who contribute to it.
struct Gather {
    Mark *marks = nullptr;  // [senders]
    int senders = 0, here = 0, empty = 0, added = 0;
    uint64_t since = 0;  // when the last one came

    bool complete() const { return here == senders; }
    void clear() {
        for (int sender = 0; sender < senders; ++sender) {
            Mark &mark = marks[sender];
            mark.data = nullptr;
            mark.here = mark.empty = mark.wants = mark.former = false;
        }
        here = empty = added = 0;
    }
};

struct Chunk {
    int64_t number = 0, elements = 0;
    int32_t key = 0;
    int64_t at = 0;          // where its numbers begin in each part of the store, in elements
    int64_t stash_at = 0;    // and a gradient as it travels, in bytes
    uint64_t version = 0;
    uint64_t updates[2] = {0, 0};  // of the version in each half
    bool before = false;           // whether the half of the version before is whole
    bool waits = false;            // for the norms of its key, or for the server that owns it
    bool skips = false;            // nobody had a gradient
    bool at_once = false;          // all gradients are added up in one go, so that the sum needs no memory of its own
    Gather local, racks;
    uint64_t summed = UINT64_MAX;  // the version that `body_sum` belongs to
    uint32_t body_sum = 0;
};

// Parts of a store begin a page and a line apart: at the same place of a page, or of a cache, each would drive the
// others out while they are read and written together.
constexpr int64_t STAGGER = (4096 + LINE) / 4;

// The memory of one core for one job, in one block next to that core. Version v of weights and states is in half v & 1.
struct Store {
    int64_t elements = 0;     // of all chunks, each rounded up to 64 bytes
    int64_t stash_bytes = 0;  // of one sender
    int64_t longest = 0;      // elements of the longest chunk
    float *weights[2] = {}, *states[2][2] = {}, *sums = nullptr, *totals = nullptr, *copies = nullptr;
    float *zeros = nullptr, *form = nullptr, *sum = nullptr, *fresh[3] = {};  // of the longest chunk, in the cache
    std::vector<Block> stash;  // [workers, then racks]

    // Counts only; nothing is taken yet.
    Store(const Model &model, std::vector<Chunk> &chunks) : stash(size_t(model.workers + model.racks)), states_count(model.states) {
        for (Chunk &chunk : chunks) {
            chunk.at = elements;
            chunk.stash_at = stash_bytes;
            elements += rounded(chunk.elements, LINE / 4);
            stash_bytes += rounded(chunk.elements * (model.two_level() ? 4 : type_bytes(model.type[size_t(chunk.key)])), LINE);
            longest = std::max(longest, rounded(chunk.elements, LINE / 4));
        }
        copied = model.snapshot_every ? 1 + model.states : 0;
        peers = model.two_level() ? model.racks - 1 : 0;
        stashed = model.has_stash() ? model.workers : 0;
    }

    size_t block_bytes() const {
        const int64_t parts = 3 + 2 * states_count + copied + (peers ? 1 : 0);
        return size_t(4 * (elements * parts + 6 * longest + STAGGER * (parts + 6)));
    }
    size_t bytes() const { return block_bytes() + size_t(stash_bytes) * size_t(stashed + peers); }

    // False where the memory is not there.
    bool take(int workers, int rack) {
        if (!block.take(block_bytes())) return false;
        float *next = reinterpret_cast<float *>(block.data);
        const auto part = [&next](int64_t count) { return std::exchange(next, next + count + STAGGER); };
        for (int half = 0; half < 2; ++half) {
            weights[half] = part(elements);
            for (int state = 0; state < states_count; ++state) states[state][half] = part(elements);
        }
        sums = part(elements);
        if (copied) copies = part(elements * copied);
        if (peers) totals = part(elements);
        zeros = part(longest);
        form = part(longest);
        sum = part(longest);
        for (float *&each : fresh) each = part(longest);
        for (int sender = 0; sender < int(stash.size()); ++sender) {
            const bool needed = sender < workers ? stashed > 0 : peers > 0 && sender - workers != rack;
            if (needed && !stash[size_t(sender)].take(size_t(stash_bytes))) return false;
        }
        return true;
    }

    float *weights_of(const Chunk &chunk, uint64_t version) const { return weights[version & 1] + chunk.at; }
    float *state_of(int state, const Chunk &chunk, uint64_t version) const { return state < states_count ? states[state][version & 1] + chunk.at : nullptr; }
    float *copy_of(int part, const Chunk &chunk) const { return copies + part * elements + chunk.at; }
    char *stash_of(int sender, const Chunk &chunk) const { return stash[size_t(sender)].data ? stash[size_t(sender)].data + chunk.stash_at : nullptr; }

  private:
    int states_count, copied = 0, peers = 0, stashed = 0;
    Block block;
};

}  // namespace treadle
