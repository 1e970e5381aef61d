// How frames leave and arrive.
#pragma once

#include <algorithm>

#include "wire.h"

namespace treadle {

constexpr int ROUNDS = 8;  // between two looks at the sockets while rings are busy

inline bool Wire::next_frame(Peer &peer) {
    for (const int index : peer.leaving) {
        const State &state = states[size_t(index)];
        if (state.ready <= state.sent) continue;
        const int64_t bytes = std::min(state.ready - state.sent, FRAME_BYTES);
        peer.frame = {DATA, calls, uint32_t(action(index).sends.tag), uint32_t(bytes), uint64_t(state.bytes), call.what};
        peer.frame_sent = 0;
        peer.sending = index;
        return true;
    }
    return false;
}

inline uint64_t Wire::payload_sent(const Peer &peer) { return peer.frame_sent < sizeof(Frame) ? 0 : peer.frame_sent - sizeof(Frame); }

// Lets more of the frame on its way leave, after whose end none is. False where there is no room.
inline bool Wire::advance(Peer &peer) {
    State &state = states[size_t(peer.sending)];
    const uint64_t before = payload_sent(peer), bytes = peer.frame.bytes - before;
    const char *const source = state.source + state.sent;
    const uint64_t done = peer.out ? write_ring(peer, source, bytes) : write_socket(peer, source, bytes);
    peer.frame_sent += done;
    state.sent += int64_t(payload_sent(peer) - before);
    if (peer.frame_sent == sizeof(Frame) + peer.frame.bytes) peer.sending = -1;
    return done;
}

// Lets leave what can. True when something did.
inline bool Wire::push(Peer &peer) {
    bool moved = false;
    while (peer.sending >= 0 || next_frame(peer)) {
        const int index = peer.sending;
        if (!advance(peer)) break;
        moved = true;
        if (peer.sending < 0 && states[size_t(index)].sent == states[size_t(index)].bytes) {
            peer.leaving.erase(std::find(peer.leaving.begin(), peer.leaving.end(), index));
            leave(index);
        }
    }
    if (moved && peer.out) wake(peer);
    return moved;
}

// Reads the header of a frame: whose bytes follow. False where they are of a later call.
inline bool Wire::open_frame(Peer &peer, const Frame &frame) {
    if (frame.kind == LOST) raise_lost(peer, frame.tag);
    if (frame.kind != DATA) peer.lose("sent what is no message");
    if (frame.call != calls) {
        peer.ahead = true;
        return false;
    }
    if (frame.what != call.what) peer.lose("called another collective, or with another size, type, op or place");
    const auto &receivers = program->receivers[size_t(peer.rank)];
    const auto found = receivers.find(frame.tag);
    if (found == receivers.end()) peer.lose("sent a message of another program");
    const State &state = states[size_t(found->second)];
    if (int64_t(frame.total) != state.bytes)
        peer.lose("sent " + std::to_string(frame.total) + " bytes, expected " + std::to_string(state.bytes));
    if (frame.bytes > frame.total || int64_t(frame.bytes) > state.bytes - std::max(state.got, state.held)) peer.lose("sent too much");
    peer.receiving = found->second;
    peer.rest = frame.bytes;
    peer.padding = whole_lines(frame.bytes) - frame.bytes;
    return true;
}

// Whether the action whose frame is on its way in can take more of it from there, without keeping it aside.
inline bool Wire::direct(const Peer &peer) const {
    const State &state = states[size_t(peer.receiving)];
    return !peer.alpha_ns && state.started && state.marks.empty() && room(peer.receiving) >= std::min(peer.rest, int64_t(LINE));
}

// Whether the frame on its way in can be taken now. `spare`: there is nothing else to do.
inline bool Wire::open(Peer &peer, bool spare) {
    peer.stalled = !peer.alpha_ns && !spare && !direct(peer);
    return !peer.stalled;
}

inline bool Wire::pull_ring(Peer &peer, bool spare) {
    const Ring &ring = peer.in;
    bool moved = false;
    for (;;) {
        const uint64_t at_byte = ring.read(), filled = ring.filled();
        if (peer.receiving < 0) {
            if (filled < LINE) break;
            Frame frame;
            std::memcpy(&frame, ring.data + at_byte % ring.bytes, sizeof frame);
            if (!open_frame(peer, frame)) break;
            ring.counts->read.store(at_byte + LINE, std::memory_order_release);
            continue;
        }
        if (!open(peer, spare)) break;
        const int index = peer.receiving;
        const bool here = direct(peer);
        const uint64_t most = uint64_t(here ? std::min(peer.rest, room(index)) : peer.rest);
        uint64_t part = std::min({most, filled, ring.bytes - at_byte % ring.bytes, std::max(uint64_t(call.piece), LINE)});
        if (int64_t(part) < peer.rest) part = part / LINE * LINE;
        if (!part) break;
        const char *const data = ring.data + at_byte % ring.bytes;
        if (here) {
            peer.rest -= int64_t(part);
            take(index, data, int64_t(part));
        } else {
            std::memcpy(aside(index), data, part);
            hold(peer, int64_t(part));
        }
        if (!peer.rest) {
            peer.receiving = -1;
            part += peer.padding;
        }
        ring.counts->read.store(at_byte + part, std::memory_order_release);
        moved = true;
        std::atomic_thread_fence(std::memory_order_seq_cst);
        if (ring.room() >= ring.bytes / 2 && ring.counts->full.load(std::memory_order_relaxed) && ring.counts->full.exchange(0)) wake(peer);
    }
    return moved;
}

inline bool Wire::pull_socket(Peer &peer, bool spare) {
    bool moved = false;
    for (int part = 0; part < ROUNDS;) {
        const size_t staged = peer.end - peer.begin;
        if (peer.receiving < 0) {
            if (staged < sizeof(Frame)) {
                if (!fill_stage(peer)) break;
                ++part;
                continue;
            }
            Frame frame;
            std::memcpy(&frame, peer.stage.get() + peer.begin, sizeof frame);
            if (!open_frame(peer, frame)) break;
            peer.begin += sizeof frame;
            continue;
        }
        if (!open(peer, spare)) break;
        const int index = peer.receiving;
        State &state = states[size_t(index)];
        const bool away = !direct(peer) || state.held > state.got;
        const int64_t most = away ? peer.rest : std::min(peer.rest, room(index));
        int64_t count;
        if (state.term && !away) {
            count = std::min(most, int64_t(staged));
            if (count < peer.rest) count -= count % unit;
            if (!count) {
                if (!fill_stage(peer)) break;
                ++part;
                continue;
            }
            if ((peer.begin & (sizeof(double) - 1)) != 0) {
                std::memmove(peer.stage.get(), peer.stage.get() + peer.begin, staged);
                peer.begin = 0;
                peer.end = staged;
            }
            const char *const data = peer.stage.get() + peer.begin;
            peer.begin += size_t(count);
            peer.rest -= count;
            take(index, data, count);
        } else {
            char *const to = away ? aside(index) : state.into + state.got;
            if (staged) {
                count = std::min(most, int64_t(staged));
                std::memcpy(to, peer.stage.get() + peer.begin, size_t(count));
                peer.begin += size_t(count);
            } else {
                count = int64_t(read_socket(peer, to, uint64_t(most)));
                if (!count) break;
                ++part;
            }
            if (away)
                hold(peer, count);
            else {
                peer.rest -= count;
                take(index, to, count);
            }
        }
        moved = true;
        if (!peer.rest) peer.receiving = -1;
    }
    return moved;
}

// Moves whatever can move. True when something did.
inline bool Wire::pump(bool spare) {
    bool moved = false;
    for (Peer *const peer : near) moved |= push(*peer) | pull_ring(*peer, spare);
    if (!far.empty() && (!moved || ++round % ROUNDS == 0 || near.empty()))
        for (Peer *const peer : far) {
            moved |= push(*peer);
            if (!peer->ended && !peer->ahead) moved |= pull_socket(*peer, spare);
        }
    if (!timed.empty()) {
        const uint64_t now = now_ns();
        for (size_t i = 0; i < timed.size();) {
            const State &state = states[size_t(timed[i])];
            const int64_t before = state.got;
            deliver(timed[i], now);
            moved |= state.got > before;
            if (state.got == state.bytes) {
                timed[i] = timed.back();
                timed.pop_back();
            } else
                ++i;
        }
    }
    return moved;
}

inline void Wire::wake(const Peer &peer) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    auto &asleep = board.asleep(peer.place);
    if (!asleep.load(std::memory_order_relaxed) || !asleep.exchange(0)) return;
    const Note note{WAKE, 0};
    (void)!send(peer.file, &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace treadle
