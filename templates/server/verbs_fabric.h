// Devices, queue pairs and memory of libibverbs, and the TCP stream over which two ends tell one another theirs.
#pragma once

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <infiniband/verbs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "plan.h"

namespace treadle {

constexpr int FAILED = 1, BAD_INPUT = 2, NO_DEVICE = 5;  // exit codes

[[noreturn]] __attribute__((format(printf, 2, 3))) inline void fail(int code, const char *format, ...) {
    char text[512];
    va_list rest;
    va_start(rest, format);
    vsnprintf(text, sizeof text, format, rest);
    va_end(rest);
    fprintf(stderr, "error: %s\n", text);
    std::_Exit(code);
}

inline int setting(const char *name, int otherwise) {
    const char *const text = getenv(name);
    return text ? atoi(text) : otherwise;
}

// The device of an interface: TREADLE_DEVICES lists their names in the plan's order.
inline std::string device_name(size_t interface) {
    const char *at = getenv("TREADLE_DEVICES");
    if (!at) return plan::INTERFACES[interface];
    for (; interface; --interface) {
        at = strchr(at, ',');
        if (!at++) fail(BAD_INPUT, "TREADLE_DEVICES: too few names, expected one for each interface of the plan");
    }
    return std::string(at, strcspn(at, ","));
}

struct Device {
    ibv_context *context = nullptr;
    ibv_pd *domain = nullptr;
    ibv_port_attr port{};
    ibv_gid gid{};
    ibv_device_attr limits{};
    uint8_t number = uint8_t(setting("TREADLE_PORT", 1));

    // The device of this name, or any for an empty one.
    explicit Device(const std::string &name) {
        int count = 0;
        ibv_device **const list = ibv_get_device_list(&count);
        for (int at = 0; list && at < count && !context; ++at)
            if (name.empty() || name == ibv_get_device_name(list[at])) context = ibv_open_device(list[at]);
        if (list) ibv_free_device_list(list);
        if (!context) fail(NO_DEVICE, "found no RDMA device%s%s among %d", name.empty() ? "" : " ", name.c_str(), count);
        domain = ibv_alloc_pd(context);
        if (!domain || ibv_query_device(context, &limits) || ibv_query_port(context, number, &port) ||
            ibv_query_gid(context, number, setting("TREADLE_GID", 0), &gid))
            fail(FAILED, "cannot open port %d of %s: %s", number, ibv_get_device_name(context->device), strerror(errno));
    }

    ibv_mr *registered(void *memory, size_t bytes) const {
        ibv_mr *const region = ibv_reg_mr(domain, memory, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        if (!region) fail(FAILED, "cannot register %zu bytes: %s; raise the limit of locked memory (ulimit -l)", bytes, strerror(errno));
        return region;
    }

    ibv_cq *completions(int64_t entries) const {
        ibv_cq *const queue = entries <= limits.max_cqe ? ibv_create_cq(context, int(entries), nullptr, nullptr, 0) : nullptr;
        if (!queue) fail(FAILED, "cannot make a completion queue of %lld entries; plan with a larger chunk", (long long)entries);
        return queue;
    }
};

// One block of memory, page by page of whoever touches it first.
inline char *block(size_t bytes) {
    void *const memory = mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail(FAILED, "no memory for a block of %zu bytes", bytes);
    return static_cast<char *>(memory);
}

// What one end of a queue pair tells the other one; `address` and `key` are of the memory that it may write.
struct Endpoint {
    uint32_t pair, sequence, mtu, key;
    uint64_t address;
    uint32_t lid, unused;
    ibv_gid gid;
};

// A reliable pair whose two ends write into memory of one another, with the chunk's number in the immediate.
struct Pair {
    ibv_qp *pair = nullptr;
    const Device *device = nullptr;
    Endpoint other{};
    uint64_t tag = 0, posted = 0;

