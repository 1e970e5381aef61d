// How actions start, take what arrives, and end. What arrives for an action that cannot start yet is kept aside.
#pragma once

#include <algorithm>

#include "wire.h"

namespace treadle {

inline void Wire::begin(const Program &next) {
    program = &next;
    states.clear();
    states.resize(next.actions.size());
    ready.clear();
    timed.clear();
    finished = 0;
    at = -1;
    for (size_t index = 0; index < states.size(); ++index) {
        const Action &it = next.actions[index];
        State &state = states[index];
        const int32_t chunks = it.receives.peer >= 0 ? it.receives.count : it.sends.peer >= 0 ? it.sends.count : it.writes.count;
        state.bytes = int64_t(chunks) * call.width;
        state.waits = it.waits;
        if (!state.waits) enable(int(index));
    }
    for (auto &peer : peers)
        if (peer) peer->ahead = false;
}

inline void Wire::enable(int index) {
    ready.push_back(index);
    std::push_heap(ready.begin(), ready.end(), std::greater<int>());
}

inline void Wire::release(const int32_t (&list)[2]) {
    for (int32_t i = 0; i < list[1]; ++i) {
        const int other = program->lists[size_t(list[0] + i)];
        if (!--states[size_t(other)].waits) enable(other);
    }
}

inline void Wire::end(int index) {
    State &state = states[size_t(index)];
    if (!state.valued || (action(index).sends.peer >= 0 && !state.left)) return;
    ++finished;
    give_buffer(state.made);
}

inline void Wire::value(int index) {
    states[size_t(index)].valued = true;
    release(action(index).value);
    end(index);
}

inline void Wire::leave(int index) {
    states[size_t(index)].left = true;
    release(action(index).leave);
    end(index);
}

// The first `ready` bytes of what an action sends are there.
inline void Wire::offer(int index, int64_t ready_bytes) {
    State &state = states[size_t(index)];
    if (!state.ready) {
        auto &leaving = out(index).leaving;
        leaving.insert(std::lower_bound(leaving.begin(), leaving.end(), index), index);
    }
    state.ready = ready_bytes;
}

inline void Wire::start(int index) {
    const Action &it = action(index);
    State &state = states[size_t(index)];
    state.started = true;
    const bool receives = it.receives.peer >= 0, sends = it.sends.peer >= 0;
    const char *const first = it.terms ? where(it.reads[0]) : nullptr;
    if (sends && !receives && it.terms == 1 && !it.has_target) {
        state.source = first;
        offer(index, state.bytes);
        push(out(index));
        return value(index);
    }
    if (it.has_target)
        state.into = where(it.writes);
    else {
        state.made = take_buffer(state.bytes);
        state.into = state.made.memory.get();
    }
    state.source = state.into;
    if (receives) {
        state.term = first;
        if (!state.marks.empty())
            deliver(index, now_ns());
        else if (state.held)
            take_aside(index, state.held);
        return;
    }
    const char *const second = it.terms > 1 ? where(it.reads[1]) : nullptr;
    for (int64_t done = 0; done < state.bytes;) {
        const int64_t part = std::min(call.piece, state.bytes - done);
        if (second)
            join(state.into + done, first + done, second + done, part);
        else if (state.into != first)
            std::memmove(state.into + done, first + done, size_t(part));
        done += part;
        if (sends) {
            offer(index, done);
            push(out(index));
        }
        if (done < state.bytes) pump();
    }
    value(index);
}

// How many more bytes an action that receives may write: messages from the same place have left that far.
inline int64_t Wire::room(int index) const {
    const State &state = states[size_t(index)];
    const int32_t *const behind = action(index).behind;
    int64_t left = state.bytes;
    for (int32_t i = 0; i < behind[1]; ++i) left = std::min(left, states[size_t(program->lists[size_t(behind[0] + i)])].sent);
    return left - state.got;
}

// The next `bytes` of what an action receives; `data` may be where they belong.
inline void Wire::take(int index, const char *data, int64_t bytes) {
    State &state = states[size_t(index)];
    char *const to = state.into + state.got;
    if (state.term)
        join(to, data, state.term + state.got, bytes);
    else if (to != data)
        std::memcpy(to, data, size_t(bytes));
    state.got += bytes;
    if (action(index).sends.peer >= 0) {
        // Whole elements only: the next rank may add them, and a socket may have brought a part of one.
        const int64_t whole = state.got == state.bytes ? state.got : state.got - state.got % unit;
        if (whole > state.ready) {
            offer(index, whole);
            push(out(index));
        }
    }
    if (state.got == state.bytes) value(index);
}

// What is kept aside, up to `held` bytes, as far as whole elements go.
inline void Wire::take_aside(int index, int64_t held) {
    State &state = states[size_t(index)];
    if (held < state.bytes) held -= held % unit;
    while (state.got < held) take(index, state.aside.memory.get() + state.got, std::min(call.piece, held - state.got));
    if (state.got == state.held) give_buffer(state.aside);
}

// What is kept aside and would be here by now over a slower network, as far as there is room for it.
inline void Wire::deliver(int index, uint64_t now) {
    State &state = states[size_t(index)];
    if (!state.started) return;
    while (!state.marks.empty() && state.marks.front().due_ns <= now) {
        const int64_t held = state.marks.front().held, most = state.got + room(index);
        if (held <= most) state.marks.pop_front();
        take_aside(index, std::min(held, most));
        if (held > most) return;
    }
}

inline char *Wire::aside(int index) {
    State &state = states[size_t(index)];
    if (!state.aside.memory) {
        state.aside = take_buffer(state.bytes);
        state.held = state.got;
    }
    return state.aside.memory.get() + state.held;
}

inline void Wire::hold(Peer &peer, int64_t bytes) {
    State &state = states[size_t(peer.receiving)];
    state.held += bytes;
    peer.rest -= bytes;
    if (peer.alpha_ns || action(peer.receiving).behind[1]) {
        if (!state.timed) timed.push_back(peer.receiving);
        state.timed = true;
        state.marks.push_back({peer.alpha_ns ? now_ns() + peer.alpha_ns : 0, state.held});
    } else if (state.started)
        take_aside(peer.receiving, state.held);
}

inline Buffer Wire::take_buffer(int64_t bytes) {
    for (auto it = kept.begin(); it != kept.end(); ++it)
        if (it->bytes >= size_t(bytes)) {
            Buffer found = std::move(*it);
            kept.erase(it);
            return found;
        }
    return {std::unique_ptr<char[]>(new char[size_t(bytes)]), size_t(bytes)};
}

inline void Wire::give_buffer(Buffer &buffer) {
    if (buffer.memory) kept.push_back(std::move(buffer));
    buffer = {};
}

}  // namespace treadle
