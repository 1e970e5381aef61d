// One core of the server: it polls its own completions, adds, optimizes and sends, all chunks of its slot and no others.
#pragma once

#include <atomic>
#include <map>
#include <memory>

#include "chunks.h"
#include "fabric.h"

namespace treadle {

constexpr int STATES = plan::OPTIMIZER == kernels::MEAN ? 0 : plan::OPTIMIZER >= kernels::ADAM ? 2 : 1;
// float32 values of a chunk: its sum, weights and states of two versions, of which the older stays until the next one.
constexpr int FLOATS = 1 + 2 * (1 + STATES);

constexpr bool halves() {
    for (const plan::Key &key : plan::KEYS)
        if (key.type != kernels::FLOAT32) return true;
    return false;
}

// What the cores tell one another of LAMB: the norms of a key, from the sums of its chunks in their order. The core whose
// chunk is the last one publishes the ratio; nothing waits for a lock.
struct Norms {
    struct Sums {
        double weights, direction;
    };
    struct Key {
        std::atomic<int64_t> left{0};
        std::atomic<uint64_t> version{0};  // whose ratio this is
        double ratio = 1;
    };
    const Chunks &chunks;
    std::vector<Sums> sums;
    std::vector<Key> keys;

    explicit Norms(const Chunks &its) : chunks(its), sums(its.all.size()), keys(std::size(plan::KEYS)) {
        for (size_t key = 0; key < keys.size(); ++key) keys[key].left = count(key);
    }

    void add(uint32_t chunk, uint64_t version, const double (&norms)[2]) {
        const size_t number = size_t(chunks.all[chunk].key);
        Key &key = keys[number];
        sums[chunk] = {norms[0], norms[1]};
        if (key.left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
        Sums all{};
        for (size_t each = chunks.first[number]; each < chunks.first[number + 1]; ++each) {
            all.weights += sums[each].weights;
            all.direction += sums[each].direction;
        }
        key.ratio = kernels::lamb_ratio(all.weights, all.direction);
        key.left.store(count(number), std::memory_order_relaxed);
        key.version.store(version, std::memory_order_release);
    }

  private:
    int64_t count(size_t key) const { return int64_t(chunks.first[key + 1] - chunks.first[key]); }
};

struct Held {
    uint32_t number;  // of the chunk
    float *sum, *weights[2], *states[2][2];
    char *wire[2];  // the weights in the form of the wire
    int next = 0;   // the worker whose gradient is added next
    std::vector<bool> arrived;
    uint64_t version = 0;
};

class Core {
  public:
    uint64_t steps;
    const double *settings;

    Core(const Chunks &its, Norms &its_norms, size_t its_slot, uint64_t its_steps, const double *its_settings)
        : steps(its_steps), settings(its_settings), chunks(its), norms(its_norms), slot(its_slot), pairs(plan::WORKERS), place(its.all.size()) {
        for (uint32_t number = 0; number < chunks.all.size(); ++number)
            if (size_t(chunks.all[number].slot) == slot) {
                place[number] = uint32_t(held.size());
                held.push_back({number, nullptr, {}, {}, {}, 0, std::vector<bool>(plan::WORKERS), 0});
            }
        waiting.reserve(held.size());
    }

    size_t bytes() const { return size_t(plan::WORKERS * chunks.slot_bytes[slot]) + held.size() * LINE * (FLOATS + 2) + sums() * (FLOATS + (halves() ? 2 : 0)); }

    // Places everything in the slot's part of its domain's block, which the calling thread, on this domain, touches.
    void settle(char *memory) {
        incoming = memory;
        memory += plan::WORKERS * chunks.slot_bytes[slot];
        const auto take = [&](int64_t count) {
            char *const found = memory;
            memory += (count + LINE - 1) / LINE * LINE;
            return found;
        };
        for (Held &each : held) {
            const Chunk &chunk = chunks.all[each.number];
            const auto floats = [&] { return reinterpret_cast<float *>(take(chunk.elements * 4)); };
            each.sum = floats();
            for (int half = 0; half < 2; ++half) {
                each.weights[half] = floats();
                for (int state = 0; state < STATES; ++state) each.states[half][state] = floats();
                each.wire[half] = chunk.bytes == chunk.elements * 4 ? reinterpret_cast<char *>(each.weights[half]) : take(chunk.bytes);
            }
        }
        memset(incoming, 0, size_t(memory - incoming));
    }

