// Runs one rank's actions of a collective program, in the thread that calls.
//
// An action starts as soon as the chunks that it touches are free; nothing else orders actions. Messages leave from
// where the data is and arrive where it belongs, or are added to it, piece by piece, while the rest is still on its way.
// What arrives for an action that cannot start yet waits in its stream while there is other work, then is kept aside, so
// a send always ends and no order of messages can block.
#include <algorithm>

#include "actions.h"
#include "exchange.h"
#include "loss.h"
#include "waiting.h"

#define API extern "C" __attribute__((visibility("default")))

using namespace treadle;

constexpr size_t KEPT_BYTES = 4 << 20;
constexpr int INTERRUPTED = -1;
constexpr unsigned BUSY = 64;  // rounds between two looks at the clock while something moves

// 0, or INTERRUPTED by a signal or the clock.
int Wire::go() {
    for (unsigned rounds = 1; finished < states.size(); ++rounds) {
        if (rounds % BUSY == 0 && due()) return INTERRUPTED;
        while (!ready.empty()) {
            std::pop_heap(ready.begin(), ready.end(), std::greater<int>());
            const int index = ready.back();
            ready.pop_back();
            start(index);
        }
        if (finished == states.size() || pump() || !ready.empty()) continue;
        if (std::any_of(peers.begin(), peers.end(), [](const auto &peer) { return peer && peer->stalled; }) && pump(true)) continue;
        if (std::any_of(peers.begin(), peers.end(), [](const auto &peer) { return peer && peer->ended; })) require_all();
        const bool signalled = !sleep();
        if (due() || signalled) return INTERRUPTED;
    }
    program = nullptr;
    size_t bytes = 0;
    for (const Buffer &buffer : kept) bytes += buffer.bytes;
    if (bytes > KEPT_BYTES) kept.clear();
    return 0;
}

int Wire::guarded() {
    try {
        return go();
    } catch (const Lost &error) {
        const int lost = error.rank == rank ? rank : origin(error.rank);
        return fail(lost, lost == error.rank ? error.what() : relayed(*stream(error.rank, 0), lost));
    } catch (const std::bad_alloc &) {
        return fail(rank, "out of memory");
    }
}

API uint64_t wire_board_bytes(int ranks) { return Board::bytes(uint64_t(ranks)); }

// By rank: `streams` sockets to it, which stay the caller's, -1 where there is none; its place among the ranks that share `board`,
// -1 for one of another host; and the nanoseconds added to each of its messages.
API void *wire_open(int rank, int ranks, int streams, const int32_t *files, const int32_t *places, const uint64_t *alphas, void *board, int near) {
    auto wire = std::make_unique<Wire>();
    wire->rank = rank;
    wire->ranks = ranks;
    wire->streams = streams;
    wire->place = places[rank];
    wire->board = {static_cast<char *>(board), uint64_t(near)};
    for (int each = 0; each < ranks * streams; ++each) {
        const int other = each / streams;
        wire->peers.push_back(nullptr);
        if (files[each] < 0) continue;
        auto peer = std::make_unique<Peer>();
        peer->rank = other;
        peer->file = files[each];
        peer->place = places[other];
        if (board && places[other] >= 0) {
            peer->in = wire->board.ring(places[other], places[rank]);
            peer->out = wire->board.ring(places[rank], places[other]);
            wire->near.push_back(peer.get());
        } else {
            peer->alpha_ns = alphas[other];
            peer->stage.reset(new char[STAGE]);
            wire->far.push_back(peer.get());
        }
        wire->peers.back() = std::move(peer);
    }
    return wire.release();
}

API void wire_close(void *wire) { delete static_cast<Wire *>(wire); }

API void *wire_program(const Action *actions, int count, const int32_t *lists, int listed, int ranks) {
    auto program = std::make_unique<Program>();
    program->actions.assign(actions, actions + count);
    program->lists.assign(lists, lists + listed);
    program->receivers.resize(size_t(ranks));
    for (int index = 0; index < count; ++index)
        if (actions[index].receives.peer >= 0)
            program->receivers[size_t(actions[index].receives.peer)][uint32_t(actions[index].receives.tag)] = index;
    return program.release();
}

API void wire_forget(void *program) { delete static_cast<Program *>(program); }

API const char *wire_message(void *wire) { return static_cast<Wire *>(wire)->message.c_str(); }

API int wire_action(void *wire) { return static_cast<Wire *>(wire)->at; }

// 0; or INTERRUPTED, at least every half second, after which `wire_resume` goes on; or 1 + the rank that was lost, with
// a message, after which the wire must not be used.
API int wire_run(void *handle, const void *program, const Call *call) {
    Wire &wire = *static_cast<Wire *>(handle);
    if (wire.failed) {
        wire.at = NO_STEP;  // that of another call
        return wire.failed;
    }
    if (wire.program) {
        wire.program = nullptr;  // it may be gone, and what it sent from
        for (const Peer *const peer : wire.far)
            if (peer->sending >= 0) shutdown(peer->file, SHUT_WR);
        for (const auto &peer : wire.peers)
            if (peer) peer->sending = -1;
        return wire.fail(wire.rank, "an earlier call was interrupted");
    }
    ++wire.calls;
    wire.look = now_ns() + SLICE;
    wire.call = *call;
    wire.join = combine_of(call->dtype, call->operation);
    wire.unit = call->dtype < 0 ? 1 : call->dtype == 0 || call->dtype == 4 ? 4 : call->dtype == 2 || call->dtype == 3 ? 2 : 8;
    wire.begin(*static_cast<const Program *>(program));
    return wire.guarded();
}

API int wire_resume(void *handle) {
    Wire &wire = *static_cast<Wire *>(handle);
    return wire.failed ? wire.failed : wire.guarded();
}

// The caller will not go on, which is sent to the others.
API void wire_abandon(void *handle) {
    Wire &wire = *static_cast<Wire *>(handle);
    if (!wire.failed) wire.fail(wire.rank, "the call was interrupted");
}
