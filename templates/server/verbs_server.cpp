// A server of the plan: ./server SERVER PORT STEPS [lr=0.1 momentum=0.9 ...]. It ends after STEPS versions.
#include <arpa/inet.h>

#include <thread>

#include "core.h"
#include "domains.h"

using namespace treadle;

constexpr const char *SETTINGS[] = {"lr", "momentum", "dampening", "weight_decay", "beta1", "beta2", "eps", "maximize", "nesterov", "decoupled"};

static void read_setting(const char *text, double *settings) {
    const char *const equal = strchr(text, '=');
    for (size_t at = 0; equal && at < std::size(SETTINGS); ++at)
        if (std::string(text, equal) == SETTINGS[at]) {
            char *end;
            settings[at] = strtod(equal + 1, &end);
            if (end != equal + 1 && !*end) return;
        }
    fail(BAD_INPUT, "found %s, expected a setting such as lr=0.1", text);
}

static int listener(const char *port) {
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(uint16_t(atoi(port)));
    address.sin6_addr = in6addr_any;
    const int file = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1, off = 0;
    setsockopt(file, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(file, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(file, reinterpret_cast<sockaddr *>(&address), sizeof address) || listen(file, plan::WORKERS)) fail(FAILED, "cannot listen on port %s: %s", port, strerror(errno));
    return file;
}

// A domain's block, registered with every device that reaches it.
struct Domain {
    size_t bytes = 0;
    char *memory = nullptr;
    std::map<const Device *, ibv_mr *> regions;
};

struct Server {
    Chunks chunks;
    Norms norms{chunks};
    std::map<int, std::unique_ptr<Device>> devices;  // by interface
    std::map<int, Domain> domains;
    std::vector<size_t> slots;
    std::vector<std::unique_ptr<Core>> cores;

    Server(int number, uint64_t steps, const double *settings) {
        for (size_t slot = 0; slot < std::size(plan::SLOTS); ++slot)
            if (plan::SLOTS[slot].server == number) slots.push_back(slot);
        for (const size_t slot : slots) {
            cores.push_back(std::make_unique<Core>(chunks, norms, slot, steps, settings));
            domains[plan::SLOTS[slot].domain].bytes += cores.back()->bytes();
            for (int worker = 0; worker < plan::WORKERS; ++worker) device(slot, worker);
        }
        std::map<int, char *> next;
        for (auto &[number_of, domain] : domains) next[number_of] = domain.memory = block(domain.bytes);
        for (size_t at = 0; at < slots.size(); ++at) {
            const plan::Slot &slot = plan::SLOTS[slots[at]];
            char *const memory = next[slot.domain];
            next[slot.domain] += cores[at]->bytes();
            std::thread([&, memory] {
                pin(slot.domain, slot.core);
                cores[at]->settle(memory);
            }).join();
        }
    }

    const Device &device(size_t slot, int worker) {
        const int interface = plan::SLOTS[slot].interface >= 0 ? plan::SLOTS[slot].interface : plan::WORKER_INTERFACES[worker];
        auto &found = devices[interface];
        if (!found) found = std::make_unique<Device>(device_name(size_t(interface)));
        return *found;
    }

    void welcome(const Meeting &meeting, int worker) {
        std::vector<Endpoint> endpoints(cores.size());
        for (size_t at = 0; at < cores.size(); ++at) {
            const Device &its = device(slots[at], worker);
            Domain &domain = domains[plan::SLOTS[slots[at]].domain];
            ibv_mr *&region = domain.regions[&its];
            if (!region) region = its.registered(domain.memory, domain.bytes);
            endpoints[at] = cores[at]->open(worker, its, region);
        }
        meeting.tell(endpoints.data(), endpoints.size() * sizeof(Endpoint));
        meeting.hear(endpoints.data(), endpoints.size() * sizeof(Endpoint));
        for (size_t at = 0; at < cores.size(); ++at) cores[at]->connect(worker, endpoints[at]);
        if (worker == 0)
            for (const auto &core : cores) core->load(meeting);
    }

    void run() {
        std::vector<std::thread> threads;
        for (size_t at = 0; at < cores.size(); ++at)
            threads.emplace_back([this, at] {
                pin(plan::SLOTS[slots[at]].domain, plan::SLOTS[slots[at]].core);
                cores[at]->run();
            });
        for (std::thread &thread : threads) thread.join();
    }
};

int main(int count, char **words) {
    if (count < 4) fail(BAD_INPUT, "expected SERVER PORT STEPS [lr=0.1 ...]");
    const int number = atoi(words[1]);
    if (number < 0 || number >= plan::SERVERS) fail(BAD_INPUT, "found server %s, expected one below %d", words[1], plan::SERVERS);
    double settings[16]{};
    for (int at = 4; at < count; ++at) read_setting(words[at], settings);
    Server server(number, strtoull(words[3], nullptr, 10), settings);
    const int listening = listener(words[2]);
    std::vector<std::unique_ptr<Meeting>> meetings(plan::WORKERS);
    for (int joined = 0; joined < plan::WORKERS; ++joined) {
        auto meeting = std::make_unique<Meeting>(accept(listening, nullptr, nullptr));
        Hello hello;
        meeting->hear(&hello, sizeof hello);
        if (memcmp(hello.digest, plan::DIGEST, sizeof hello.digest)) fail(FAILED, "a worker runs another plan");
        if (hello.worker < 0 || hello.worker >= plan::WORKERS || meetings[size_t(hello.worker)]) fail(FAILED, "a second worker %d, or none of the plan's", hello.worker);
        server.welcome(*meeting, hello.worker);
        meetings[size_t(hello.worker)] = std::move(meeting);
    }
    const char go = 1;
    for (const auto &meeting : meetings) meeting->tell(&go, 1);
    server.run();
    // The cards still send until every worker says that it has all.
    char done;
    for (const auto &meeting : meetings) meeting->hear(&done, 1);
    printf("server %d made %s versions of %zu slots\n", number, words[3], server.slots.size());
}
