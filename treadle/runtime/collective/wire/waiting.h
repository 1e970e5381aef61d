// How a rank waits until something can move.
#pragma once

#include <algorithm>
#include <sched.h>

#include "wire.h"

namespace treadle {

constexpr int SPINS = 256;  // rounds in which other ranks of this host may run before this one sleeps
constexpr int LOOK = 8;     // rounds between two looks at the sockets of other hosts
constexpr uint64_t SECOND = 1000000000u;
constexpr uint64_t SLICE = SECOND / 2;  // of a call, after which Python may see signals

inline bool Wire::can_move() const {
    for (const Peer *const peer : near) {
        if (!peer->ahead && peer->in.filled()) return true;
        if ((peer->sending >= 0 || waits_to_send(*peer)) && peer->out.room() >= 2 * LINE) return true;
    }
    return false;
}

inline bool Wire::waits_to_send(const Peer &peer) const {
    return std::any_of(peer.leaving.begin(), peer.leaving.end(), [this](int index) {
        return states[size_t(index)].ready > states[size_t(index)].sent;
    });
}

// Nanoseconds until the next byte that a slower network would bring, at most a slice.
inline uint64_t Wire::until_due() const {
    uint64_t due = UINT64_MAX;
    for (const int index : timed)
        if (states[size_t(index)].started && !states[size_t(index)].marks.empty() && room(index) > 0)
            due = std::min(due, states[size_t(index)].marks.front().due_ns);
    if (due == UINT64_MAX) return SLICE;
    const uint64_t now = now_ns();
    return due <= now ? 0 : std::min(due - now, SLICE);
}

// Until a socket can move, at most `ns`: how many can, negative when a signal came.
inline int Wire::listen(uint64_t ns) {
    files.clear();
    for (const auto &peer : peers) {
        if (!peer || peer->ended) continue;
        short events = peer->in || !peer->ahead ? POLLIN : 0;
        if (!peer->in && (peer->sending >= 0 || waits_to_send(*peer))) events |= POLLOUT;
        if (events) files.push_back({peer->file, events, 0});
    }
    const timespec most{time_t(ns / SECOND), long(ns % SECOND)};
    const int found = ppoll(files.data(), files.size(), &most, nullptr);
    return found < 0 && errno != EINTR ? 0 : found;
}

// Until something can move. False when a signal came.
inline bool Wire::sleep() {
    if (!near.empty()) {
        for (int spin = 1; spin <= SPINS; ++spin) {
            sched_yield();
            if (can_move()) return true;
            if (far.empty() || spin % LOOK != 0) continue;
            if (until_due() == 0) break;
            const int readable = listen(0);
            if (readable < 0) return false;
            if (readable > 0) break;
        }
        board.asleep(place).store(1);
        for (Peer *const peer : near)
            if (peer->sending >= 0 || waits_to_send(*peer)) peer->out.counts->full.store(1);
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (can_move()) {
            board.asleep(place).store(0);
            return true;
        }
    }
    const int found = listen(until_due());
    if (!near.empty()) {
        board.asleep(place).store(0);
        if (found > 0)
            for (Peer *const peer : near) read_notes(*peer);
    }
    return found >= 0;
}

// Every half second of a call: true, or throws where a host does not answer; else false.
inline bool Wire::due() {
    const uint64_t now = now_ns();
    if (now < look) return false;
    look = now + SLICE;
    require_answers();
    return true;
}

// The notes of a peer on this host.
inline void Wire::read_notes(Peer &peer) {
    Note notes[32];
    while (!peer.ended) {
        const ssize_t done = recv(peer.file, notes, sizeof notes, MSG_DONTWAIT);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
        if (done <= 0) {
            peer.ended = true;
            return;
        }
        for (size_t i = 0; i < size_t(done) / sizeof(Note); ++i)
            if (notes[i].kind == LOST) raise_lost(peer, notes[i].rank);
    }
}

}  // namespace treadle
