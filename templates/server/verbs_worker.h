// A worker of the plan, for a program in C++: it writes its gradients, pushes keys, and finds the new weights.
#pragma once

#include "chunks.h"
#include "fabric.h"

namespace treadle {

class Worker {
  public:
    const Chunks chunks;

    // Joins the servers at `addresses`, HOST:PORT in the order of the plan. Those of worker 0 are the first weights:
    // all elements as float32, in the order of keys; null elsewhere.
    Worker(int its_number, const std::vector<std::string> &addresses, const float *weights)
        : number(its_number), device(getenv("TREADLE_DEVICE") ? getenv("TREADLE_DEVICE") : ""), memory(block(size_t(2 * chunks.bytes))), pairs(std::size(plan::SLOTS)), left(std::size(plan::KEYS)) {
        if (addresses.size() != plan::SERVERS) fail(BAD_INPUT, "found %zu servers, expected %d", addresses.size(), plan::SERVERS);
        memset(memory, 0, size_t(2 * chunks.bytes));
        region = device.registered(memory, size_t(2 * chunks.bytes));
        int64_t entries = 0;
        for (const int64_t of_slot : chunks.slot_chunks) entries += 2 * of_slot + 64;
        queue = device.completions(entries);
        for (int server = 0; server < plan::SERVERS; ++server) join(server, addresses[size_t(server)], weights);
        char go;
        for (const Meeting &meeting : meetings) meeting.hear(&go, 1);
    }
    ~Worker() {
        const char done = 1;
        for (const Meeting &meeting : meetings) meeting.tell(&done, 1);
    }

    // The elements of a key, in its type. Gradients must stay from a push to the end of its wait.
    char *gradient(int key) { return memory + chunks.key_offset[size_t(key)]; }
    const char *value(int key) const { return memory + chunks.bytes + chunks.key_offset[size_t(key)]; }

    // Sends all chunks of a key; its new weights follow.
    void push_pull(int key) {
        for (size_t at = chunks.first[size_t(key)]; at < chunks.first[size_t(key) + 1]; ++at) {
            const Chunk &chunk = chunks.all[at];
            ++left[size_t(key)];
            pairs[size_t(chunk.slot)].write(memory + chunk.offset, chunk.bytes, region->lkey, chunk.in_slot, uint32_t(at));
        }
    }

    // Polls until all chunks of a key are there.
    void wait(int key) {
        while (left[size_t(key)])
            poll(queue, [&](uint64_t slot, uint32_t chunk) {
                if (chunk >= chunks.all.size()) fail(FAILED, "core slot %d sent an unknown chunk", int(slot));
                pairs[slot].expect();
                --left[size_t(chunks.all[chunk].key)];
            });
    }

  private:
    int number;
    Device device;
    char *memory;  // gradients, then values
    ibv_mr *region;
    ibv_cq *queue;
    std::vector<Pair> pairs;  // by slot
    std::vector<int64_t> left;
    std::vector<Meeting> meetings;

    void join(int server, const std::string &address, const float *weights) {
        meetings.push_back(meet(address));
        const Meeting &meeting = meetings.back();
        Hello hello{};
        memcpy(hello.digest, plan::DIGEST, sizeof hello.digest);
        hello.worker = number;
        meeting.tell(&hello, sizeof hello);
        for (size_t slot = 0; slot < pairs.size(); ++slot) {
            if (plan::SLOTS[slot].server != server) continue;
            Endpoint theirs;
            meeting.hear(&theirs, sizeof theirs);
            pairs[slot].open(device, queue, chunks.slot_chunks[slot], slot);
            pairs[slot].connect(theirs);
        }
        for (size_t slot = 0; slot < pairs.size(); ++slot) {
            if (plan::SLOTS[slot].server != server) continue;
            const Endpoint own = pairs[slot].endpoint(region, memory + chunks.bytes);
            meeting.tell(&own, sizeof own);
        }
        if (weights)
            for (size_t slot = 0; slot < pairs.size(); ++slot)
                if (plan::SLOTS[slot].server == server) tell_weights(meeting, slot, weights);
    }

    void tell_weights(const Meeting &meeting, size_t slot, const float *weights) const {
        for (const Chunk &chunk : chunks.all) {
            if (size_t(chunk.slot) == slot) meeting.tell(weights, size_t(chunk.elements) * 4);
            weights += chunk.elements;
        }
    }
};

}  // namespace treadle
