// A random job: its keys, chunks, places and steps, and the gradient of each worker, which every reader can count again.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "frame.h"
#include "job.h"

namespace load {

using Random = std::mt19937_64;

inline int64_t between(Random &random, int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
}

inline bool chance(Random &random, double share) { return std::uniform_real_distribution<>(0, 1)(random) < share; }

struct Case {
    uint64_t round, seed;
    std::string name;
    int workers, racks, servers, cores, steps;  // workers of each rack; servers of each rack
    int optimizer, synchronous, arrival_order, wide, bypass, snapshot_every;
    double deaths;  // of a worker in a step
    std::vector<int64_t> key_elements;
    std::vector<int32_t> key_type, key_group;
    std::vector<int64_t> chunk_elements, chunk_offset, chunk_first;  // offset in bytes of an area, first in elements of the model
    std::vector<int32_t> chunk_key, chunk_server, chunk_slot, chunk_owner;
    int64_t elements = 0;

    int everyone() const { return workers * racks; }
    int chunks() const { return int(chunk_key.size()); }
};

constexpr int GROUPS = 2;

inline int type_bytes(int type) { return type == treadle::FLOAT32 ? 4 : 2; }

inline uint64_t mixed(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

inline uint64_t mixed(uint64_t seed, uint64_t a, uint64_t b, uint64_t c = 0) {
    return mixed(mixed(mixed(seed + 0x9e3779b97f4a7c15u * (a + 1)) + b) + c);
}

// Multiples of a quarter up to 2: exact in every type, and so are the sums of them in every order.
inline float gradient(const Case &job, int worker, int step, int64_t element) {
    return float(int(mixed(job.seed, worker, step, element) % 17) - 8) / 4;
}

inline float first_weight(const Case &job, int64_t element) {
    return float(int(mixed(job.seed, 1u << 20, 0, element) % 33) - 16) / 8;
}

// Whether a worker has no gradient for a key in a step; in some steps none of them has.
inline bool empty(const Case &job, int worker, int step, int key) {
    return mixed(job.seed, 1u << 21, step, key) % 9 == 0 || mixed(job.seed, (1u << 22) + worker, step, key) % 7 == 0;
}

// Then the key is left as it is; where only some have none theirs count as zeros.
inline bool nobody(const Case &job, int step, int key) {
    for (int worker = 0; worker < job.everyone(); ++worker)
        if (!empty(job, worker, step, key)) return false;
    return true;
}

// In an asynchronous job a gradient that is sent again counts again, so workers that die have none but zeros.
inline bool mortal(const Case &job, int worker) { return job.synchronous || worker % 2; }

inline void settings(const Case &job, int step, double *out) {
    for (int group = 0; group < GROUPS; ++group, out += treadle::NUMBERS) {
        for (int each = 0; each < treadle::NUMBERS; ++each) out[each] = 0;
        out[0] = job.synchronous ? 0.125 / (1 + group + step / 3) : 1.0 / 64;
        if (job.synchronous) out[1] = 0.5;
        if (job.synchronous && job.optimizer != treadle::ADAM) out[3] = group ? 0.01 : 0;  // what Adam divides would cancel out
        out[4] = 0.9, out[5] = 0.99, out[6] = 1e-6;
    }
}

inline Case random_case(uint64_t round, uint64_t seed, int cores, int most_workers) {
    Random random(seed);
    Case job{};
    job.round = round, job.seed = seed;
    job.name = "job" + std::to_string(seed % 1000);
    job.racks = chance(random, 0.2) && most_workers > 1 ? 2 : 1;
    job.workers = int(chance(random, 0.6) ? most_workers : between(random, 1, most_workers)) / job.racks;
    if (!job.workers) job.workers = 1;
    job.servers = job.racks == 1 && chance(random, 0.25) ? 2 : 1;
    job.cores = cores;
    job.steps = int(between(random, 2, 12));
    job.synchronous = job.racks > 1 || chance(random, 0.75);
    job.optimizer = job.synchronous ? int(between(random, treadle::MEAN, treadle::LAMB)) : int(treadle::SGD);
    if (job.optimizer == treadle::LAMB && (job.servers > 1 || job.racks > 1)) job.optimizer = treadle::ADAM;
    job.arrival_order = job.synchronous && chance(random, 0.3);
    job.wide = job.synchronous && job.racks == 1 && job.optimizer != treadle::LAMB && chance(random, 0.2);
    job.bypass = chance(random, 0.3);
    job.snapshot_every = job.synchronous && job.racks == 1 && job.servers == 1 && chance(random, 0.4) ? int(between(random, 1, 4)) : 0;
    job.deaths = chance(random, 0.5) ? 0.1 : 0;
    const int64_t chunk_bytes = 64 << between(random, 0, 10);
    const int keys = int(between(random, 1, 10));
    int64_t offset = 0;
    for (int key = 0; key < keys; ++key) {
        const int64_t elements = chance(random, 0.2) ? between(random, 1, 20) : between(random, 1, 6000);
        const int type = chance(random, 0.6) ? int(treadle::FLOAT32) : int(between(random, 0, 2));
        job.key_elements.push_back(elements);
        job.key_type.push_back(type);
        job.key_group.push_back(int(between(random, 0, GROUPS - 1)));
        const int64_t whole = chunk_bytes / type_bytes(type);
        for (int64_t first = 0; first < elements; first += whole) {
            const int64_t count = std::min(whole, elements - first);
            job.chunk_elements.push_back(count);
            job.chunk_offset.push_back(offset);
            job.chunk_first.push_back(job.elements + first);
            job.chunk_key.push_back(key);
            job.chunk_server.push_back(int(between(random, 0, job.servers - 1)));
            job.chunk_slot.push_back(int(between(random, 0, job.cores - 1)));
            job.chunk_owner.push_back(int(between(random, 0, job.racks - 1)));
            offset += (count * type_bytes(type) + 63) / 64 * 64;
        }
        job.elements += elements;
    }
    return job;
}

inline std::string said(const Case &job) {
    char text[400];
    std::snprintf(text, sizeof text, "round %llu, a job with optimizer %d of %d workers in %d racks, %d servers of %d cores%s%s%s%s, %zu keys, %d chunks, snapshots every %d, deaths %.1f",
                  static_cast<unsigned long long>(job.round), job.optimizer, job.everyone(), job.racks, job.servers, job.cores, job.synchronous ? "" : ", asynchronous",
                  job.arrival_order ? ", in the order of arrival" : "", job.wide ? ", wide" : "", job.bypass ? ", past the cache" : "", job.key_elements.size(), job.chunks(), job.snapshot_every, job.deaths);
    return text;
}

}  // namespace load
