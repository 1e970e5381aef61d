// What the control of a server asks of a core; the core does it itself, between two rounds.
#pragma once

#include <sys/epoll.h>

#include "finishing.h"
#include "receiving.h"
#include "sending.h"

namespace treadle {

inline void Part::attach(std::unique_ptr<Link> link) {
    std::unique_ptr<Link> &place_of = links[size_t(link->sender)];
    if (place_of) dead.push_back(release(*place_of));
    Link &own = *link;
    place_of = std::move(link);
    if (own.file >= 0) {
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        event.data.ptr = &own;
        epoll_ctl(slot.poll, EPOLL_CTL_ADD, own.file, &event);
    }
    if (!peer(own)) return;
    for (Chunk &chunk : chunks)
        if (chunk.waits && model.owner[size_t(chunk.number)] == own.sender - model.workers) queue(own.sender, chunk);
}

inline void Part::drop(int sender, const std::string &why, bool say) {
    if (!links[size_t(sender)]) return;
    Link &link = *links[size_t(sender)];
    say ? fail(link, why) : dead.push_back(release(link));
}

// Several times a second.
inline void Part::tidy() {
    let_go();
    if (!model.synchronous) return;
    for (const Chunk &chunk : chunks) {
        const Gather &sum = chunk.local;
        if (sum.here == 0 || sum.complete() || slot.now < sum.since + 1000000000u) continue;
        for (int worker = 0; worker < model.workers; ++worker)
            if (!sum.marks[worker].here) report_late(worker, chunk.version + 1);
    }
}

// Once for each version.
inline void Part::report_late(int worker, uint64_t version) {
    uint64_t told = shared.late[size_t(worker)].load();
    while (told < version)
        if (shared.late[size_t(worker)].compare_exchange_weak(told, version))
            slot.report(make_event(LATE, job, worker, version, name_of(worker) + " is late: others have sent version " + std::to_string(version)));
}

inline void Part::load(uint64_t version, const float *weights, const float *const *states, const uint64_t *updates) {
    for (Chunk &chunk : chunks) {
        const int64_t from = whole_offset[size_t(chunk.number)];
        const size_t bytes = size_t(chunk.elements) * sizeof(float);
        std::memcpy(store.weights_of(chunk, version), weights + from, bytes);
        for (int state = 0; state < model.states; ++state) {
            float *const to = store.state_of(state, chunk, version);
            if (states && states[state]) {
                std::memcpy(to, states[state] + from, bytes);
            } else {
                std::memset(to, 0, bytes);
            }
        }
        chunk.version = version;
        chunk.updates[version & 1] = updates ? updates[chunk.number] : 0;
        chunk.before = chunk.waits = false;
        chunk.local.clear();
        chunk.racks.clear();
    }
    least = version;
    at_least = chunks.size();
    if (!chunks.empty()) shared.least[size_t(slot.number)].store(version);
}

inline bool Part::read(uint64_t version, int part, float *out, uint64_t *updates) const {
    for (const Chunk &chunk : chunks) {
        if (chunk.version != version && !(chunk.before && chunk.version == version + 1)) return false;
        const float *const from = part == 0 ? store.weights_of(chunk, version) : store.state_of(part - 1, chunk, version);
        std::memcpy(out + whole_offset[size_t(chunk.number)], from, size_t(chunk.elements) * sizeof(float));
        if (updates) updates[chunk.number] = chunk.updates[version & 1];
    }
    return true;
}

inline void Part::read_copy(int part, float *out, uint64_t *updates) const {
    for (size_t c = 0; c < chunks.size(); ++c) {
        const Chunk &chunk = chunks[c];
        std::memcpy(out + whole_offset[size_t(chunk.number)], store.copy_of(part, chunk), size_t(chunk.elements) * sizeof(float));
        if (updates) updates[chunk.number] = copy_updates[c];
    }
}

}  // namespace treadle
