// A job as all cores read it, and the few numbers where they meet: each of these is one atomic.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "events.h"
#include "places.h"

#include "treadle_server_kernels.h"

namespace treadle {

// The plan of a job: its own copy of what it was given.
struct Model {
    std::string name;
    int workers, racks, rack, keys, groups, optimizer, states;
    int64_t chunks;
    bool synchronous, arrival_order, wide, bypass, shared;
    uint64_t snapshot_every;
    std::vector<int64_t> elements;
    std::vector<int32_t> key, slot, owner, type, group;
    std::vector<double> settings;
    std::vector<int64_t> first_of_key;  // [keys + 1]: chunks of key k are those from its first to that of k + 1
    Places places;

    explicit Model(const Job &job)
        : name(job.name ? job.name : ""),
          workers(job.workers),
          racks(job.racks),
          rack(job.rack),
          keys(job.keys),
          groups(job.groups),
          optimizer(job.optimizer),
          states(job.optimizer == MEAN ? 0 : job.optimizer == SGD || job.optimizer == NESTEROV ? 1 : 2),
          chunks(job.chunks),
          synchronous(job.synchronous),
          arrival_order(job.arrival_order),
          wide(job.wide),
          bypass(job.bypass),
          shared(job.shared),
          snapshot_every(uint64_t(std::max(job.snapshot_every, 0))),
          elements(job.chunk_elements, job.chunk_elements + job.chunks),
          key(job.chunk_key, job.chunk_key + job.chunks),
          slot(job.chunk_slot, job.chunk_slot + job.chunks),
          owner(job.chunk_owner, job.chunk_owner ? job.chunk_owner + job.chunks : nullptr),
          type(job.key_type, job.key_type + job.keys),
          group(job.key_group, job.key_group + job.keys),
          settings(job.settings, job.settings + int64_t(job.groups) * NUMBERS),
          first_of_key(size_t(job.keys) + 1) {}

    bool two_level() const { return !owner.empty(); }
    bool mine(int64_t chunk) const { return owner.empty() || owner[size_t(chunk)] == rack; }
    float divisor() const { return float(workers * (two_level() ? racks : 1)); }

    // Whether gradients wait in memory of the server until it is their turn.
    bool has_stash() const { return !shared && (wide || (synchronous && !arrival_order && workers > 1)); }

    // What is wrong with it on a server of `cores`, empty where nothing is; then the rest is filled in.
    std::string complete(int cores) {
        if (workers < 1 || racks < 1 || rack < 0 || rack >= racks || keys < 1 || groups < 1 || chunks < 1 || optimizer < MEAN || optimizer > LAMB)
            return "sizes out of range";
        for (int k = 0; k < keys; ++k)
            if (type[size_t(k)] < FLOAT32 || type[size_t(k)] > BFLOAT16 || group[size_t(k)] < 0 || group[size_t(k)] >= groups)
                return "key " + std::to_string(k) + " has no such type or group";
        for (int64_t c = 0; c < chunks; ++c) {
            const int32_t before = c ? key[size_t(c) - 1] : -1;
            const bool in_order = key[size_t(c)] == before || key[size_t(c)] == before + 1;
            if (!in_order || key[size_t(c)] >= keys || elements[size_t(c)] < 1 || elements[size_t(c)] > (int64_t(1) << 29) || slot[size_t(c)] >= cores)
                return "chunk " + std::to_string(c) + " is out of range";
            if (two_level() && (owner[size_t(c)] < 0 || owner[size_t(c)] >= racks)) return "chunk " + std::to_string(c) + " has no such owner";
            if (two_level() && optimizer == LAMB && key[size_t(c)] == before && owner[size_t(c)] != owner[size_t(c) - 1])
                return "LAMB needs all chunks of a key on one server, and those of key " + std::to_string(before) + " have several owners";
            first_of_key[size_t(key[size_t(c)]) + 1] = c + 1;
        }
        if (key.back() != keys - 1) return "keys without chunks";
        if (optimizer == LAMB && std::any_of(slot.begin(), slot.end(), [](int32_t each) { return each < 0; }))
            return "LAMB needs the whole model on one server";
        if (!synchronous && optimizer == LAMB) return "LAMB is synchronous: its norms are those of one version of a whole key";
        if (!synchronous && two_level()) return "two levels are synchronous";
        if (wide && (!synchronous || two_level())) return "the wide engine is synchronous and has one level";
        places = Places(chunks, elements.data(), key.data(), type.data());
        return "";
    }
};

// The norms of a key under LAMB: sums of squares of each chunk in fixed places, added by whoever brings the last.
struct Norms {
    std::unique_ptr<double[]> parts;      // [chunks of the key][2]
    std::atomic<int64_t> arrived{0};      // chunks so far
    std::atomic<uint64_t> published{0};   // the version whose ratio is known
    double ratio = 1;

