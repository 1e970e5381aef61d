// What one rank does in a program, as Python hands it over, and how far it is.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

namespace treadle {

struct Range {
    int32_t buffer, first, count;
};

struct End {
    int32_t peer, tag, count;  // peer -1: none
};

struct Action {
    Range reads[2];
    int32_t terms;
    Range writes;
    int32_t has_target;
    End receives, sends;
    int32_t stream;              // over which it sends, to a rank of another host
    int32_t value[2], leave[2];  // (first, count) in the lists: actions that its value, and its leaving, let start
    int32_t behind[2];           // actions that send from where it receives to
    int32_t waits;               // how many of both this one waits for
};

struct Program {
    std::vector<Action> actions;
    std::vector<int32_t> lists;
    std::vector<std::unordered_map<uint32_t, int>> receivers;  // by peer and tag
};

struct Buffer {
    std::unique_ptr<char[]> memory;
    size_t bytes = 0;
};

struct Mark {
    uint64_t due_ns;
    int64_t held;
};

struct State {
    int32_t waits = 0;
    bool started = false, valued = false, left = false, timed = false;
    int64_t bytes = 0, got = 0, ready = 0, sent = 0;
    char *into = nullptr;
    const char *term = nullptr, *source = nullptr;
    Buffer made;  // the value, where it has no place in the caller's buffers
    Buffer aside;
    int64_t held = 0;
    std::deque<Mark> marks;
};

struct Call {
    char *buffers[3];
    int64_t width, piece;  // bytes of a chunk; bytes added up at once, a multiple of all elements
    int32_t dtype, operation;
    uint64_t what;
};

}  // namespace treadle
