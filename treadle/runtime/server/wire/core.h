// A thread that serves its chunks of every job, and does for them all that is done.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <thread>

#include "team.h"

namespace treadle {

// Binds the thread that calls it to a processor, unless that is negative.
inline void pin(int processor) {
    if (processor < 0) return;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
}

struct Core {
    Slot slot;
    const int processor;
    std::vector<Part *> parts;  // of all jobs

    Core(int number, int processor, int event_bell, Team &team, const std::atomic<bool> &stop) : processor(processor), team(team), stop(stop) {
        slot.number = number;
        slot.event_bell = event_bell;
        slot.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        slot.poll = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLET;
        if (ready()) epoll_ctl(slot.poll, EPOLL_CTL_ADD, slot.bell, &event);
    }
    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;
    ~Core() {
        if (slot.bell >= 0) close(slot.bell);
        if (slot.poll >= 0) close(slot.poll);
    }

    bool ready() const { return slot.bell >= 0 && slot.poll >= 0; }
    void start() {
        thread = std::thread([this] { run(); });
    }
    void join() {
        slot.wake();
        if (thread.joinable()) thread.join();
    }

    // Has the core do something, and waits until it has. Not for a core itself.
    void ask(const std::function<void()> &order) {
        std::unique_lock<std::mutex> lock(mutex);
        order_waits.wait(lock, [this] { return !asked.load(); });
        current = &order;
        asked.store(true);
        slot.wake();
        order_done.wait(lock, [this] { return !asked.load(); });
        order_waits.notify_one();
    }

  private:
    static constexpr uint64_t SPIN_NS = 50000;  // without work before it sleeps
    static constexpr uint64_t TIDY_NS = 250000000;
    Team &team;
    const std::atomic<bool> &stop;
    std::thread thread;
    std::mutex mutex;
    std::condition_variable order_waits, order_done;
    std::atomic<bool> asked{false};
    const std::function<void()> *current = nullptr;
    uint64_t tidied = 0;

    void run() {
        pin(processor);
        slot.thread = int32_t(syscall(SYS_gettid));
        uint64_t idle_since = 0, rounds = 0;
        slot.now = now_ns();
        while (!stop.load(std::memory_order_relaxed)) {
            if (asked.load(std::memory_order_acquire)) obey();
            uint64_t moved = team.waits();
            if (moved) team.work(slot.number);
            for (Part *part : parts) moved += part->serve();
            const uint64_t now = now_ns();
            if (moved) slot.count(BUSY_NS, now - slot.now);
            slot.now = now;
            for (Part *part : parts) part->ring_bells(!moved);
            if (moved && ++rounds % 16) continue;
            if (now > tidied + TIDY_NS) tidy();
            if (listen(0) || moved) {
                idle_since = 0;
            } else if (!idle_since) {
                idle_since = now;
            } else if (now > idle_since + SPIN_NS) {
                sleep();
                idle_since = 0;
            } else {
                sched_yield();
            }
        }
    }

    void obey() {
        const std::lock_guard<std::mutex> lock(mutex);
        (*current)();
        asked.store(false);
        order_done.notify_all();
    }

    void tidy() {
        tidied = slot.now;
        for (Part *part : parts) part->tidy();
    }

    // What streams have, and what they take again.
    bool listen(int timeout_ms) {
        epoll_event events[64];
        const int found = epoll_wait(slot.poll, events, 64, timeout_ms);
        for (int each = 0; each < found; ++each) {
            Link *const link = static_cast<Link *>(events[each].data.ptr);
            if (!link) {
                quiet_bell(slot.bell);
                continue;
            }
            if (events[each].events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) link->readable = true;
            if (events[each].events & (EPOLLOUT | EPOLLHUP | EPOLLERR)) link->writable = true;
        }
        if (found > 0)
            for (Part *part : parts) part->send_on();
        return found > 0;
    }

    // Says that it sleeps, then looks once more: whoever has work for it since then rings its bell.
    void sleep() {
        slot.asleep.store(true);
        bool quiet = !asked.load() && !stop.load() && !team.waits(), stuck = false;
        for (Part *part : parts) {
            stuck = stuck || part->stuck();
            quiet = quiet && !part->norms_wait();
            for (const auto &link : part->links)
                if (quiet && link && link->arena) quiet = link->in.sleep();
        }
        if (quiet) {
            slot.count(SLEEPS, 1);
            listen(stuck ? 1 : int(TIDY_NS / 1000000));
        }
        slot.asleep.store(false);
        for (Part *part : parts)
            for (const auto &link : part->links)
                if (link && link->arena) link->in.awake();
        slot.now = now_ns();
    }
};

}  // namespace treadle
