// What a core does with gradients: adds them up, lets the optimizer make the next version, and counts.
#pragma once

#include "part.h"

namespace treadle {

// The settings for the version `step`: those of worker 0, or of each worker itself where none waits for others.
inline const double *Part::settings_for(const Chunk &chunk, int worker, uint64_t step) const {
    const Link *const link = worker < 0 ? nullptr : links[size_t(worker)].get();
    const double *numbers = link ? link->settings.at(UINT64_MAX) : nullptr;
    if (!numbers) numbers = first_settings.at(step);
    if (!numbers) numbers = model.settings.data();
    return numbers + int64_t(model.group[size_t(chunk.key)]) * NUMBERS;
}

inline kernels::Update Part::update_of(const Chunk &chunk, const float *sum) const {
    const uint64_t now = chunk.version, next = now + 1;
    return {model.optimizer,
            settings_for(chunk, -1, next),
            model.divisor(),
            chunk.elements,
            chunk.updates[now & 1] + 1,
            sum,
            store.weights_of(chunk, now),
            store.weights_of(chunk, next),
            {store.state_of(0, chunk, now), store.state_of(1, chunk, now)},
            {store.state_of(0, chunk, next), store.state_of(1, chunk, next)},
            1.0};
}

// A gradient has come. `now`: its memory is used again at once, and it is its turn.
inline void Part::gather(Chunk &chunk, Gather &into, int sender, const void *data, bool empty, bool now) {
    Mark &mark = into.marks[sender];
    mark.here = true;
    mark.empty = empty;
    mark.data = empty ? nullptr : data;
    ++into.here;
    into.empty += empty;
    into.since = slot.now;
    if (model.wide) return into.complete() ? complete(chunk) : void();
    chunk.at_once = into.complete() && into.added == 0 && !model.two_level() && !model.bypass;
    if (model.arrival_order) {
        add(chunk, into, sender);
    } else if (now || into.complete() || !model.shared) {
        while (into.added < into.senders && into.marks[into.added].here) add(chunk, into, into.added);
    }
    if (into.complete()) &into == &chunk.local ? complete(chunk) : update(chunk, into);
}

inline float *Part::sum_of(const Chunk &chunk, const Gather &of) const {
    return &of == &chunk.racks ? store.totals + chunk.at : chunk.at_once ? store.sum : store.sums + chunk.at;
}

inline void Part::add(Chunk &chunk, Gather &into, int sender) {
    Mark &mark = into.marks[sender];
    const int type = &into == &chunk.racks || mark.empty ? FLOAT32 : model.type[size_t(chunk.key)];
    kernels::add_into(sum_of(chunk, into), mark.empty ? store.zeros : mark.data, chunk.elements, type, into.added == 0, model.bypass);
    mark.data = nullptr;
    ++into.added;
    slot.count(ADDS, 1);
    log(ADDED, chunk, sender, chunk.version + 1);
}

// All workers of this server have sent theirs.
inline void Part::complete(Chunk &chunk) {
    const bool empty = chunk.local.empty == chunk.local.senders;
    if (model.wide) {
        const int64_t all = shared.here_of_key[size_t(chunk.key)];
        if (shared.key_ready[size_t(chunk.key)].fetch_add(1) + 1 == all) team.put(job, chunk.key);
    } else if (!model.two_level()) {
        update(chunk, chunk.local);
    } else if (model.mine(chunk.number)) {
        gather(chunk, chunk.racks, model.rack, store.sums + chunk.at, empty, false);
    } else {
        chunk.waits = true;
        queue(model.workers + model.owner[size_t(chunk.number)], chunk);
    }
}

inline void Part::update(Chunk &chunk, Gather &from) {
    chunk.skips = from.empty == from.senders;
    const kernels::Update update = update_of(chunk, sum_of(chunk, from));
    if (model.optimizer == LAMB) return start_norms(chunk, update);
    chunk.skips ? carry_over(chunk) : optimize(chunk, update);
    advance(chunk, chunk.skips);
}

// Into the cache first where memory is written past it, as values for workers are read from there.
inline void Part::optimize(Chunk &chunk, const kernels::Update &update) {
    if (!past_cache) return kernels::optimize(update);
    kernels::Update cached = update;
    cached.weight_out = store.fresh[0];
    for (int state = 0; state < model.states; ++state) cached.state_out[state] = store.fresh[1 + state];
    kernels::optimize(cached);
    kernels::stream(update.weight_out, cached.weight_out, chunk.elements);
    for (int state = 0; state < model.states; ++state) kernels::stream(update.state_out[state], cached.state_out[state], chunk.elements);
    fresh = &chunk;
}

inline void Part::carry_over(Chunk &chunk) {
    const size_t bytes = size_t(chunk.elements) * sizeof(float);
    std::memcpy(store.weights_of(chunk, chunk.version + 1), store.weights_of(chunk, chunk.version), bytes);
    for (int state = 0; state < model.states; ++state)
        std::memcpy(store.state_of(state, chunk, chunk.version + 1), store.state_of(state, chunk, chunk.version), bytes);
}

// The norms of a key are those of all its chunks: each core brings its own, and goes on with other work until the last
// one has added them up.
inline void Part::start_norms(Chunk &chunk, const kernels::Update &update) {
    Norms &norms = shared.norms[size_t(chunk.key)];
    const int64_t first = model.first_of_key[size_t(chunk.key)], all = model.first_of_key[size_t(chunk.key) + 1] - first;
    double *const own = norms.parts.get() + 2 * (chunk.number - first);
    own[0] = own[1] = 0;
    if (!chunk.skips) kernels::lamb_norms(update, own);
    chunk.before = false;  // its half holds the direction
    chunk.waits = true;
    if (std::find(waiting_keys.begin(), waiting_keys.end(), chunk.key) == waiting_keys.end()) waiting_keys.push_back(chunk.key);
    if (norms.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < all) return;
    norms.arrived.store(0, std::memory_order_relaxed);
    norms.ratio = norms.ratio_of(all);
    norms.published.store(chunk.version + 1);
    slot.wake_others();
}

inline bool Part::norms_wait() const {
    for (const int32_t key : waiting_keys) {
        const Chunk &chunk = chunks[size_t(first_here(key))];
        if (shared.norms[size_t(key)].published.load() > chunk.version) return true;
    }
    return false;
}

inline void Part::finish_norms() {
    for (size_t place = 0; place < waiting_keys.size();) {
        const int32_t key = waiting_keys[place];
        const Norms &norms = shared.norms[size_t(key)];
        size_t at = size_t(first_here(key));
        if (norms.published.load(std::memory_order_acquire) <= chunks[at].version) {
            ++place;
            continue;
        }
        waiting_keys[place] = waiting_keys.back();
        waiting_keys.pop_back();
        const double ratio = norms.ratio;
        for (; at < chunks.size() && chunks[at].key == key; ++at) {
            Chunk &chunk = chunks[at];
            if (!model.mine(chunk.number)) continue;
            kernels::Update update = update_of(chunk, nullptr);
            update.ratio = ratio;
            chunk.skips ? carry_over(chunk) : kernels::optimize(update);
            advance(chunk, chunk.skips);
        }
    }
}

// Without waiting for others: each gradient is a version.
inline void Part::apply(Chunk &chunk, int worker, const void *data) {
    const int type = model.type[size_t(chunk.key)];
    const float *sum = static_cast<const float *>(data);
    if (type != FLOAT32) {
        kernels::add_into(store.sums + chunk.at, data, chunk.elements, type, true, model.bypass);
        sum = store.sums + chunk.at;
    }
    slot.count(ADDS, 1);
    log(ADDED, chunk, worker, chunk.version + 1);
    kernels::Update update = update_of(chunk, sum);
    update.settings = settings_for(chunk, worker, 0);
    update.divisor = 1;
    optimize(chunk, update);
    advance(chunk, false);
}

// The next version, from the server that owns the chunk.
inline void Part::take_value(Chunk &chunk, const void *data) {
    std::memcpy(store.weights_of(chunk, chunk.version + 1), data, size_t(chunk.elements) * sizeof(float));
    advance(chunk, false);
}

// The next version is there: it goes to all who wait for it.
inline void Part::advance(Chunk &chunk, bool skip) {
    const uint64_t was = chunk.version++;
    chunk.updates[chunk.version & 1] = chunk.updates[was & 1] + !skip;
    chunk.before = true;
    chunk.waits = chunk.at_once = false;
    slot.count(UPDATES, 1);
    log(OPTIMIZED, chunk, -1, chunk.version);
    if (model.snapshot_every && chunk.version % model.snapshot_every == 0) copy_snapshot(chunk);
    for (int worker = 0; worker < model.workers; ++worker) {
        Mark &mark = chunk.local.marks[worker];
        const bool pulled = mark.pulls && mark.pull <= chunk.version;
        if (pulled) mark.pulls = false;
        if (mark.wants || pulled) queue(worker, chunk);
    }
    if (model.two_level() && model.mine(chunk.number))
        for (int rack = 0; rack < model.racks; ++rack)
            if (chunk.racks.marks[rack].wants) queue(model.workers + rack, chunk);
    if (model.synchronous) chunk.local.clear();
    chunk.racks.clear();
    fresh = nullptr;
    if (was == least && --at_least == 0) count_least();
}

inline void Part::copy_snapshot(Chunk &chunk) {
    if (!shared.snapshot.copies(chunk.version)) return;
    const size_t bytes = size_t(chunk.elements) * sizeof(float);
    std::memcpy(store.copy_of(0, chunk), store.weights_of(chunk, chunk.version), bytes);
    for (int state = 0; state < model.states; ++state)
        std::memcpy(store.copy_of(1 + state, chunk), store.state_of(state, chunk, chunk.version), bytes);
    copy_updates[size_t(place[size_t(chunk.number)])] = chunk.updates[chunk.version & 1];
    if (shared.snapshot.copied.fetch_add(1, std::memory_order_acq_rel) + 1 < shared.chunks_here) return;
    shared.snapshot.copied.store(0, std::memory_order_relaxed);
    slot.report(make_event(SNAPSHOT, job, -1, chunk.version));
}

// The version that all chunks of this core have, and whether all of the server have a further one with that.
inline void Part::count_least() {
    least = UINT64_MAX;
    for (const Chunk &chunk : chunks) {
        if (chunk.version < least) at_least = 0;
        least = std::min(least, chunk.version);
        at_least += chunk.version == least;
    }
    shared.least[size_t(slot.number)].store(least);
    uint64_t all = UINT64_MAX;
    for (const auto &each : shared.least) all = std::min(all, each.load());
    uint64_t done = shared.finished.load();
    while (all > done)
        if (shared.finished.compare_exchange_weak(done, all)) {
            slot.report(make_event(FINISHED, job, -1, all));
            return;
        }
}

}  // namespace treadle
