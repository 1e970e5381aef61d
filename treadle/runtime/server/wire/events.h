// What cores report: events for whoever runs the server, and a log of single acts for tests. Neither takes a lock.
#pragma once

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include <time.h>

#include "job.h"
#include "rings.h"

namespace treadle {

inline uint64_t now_ns() {
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000000000u + uint64_t(time.tv_nsec);
}

// Events of one core, on their way to the thread that reads those of all cores.
struct EventQueue {
    static constexpr uint64_t MOST = 1024;
    static constexpr uint64_t SPARE = 256;  // places that only events which come once may take

    EventQueue() : events(MOST) {}

    void put(const Event &event, int bell) {
        const uint64_t waiting = put_count.load(std::memory_order_relaxed) - taken.load(std::memory_order_acquire);
        const bool again = event.what == FINISHED || event.what == LATE;
        if (waiting >= (again ? MOST - SPARE : MOST)) return;
        events[put_count.load(std::memory_order_relaxed) % MOST] = event;
        put_count.fetch_add(1, std::memory_order_release);
        ring_bell(bell);
    }

    bool take(Event &event) {
        const uint64_t next = taken.load(std::memory_order_relaxed);
        if (put_count.load(std::memory_order_acquire) == next) return false;
        event = events[next % MOST];
        taken.store(next + 1, std::memory_order_release);
        return true;
    }

  private:
    std::vector<Event> events;
    std::atomic<uint64_t> put_count{0}, taken{0};
};

inline Event make_event(What what, int job, int worker, uint64_t step, const std::string &text = "") {
    Event event{};
    event.what = what;
    event.job = job;
    event.worker = worker;
    event.step = step;
    std::strncpy(event.text, text.c_str(), sizeof event.text - 1);
    return event;
}

enum Act : int32_t { ARRIVED = 1, ADDED = 2, OPTIMIZED = 3, SENT = 4 };

// The first acts of a job, as many as there is room for.
struct EventLog {
    explicit EventLog(int64_t most) : entries(size_t(most)) {}

    void add(Act act, int32_t chunk, int32_t worker, int32_t thread, uint64_t step) {
        if (entries.empty()) return;
        const size_t place = next.fetch_add(1, std::memory_order_relaxed);
        if (place < entries.size()) entries[place] = {now_ns(), step, chunk, worker, thread, act};
    }

    // While nothing is in flight.
    int64_t copy(Logged *out, int64_t most) const {
        const int64_t count = std::min<int64_t>(most, int64_t(std::min(next.load(), entries.size())));
        std::copy_n(entries.begin(), count, out);
        return count;
    }

  private:
    std::vector<Logged> entries;
    std::atomic<size_t> next{0};
};

}  // namespace treadle
