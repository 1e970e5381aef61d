// Random checkpoints between real holders and senders in one process, for sanitizers: load SECONDS [SEED].
//
// A round has some machines, each with a holder; the ranks send versions of random states, in random pieces from random
// segments, over TCP and over socket pairs. Meanwhile others fetch, verify and list. Ranks die in the middle of a
// version, come twice, are late; epochs begin; streams bring what is no frame; bits flip. Every version that is fetched
// is compared with what its owner had, and a version that every lane drained is on every holder. The first line that is
// wrong ends it with exit code 1 and the number of the round, which is its seed.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "frame.h"

struct Name {
    uint32_t machine, device;
};
struct Held {
    uint32_t machine, device;
    uint64_t version, bytes, at;
    uint32_t sum, unused;
};
struct Segment {
    const char *data;
    uint64_t bytes;
};
struct Piece {
    int32_t copy, span;
    uint64_t offset, bytes, released, begun, sent, taken;
};
struct Report {
    int32_t state, unused;
    uint64_t verified;
    char why[496];
};

extern "C" {
const char *holder_message();
void *holder_open(const Name *, int, uint64_t, int, uint64_t);
void holder_stop(void *);
void holder_close(void *);
int holder_memfd(void *, int);
int holder_stream(void *, int, uint64_t, const char *);
void holder_epoch(void *, uint64_t);
int holder_versions(void *, Held *, int);
int holder_verify(void *, int, uint64_t);
int holder_fetch(void *, int, int, uint64_t, int, const char *);
int holder_reports(void *, char *, int);
const char *sender_message();
void *sender_open(uint32_t, uint32_t, int, uint64_t, int, const Piece *, int64_t);
void sender_close(void *);
void sender_lane(void *, int, int, void *, const char *);
int sender_begin(void *, uint64_t, const Segment *, int64_t);
void sender_release(void *, int32_t, int);
void sender_drain(void *, int);
void sender_report(void *, int, Report *);
int64_t sender_times(void *, Piece *, int64_t);
}

namespace {

constexpr int LOST = 2, LONG_MS = 600000;  // a debugger may stop it for a while
uint64_t round_number;
std::atomic<uint64_t> compared{0}, drained{0}, lost{0}, flipped{0}, refused{0};

[[noreturn]] void fail(const std::string &why) {
    std::fprintf(stderr, "round %llu: %s\n", static_cast<unsigned long long>(round_number), why.c_str());
    std::_Exit(1);
}

using Random = std::mt19937_64;
uint64_t between(Random &random, uint64_t least, uint64_t most) { return least + random() % (most - least + 1); }

std::vector<char> state_of(Name name, uint64_t version, uint64_t bytes) {
    std::vector<char> state(bytes);
    uint64_t word = name.machine * 1000003 + name.device * 7919 + version * 104729 + round_number + 1;
    for (char &byte : state) {
        word ^= word << 13, word ^= word >> 7, word ^= word << 17;
        byte = char(word);
    }
    return state;
}

// Bytes of a version: it says itself how many, so that any thread knows.
uint64_t bytes_of(Name name, uint64_t version, uint64_t most) { return version % 5 == 0 ? most : (name.machine * 31 + version * 77777) % (most + 1); }

// Two ends of a connection.
std::pair<int, int> connection(bool tcp) {
    int ends[2];
    if (!tcp) {
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("socketpair");
        return {ends[0], ends[1]};
    }
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), length) || listen(listener, 1)) fail("listen");
    getsockname(listener, reinterpret_cast<sockaddr *>(&address), &length);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], reinterpret_cast<sockaddr *>(&address), length)) fail("connect");
    ends[1] = accept(listener, nullptr, nullptr);
    close(listener);
    return {ends[0], ends[1]};
}

struct Machines {
    uint32_t count, copies, devices;
    uint64_t most;
    std::vector<void *> holders;
    std::vector<std::vector<Name>> states;
    std::atomic<uint64_t> epoch{1};
    bool at_rest = false;  // no rank sends any more