    // `chunks`: how many may be on their way at once.
    void open(const Device &its, ibv_cq *queue, int64_t chunks, uint64_t its_tag) {
        device = &its;
        tag = its_tag;
        ibv_qp_init_attr wanted{};
        wanted.send_cq = wanted.recv_cq = queue;
        wanted.qp_type = IBV_QPT_RC;
        wanted.cap.max_send_wr = uint32_t(chunks + 2 * SIGNAL);
        wanted.cap.max_recv_wr = uint32_t(chunks + 1);
        wanted.cap.max_send_sge = wanted.cap.max_recv_sge = 1;
        pair = chunks + 2 * SIGNAL <= its.limits.max_qp_wr ? ibv_create_qp(its.domain, &wanted) : nullptr;
        if (!pair) fail(FAILED, "cannot make a queue pair for %lld chunks; plan with a larger chunk", (long long)chunks);
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = its.number;
        attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
        become(attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        for (int64_t at = 0; at < chunks; ++at) expect();
    }

    Endpoint endpoint(const ibv_mr *memory, const char *address) const {
        const uint32_t sequence = pair->qp_num & 0xffffff;
        return {pair->qp_num, sequence, uint32_t(device->port.active_mtu), memory->rkey, uint64_t(address), device->port.lid, 0, device->gid};
    }

    void connect(const Endpoint &its) {
        other = its;
        ibv_qp_attr attr{};
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = ibv_mtu(its.mtu < uint32_t(device->port.active_mtu) ? its.mtu : uint32_t(device->port.active_mtu));
        attr.dest_qp_num = its.pair;
        attr.rq_psn = its.sequence;
        attr.max_dest_rd_atomic = 1;
        attr.min_rnr_timer = 12;
        attr.ah_attr.dlid = uint16_t(its.lid);
        attr.ah_attr.port_num = device->number;
        if (device->port.link_layer == IBV_LINK_LAYER_ETHERNET) {
            attr.ah_attr.is_global = 1;
            attr.ah_attr.grh.dgid = its.gid;
            attr.ah_attr.grh.sgid_index = uint8_t(setting("TREADLE_GID", 0));
            attr.ah_attr.grh.hop_limit = 64;
        }
        become(attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
        attr = {};
        attr.qp_state = IBV_QPS_RTS;
        attr.sq_psn = pair->qp_num & 0xffffff;
        attr.timeout = 14;
        attr.retry_cnt = attr.rnr_retry = 7;
        attr.max_rd_atomic = 1;
        become(attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    }

    // Makes room for one chunk more that comes.
    void expect() {
        ibv_recv_wr wanted{}, *bad = nullptr;
        wanted.wr_id = tag;
        if (ibv_post_recv(pair, &wanted, &bad)) fail(FAILED, "cannot post a receive: %s", strerror(errno));
    }

    // Writes a chunk `into` bytes behind the address of the other end. Few of these are signalled: more are never on
    // their way than chunks, as each is answered first.
    void write(const char *from, int64_t bytes, uint32_t local_key, int64_t into, uint32_t chunk) {
        ibv_sge part{uint64_t(from), uint32_t(bytes), local_key};
        ibv_send_wr wanted{}, *bad = nullptr;
        wanted.wr_id = tag;
        wanted.sg_list = &part;
        wanted.num_sge = 1;
        wanted.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wanted.send_flags = ++posted % SIGNAL ? 0 : unsigned(IBV_SEND_SIGNALED);
        wanted.imm_data = htonl(chunk);
        wanted.wr.rdma.remote_addr = other.address + uint64_t(into);
        wanted.wr.rdma.rkey = other.key;
        if (ibv_post_send(pair, &wanted, &bad)) fail(FAILED, "cannot post a chunk: %s", strerror(errno));
    }

  private:
    static constexpr int64_t SIGNAL = 16;
    void become(ibv_qp_attr &attr, int mask) {
        if (ibv_modify_qp(pair, &attr, mask)) fail(FAILED, "cannot connect a queue pair: %s", strerror(errno));
    }
};

// What has come through a queue: calls `arrived(tag, chunk)`. True when something did.
template <class Arrived>
inline bool poll(ibv_cq *queue, Arrived &&arrived) {
    ibv_wc found[16];
    const int count = ibv_poll_cq(queue, 16, found);
    if (count < 0) fail(FAILED, "cannot poll a completion queue");
    for (int at = 0; at < count; ++at) {
        if (found[at].status != IBV_WC_SUCCESS) fail(FAILED, "other end %llu is gone: %s", (unsigned long long)found[at].wr_id, ibv_wc_status_str(found[at].status));
        if (found[at].opcode == IBV_WC_RECV_RDMA_WITH_IMM) arrived(found[at].wr_id, ntohl(found[at].imm_data));
    }
    return count > 0;
}

// The stream over which ends meet.
struct Meeting {
    int file;

    explicit Meeting(int its) : file(its) {}
    Meeting(const Meeting &) = delete;
    Meeting(Meeting &&from) noexcept : file(from.file) { from.file = -1; }
    ~Meeting() {
        if (file >= 0) close(file);
    }

    void tell(const void *data, size_t bytes) const {
        for (const char *at = static_cast<const char *>(data); bytes;) {
            const ssize_t count = send(file, at, bytes, MSG_NOSIGNAL);
            if (count <= 0) fail(FAILED, "the other end is gone: %s", strerror(errno));
            at += count;
            bytes -= size_t(count);
        }
    }
    void hear(void *data, size_t bytes) const {
        for (char *at = static_cast<char *>(data); bytes;) {
            const ssize_t count = recv(file, at, bytes, 0);
            if (count <= 0) fail(FAILED, "the other end is gone%s%s", count ? ": " : "", count ? strerror(errno) : "");
            at += count;
            bytes -= size_t(count);
        }
    }
};

struct Hello {
    char digest[sizeof plan::DIGEST];
    int32_t worker;
};

inline Meeting meet(const std::string &address) {
    const size_t colon = address.rfind(':');
    if (colon == std::string::npos) fail(BAD_INPUT, "found %s, expected HOST:PORT", address.c_str());
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(address.substr(0, colon).c_str(), address.c_str() + colon + 1, &hints, &found)) fail(BAD_INPUT, "no host %s", address.c_str());
    const std::unique_ptr<addrinfo, void (*)(addrinfo *)> owner(found, freeaddrinfo);
    for (int tries = 0; tries < 100; ++tries, usleep(100000)) {
        Meeting meeting(socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (!connect(meeting.file, found->ai_addr, found->ai_addrlen)) return meeting;
    }
    fail(FAILED, "cannot reach %s: %s", address.c_str(), strerror(errno));
}

}  // namespace treadle
