// A worker's end of a parameter server: one thread moves all chunks between its arena and every core of every server.
#include <cerrno>
#include <thread>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include "client_lane.h"

namespace treadle {

constexpr int LINGER_MS = 1;  // how often what rings no bell is looked at

thread_local std::string message;

struct Client {
    Ground ground;
    std::vector<size_t> first_lane;  // of each server; behind them the number of lanes
    std::vector<std::unique_ptr<Lane>> lanes;
    int memfd = -1, bell = -1, poller = -1;

    explicit Client(const Layout &layout) : ground(layout), first_lane(size_t(layout.servers) + 1) {
        for (size_t server = 0; server < size_t(layout.servers); ++server)
            first_lane[server + 1] = first_lane[server] + size_t(layout.slots[server]);
        lanes.resize(first_lane.back());
        for (size_t chunk = 0; chunk < ground.lane.size(); ++chunk)
            ground.lane[chunk] = uint32_t(first_lane[size_t(layout.chunk_server[chunk])] + size_t(layout.chunk_slot[chunk]));
        make_arena();
        bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        poller = epoll_create1(EPOLL_CLOEXEC);
        epoll_event event{};
        event.events = EPOLLIN;
        if (bell < 0 || poller < 0 || epoll_ctl(poller, EPOLL_CTL_ADD, bell, &event)) throw errno;
    }

    ~Client() {
        if (thread.joinable()) {
            {
                const std::lock_guard<std::mutex> guard(ground.keys.lock);
                stopping = true;
            }
            ring_bell(bell);
            thread.join();
        }
        lanes.clear();
        if (ground.arena) {
            arena().closed.store(1, std::memory_order_release);
            munmap(ground.arena, size_t(ground.parts.bytes));
        }
        for (const int file : {memfd, bell, poller})
            if (file >= 0) close(file);
    }

    Arena &arena() const { return *reinterpret_cast<Arena *>(ground.arena); }

    void add_stream(size_t server, int slot, int file) {
        const size_t number = first_lane[server] + size_t(slot);
        auto lane = std::make_unique<StreamLane>(uint32_t(number), int(server), slot, ground.keys.keys.size(), file);
        epoll_event event{};
        event.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;
        event.data.ptr = lane.get();
        const int flags = fcntl(file, F_GETFL);
        if (flags < 0 || fcntl(file, F_SETFL, flags | O_NONBLOCK) || epoll_ctl(poller, EPOLL_CTL_ADD, file, &event)) throw errno;
        streams = true;
        lanes[number] = std::move(lane);
    }

    void add_rings(size_t server, int slot, int bell_of_slot) {
        const size_t number = first_lane[server] + size_t(slot);
        Rings &rings = *ground.parts.rings_of(ground.arena, int64_t(number));
        lanes[number] = std::make_unique<RingLane>(uint32_t(number), int(server), slot, ground.keys.keys.size(), rings, bell_of_slot);
    }

    // The first lane that is missing, as text, before the thread starts; none may be added later. Under the lock.
    std::string incomplete() const {
        if (started()) return {};
        for (size_t server = 0; server + 1 < first_lane.size(); ++server)
            for (size_t lane = first_lane[server]; lane < first_lane[server + 1]; ++lane)
                if (!lanes[lane]) return "core slot " + std::to_string(lane - first_lane[server]) + " of server " + std::to_string(server) + " has no stream yet";
        return {};
    }
    bool started() const { return thread.joinable(); }

    // Adds a request to those of the thread, which starts with the first one. Under the lock.
    void ask(const Item &item, int key) {
        asked.push_back({key, item});
        if (!thread.joinable()) thread = std::thread([this] { run(); });
        if (asleep) {
            asleep = false;
            ring_bell(bell);
        }
    }

  private:
    struct Asked {
        int key;  // -1: settings
        Item item;
    };

    std::thread thread;
    std::vector<Asked> asked, taken;        // `asked` under the lock
    bool stopping = false, asleep = false;  // under the lock
    bool streams = false;                   // whether some lane is one