    explicit Machines(Random &random) : count(uint32_t(between(random, 2, 4))), copies(uint32_t(between(random, 1, 3))), devices(uint32_t(between(random, 1, 2))) {
        copies = std::min(copies, count);
        most = between(random, 0, 9) ? between(random, 0, 1 << 18) : between(random, 0, 4) * 1500000;
        for (uint32_t machine = 0; machine < count; ++machine) {
            std::vector<Name> names;
            for (uint32_t copy = 0; copy < copies; ++copy)
                for (uint32_t device = 0; device < devices; ++device) names.push_back({(machine + count - copy) % count, device});
            void *const holder = holder_open(names.data(), int(names.size()), most, 2, UINT64_MAX);
            if (!holder) fail(holder_message());
            holder_epoch(holder, epoch);
            holders.push_back(holder);
            states.push_back(std::move(names));
        }
    }
    ~Machines() {
        for (void *holder : holders) {
            holder_stop(holder);
            holder_close(holder);
        }
    }

    // The place of a state on a machine.
    int place(uint32_t machine, Name name) const {
        for (size_t state = 0; state < states[machine].size(); ++state)
            if (states[machine][state].machine == name.machine && states[machine][state].device == name.device) return int(state);
        fail("a state that is not held");
    }

    // Takes a version from a holder into memory of its own and compares it; false where the holder has it not.
    bool fetch(Random &random, uint32_t holder, Name name, uint64_t version) {
        void *const memory = holder_open(&name, 1, most, 1, UINT64_MAX);
        const auto [here, there] = connection(between(random, 0, 1));
        holder_stream(holders[holder], there, epoch + 1000, "a fetcher");
        const bool came = holder_fetch(memory, here, 0, version, LONG_MS, "its holder") == 0;
        if (came)
            compare(memory, name, version);
        else if (!std::strstr(holder_message(), at_rest ? "is damaged" : "is not there"))
            fail(std::string("a fetch fails: ") + holder_message());
        holder_stop(memory);
        holder_close(memory);
        return came;
    }

    void compare(void *memory, Name name, uint64_t version) const {
        Held held{};
        const uint64_t bytes = bytes_of(name, version, most);
        if (holder_versions(memory, &held, 1) != 1 || held.version != version || held.bytes != bytes) fail("another version was fetched");
        const std::vector<char> expected = state_of(name, version, bytes);
        if (bytes) {
            const size_t mapped = size_t(held.at + bytes);
            char *const found = static_cast<char *>(mmap(nullptr, mapped, PROT_READ, MAP_SHARED, holder_memfd(memory, 0), 0));
            if (std::memcmp(found + held.at, expected.data(), bytes)) fail("version " + std::to_string(version) + " of machine " + std::to_string(name.machine) + " is another");
            munmap(found, mapped);
        }
        ++compared;
    }
};

// A rank: a sender with a lane to every holder of its state.
struct Rank {
    Machines &machines;
    const Name name;
    Random random;
    void *sender = nullptr;
    std::vector<int> files;
    char *memory = nullptr;
    uint64_t memory_bytes = 0;
    uint64_t last = 0;  // version that every holder has

    Rank(Machines &machines, Name name, uint64_t seed) : machines(machines), name(name), random(seed) { open(); }
    ~Rank() { close_all(); }

    uint32_t holder(uint32_t copy) const { return (name.machine + copy) % machines.count; }

    void open() {
        std::vector<Piece> pieces;
        for (uint32_t copy = 0; copy < machines.copies; ++copy) {
            int32_t span = 0;
            for (uint64_t offset = 0; offset < machines.most;) {
                const uint64_t bytes = std::min(machines.most - offset, between(random, 1, 1 + machines.most / between(random, 1, 20)));
                span += int32_t(between(random, 0, 1));
                pieces.push_back({int32_t(copy), span, offset, bytes, 0, 0, 0, 0});
                offset += bytes;
            }
        }
        sender = sender_open(name.machine, name.device, int(machines.copies), machines.most, int(between(random, 1, 4)), pieces.data(), int64_t(pieces.size()));
        const int memfd = holder_memfd(machines.holders[name.machine], machines.place(name.machine, name));
        if (memfd >= 0) {
            memory_bytes = uint64_t(lseek(memfd, 0, SEEK_END));
            memory = static_cast<char *>(mmap(nullptr, memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0));
        }
        for (uint32_t copy = 0; copy < machines.copies; ++copy) {
            const auto [here, there] = connection(copy && between(random, 0, 1));
            files.push_back(here);
            holder_stream(machines.holders[holder(copy)], there, machines.epoch, "a rank");
            sender_lane(sender, int(copy), here, copy || !memory ? nullptr : memory, "a holder");
        }
    }

