// One rank's end of all streams, and the call that is running over them.
#pragma once

#include <string>

#include "program.h"
#include "streams.h"
#include "sums.h"

namespace treadle {

struct Wire {
    int rank = 0, ranks = 0, place = -1, streams = 1;  // `streams` to each rank of another host
    Board board{};
    std::vector<std::unique_ptr<Peer>> peers;  // by rank and stream; one on this host has the first only
    std::vector<Peer *> near, far;             // over rings, over sockets
    std::string message;
    int failed = 0, at = -1;
    uint32_t calls = 0;
    uint64_t look = 0;  // when to see next whether hosts answer, and to let Python see signals

    const Program *program = nullptr;  // of a call that has neither ended nor failed
    Call call{};
    Combine join = nullptr;
    int64_t unit = 1;  // bytes of an element
    std::vector<State> states;
    std::vector<int> ready;  // a heap, the first action on top
    std::vector<int> timed;  // actions of which bytes wait for the time at which a slower network would bring them
    size_t finished = 0;
    std::vector<Buffer> kept;
    std::vector<pollfd> files;
    int round = 0;

    char *where(const Range &range) const { return call.buffers[range.buffer] + int64_t(range.first) * call.width; }
    const Action &action(int index) const { return program->actions[size_t(index)]; }
    Peer *stream(int other, int number) const { return peers[size_t(other * streams + number)].get(); }
    Peer &out(int index) const {
        const Action &it = action(index);
        Peer *const first = stream(it.sends.peer, 0);
        return first->out ? *first : *stream(it.sends.peer, it.stream % streams);
    }

    // actions.h: how actions start, take what arrives and end
    void begin(const Program &next);
    void enable(int index);
    void release(const int32_t (&list)[2]);
    void end(int index);
    void value(int index);
    void leave(int index);
    void offer(int index, int64_t ready_bytes);
    void start(int index);
    int64_t room(int index) const;
    void take(int index, const char *data, int64_t bytes);
    void take_aside(int index, int64_t held);
    void deliver(int index, uint64_t now);
    char *aside(int index);
    void hold(Peer &peer, int64_t bytes);
    Buffer take_buffer(int64_t bytes);
    void give_buffer(Buffer &buffer);

    // exchange.h: how frames leave and arrive
    bool next_frame(Peer &peer);
    static uint64_t payload_sent(const Peer &peer);
    bool advance(Peer &peer);
    bool push(Peer &peer);
    bool open_frame(Peer &peer, const Frame &frame);
    bool direct(const Peer &peer) const;
    bool open(Peer &peer, bool spare);
    bool pull_ring(Peer &peer, bool spare);
    bool pull_socket(Peer &peer, bool spare);
    bool pump(bool spare = false);
    void wake(const Peer &peer);

    // waiting.h: how a rank waits until something can move
    bool can_move() const;
    bool waits_to_send(const Peer &peer) const;
    uint64_t until_due() const;
    int listen(uint64_t ns);
    bool sleep();
    void read_notes(Peer &peer);

    // loss.h: what happens when a rank is lost
    [[noreturn]] void raise_lost(const Peer &peer, uint32_t lost) const;
    std::string relayed(const Peer &peer, int lost) const;
    bool gone(int other) const;
    void require_all();
    void require_answers() const;
    bool due();
    int waiting_action(int lost) const;
    int origin(Peer &peer);
    int origin(int other);
    bool send_lost(Peer &peer, const Frame &frame);
    void send_lost_to_all(int lost);
    int fail(int lost, const std::string &what);

    // executor.cpp: the call
    int go();
    int guarded();
};

}  // namespace treadle
