// What a core offers the jobs that it serves: the time, its counts, its events, and how other cores wake it.
#pragma once

#include <atomic>

#include "events.h"

namespace treadle {

enum Count { BYTES_IN, BYTES_OUT, ADDS, BUSY_NS, FRAMES_IN, FRAMES_OUT, UPDATES, SLEEPS, COUNTS };

struct Slot {
    int number = 0;
    int32_t thread = 0;  // of the system
    int bell = -1;       // eventfd that wakes it
    int poll = -1;       // epoll of its streams
    int event_bell = -1;
    uint64_t now = 0;  // ns, at the begin of this round
    std::vector<Slot *> all;
    EventQueue events;

    // Only the core itself adds; others read.
    void count(Count which, uint64_t more) { counts[which].store(counts[which].load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
    uint64_t counted(Count which) const { return counts[which].load(std::memory_order_relaxed); }

    void report(const Event &event) { events.put(event, event_bell); }

    // Behind a write that the core is to see. Both that and `asleep` are in the one order of all threads: either the core
    // sees it before it sleeps, or this sees that it sleeps.
    void wake() {
        if (asleep.load() && asleep.exchange(false)) ring_bell(bell);
    }
    void wake_others() {
        for (Slot *other : all)
            if (other != this) other->wake();
    }

    std::atomic<bool> asleep{false};

  private:
    std::atomic<uint64_t> counts[COUNTS] = {};
};

}  // namespace treadle
