// What the driver needs of a machine, on CUDA.
#pragma once
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "treadle_device.h"
#include "treadle_shared.h"

namespace treadle::platform {

// Memory of a GPU, which other processes may number otherwise.
struct Handle {
    cudaIpcMemHandle_t memory;
    char bus[32];
};
using HostHandle = shared::Handle;
using Watch = shared::Watch;

constexpr int THREADS[] = {MAX_THREADS, 256, 128, 64, 32};
constexpr bool STREAMS = true;  // launches queue up behind one another on streams

inline void good(cudaError_t status, const char *what) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

// Makes a device current and puts the caller's back at the end.
class On {
  public:
    explicit On(int device) {
        good(cudaGetDevice(&before_), "cudaGetDevice");
        good(cudaSetDevice(device), "cudaSetDevice");
    }
    ~On() { cudaSetDevice(before_); }
    On(const On &) = delete;

  private:
    int before_ = 0;
};

inline int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

inline void *allocate(int device, size_t bytes) {
    On on(device);
    void *memory = nullptr;
    good(cudaMalloc(&memory, bytes), "cudaMalloc");
    good(cudaMemset(memory, 0, bytes), "cudaMemset");
    good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return memory;
}
inline void release(int device, void *memory) {
    On on(device);
    cudaFree(memory);
}
inline void upload(int device, void *to, const void *from, size_t bytes) {
    On on(device);
    good(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
}
inline void download(int device, void *to, const void *from, size_t bytes) {
    On on(device);
    good(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
}

// Lets `device` reach the memory of `peer`, and checks what the flags of other GPUs rely on.
inline void connect(int device, int peer) {
    if (device == peer) return;
    On on(device);
    int reachable = 0;
    good(cudaDeviceCanAccessPeer(&reachable, device, peer), "cudaDeviceCanAccessPeer");
    if (!reachable)
        throw std::runtime_error("GPU " + std::to_string(device) + " cannot reach the memory of GPU " +
                                 std::to_string(peer) + "; peer access needs NVLink or a common PCIe root");
    const cudaError_t status = cudaDeviceEnablePeerAccess(peer, 0);
    if (status == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();
    else
        good(status, "cudaDeviceEnablePeerAccess");
}

// Whether 128 bytes that a warp of `device` stores at once arrive at once in the memory of `peer`: true over NVLink, the
// only path with atomic operations of its own (CUDA names no attribute that says more); a GPU that is not visible here
// cannot be asked for.
inline bool whole_lines(int device, int peer) {
    if (device == peer) return true;
    int atomics = 0;
    if (peer >= 0) good(cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, peer), "cudaDeviceGetP2PAttribute");
    return atomics != 0;
}

inline Handle share(int device, void *memory) {
    On on(device);
    Handle handle{};
    good(cudaIpcGetMemHandle(&handle.memory, memory), "cudaIpcGetMemHandle");
    good(cudaDeviceGetPCIBusId(handle.bus, sizeof handle.bus, device), "cudaDeviceGetPCIBusId");
    return handle;
}
// The GPU of a handle, -1 where it is not visible in this process.
inline int device_of(int, const Handle &handle) {
    int device = -1;
    if (cudaDeviceGetByPCIBusId(&device, handle.bus) == cudaSuccess) return device;
    cudaGetLastError();
    return -1;
}
inline void *attach(int device, const Handle &handle) {
    On on(device);
    void *memory = nullptr;
    good(cudaIpcOpenMemHandle(&memory, handle.memory, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    return memory;
}
inline void detach(int device, void *memory) {
    On on(device);
    cudaIpcCloseMemHandle(memory);
}

// Memory of the host that kernels of every GPU and other processes reach; stores by the host need no CUDA call, so that
// they do not wait for kernels.
inline void *registered(int device, void *memory, size_t bytes) {
    try {
        On on(device);
        good(cudaHostRegister(memory, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped), "cudaHostRegister");
    } catch (...) {
        shared::release(memory);
        throw;
    }
    return memory;
}
inline void *allocate_host(int device, size_t bytes) { return registered(device, shared::allocate(bytes), bytes); }
inline void release_host(int device, void *memory) {
    On on(device);
    cudaHostUnregister(memory);
    shared::release(memory);
}
inline HostHandle share_host(void *memory) { return shared::share(memory); }
inline void *attach_host(int device, HostHandle handle) { return registered(device, shared::attach(handle), size_t(handle.bytes)); }
inline void *on_device(int device, void *memory) {
    On on(device);
    void *there = nullptr;
    good(cudaHostGetDevicePointer(&there, memory, 0), "cudaHostGetDevicePointer");
    return there;
}
inline int process_of(HostHandle handle) { return handle.process; }
inline bool lives_elsewhere(int process) { return process != getpid() && !shared::ended(process); }

template <class AnyKernel>
int resident_blocks(AnyKernel kernel, int device, int threads) {
    On on(device);
    int blocks = 0, processors = 0;
    good(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0), "occupancy");
    good(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return blocks * processors;
}

// `together`: its blocks wait for one another, so all of them must be resident at once.
template <class AnyKernel, class Parameters>
void start(AnyKernel kernel, int device, int blocks, int threads, const Parameters &launch, void *stream, bool together = true) {
    if (threads % WARP || threads > MAX_THREADS)
        throw std::runtime_error("expected a multiple of " + std::to_string(WARP) + " threads, at most " + std::to_string(MAX_THREADS));
    On on(device);
    void *parameters[] = {const_cast<Parameters *>(&launch)};
    const auto function = reinterpret_cast<const void *>(kernel);
    const auto on_stream = static_cast<cudaStream_t>(stream);
    if (together)
        good(cudaLaunchCooperativeKernel(function, dim3(blocks), dim3(threads), parameters, 0, on_stream), "cudaLaunchCooperativeKernel");
    else
        good(cudaLaunchKernel(function, dim3(blocks), dim3(threads), parameters, 0, on_stream), "cudaLaunchKernel");
}

// Another stream of a device, and the wait of a stream for all that another one has been given.
inline void *stream_of(int device) {
    On on(device);
    cudaStream_t stream;
    good(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
}
inline void release_stream(int device, void *stream) {
    On on(device);
    cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}
inline void follow(int device, void *stream, void *other) {
    On on(device);
    cudaEvent_t event;
    good(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    good(cudaEventRecord(event, static_cast<cudaStream_t>(other)), "cudaEventRecord");
    good(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), event, 0), "cudaStreamWaitEvent");
    good(cudaEventDestroy(event), "cudaEventDestroy");
}

inline void synchronise(int device, uint64_t) {
    On on(device);
    good(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

}  // namespace treadle::platform