    // The pair of a worker, over a device that has registered the block.
    Endpoint open(int worker, const Device &device, const ibv_mr *region) {
        const int64_t most = chunks.slot_chunks[slot];
        ibv_cq *&queue = queues[&device];
        if (!queue) queue = device.completions(plan::WORKERS * (2 * most + 64));
        Pair &pair = pairs[size_t(worker)];
        pair.open(device, queue, most, uint64_t(worker));
        keys.resize(pairs.size());
        keys[size_t(worker)] = region->lkey;
        return pair.endpoint(region, incoming + worker * chunks.slot_bytes[slot]);
    }
    void connect(int worker, const Endpoint &endpoint) { pairs[size_t(worker)].connect(endpoint); }

    // The weights of version 0, in the order of chunks.
    void load(const Meeting &meeting) {
        for (Held &each : held) meeting.hear(each.weights[0], size_t(chunks.all[each.number].elements) * 4);
    }

    void run() {
        for (left = steps * held.size(); left; finish_lamb())
            for (const auto &[device, queue] : queues)
                poll(queue, [&](uint64_t worker, uint32_t number) {
                    if (number >= place.size() || size_t(chunks.all[number].slot) != slot) fail(FAILED, "worker %d sent a chunk of another core", int(worker));
                    pairs[worker].expect();
                    add(held[place[number]], int(worker));
                });
    }

  private:
    const Chunks &chunks;
    Norms &norms;
    size_t slot;
    uint64_t left = 0;            // updates of chunks
    std::vector<Held *> waiting;  // for the norms of their keys
    std::vector<Pair> pairs;  // by worker
    std::vector<uint32_t> keys, place;
    std::vector<Held> held;
    std::map<const Device *, ibv_cq *> queues;  // this core's own
    char *incoming = nullptr;                   // by worker and chunk

    size_t sums() const {
        size_t bytes = 0;
        for (const Held &each : held) bytes += size_t(chunks.all[each.number].elements) * 4;
        return bytes;
    }

    // Adds what has come as far as the order of workers goes, or what came just now; then a version may be whole.
    void add(Held &it, int worker) {
        const Chunk &chunk = chunks.all[it.number];
        if (it.arrived[size_t(worker)]) fail(FAILED, "worker %d pushed a chunk of key %s twice", worker, plan::KEYS[chunk.key].name);
        it.arrived[size_t(worker)] = true;
        const auto sum = [&](int from) {
            const char *const gradient = incoming + from * chunks.slot_bytes[slot] + chunk.in_slot;
            kernels::add_into(it.sum, gradient, chunk.elements, plan::KEYS[chunk.key].type, it.next++ == 0, plan::BYPASS);
        };
        if (plan::ARRIVAL_ORDER)
            sum(worker);
        else
            while (it.next < plan::WORKERS && it.arrived[size_t(it.next)]) sum(it.next);
        if (it.next < plan::WORKERS) return;
        ++it.version;
        if (plan::OPTIMIZER != kernels::LAMB) return optimize(it, 1.0);
        double sums[2];
        kernels::lamb_norms(update(it, 1.0), sums);
        norms.add(it.number, it.version, sums);
        waiting.push_back(&it);
    }

    void finish_lamb() {
        for (size_t at = 0; at < waiting.size();) {
            const Norms::Key &key = norms.keys[size_t(chunks.all[waiting[at]->number].key)];
            if (key.version.load(std::memory_order_acquire) < waiting[at]->version) {
                ++at;
                continue;
            }
            optimize(*waiting[at], key.ratio);
            waiting[at] = waiting.back();
            waiting.pop_back();
        }
    }

    // From the version before to that of the chunk.
    kernels::Update update(const Held &it, double ratio) const {
        const int after = int(it.version & 1), before = 1 - after;
        kernels::Update made{plan::OPTIMIZER, settings, float(plan::WORKERS), chunks.all[it.number].elements, it.version, it.sum, it.weights[before], it.weights[after], {}, {}, ratio};
        for (int state = 0; state < STATES; ++state) {
            made.state_in[state] = it.states[before][state];
            made.state_out[state] = it.states[after][state];
        }
        return made;
    }

    void optimize(Held &it, double ratio) {
        const Chunk &chunk = chunks.all[it.number];
        const int after = int(it.version & 1), type = plan::KEYS[chunk.key].type;
        kernels::optimize(update(it, ratio));
        if (type != kernels::FLOAT32) kernels::to_type(it.wire[after], it.weights[after], chunk.elements, type);
        it.next = 0;
        it.arrived.assign(size_t(plan::WORKERS), false);
        for (size_t worker = 0; worker < pairs.size(); ++worker)
            pairs[worker].write(it.wire[after], chunk.bytes, keys[worker], chunk.offset, it.number);
        --left;
    }
};

}  // namespace treadle