    // Both sums in the order of chunks.
    double ratio_of(int64_t all) const {
        double weights = 0, direction = 0;
        for (int64_t part = 0; part < all; ++part) {
            weights += parts[size_t(2 * part)];
            direction += parts[size_t(2 * part + 1)];
        }
        return kernels::lamb_ratio(weights, direction);
    }
};

// Which snapshot is being copied or held (0: none), and the last version for which one was decided: both in one word,
// so that the first chunk of a version decides for all of them.
struct SnapshotTurn {
    // Whether a chunk that has version `step` now is copied.
    bool copies(uint64_t step) {
        uint64_t word = turn.load(std::memory_order_acquire);
        for (;;) {
            const uint64_t held = word >> 32, decided = word & UINT32_MAX;
            if (held == step) return true;
            if (decided >= step) return false;
            const uint64_t next = (held ? held : step) << 32 | step;
            if (turn.compare_exchange_weak(word, next, std::memory_order_acq_rel)) return held == 0;
        }
    }
    uint64_t held() const { return turn.load(std::memory_order_acquire) >> 32; }
    void release() { turn.fetch_and(UINT32_MAX, std::memory_order_acq_rel); }

    std::atomic<int64_t> copied{0};  // chunks of the one that is held

  private:
    std::atomic<uint64_t> turn{0};
};

// Where the cores of a job meet.
struct Shared {
    std::vector<Norms> norms;                      // [keys] under LAMB
    std::vector<std::atomic<int64_t>> key_ready;   // [keys] of the wide engine: chunks that have all gradients
    std::vector<std::atomic<uint64_t>> least;      // [slots]: the version that every chunk of a slot has
    std::vector<std::atomic<uint64_t>> late;       // [workers]: the last version that was reported late
    std::vector<std::atomic<uint32_t>> lost;       // [workers + racks]: whether it was reported lost
    std::atomic<uint64_t> finished{0};
    SnapshotTurn snapshot;
    int64_t chunks_here = 0;
    std::vector<int64_t> here_of_key;  // [keys]: chunks on this server
    EventLog log;

    Shared(const Model &model, int slots, int64_t log_entries)
        : norms(model.optimizer == LAMB ? size_t(model.keys) : 0),
          key_ready(model.wide ? size_t(model.keys) : 0),
          least(size_t(slots)),
          late(size_t(model.workers)),
          lost(size_t(model.workers + model.racks)),
          here_of_key(size_t(model.keys)),
          log(log_entries) {
        for (size_t k = 0; k < norms.size(); ++k) norms[k].parts.reset(new double[size_t(2 * (model.first_of_key[k + 1] - model.first_of_key[k]))]());
        for (auto &each : least) each = UINT64_MAX;
        for (int64_t c = 0; c < model.chunks; ++c) {
            if (model.slot[size_t(c)] < 0) continue;
            ++chunks_here;
            ++here_of_key[size_t(model.key[size_t(c)])];
        }
    }
};

}  // namespace treadle
