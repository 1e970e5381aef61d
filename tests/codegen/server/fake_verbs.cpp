// The functions of libibverbs that generated programs call, between processes of one host: two devices, whose queue
// pairs write through datagrams. What a card would refuse ends the process.
#include <infiniband/verbs.h>
#undef ibv_query_port
#undef ibv_reg_mr

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

static void require(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "fake card: %s\n", what);
    _exit(99);
}

struct Packet {
    uint64_t address;
    uint32_t key, immediate, bytes;
    char data[65536];
};

struct Queue : ibv_cq {
    std::mutex lock;
    std::deque<ibv_wc> done;
};

struct Memory {
    ibv_pd *domain;
    uint64_t first, last;
};

struct FakePair : ibv_qp {
    int file;
    std::thread thread;
    std::mutex lock;
    std::deque<uint64_t> expected;
    sockaddr_un to{};
    int unsignalled = 0;
    uint32_t most = 0;
};

static ibv_device cards[2];
static std::mutex guard;
static std::map<uint32_t, Memory> memories;

static socklen_t address(sockaddr_un &to, uint32_t number) {
    to.sun_family = AF_UNIX;
    return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size_t(snprintf(to.sun_path + 1, 90, "treadle-fake-card-%u", number)));
}

static void allowed(const ibv_pd *domain, uint32_t key, uint64_t first, uint64_t bytes) {
    const std::lock_guard<std::mutex> held(guard);
    const auto found = memories.find(key);
    require(found != memories.end() && found->second.domain == domain, "a key of no memory of this card");
    require(first >= found->second.first && first + bytes <= found->second.last, "a write outside the registered memory");
}

static void listen_on(FakePair *pair) {
    static thread_local Packet packet;
    for (;;) {
        const ssize_t count = recv(pair->file, &packet, sizeof packet, 0);
        require(count >= ssize_t(offsetof(Packet, data)), "a broken packet");
        allowed(pair->pd, packet.key, packet.address, packet.bytes);
        memcpy(reinterpret_cast<void *>(packet.address), packet.data, packet.bytes);
        ibv_wc done{};
        {
            const std::lock_guard<std::mutex> held(pair->lock);
            require(!pair->expected.empty(), "a chunk that no receive was posted for");
            done.wr_id = pair->expected.front();
            pair->expected.pop_front();
        }
        done.status = IBV_WC_SUCCESS;
        done.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
        done.imm_data = packet.immediate;
        done.qp_num = pair->qp_num;
        Queue &queue = *static_cast<Queue *>(pair->recv_cq);
        const std::lock_guard<std::mutex> held(queue.lock);
        queue.done.push_back(done);
        require(int(queue.done.size()) <= queue.cqe, "a completion queue that is too short");
    }
}

static int poll_queue(ibv_cq *its, int most, ibv_wc *found) {
    Queue &queue = *static_cast<Queue *>(its);
    int count = 0;
    const std::lock_guard<std::mutex> held(queue.lock);
    for (; count < most && !queue.done.empty(); ++count) {
        found[count] = queue.done.front();
        queue.done.pop_front();
    }
    if (!count) usleep(50);  // the cores of a test are few
    return count;
}

static int post_send(ibv_qp *its, ibv_send_wr *wanted, ibv_send_wr **) {
    FakePair &pair = *static_cast<FakePair *>(its);
    static thread_local Packet packet;
    const ibv_sge &part = wanted->sg_list[0];
    require(pair.state == IBV_QPS_RTS && wanted->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && wanted->num_sge == 1, "a send that is none");
    allowed(pair.pd, part.lkey, part.addr, part.length);
    packet.address = wanted->wr.rdma.remote_addr;
    packet.key = wanted->wr.rdma.rkey;
    packet.immediate = wanted->imm_data;
    packet.bytes = part.length;
    memcpy(packet.data, reinterpret_cast<const void *>(part.addr), part.length);
    sockaddr_un to = pair.to;
    const ssize_t sent = sendto(pair.file, &packet, offsetof(Packet, data) + part.length, 0, reinterpret_cast<sockaddr *>(&to), address(to, *reinterpret_cast<uint32_t *>(&pair.qp_context)));
    require(sent > 0, "a pair that is not connected");
    ++pair.unsignalled;
    if (wanted->send_flags & IBV_SEND_SIGNALED) {
        pair.unsignalled = 0;
        ibv_wc done{};
        done.wr_id = wanted->wr_id;
        done.status = IBV_WC_SUCCESS;
        done.opcode = IBV_WC_RDMA_WRITE;
        Queue &queue = *static_cast<Queue *>(pair.send_cq);
        const std::lock_guard<std::mutex> held(queue.lock);
        queue.done.push_back(done);
    }
    require(uint32_t(pair.unsignalled) <= pair.most, "a send queue that nothing empties");
    return 0;
}

