// What happens when a rank is lost: its number is sent to all others.
#pragma once

#include <algorithm>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "wire.h"

namespace treadle {

constexpr uint64_t LOST_NS = 1000000000;
constexpr uint32_t SILENT_MS = 4000;
constexpr int AFTER_LAST_STEP = -1, NO_STEP = -2;

inline void Wire::raise_lost(const Peer &peer, uint32_t lost) const {
    if (lost >= uint32_t(ranks)) peer.lose("sent what is no message");
    throw Lost(int(lost), relayed(peer, int(lost)));
}

inline std::string Wire::relayed(const Peer &peer, int lost) const {
    const std::string relayer = "rank " + std::to_string(peer.rank);
    if (lost == rank || lost == peer.rank) return relayer + " gave up its call";
    return "rank " + std::to_string(lost) + " was lost, reported by " + relayer;
}

// Whether nothing comes from a rank any more: its streams do not end all at once.
inline bool Wire::gone(int other) const {
    for (int number = 0; number < streams; ++number)
        if (const Peer *const peer = stream(other, number); peer && !peer->ended) return false;
    return true;
}

// Throws where something is missing that a peer which is gone will not send or take.
inline void Wire::require_all() {
    for (size_t index = 0; index < states.size(); ++index) {
        const State &state = states[index];
        const Action &it = program->actions[index];
        const int from = it.receives.peer, to = it.sends.peer;
        if (from >= 0 && std::max(state.got, state.held) < state.bytes && gone(from)) stream(from, 0)->lose("ended");
        if (to >= 0 && !state.left && out(int(index)).ended) out(int(index)).lose("ended");
    }
}

// Throws where a host has left what was sent to it unanswered for seconds; idle ones the kernel asks itself. A host that
// answers, but whose rank takes nothing, is only late. What comes from a host need not acknowledge anything.
inline void Wire::require_answers() const {
    for (const Peer *const peer : far) {
        tcp_info seen{};
        socklen_t bytes = sizeof seen;
        if (peer->ended || getsockopt(peer->file, IPPROTO_TCP, TCP_INFO, &seen, &bytes)) continue;
        if (std::min(seen.tcpi_last_ack_recv, seen.tcpi_last_data_recv) < SILENT_MS) continue;
        if ((seen.tcpi_unacked && seen.tcpi_retransmits > 1) || seen.tcpi_probes > 1) peer->lose("does not answer");
    }
}

// The action that a lost rank holds up.
inline int Wire::waiting_action(int lost) const {
    int first = AFTER_LAST_STEP;
    for (size_t index = 0; index < states.size(); ++index) {
        const Action &it = program->actions[index];
        const State &state = states[index];
        if (state.valued && (it.sends.peer < 0 || state.left)) continue;
        if (it.receives.peer == lost || it.sends.peer == lost) return int(index);
        if (first < 0) first = int(index);
    }
    return first;
}

// The rank for which a peer ended, from the last frame of its stream; itself where that names none.
inline int Wire::origin(Peer &peer) {
    if (peer.in) {
        try {
            read_notes(peer);
        } catch (const Lost &lost) {
            return lost.rank;
        }
        return peer.rank;
    }
    for (;;) {
        const size_t staged = peer.end - peer.begin;
        if (peer.rest > 0 && staged) {
            const int64_t part = std::min(peer.rest, int64_t(staged));
            peer.begin += size_t(part);
            peer.rest -= part;
        } else if (peer.rest == 0 && staged >= sizeof(Frame)) {
            Frame frame;
            std::memcpy(&frame, peer.stage.get() + peer.begin, sizeof frame);
            peer.begin += sizeof frame;
            if (frame.kind == LOST && frame.tag < uint32_t(ranks)) return int(frame.tag);
            if (frame.kind != DATA) return peer.rank;
            peer.rest = frame.bytes;
        } else if (!fill_stage(peer))
            return peer.rank;
    }
}

// By all of its streams, of which a part may have ended before it could name one.
inline int Wire::origin(int other) {
    for (int number = 0; number < streams; ++number)
        if (Peer *const peer = stream(other, number))
            if (const int lost = origin(*peer); lost != other) return lost;
    return other;
}

// Sends what is left of the frame that is on its way, and this one; the stream ends where only a part of it fits. False
// where there is no room yet.
inline bool Wire::send_lost(Peer &peer, const Frame &frame) {
    try {
        while (peer.sending >= 0)
            if (!advance(peer)) return false;
    } catch (const Lost &) {
        return true;
    }
    const ssize_t done = send(peer.file, &frame, sizeof frame, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (done < 0) return errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR;
    if (size_t(done) < sizeof frame) shutdown(peer.file, SHUT_WR);
    return true;
}

// Sends all others the rank that was lost. To one that does not take the rest of its frame in time, the stream ends.
inline void Wire::send_lost_to_all(int lost) {
    const uint64_t last = now_ns() + LOST_NS;
    const Note note{LOST, uint32_t(lost)};
    const Frame frame{LOST, 0, uint32_t(lost), 0, 0, 0};
    for (Peer *const peer : near) (void)!send(peer->file, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
    std::vector<Peer *> unsent;
    for (Peer *const peer : far)
        if (!peer->ended) unsent.push_back(peer);
    for (;;) {
        unsent.erase(std::remove_if(unsent.begin(), unsent.end(), [&](Peer *peer) { return send_lost(*peer, frame); }), unsent.end());
        const bool others = std::any_of(unsent.begin(), unsent.end(), [lost](const Peer *peer) { return peer->rank != lost; });
        if (!others || now_ns() >= last) break;
        files.clear();
        for (const Peer *const peer : unsent) files.push_back({peer->file, POLLOUT, 0});
        poll(files.data(), files.size(), 10);
    }
    for (const Peer *const peer : unsent) shutdown(peer->file, SHUT_WR);
}

inline int Wire::fail(int lost, const std::string &what) {
    message = what;
    failed = 1 + lost;
    at = program ? waiting_action(lost) : NO_STEP;
    send_lost_to_all(lost);
    program = nullptr;
    return failed;
}

}  // namespace treadle