    void close_all() {
        sender_close(sender);
        for (const int file : files) close(file);
        files.clear();
        if (memory) munmap(memory, memory_bytes);
        memory = nullptr;
    }

    std::vector<Segment> cut(const std::vector<char> &state) {
        std::vector<Segment> segments;
        for (size_t at = 0; at < state.size();) {
            const size_t bytes = size_t(std::min<uint64_t>(state.size() - at, between(random, 0, 1 + state.size() / between(random, 1, 12))));
            segments.push_back({state.data() + at, bytes});
            at += bytes;
        }
        return segments;
    }

    // A version; whether every holder has it.
    bool send(uint64_t version) {
        const std::vector<char> state = state_of(name, version, bytes_of(name, version, machines.most));
        const std::vector<Segment> segments = cut(state);
        if (sender_begin(sender, version, segments.data(), int64_t(segments.size()))) fail(sender_message());
        for (int32_t span = 0; span < int32_t(between(random, 0, 12)); ++span) {
            sender_release(sender, span, int(between(random, 0, 1)));
            if (between(random, 0, 3) == 0) std::this_thread::yield();
        }
        if (last && version == last + 1 && between(random, 0, 2) == 0 && !anywhere(last)) fail("a version is gone while the next one comes");
        const uint64_t what = between(random, 0, 30);
        if (what == 0) {  // it dies
            close_all();
            open();
            ++lost;
            return false;
        }
        if (what == 1) {  // another one comes for the same state
            Rank twin(machines, name, random());
            twin.send_all(version);
        }
        sender_drain(sender, what == 2 ? int(between(random, 0, 2)) : LONG_MS);
        std::vector<Piece> times(size_t(sender_times(sender, nullptr, 0)));
        sender_times(sender, times.data(), int64_t(times.size()));
        bool all = true;
        for (uint32_t copy = 0; copy < machines.copies; ++copy) {
            Report report;
            sender_report(sender, int(copy), &report);
            if (report.state != LOST) continue;
            all = false;
            if (what > 2 && machines.epoch == 1 && !std::strstr(report.why, "stream began")) fail(std::string("a lane is lost: ") + report.why);
        }
        if (!all) {
            close_all();
            open();
            ++lost;
            return false;
        }
        for (const Piece &piece : times)
            if (!piece.taken || piece.taken < piece.begun || piece.begun < piece.released) fail("a piece of a version that is drained has another order of times");
        ++drained;
        last = version;
        return true;
    }

    bool anywhere(uint64_t version) { return machines.fetch(random, holder(uint32_t(between(random, 0, machines.copies - 1))), name, version); }

    void send_all(uint64_t version) {
        const std::vector<char> state = state_of(name, version, bytes_of(name, version, machines.most));
        const Segment whole{state.data(), state.size()};
        if (sender_begin(sender, version, &whole, 1)) fail(sender_message());
        sender_drain(sender, LONG_MS);
    }

    // The whole life of it: every version that was drained is on every holder until the one behind the next begins.
    void run(uint64_t versions) {
        for (uint64_t version = 1; version <= versions; ++version) {
            if (send(version) && !anywhere(version)) fail("version " + std::to_string(version) + " is not on its holder: " + holder_message());
        }
    }
};