    void make_arena() {
        const size_t bytes = size_t(ground.parts.bytes);
        memfd = memfd_create("treadle-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (memfd < 0 || ftruncate(memfd, off_t(bytes)) || fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) throw errno;
        void *const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
        if (memory == MAP_FAILED) throw errno;
        ground.arena = static_cast<char *>(memory);
        Arena &head = arena();
        head.magic = ARENA_MAGIC;
        head.slots = uint32_t(lanes.size());
        head.groups = uint32_t(ground.groups);
        head.bytes = bytes;
        head.settings = uint64_t(ground.parts.settings);
        head.gradients = uint64_t(ground.parts.gradients);
        head.values = uint64_t(ground.parts.values);
    }

    // Gives requests to the lanes of their chunks. False when the client closes.
    bool take() {
        {
            const std::lock_guard<std::mutex> guard(ground.keys.lock);
            if (stopping) return false;
            taken.swap(asked);
        }
        for (Asked &each : taken) {
            if (each.key < 0) {
                for (auto &lane : lanes) lane->items.list.push_back(each.item);
                continue;
            }
            const Keys::Key &key = ground.keys.keys[size_t(each.key)];
            for (uint32_t chunk = key.first; chunk < key.first + key.count; ++chunk) {
                each.item.chunk = chunk;
                Lane &lane = *lanes[ground.lane[chunk]];
                if (each.item.op != PUSH) lane.await(ground, chunk);
                lane.items.list.push_back(each.item);
            }
        }
        taken.clear();
        return true;
    }

    bool move() {
        bool moved = false;
        for (auto &lane : lanes) {
            moved |= lane->send(ground);
            moved |= lane->receive(ground);
            if (!lane->why.empty()) {
                ground.keys.fail(lane->why);
                return false;
            }
        }
        return moved;
    }

    // Waits for a socket or the bell, where there is nothing else to do.
    void rest() {
        bool wait = true;
        int timeout = -1;
        for (auto &lane : lanes) {
            wait &= lane->sleep();
            if (lane->lingers()) timeout = LINGER_MS;
        }
        {
            const std::lock_guard<std::mutex> guard(ground.keys.lock);
            wait &= asked.empty() && !stopping;
            asleep = wait;
        }
        look(wait ? timeout : 0);
        for (auto &lane : lanes) lane->awake();
        const std::lock_guard<std::mutex> guard(ground.keys.lock);
        asleep = false;
    }

    void look(int timeout_ms) {
        epoll_event events[32];
        const int count = epoll_wait(poller, events, 32, timeout_ms);
        for (int at = 0; at < count; ++at) {
            if (!events[at].data.ptr) {
                quiet_bell(bell);
                continue;
            }
            StreamLane &lane = *static_cast<StreamLane *>(events[at].data.ptr);
            if (events[at].events & ~uint32_t(EPOLLOUT)) lane.readable = true;
            if (events[at].events & ~uint32_t(EPOLLIN)) lane.writable = true;
        }
    }

    void run() {
        while (take()) {
            const bool moved = move();
            if (!failed()) {
                if (!moved)
                    rest();
                else if (streams)
                    look(0);
                continue;
            }
            std::unique_lock<std::mutex> guard(ground.keys.lock);
            if (stopping) return;
            asleep = true;
            guard.unlock();
            look(-1);
        }
    }

    bool failed() {
        const std::lock_guard<std::mutex> guard(ground.keys.lock);
        return !ground.keys.failure.empty();
    }
};

int refuse(const std::string &why) {
    message = why;
    return -1;
}

}  // namespace treadle

using treadle::Client;

#define TREADLE_EXPORT extern "C" __attribute__((visibility("default")))

TREADLE_EXPORT const char *client_message() { return treadle::message.c_str(); }

TREADLE_EXPORT void *client_open(const treadle::Layout *layout) {
    try {
        return new Client(*layout);
    } catch (int error) {
        treadle::message = std::strerror(error);
    } catch (const std::bad_alloc &) {
        treadle::message = std::strerror(ENOMEM);
    }
    return nullptr;
}

TREADLE_EXPORT void client_close(void *handle) { delete static_cast<Client *>(handle); }

// Where gradients (0) or values (1) begin in the arena; `total`: bytes of each of them.
TREADLE_EXPORT int64_t client_buffer(void *handle, int values, int64_t *total) {
    const treadle::Ground &ground = static_cast<Client *>(handle)->ground;
    *total = ground.places.total;
    return values ? ground.parts.values : ground.parts.gradients;
}

TREADLE_EXPORT char *client_arena(void *handle) { return static_cast<Client *>(handle)->ground.arena; }

TREADLE_EXPORT int client_memfd(void *handle) { return static_cast<Client *>(handle)->memfd; }

TREADLE_EXPORT int client_bell(void *handle) { return static_cast<Client *>(handle)->bell; }

// Takes the file, also where it fails.
TREADLE_EXPORT int client_stream(void *handle, int server, int slot, int file) {
    Client &client = *static_cast<Client *>(handle);
    const size_t servers = client.first_lane.size() - 1, place = size_t(server);
    if (client.started() || place >= servers || size_t(slot) >= client.first_lane[place + 1] - client.first_lane[place]) {
        close(file);
        return treadle::refuse(client.started() ? "a stream that comes after the first request" : "a stream to a core slot that the layout lacks");
    }
    try {
        client.add_stream(place, slot, file);
    } catch (int error) {
        return treadle::refuse(std::strerror(error));
    }
    return 0;
}

// Takes the bells of a server's core slots, as many as the layout says, also where it fails.
TREADLE_EXPORT int client_rings(void *handle, int server, const int *bells) {
    Client &client = *static_cast<Client *>(handle);
    const size_t first = client.first_lane[size_t(server)], slots = client.first_lane[size_t(server) + 1] - first;
    for (size_t slot = 0; slot < slots; ++slot)
        if (client.started())
            close(bells[slot]);
        else
            client.add_rings(size_t(server), int(slot), bells[slot]);
    return client.started() ? treadle::refuse("rings that come after the first request") : 0;
}

TREADLE_EXPORT int client_push(void *handle, int key, uint64_t step, int op, int empty) {
    Client &client = *static_cast<Client *>(handle);
    treadle::Keys &keys = client.ground.keys;
    if (size_t(key) >= keys.keys.size()) return treadle::refuse("no key " + std::to_string(key));
    if (op != treadle::PUSH && op != treadle::PUSH_PULL && op != treadle::PULL) return treadle::refuse("no request " + std::to_string(op));
    const std::lock_guard<std::mutex> guard(keys.lock);
    std::string why = keys.failure;
    if (why.empty()) why = client.incomplete();
    if (why.empty()) why = keys.open(size_t(key), step, uint16_t(op));
    if (!why.empty()) return treadle::refuse(why);
    client.ask({0, uint16_t(op), uint16_t(empty && op != treadle::PULL ? treadle::EMPTY : 0), step, nullptr}, key);
    return 0;
}

TREADLE_EXPORT int client_settings(void *handle, uint64_t step, const double *numbers, int groups) {
    Client &client = *static_cast<Client *>(handle);
    if (groups != client.ground.groups) return treadle::refuse("settings of " + std::to_string(groups) + " groups");
    auto settings = std::make_shared<const std::vector<double>>(numbers, numbers + int64_t(groups) * treadle::NUMBERS);
    const std::lock_guard<std::mutex> guard(client.ground.keys.lock);
    std::string why = client.ground.keys.failure;
    if (why.empty()) why = client.incomplete();
    if (!why.empty()) return treadle::refuse(why);
    client.ask({uint32_t(groups), treadle::SETTINGS, 0, step, std::move(settings)}, -1);
    return 0;
}

TREADLE_EXPORT int client_wait(void *handle, int key, uint64_t step, int timeout_ms) {
    Client &client = *static_cast<Client *>(handle);
    if (key >= 0 && size_t(key) >= client.ground.keys.keys.size()) return treadle::refuse("no key " + std::to_string(key));
    return client.ground.keys.wait(key, step, timeout_ms, treadle::message);
}