static int post_receive(ibv_qp *its, ibv_recv_wr *wanted, ibv_recv_wr **) {
    FakePair &pair = *static_cast<FakePair *>(its);
    const std::lock_guard<std::mutex> held(pair.lock);
    require(pair.state != IBV_QPS_RESET, "a receive on a pair that is not open");
    pair.expected.push_back(wanted->wr_id);
    return 0;
}

extern "C" {
ibv_device **ibv_get_device_list(int *count) {
    *count = 2;
    for (int at = 0; at < 2; ++at) snprintf(cards[at].name, sizeof cards[at].name, "mlx5_%d", at);
    static ibv_device *list[] = {&cards[0], &cards[1], nullptr};
    return list;
}
void ibv_free_device_list(ibv_device **) {}
const char *ibv_get_device_name(ibv_device *card) { return card->name; }
ibv_context *ibv_open_device(ibv_device *card) {
    ibv_context *const context = new ibv_context{};
    context->device = card;
    context->ops.poll_cq = poll_queue;
    context->ops.post_send = post_send;
    context->ops.post_recv = post_receive;
    return context;
}
ibv_pd *ibv_alloc_pd(ibv_context *context) { return new ibv_pd{context, 0}; }
int ibv_query_device(ibv_context *, ibv_device_attr *attr) {
    *attr = {};
    attr->max_cqe = attr->max_qp_wr = 1 << 16;
    return 0;
}
int ibv_query_port(ibv_context *, uint8_t, struct _compat_ibv_port_attr *attr) {
    ibv_port_attr &port = *reinterpret_cast<ibv_port_attr *>(attr);
    port.active_mtu = IBV_MTU_4096;
    port.link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
}
int ibv_query_gid(ibv_context *, uint8_t, int, ibv_gid *gid) {
    *gid = {};
    return 0;
}
ibv_mr *ibv_reg_mr(ibv_pd *domain, void *memory, size_t bytes, int) {
    static uint32_t next = uint32_t(getpid()) << 8;
    const std::lock_guard<std::mutex> held(guard);
    ibv_mr *const region = new ibv_mr{domain->context, domain, memory, bytes, 0, ++next, next};
    memories[next] = {domain, uint64_t(memory), uint64_t(memory) + bytes};
    return region;
}
ibv_mr *ibv_reg_mr_iova2(ibv_pd *domain, void *memory, size_t bytes, uint64_t, unsigned access) { return ibv_reg_mr(domain, memory, bytes, int(access)); }
ibv_cq *ibv_create_cq(ibv_context *context, int entries, void *, ibv_comp_channel *, int) {
    Queue *const queue = new Queue;
    queue->context = context;
    queue->cqe = entries;
    return queue;
}
ibv_qp *ibv_create_qp(ibv_pd *domain, ibv_qp_init_attr *wanted) {
    static uint32_t count = 0;
    FakePair *const pair = new FakePair;
    pair->context = domain->context;
    pair->pd = domain;
    pair->send_cq = wanted->send_cq;
    pair->recv_cq = wanted->recv_cq;
    pair->state = IBV_QPS_RESET;
    pair->most = wanted->cap.max_send_wr;
    pair->file = socket(AF_UNIX, SOCK_DGRAM, 0);
    const std::lock_guard<std::mutex> held(guard);
    do pair->qp_num = (uint32_t(getpid()) << 8) + ++count;
    while (bind(pair->file, reinterpret_cast<sockaddr *>(&pair->to), address(pair->to, pair->qp_num)));
    return pair;
}
int ibv_modify_qp(ibv_qp *its, ibv_qp_attr *attr, int) {
    FakePair &pair = *static_cast<FakePair *>(its);
    require(attr->qp_state == pair.state + 1, "a pair that skips a state");
    pair.state = attr->qp_state;
    if (pair.state == IBV_QPS_RTR) {
        *reinterpret_cast<uint32_t *>(&pair.qp_context) = attr->dest_qp_num;
        pair.thread = std::thread(listen_on, &pair);
        pair.thread.detach();
    }
    return 0;
}
const char *ibv_wc_status_str(ibv_wc_status) { return "an error"; }
}