// Lists, verifies and fetches what there is, while ranks send; now and then something that is no frame comes.
void disturb(Machines &machines, uint64_t seed, std::atomic<bool> &over) {
    Random random(seed);
    while (!over) {
        const uint32_t machine = uint32_t(between(random, 0, machines.count - 1));
        void *const holder = machines.holders[machine];
        Held held[64];
        const int count = holder_versions(holder, held, 64);
        if (count) {
            const Held &one = held[between(random, 0, uint64_t(count) - 1)];
            if (between(random, 0, 1))
                machines.fetch(random, machine, {one.machine, one.device}, one.version);
            else if (holder_verify(holder, machines.place(machine, {one.machine, one.device}), one.version) < 0)
                fail(std::string("a version is damaged: ") + holder_message());
        }
        if (between(random, 0, 9) == 0) {
            const auto [here, there] = connection(between(random, 0, 1));
            holder_stream(holder, there, machines.epoch + 1000, "a stranger");
            treadle::Frame frame = treadle::make_frame(treadle::Op(between(random, 0, 11)), uint32_t(between(random, 7, 9)), 0, 1, random(), random());
            frame.head_sum = between(random, 0, 3) ? treadle::sum_of_head(frame) : 1;
            (void)!write(here, &frame, size_t(between(random, 1, sizeof frame)));
            close(here);
            ++refused;
        }
        char text[4096];
        holder_reports(holder, text, sizeof text);
        if (between(random, 0, 400) == 0) {
            const uint64_t epoch = ++machines.epoch;
            for (void *each : machines.holders) holder_epoch(each, epoch);
        }
        std::this_thread::sleep_for(std::chrono::microseconds(between(random, 0, 3000)));
    }
}

// A bit flips in a version that nobody sends: it is found, and only it.
void flip(Machines &machines, Random &random) {
    for (uint32_t machine = 0; machine < machines.count; ++machine) {
        Held held[64];
        const int count = holder_versions(machines.holders[machine], held, 64);
        const int wrong = count ? int(between(random, 0, uint64_t(count) - 1)) : -1;
        for (int each = 0; each < count; ++each) {
            const Held &one = held[each];
            const Name name{one.machine, one.device};
            const int state = machines.place(machine, name);
            const bool flips = each == wrong && one.bytes;
            if (flips) {
                const size_t bytes = size_t(one.at + one.bytes);
                char *const data = static_cast<char *>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, holder_memfd(machines.holders[machine], state), 0));
                data[one.at + between(random, 0, one.bytes - 1)] ^= char(1 << between(random, 0, 7));
                munmap(data, bytes);
                ++flipped;
            }
            if (between(random, 0, 1)) {
                if (holder_verify(machines.holders[machine], state, one.version) != (flips ? -1 : 1)) fail("a flipped bit, or none, is taken for the other");
            } else if (machines.fetch(random, machine, name, one.version) == flips) {
                fail("a damaged version is offered, or a whole one is not");
            }
        }
    }
}

void play(uint64_t number) {
    round_number = number;
    Random random(number);
    Machines machines(random);
    std::atomic<bool> over{false};
    std::vector<std::thread> others, ranks;
    for (int each = 0; each < 2; ++each) others.emplace_back(disturb, std::ref(machines), random(), std::ref(over));
    const uint64_t versions = between(random, 3, 12);
    for (uint32_t machine = 0; machine < machines.count; ++machine)
        for (uint32_t device = 0; device < machines.devices; ++device)
            ranks.emplace_back([&machines, machine, device, versions, seed = random()] { Rank(machines, {machine, device}, seed).run(versions); });
    for (std::thread &rank : ranks) rank.join();
    over = true;
    for (std::thread &other : others) other.join();
    machines.at_rest = true;
    flip(machines, random);
}

}  // namespace

int main(int count, char **words) {
    const double seconds = count > 1 ? std::atof(words[1]) : 5;
    uint64_t seed = count > 2 ? std::strtoull(words[2], nullptr, 10) : 1, rounds = 0;
    const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    do {
        play(seed++);
        ++rounds;
    } while (std::chrono::steady_clock::now() < until);
    std::printf("{\"rounds\": %llu, \"compared\": %llu, \"drained\": %llu, \"lost\": %llu, \"flipped\": %llu, \"strangers\": %llu}\n", static_cast<unsigned long long>(rounds),
                static_cast<unsigned long long>(compared), static_cast<unsigned long long>(drained), static_cast<unsigned long long>(lost), static_cast<unsigned long long>(flipped),
                static_cast<unsigned long long>(refused));
    return 0;
}
